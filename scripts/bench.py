#!/usr/bin/env python3
"""Measures umwelt on this host, each figure beside a peer in the same run.

usage: bench.py BINARY RESULT.json

BINARY is the umwelt executable. Prints progress to stderr and a table to
stdout, writes the figures to RESULT.json; exits with 1 if a target is missed.
scripts/bench runs it where sandboxes can be started.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PREFIX = "umwelt-bench"
NAMES = ("umwelt-mcp", "umwelt-run", "umwelt-init")
CALLS = 21
STARTS = 5
GRANTS = 7
RECREATES = 3
# podman exec takes minutes for this under emulation.
STREAMS = 1
STREAM_BYTES = 1 << 30
CONCURRENT = 200
IDLE_SECONDS = 12
# Longer than pid 1 waits before it makes itself small (init/mod.rs).
REST_SECONDS = 5
# From control_plane.rs: the regular look at what events should have told.
BACKSTOP_SECONDS = 5
# How each of them waits.
WAITS = {"umwelt-run": "epoll_wait(", "umwelt-mcp": "ppoll("}
MIB = 1 << 20
WATCHED = (
    [".umwelt.toml", ".envrc", ".mcp.json", "AGENTS.md", "CLAUDE.md", ".vscode/tasks.json"]
    + [".git/config", ".git/HEAD", ".pre-commit-config.yaml", ".devcontainer/devcontainer.json"]
    + [f".git/hooks/hook-{number}" for number in range(10)]
    + [f".claude/commands/command-{number}.md" for number in range(20)]
)


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def timed(action, *arguments):
    start = time.monotonic()
    action(*arguments)
    return time.monotonic() - start


def interleaved(rounds, *actions, settle=lambda: None):
    """Times the actions in turn, so that what slows the host slows all of them."""
    times = [[] for _ in actions]
    for _ in range(rounds):
        for action, samples in zip(actions, times):
            settle()
            samples.append(timed(action))
    return times


class Place:
    """A workspace and a configuration of its own; podman's storage is the user's."""

    def __init__(self, binary):
        home = pathlib.Path.home()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="umwelt-bench-", dir=home))
        self.workspace = self.dir / "project"
        self.config = self.dir / "config"
        (self.config / "umwelt").mkdir(parents=True)
        self.workspace.mkdir()
        (self.dir / "bin").mkdir()
        shutil.copy(binary, self.dir / "bin" / "umwelt")
        for name in NAMES:
            (self.dir / "bin" / name).symlink_to("umwelt")
        # What holds a masked directory is granted by a new container only.
        self.masked = self.dir / "masked"
        (self.masked / "hidden").mkdir(parents=True)
        self.plain = self.dir / "plain"
        self.plain.mkdir()
        text = f'session_prefix = "{PREFIX}"\n[[mask]]\npath = "{self.masked}/hidden"\n'
        (self.config / "umwelt" / "umwelt.toml").write_text(text)
        self.sid = hashlib.sha256(os.fsencode(self.workspace)).hexdigest()[:8]
        self.container = f"{PREFIX}-{self.sid}"
        runtime = pathlib.Path(os.environ["XDG_RUNTIME_DIR"])
        self.socket = runtime / f"{self.container}.sock"
        self.environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(self.config),
            "XDG_STATE_HOME": str(self.dir / "state"),
        }
        data = os.environ.get("XDG_DATA_HOME", home / ".local/share")
        self.litter = [
            runtime / f"{self.container}.lock",
            pathlib.Path(data) / "umwelt" / f"journal-{self.container}.jsonl",
        ]

    def command(self, name):
        return [self.dir / "bin" / name, "--workspace", self.workspace]

    def podman_exec(self, *command):
        run = ["podman", "exec", self.container, *command]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, close_fds=False)

    def settle(self):
        """Until the clean-up that podman exec leaves behind is done: it is its own, not ours."""
        while is_podman_tidying():
            time.sleep(0.02)

    def wait_gone(self):
        """Until the container is gone, and podman's clean-up after it."""
        deadline = time.monotonic() + 60
        listing = ["podman", "ps", "-aq", "--filter", f"label=umwelt.sid={self.sid}"]
        while self.socket.exists() or subprocess.check_output(listing) or has_process(self.container):
            if time.monotonic() > deadline:
                raise SystemExit("bench: the sandbox does not go away")
            time.sleep(0.1)

    def remove(self):
        for path in self.litter:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.dir)


def has_process(text):
    own = str(os.getpid())
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.parent.name != own and text.encode() in path.read_bytes():
                return True
    return False


def is_podman_tidying():
    """conmon has the words for it in its own arguments, so podman's come first."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            program, *words = path.read_bytes().split(b"\0")
            if program.endswith(b"podman") and b"cleanup" in words:
                return True
    return False


def status_field(pid, name):
    """A number of /proc/PID/status; sizes are in KiB there."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


class Api:
    """A client of the socket API."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.socket.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
        self.lines = self.socket.makefile("rb")
        self.call("hello", {"api": 1, "client": "bench/1"})

    def call(self, method, params=None):
        request = {"id": 1, "method": method, "params": params or {}}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(self.lines.readline())
        if "result" not in answer:
            raise SystemExit(f"bench: {method}: {answer}")
        return answer["result"]


class Mcp:
    """umwelt-mcp with its stdin and stdout, as a client has it."""

    def __init__(self, place):
        self.process = subprocess.Popen(
            place.command("umwelt-mcp"),
            env=place.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            close_fds=False,
        )
        self.lines = os.fdopen(os.dup(self.process.stdout.fileno()), "rb")
        self.last = 0
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        self.answer(self.request("initialize", params))
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def request(self, method, params):
        self.last += 1
        self.send({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params})
        return self.last

    def answer(self, wanted):
        message = json.loads(self.lines.readline())
        if message.get("id") != wanted or "result" not in message:
            raise SystemExit(f"bench: unexpected answer {message}")
        return message["result"]

    def shell(self, command):
        params = {"name": "shell", "arguments": {"command": command, "timeout_s": 600}}
        result = self.answer(self.request("tools/call", params))
        if result["structuredContent"].get("exit_code") != 0:
            raise SystemExit(f"bench: {command!r} gave {result}")
        return result["structuredContent"]

    def shells(self, command, count):
        """As many at once."""
        params = {"name": "shell", "arguments": {"command": command}}
        open_calls = {self.request("tools/call", params) for _ in range(count)}
        while open_calls:
            message = json.loads(self.lines.readline())
            if message["result"]["structuredContent"].get("exit_code") != 0:
                raise SystemExit(f"bench: one of {count} gave {message}")
            open_calls.remove(message["id"])

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.lines.close()
        self.process.stdout.close()


class Table:
    """The figures, each with its peer and what was promised."""

    def __init__(self):
        self.rows = []

    def add(self, name, value, unit, limit, peer=None, samples=None):
        """`limit` is for the ratio to `peer`, a name and a value, or else for `value`."""
        row = {"name": name, "value": value, "unit": unit, "limit": limit}
        if peer:
            row["peer"], row["peer_value"] = peer
            row["ratio"] = value / peer[1]
        row["met"] = row.get("ratio", value) <= limit
        row["samples"] = samples or {}
        self.rows.append(row)
        say(f"{name}: {shown(value, unit)}, {'met' if row['met'] else 'MISSED'}")

    def render(self):
        head = ("figure", "umwelt", "peer", "its value", "ratio", "at most", "")
        cells = [head]
        for row in self.rows:
            unit = row["unit"]
            has_peer = "peer" in row
            cells.append(
                (
                    row["name"],
                    shown(row["value"], unit),
                    row.get("peer", "-"),
                    shown(row["peer_value"], unit) if has_peer else "-",
                    f"{row['ratio']:.3f}" if has_peer else "-",
                    f"{row['limit']:.3f}" if has_peer else shown(row["limit"], unit),
                    "met" if row["met"] else "MISSED",
                )
            )
        widths = [max(map(len, column)) for column in zip(*cells)]
        for line in cells:
            left = [cell.ljust(width) for cell, width in zip(line, widths)]
            right = [cell.rjust(width) for cell, width in zip(line, widths)]
            words = [left[0], right[1], left[2], *right[3:6], left[6]]
            print("  ".join(words).rstrip())


def shown(value, unit):
    if unit == "s":
        return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "B":
        return f"{value / MIB:.2f} MiB"
    return f"{value:g}"


def bench_calls(table, place, mcp):
    for _ in range(3):
        mcp.shell("true")
        place.podman_exec("true")
    attach = []

    def attach_and_call():
        second = Mcp(place)
        second.shell("true")
        attach.append(second)

    calls, attached, execs = interleaved(
        CALLS,
        lambda: mcp.shell("true"),
        attach_and_call,
        lambda: place.podman_exec("true"),
        settle=place.settle,
    )
    for second in attach:
        second.close()
    peer = ("podman exec true", statistics.median(execs))
    samples = {"umwelt": calls, "peer": execs}
    table.add("shell true over MCP", statistics.median(calls), "s", 1 / 15, peer, samples)
    samples = {"umwelt": attached, "peer": execs}
    name = "attach a second umwelt-mcp, first result"
    table.add(name, statistics.median(attached), "s", 1 / 5, peer, samples)
    return statistics.median(calls)


def bench_notices(table, place, mcp):
    """What a look at the files that the host obeys costs, with many of them there."""

    def calls():
        return [timed(mcp.shell, "true") for _ in range(CALLS)]

    without = calls()
    for name in WATCHED:
        path = place.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    # This one tells of them.
    mcp.shell("true")
    watched = calls()
    peer = ("shell true without them", statistics.median(without))
    samples = {"umwelt": watched, "peer": without}
    name = f"shell true, {len(WATCHED)} files watched"
    table.add(name, statistics.median(watched), "s", 1.1, peer, samples)


def bench_concurrency(table, mcp, call):
    one = statistics.median(timed(mcp.shell, "sleep 1") for _ in range(3))
    many = timed(mcp.shells, "sleep 1", CONCURRENT)
    peer = (f"one + {CONCURRENT} x shell true", one + CONCURRENT * call)
    table.add(f"{CONCURRENT} x sleep 1 at once", many, "s", 1.5, peer, {"one": [one]})


def bench_stream(table, place, mcp, run_pid):
    command = f"head -c {STREAM_BYTES} /dev/zero"
    before = status_field(run_pid, "VmRSS")
    pathlib.Path(f"/proc/{run_pid}/clear_refs").write_text("5")
    ours, theirs = interleaved(
        STREAMS, lambda: mcp.shell(command), lambda: place.podman_exec(*command.split())
    )
    growth = (status_field(run_pid, "VmHWM") - before) * 1024
    peer = ("podman exec head >/dev/null", statistics.median(theirs))
    samples = {"umwelt": ours, "peer": theirs}
    table.add("head -c 1G through shell", statistics.median(ours), "s", 1.0, peer, samples)
    table.add("growth of umwelt-run's memory by that", growth, "B", 8 * MIB)


def bench_idle(table, run_pid, mcp_pid, init_pid):
    time.sleep(REST_SECONDS)
    pids = (("umwelt-run", run_pid, 6), ("umwelt-mcp", mcp_pid, 4), ("umwelt-init", init_pid, 2))
    for name, pid, limit in pids:
        table.add(f"resident memory of {name}, idle", status_field(pid, "VmRSS") * 1024, "B", limit * MIB)
    say(f"watching what is idle for {IDLE_SECONDS} s")
    switches = status_field(init_pid, "voluntary_ctxt_switches")
    counts = idle_calls({"umwelt-run": run_pid, "umwelt-mcp": mcp_pid})
    switches = status_field(init_pid, "voluntary_ctxt_switches") - switches
    looks = IDLE_SECONDS // BACKSTOP_SECONDS + 1
    table.add("umwelt-run: wake-ups while idle", counts["umwelt-run"], "", looks)
    table.add("umwelt-mcp: wake-ups while idle", counts["umwelt-mcp"], "", 0)
    table.add("umwelt-init: wake-ups while idle", switches, "", 0)


def idle_calls(pids):
    """How often each of them came back from waiting, by strace."""
    with tempfile.TemporaryDirectory() as logs:
        tracers = []
        for name, pid in pids.items():
            log = f"{logs}/{name}"
            argv = ["strace", "-f", "-ttt", "-o", log, "-p", str(pid)]
            tracers.append(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
        # Attaching interrupts the wait that is under way.
        time.sleep(2)
        start = time.time()
        time.sleep(IDLE_SECONDS)
        end = time.time()
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
        counts = {}
        for name in pids:
            with open(f"{logs}/{name}") as lines:
                seen = [line.split(None, 2) for line in lines]
            calls = [call for _, at, call in seen if start <= float(at) <= end]
            counts[name] = sum(call.startswith(WAITS[name]) for call in calls)
        return counts


def start_ours(place):
    """Starts umwelt-run; returns once the sandbox is ready."""
    process = subprocess.Popen(
        place.command("umwelt-run"),
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )
    api = Api(place.socket)
    # Answered when the sandbox is ready.
    api.call("list")
    return process, api


def bare_argv(place):
    """The argv of our own container, for podman run without us.

    Not detached, without descriptor 3, and with a program that prints one
    byte. What the argv names below our directories is copied first.
    """
    form = "{{json .Config.CreateCommand}}"
    inspect = ["podman", "inspect", "--format", form, place.container]
    argv = json.loads(subprocess.check_output(inspect))
    runtime = place.socket.with_suffix("")
    copies = {str(runtime): place.dir / "runtime"}
    shutil.copytree(runtime, copies[str(runtime)])
    output = place.dir / "state" / "umwelt" / place.container / "output"
    copies[str(output)] = place.dir / "output"
    copies[str(output)].mkdir()
    bare = []
    for word in argv:
        if word in ("--detach", "--preserve-fds=1") or word.startswith("--cidfile="):
            continue
        if word.startswith("--name="):
            word = f"--name={place.container}-bare"
        if word.startswith("--entrypoint="):
            word = '--entrypoint=["/bin/sh", "-c", "printf x; exec cat"]'
        # Sources only: the paths inside stay as they are.
        for path, copy in copies.items():
            word = word.replace(f"src={path}", f"src={copy}").replace(f"seccomp={path}", f"seccomp={copy}")
        bare.append(word)
    return bare


def bench_start(table, place, argv):
    ours, bare = [], []
    for number in range(STARTS + 1):
        say(f"start {number} of {STARTS}")
        start = time.monotonic()
        process, _api = start_ours(place)
        ours.append(time.monotonic() - start)
        process.terminate()
        process.wait(60)
        place.wait_gone()
        start = time.monotonic()
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, close_fds=False) as process:
            if process.stdout.read(1) != b"x":
                raise SystemExit("bench: the bare container does not run")
            bare.append(time.monotonic() - start)
        place.wait_gone()
    # The first round warms the caches.
    ours, bare = ours[1:], bare[1:]
    peer = ("podman run, first byte", statistics.median(bare))
    samples = {"umwelt": ours, "peer": bare}
    table.add("start of umwelt-run until ready", statistics.median(ours), "s", 1.25, peer, samples)


def bench_grants(table, place, api, argv):
    def change(path, expected):
        answer = api.call("grant", {"path": str(path), "mode": "ro"})
        if answer["applied"] != expected:
            raise SystemExit(f"bench: a grant of {path} was {answer['applied']}")

    live, recreated = [], []
    for _ in range(GRANTS):
        live.append(timed(change, place.plain, "live"))
        api.call("revoke", {"path": str(place.plain)})
    bare = BareContainer(argv)
    bare.run()
    again = []
    for number in range(RECREATES):
        say(f"new container {number + 1} of {RECREATES}")
        recreated.append(timed(change, place.masked, "recreated"))
        api.call("revoke", {"path": str(place.masked)})
        again.append(timed(bare.replace))
    bare.end()
    median = statistics.median
    samples = {"umwelt": live, "peer": recreated}
    peer = ("grant by a new container", median(recreated))
    table.add("grant in the running container", median(live), "s", 1 / 10, peer, samples)
    samples = {"umwelt": recreated, "peer": again}
    peer = ("podman rm -f, podman run", median(again))
    table.add("grant by a new container", median(recreated), "s", 1.25, peer, samples)


class BareContainer:
    """The same argv, run by podman without us."""

    def __init__(self, argv):
        # This one stays.
        self.argv = [word.replace("exec cat", "exec sleep 600") for word in argv]
        name = next(word for word in argv if word.startswith("--name="))
        self.name = name.removeprefix("--name=")

    def run(self):
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, close_fds=False
        )
        if self.process.stdout.read(1) != b"x":
            raise SystemExit("bench: the bare container does not run")

    def end(self):
        remove = ["podman", "rm", "-f", "-t", "0", self.name]
        subprocess.run(remove, check=True, stdout=subprocess.DEVNULL)
        self.process.stdout.close()
        self.process.wait(60)

    def replace(self):
        self.end()
        self.run()


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    place = Place(sys.argv[1])
    table = Table()
    try:
        say("starting a sandbox")
        process, api = start_ours(place)
        argv = bare_argv(place)
        mcp = Mcp(place)
        mcp.shell("true")
        status = api.call("status")
        call = bench_calls(table, place, mcp)
        bench_notices(table, place, mcp)
        bench_concurrency(table, mcp, call)
        bench_stream(table, place, mcp, status["pid"])
        # After the work, so that what it left behind counts.
        time.sleep(3)
        bench_idle(table, status["pid"], mcp.process.pid, status["init_pid"])
        bench_grants(table, place, api, argv)
        mcp.close()
        process.terminate()
        process.wait(60)
        place.wait_gone()
        bench_start(table, place, argv)
    finally:
        place.remove()
    pathlib.Path(sys.argv[2]).write_text(json.dumps({"figures": table.rows}, indent=2) + "\n")
    table.render()
    sys.exit(0 if all(row["met"] for row in table.rows) else 1)


if __name__ == "__main__":
    main()
