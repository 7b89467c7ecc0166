# What the tests reach for: HTTPS and HTTP that say what was asked, and UDP that answers.
import http.server
import socket
import ssl
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f"asked for {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def serve(port, context=None):
    server = http.server.ThreadingHTTPServer(("", port), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/srv/server.pem", "/srv/server.key")
serve(443, context)
serve(80)
serve(81)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 53))
print("ready", flush=True)
while True:
    data, peer = udp.recvfrom(512)
    udp.sendto(data, peer)
