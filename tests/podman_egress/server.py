# What the tests reach for: HTTPS and HTTP that say what was asked and answer as the path says, UDP
# that answers, and, where the programs are there, git and ssh with a repository.
import base64
import hashlib
import http.server
import os
import socket
import ssl
import subprocess
import sys
import threading
import zipfile

MIB = 1 << 20
WHEEL = "demo-1.0-py3-none-any.whl"
LOGIN = "Basic " + base64.b64encode(b"user:secret").decode()
# One event more for each that has arrived.
arrived = threading.Semaphore(1)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path.startswith("/ok/git/"):
            self.git(path, query)
        elif path == "/ok/events":
            self.events()
        elif path == "/ok/arrived":
            arrived.release()
            self.answer(b"")
        elif path == "/ok/ws":
            self.websocket()
        elif path.startswith("/ok/big/"):
            self.big(int(path.rpartition("/")[2]))
        elif path == "/ok/simple/demo/":
            self.answer(f'<a href="/ok/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
        elif path == f"/ok/{WHEEL}":
            self.answer(open(f"/tmp/{WHEEL}", "rb").read())
        else:
            self.answer(f"asked for {self.path}\n".encode())

    def do_PUT(self):
        size = sum(map(len, self.body()))
        how = self.headers.get("Transfer-Encoding", "length")
        self.answer(f"got {size} by {how}\n".encode())

    def do_POST(self):
        path, _, query = self.path.partition("?")
        self.git(path, query) if path.startswith("/ok/git/") else self.do_PUT()

    def answer(self, body, kind="text/plain", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        """Yields the pieces of the request's body."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, MIB))
            left -= len(piece)
            yield piece

    def big(self, mib):
        print(f"big {mib}", flush=True)
        self.send_response(200)
        self.send_header("Content-Length", str(mib * MIB))
        self.end_headers()
        for _ in range(mib):
            self.wfile.write(bytes(MIB))

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(3):
            arrived.acquire()
            self.wfile.write(f"data: {number}\n\n".encode())
        self.close_connection = True

    def websocket(self):
        """Sends back what comes, frame by frame, and ends with the client."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        while head := self.rfile.read(2):
            length = head[1] & 0x7F
            mask, data = self.rfile.read(4), self.rfile.read(length)
            clear = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            self.wfile.write(bytes([head[0], length]) + clear)
        self.close_connection = True

    def git(self, path, query):
        login, protocol = self.headers.get("Authorization"), self.headers.get("Git-Protocol")
        how = self.headers.get("Transfer-Encoding", "length")
        print(f"git {self.command} {path} {'login' if login else 'nobody'} {protocol} {how}", flush=True)
        if login != LOGIN:
            for _ in self.body():
                pass
            return self.answer(b"who are you?\n", status=401)
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": "/repositories",
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path.removeprefix("/ok/git"),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": "user",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": protocol or "",
        }
        backend = subprocess.Popen(
            ["git", "http-backend"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )
        for piece in self.body():
            backend.stdin.write(piece)
        backend.stdin.close()
        self.send_response(200)
        while (line := backend.stdout.readline().strip().decode()):
            name, _, value = line.partition(": ")
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := backend.stdout.read1(MIB):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
        backend.wait()

    def log_message(self, *arguments):
        pass


def serve(port, context=None):
    server = http.server.ThreadingHTTPServer(("", port), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def make_wheel():
    files = {
        "demo.py": "print('demo was installed')\n",
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["demo-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(f"/tmp/{WHEEL}", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def make_repositories(mib):
    """A large one of random bytes, on which no compression is tried, and a small one."""
    script = """
        git config --global user.name t; git config --global user.email t@example.org
        git config --global core.compression 0; git config --global init.defaultBranch main
        git init -q --bare /repositories/demo.git
        git -C /repositories/demo.git config http.receivepack true
        git init -q /tmp/demo; cd /tmp/demo
        echo '*.bin -delta' >.gitattributes
        for i in $(seq $1); do head -c 4M /dev/urandom >$i.bin; done
        git add .; git commit -q -m first; git push -q /repositories/demo.git main
        git init -q --bare /repositories/small.git
        git init -q /tmp/small; cd /tmp/small
        git commit -q --allow-empty -m first; git push -q /repositories/small.git main
    """
    subprocess.run(["bash", "-ec", script, "repository", str(mib // 4)], check=True)


def start_sshd():
    with open("/etc/passwd", "a") as passwd:
        passwd.write("sshd:x:74:74::/run/sshd:/usr/sbin/nologin\n")
    os.mkdir("/run/sshd", 0o755)
    subprocess.run(
        ["/usr/sbin/sshd", "-f", "/dev/null", "-h", "/srv/host_key", "-E", "/tmp/sshd.log"]
        + ["-p", "22", "-p", "2222", "-p", "2223"]
        + ["-oAuthorizedKeysFile=/srv/key.pub", "-oStrictModes=no", "-oPermitRootLogin=yes"],
        check=True,
    )


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/srv/server.pem", "/srv/server.key")
make_wheel()
if "git" in sys.argv:
    make_repositories(8)
    start_sshd()
serve(443, context)
serve(80)
serve(81)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 53))
print("ready", flush=True)
while True:
    data, peer = udp.recvfrom(512)
    udp.sendto(data, peer)
