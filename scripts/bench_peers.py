"""What scripts/bench_gateway.py measures: the server, the gateway and its peers, each a process.

All of them listen on the loopback interface, verify the server's certificate where they look
inside, and allow one host and one path.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time

HOST = "localhost"
PATHS = "/f/"
PATIENCE = 30
MIB = 1 << 20
# Of one connection; four share it.
BULK = 256 * MIB

OPENSSL = """
[req]
distinguished_name = name
string_mask = utf8only
prompt = no
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = {key_id}
[server]
subjectAltName = DNS:{host}
"""

NGINX = """
daemon off;
worker_processes 2;
worker_rlimit_nofile {files};
error_log stderr crit;
pid {dir}/nginx.pid;
events {{ worker_connections {connections}; multi_accept on; }}
http {{
    access_log off;
    sendfile on;
    tcp_nodelay on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    client_header_timeout 3600s;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    ssl_certificate {dir}/server.pem;
    ssl_certificate_key {dir}/server.key;
    ssl_session_tickets off;
    ssl_session_cache off;
    server {{
        listen 127.0.0.1:{port} ssl backlog=4096;
        listen 127.0.0.1:{tunnel_port} ssl backlog=4096;
        root {dir}/files;
        location /f/up/ {{ dav_methods PUT; }}
    }}
}}
"""

SQUID = """
http_port 127.0.0.1:{port}
acl host dstdomain {host}
acl tls port {server}
http_access deny !CONNECT
http_access deny CONNECT !tls
http_access allow CONNECT host
http_access deny all
cache deny all
cache_mem 8 MB
access_log none
cache_log {dir}/squid/cache.log
pid_filename none
coredump_dir {dir}/squid
shutdown_lifetime 0 seconds
max_filedescriptors {files}
"""

MITMPROXY = """
from mitmproxy import http

def http_connect(flow):
    if flow.request.host != "{host}":
        flow.response = http.Response.make(403)

def requestheaders(flow):
    if flow.request.pretty_host != "{host}" or not flow.request.path.startswith("{paths}"):
        flow.response = http.Response.make(403)
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_open(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def file_limit():
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


class Process:
    """A server that was started; `port` answers."""

    def __init__(self, name, port, argv, log, environment=None):
        self.name = name
        self.port = port
        self.log = log
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
            )

    def wait_open(self, pause=0.01):
        deadline = time.monotonic() + PATIENCE
        while not is_open(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = pathlib.Path(self.log).read_text(errors="replace")[-2000:]
                raise SystemExit(f"bench: {self.name} does not start: {said}")
            time.sleep(pause)
        return self

    def cpu(self):
        """Seconds that its threads have run, to the nanosecond."""
        total = 0
        for path in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            total += int((path / "schedstat").read_text().split()[0])
        return total / 1e9

    def pss(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise KeyError("Pss")

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class World:
    """A folder with certificates and files, the server, and whoever else was started."""

    def __init__(self, folder, programs):
        self.dir = pathlib.Path(folder)
        # Squid gives root's rights up and must find its way.
        self.dir.chmod(0o755)
        self.programs = programs
        self.files = file_limit()
        self.running = []
        self.make_certificates()
        self.make_files()
        self.server_port = free_port()
        self.tunnel_port = free_port()

    def write(self, name, text):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def openssl(self, *words, data=None):
        done = subprocess.run(["openssl", *words], cwd=self.dir, input=data, capture_output=True)
        if done.returncode:
            raise SystemExit(f"bench: openssl {words[0]}: {done.stderr.decode()}")
        return done.stdout

    def make_certificates(self):
        """One authority for all; the gateway wants it named after its key."""
        curve = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]
        self.openssl(*curve, "ca.key")
        self.openssl(*curve, "server.key")
        public = self.openssl("pkey", "-in", "ca.key", "-pubout", "-outform", "DER")
        digest = hashlib.sha256(public).hexdigest()
        config = {"name": f"umwelt egress {digest[:16]}", "key_id": digest[:40], "host": HOST}
        self.write("openssl.cnf", OPENSSL.format(**config))
        new = ["req", "-config", "openssl.cnf", "-new"]
        made = ["-x509", "-days", "30", "-key", "ca.key", "-extensions", "authority"]
        self.openssl(*new, *made, "-out", "ca.pem")
        request = self.openssl(*new, "-key", "server.key", "-subj", f"/CN={HOST}")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-extfile", "openssl.cnf", "-extensions", "server"]
        self.openssl("x509", "-req", "-days", "7", *signed, "-out", "server.pem", data=request)
        (self.dir / "server.key").chmod(0o644)

    def make_files(self):
        files = self.dir / "files/f"
        (files / "up").mkdir(parents=True)
        (files / "1k").write_bytes(os.urandom(1024))
        for name, size in (("one", BULK), ("four", BULK // 4)):
            with open(files / name, "wb") as file:
                file.truncate(size)
        # Uploads are written there, by whatever user nginx is.
        for path in (files, files / "up"):
            path.chmod(0o777)

    def start(self, name, port, argv, environment=None, pause=0.01):
        process = Process(name, port, argv, self.dir / f"{name}.log", environment)
        self.running.append(process)
        return process.wait_open(pause)

    def end(self, process):
        process.end()
        self.running.remove(process)

    def end_all(self):
        for process in reversed(self.running):
            process.end()
        self.running = []

    def nginx(self):
        values = {
            "dir": self.dir,
            "port": self.server_port,
            "tunnel_port": self.tunnel_port,
            "files": self.files,
            "connections": self.files // 2,
        }
        config = self.write("nginx.conf", NGINX.format(**values))
        user = ["-g", "user root;"] if os.geteuid() == 0 else []
        argv = ["nginx", "-e", "stderr", "-c", config, *user]
        self.server = self.start("nginx", self.server_port, argv)
        return self.server

    @contextlib.contextmanager
    def server_on(self, cpus):
        """Keeps nginx to these processors."""
        master = self.server.process.pid
        workers = pathlib.Path(f"/proc/{master}/task/{master}/children").read_text().split()
        before = os.sched_getaffinity(master)
        for worker in map(int, workers):
            os.sched_setaffinity(worker, cpus)
        try:
            yield
        finally:
            for worker in map(int, workers):
                os.sched_setaffinity(worker, before)

    def squid(self):
        port = free_port()
        folder = self.dir / "squid"
        folder.mkdir()
        folder.chmod(0o777)
        values = {"port": port, "host": HOST, "server": self.server_port, "dir": self.dir}
        config = self.write("squid.conf", SQUID.format(files=self.files, **values))
        return self.start("squid", port, ["squid", "-N", "-f", config])

    def mitmproxy(self):
        port = free_port()
        text = (self.dir / "ca.key").read_text() + (self.dir / "ca.pem").read_text()
        self.write("mitmproxy/mitmproxy-ca.pem", text)
        addon = self.write("addon.py", MITMPROXY.format(host=HOST, paths=PATHS))
        options = {
            "confdir": self.dir / "mitmproxy",
            "connection_strategy": "lazy",
            "ssl_verify_upstream_trusted_ca": self.dir / "ca.pem",
            "stream_large_bodies": "1m",
        }
        argv = [self.programs["mitmdump"], "-q", "-s", addon, "--mode", f"regular@127.0.0.1:{port}"]
        for name, value in options.items():
            argv += ["--set", f"{name}={value}"]
        return self.start("mitmproxy", port, argv)

    def hudsucker(self):
        port = free_port()
        files = [self.dir / name for name in ("ca.pem", "ca.key", "ca.pem")]
        argv = [self.programs["hudsucker"], f"127.0.0.1:{port}", *files, HOST, PATHS]
        return self.start("hudsucker", port, argv)

    def policy(self, rules=1):
        """As umwelt-run writes it; most of the rules are for other hosts, and some for this one."""

        def rule(host, port, path, inspect=True):
            fixed = {"methods": None, "private": True, "origin": "base"}
            return {"host": host, "port": port, "paths": [path], "inspect": inspect, **fixed}

        https = [rule(f"host-{number}.example.org", 443, "/a/*") for number in range(rules - 2)]
        https.append(rule(HOST, self.server_port, f"{PATHS}*"))
        https.append(rule(HOST, self.tunnel_port, "/*", False))
        hosts = [{"name": HOST, "address": "127.0.0.1", "origin": "base"}]
        policy = {"version": 1, "workspace": "0123abcd", "https": https, "tcp": [], "hosts": hosts}
        return json.dumps(policy)

    def gateway_argv(self, name, port, rules):
        folder = self.dir / name
        shutil.rmtree(folder, ignore_errors=True)
        policy = self.write(f"{name}/policy.json", self.policy(rules))
        link = folder / "umwelt-gateway"
        link.symlink_to(pathlib.Path(self.programs["umwelt"]).resolve())
        argv = [link, "--policy", policy, "--ca-cert", self.dir / "ca.pem"]
        argv += ["--ca-key", self.dir / "ca.key", "--roots", self.dir / "ca.pem"]
        argv += ["--audit", folder / "audit.jsonl", "--listen", "127.0.0.1"]
        return [*argv, "--proxy-port", str(port), "--socks-port", "0", "--dns-port", "0"]

    def gateway(self, name="umwelt", rules=10, pause=0.01):
        port = free_port()
        argv = self.gateway_argv(name, port, rules)
        return self.start(name, port, argv, {"UMWELT_LOG": "error"}, pause)

    def load_argv(self, route, *command, port=None):
        proxy = f"127.0.0.1:{route.port}" if route else "direct"
        server = f"127.0.0.1:{port or self.server_port}"
        words = [proxy, server, HOST, self.dir / "ca.pem", *map(str, command)]
        return [self.programs["load"], *words]

    def load(self, route, *command, cpus=()):
        """What the client says, and the CPU seconds that the proxy has used for it; the client
        keeps to `cpus`."""
        before = route.cpu() if route else 0
        argv = self.load_argv(route, *command)
        if cpus:
            argv = ["taskset", "--cpu-list", ",".join(map(str, cpus)), *argv]
        done = subprocess.run(argv, capture_output=True, timeout=120)
        if done.returncode:
            name = route.name if route else "direct"
            raise SystemExit(f"bench: {name}, {' '.join(map(str, command))}: {done.stderr.decode()}")
        result = json.loads(done.stdout)
        return {**result, "cpu": route.cpu() - before if route else 0}
