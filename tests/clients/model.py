"""A server of a model that says what it was told to say.

The turns of a conversation are given beforehand. Every request is kept, so that a test can look at
what the model would have read, and at the tools that it was offered.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import dialects


def call(tool, **arguments):
    """A turn that calls a tool."""
    return {"tool": tool, "arguments": arguments}


class Model:
    """Serves on a free port of the loopback interface while it is a context."""

    def __init__(self, turns):
        self.turns = list(turns)
        self.requests = []
        self.dialect = None
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self.server.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, dialect, request):
        """The stream of the next turn. Clients also ask for a title, without any tools."""
        if not request.get("tools"):
            return dialect.stream("a title", 0)
        with self.lock:
            self.dialect = dialect
            self.requests.append(request)
            number = len(self.requests)
        turn = self.turns[number - 1] if number <= len(self.turns) else "nothing is left to say"
        return dialect.stream(turn, number)

    def offered(self):
        """The names of the tools in the first request."""
        return sorted(self.dialect.tools(self.requests[0])) if self.requests else []

    def results(self):
        """What the calls were answered with, by the last request."""
        return self.dialect.results(self.requests[-1]) if self.requests else []

    def instructions(self):
        """What is said to the model before its first turn."""
        return self.dialect.system(self.requests[0]) if self.requests else ""

    def tell(self):
        """For a log: how far the conversation has come."""
        print(f"the model was asked {len(self.requests)} times for {len(self.turns)} turns; offered: {self.offered()}")
        for result in self.results():
            print(f"  a call was answered with: {result}")


def handler_for(model):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = urlsplit(self.path).path
            dialect = next((known for known in dialects.ALL if known.path == path), None)
            if dialect is None:
                self.no_such_thing()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for part in model.answer(dialect, json.loads(body)):
                self.wfile.write(part)
            self.close_connection = True

        def no_such_thing(self):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = no_such_thing

        def log_message(self, *_):
            pass

    return Handler
