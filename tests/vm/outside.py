# The rest of the world, in a network namespace of its own, as long as the file "names" is there:
# HTTPS and HTTP at one address, and a resolver at another, which writes down what it is asked. As
# long as the file "gone" is there, nobody listens at the resolver's address.
import http.server
import os
import socket
import ssl
import struct
import sys
import threading
import time

folder, address, resolver = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"asked for {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def serve(port, context=None):
    server = http.server.ThreadingHTTPServer((address, port), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def answer(packet):
    at, labels = 12, []
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    kind = struct.unpack(">H", packet[at + 1 : at + 3])[0]
    with open(f"{folder}/names", "a") as names:
        print(".".join(labels), file=names)
    count = 1 if kind == 1 and labels[-2:] == ["example", "org"] else 0
    head = packet[:2] + b"\x81\x80" + struct.pack(">HHHH", 1, count, 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(address)
    return head + packet[12 : at + 5] + record * count


def is_wanted():
    return os.path.exists(f"{folder}/names")


# What the certificate is for is known when the test begins.
while is_wanted() and not os.path.exists(f"{folder}/server.key"):
    time.sleep(0.1)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{folder}/server.pem", f"{folder}/server.key")
serve(443, context)
serve(80)
open(f"{folder}/serving", "w").close()
while is_wanted():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((resolver, 53))
    udp.settimeout(0.1)
    while is_wanted() and not os.path.exists(f"{folder}/gone"):
        try:
            packet, peer = udp.recvfrom(512)
            udp.sendto(answer(packet), peer)
        except TimeoutError:
            pass
        except (IndexError, struct.error, UnicodeDecodeError):
            # The attack's packets are no questions.
            pass
    udp.close()
    while is_wanted() and os.path.exists(f"{folder}/gone"):
        time.sleep(0.1)
