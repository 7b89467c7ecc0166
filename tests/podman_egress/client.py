# Programs of a sandbox that find their way by the environment alone.
import os
import socket
import ssl
import sys
import urllib.parse
import urllib.request


def with_urllib(url):
    print(urllib.request.urlopen(url, timeout=50).read().decode())


def with_requests(url):
    # pip brings the whole library along.
    from pip._vendor import requests

    response = requests.get(url, timeout=50)
    print(response.text)
    response.raise_for_status()


def events(url):
    """The next event is sent only after this one has arrived."""
    with urllib.request.urlopen(url, timeout=50) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                print(line.decode().strip(), flush=True)
                urllib.request.urlopen(urllib.parse.urljoin(url, "arrived")).read()


def websocket(url):
    """Two messages there and back; the frames are masked with zeros."""
    target = urllib.parse.urlsplit(url)
    proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
    plain = socket.create_connection((proxy.hostname, proxy.port), timeout=50)
    plain.sendall(f"CONNECT {target.hostname}:443 HTTP/1.1\r\nHost: {target.hostname}:443\r\n\r\n".encode())
    said = head(plain)
    if " 200 " not in said.splitlines()[0]:
        sys.exit(said + plain.makefile().read())
    tls = ssl.create_default_context().wrap_socket(plain, server_hostname=target.hostname)
    request = f"GET {target.path} HTTP/1.1\r\nHost: {target.hostname}\r\nConnection: Upgrade\r\n"
    request += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    tls.sendall(request.encode())
    said = head(tls)
    if " 101 " not in said.splitlines()[0]:
        sys.exit(said + tls.makefile().readline())
    stream = tls.makefile("rb")
    for text in (b"one", b"two"):
        tls.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
        print(stream.read(2 + len(text))[2:].decode())


def head(stream):
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte:
            sys.exit(f"the end after {said!r}")
        said += byte
    return said.decode()


commands = {"urllib": with_urllib, "requests": with_requests, "events": events, "websocket": websocket}
try:
    commands[sys.argv[1]](sys.argv[2])
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
