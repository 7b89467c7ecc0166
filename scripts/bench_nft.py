"""Throughput of a direct tcp rule through our nft table, beside the same connection without it.

Two pairs of network namespaces, joined by a cable each, in a user namespace of their own, which
is where umwelt-nft-hook installs its table. They go with the processes that hold them.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

# Short and many: on a busy host the rounds differ more than the two do.
ROUNDS = 61
BYTES = 128 << 20
PLAIN = "without the table"
RULESET = pathlib.Path(__file__).resolve().parent.parent / "tests/data/nft/one-target.json"
# What that ruleset lets through.
TARGET, PORT = "203.0.113.7", 22
INSIDE, OUTSIDE = "192.0.2.2", "192.0.2.1"
STATE = '{"ociVersion":"1.0","id":"0","pid":0,"root":"/r","bundle":"/b","status":"created"}'

SINK = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
room = bytearray(1 << 20)
print(flush=True)
while True:
    client, _ = listener.accept()
    while client.recv_into(room):
        pass
    client.sendall(b"x")
    client.close()
"""

SOURCE = """
import socket, sys, time
piece = bytes(1 << 20)
for line in sys.stdin:
    client = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    start = time.monotonic()
    for _ in range(int(line) // len(piece)):
        client.sendall(piece)
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b"x"
    print(time.monotonic() - start, flush=True)
    client.close()
"""


class Pair:
    """A sandbox's network and what is outside of it, each held by a process."""

    def __init__(self):
        self.held = []
        self.inside = self.hold(["unshare", "--user", "--map-root-user", "--net"])
        self.outside = self.hold([*self.enter(self.inside, "--user"), "unshare", "--net"])
        peer = self.outside.pid
        self.run(self.inside, f"ip link add eth0 type veth peer name eth0 netns {peer}")
        plans = ((self.inside, [f"{INSIDE}/24"]), (self.outside, [f"{OUTSIDE}/24", f"{TARGET}/32"]))
        for side, addresses in plans:
            for address in addresses:
                self.run(side, f"ip addr add {address} dev eth0")
            self.run(side, "ip link set lo up")
            self.run(side, "ip link set eth0 up")
        self.run(self.inside, f"ip route add default via {OUTSIDE}")
        argv = [*self.enter(self.outside), sys.executable, "-c", SINK, TARGET, str(PORT)]
        self.sink = self.hold(argv, "")
        argv = [*self.enter(self.inside), sys.executable, "-c", SOURCE, TARGET, str(PORT)]
        self.source = self.start(argv)

    def start(self, argv):
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        self.held.append(process)
        return process

    def hold(self, argv, then="echo; exec cat"):
        """A process that says when it is there, and lives until its stdin ends."""
        process = self.start([*argv, "sh", "-c", then] if then else argv)
        if not process.stdout.readline():
            raise SystemExit(f"bench: {argv} does not run")
        return process

    def enter(self, process, *more):
        words = ["nsenter", "--target", str(process.pid), "--preserve-credentials"]
        return [*words, *(more or ("--user", "--net")), "--"]

    def run(self, process, line):
        subprocess.run([*self.enter(process), *line.split()], check=True)

    def install(self, umwelt):
        digest = hashlib.sha256(RULESET.read_bytes()).hexdigest()
        argv = [umwelt, "nft-hook", "--ruleset", RULESET, "--digest", digest, "--nft", "/usr/sbin/nft"]
        subprocess.run([*self.enter(self.inside), *argv], input=STATE.encode(), check=True)

    def cpu(self):
        """Seconds that both ends have run; the way between is in the sender's."""
        paths = (f"/proc/{end.pid}/schedstat" for end in (self.source, self.sink))
        return sum(int(pathlib.Path(path).read_text().split()[0]) for path in paths) / 1e9

    def transfer(self):
        before = self.cpu()
        self.source.stdin.write(f"{BYTES}\n")
        self.source.stdin.flush()
        rate = BYTES / float(self.source.stdout.readline())
        return rate, (self.cpu() - before) * (1 << 30) / BYTES

    def remove(self):
        for process in reversed(self.held):
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def bench(table, umwelt, ours):
    pairs = {PLAIN: Pair(), ours: Pair()}
    try:
        pairs[ours].install(umwelt)
        samples = {name: [] for name in pairs}
        for _ in range(ROUNDS + 1):
            for name, pair in pairs.items():
                samples[name].append(pair.transfer())
        # The first one warms the caches.
        rates, cpu = (
            {name: [values[which] for values in samples[name][1:]] for name in pairs}
            for which in (0, 1)
        )
        table.compare_best("direct tcp rule, throughput", rates, "B/s", PLAIN, at_least=0.95)
        table.compare("direct tcp rule, CPU of both ends per GiB", cpu, "s", PLAIN, at_most=1.05)
    finally:
        for pair in pairs.values():
            pair.remove()
