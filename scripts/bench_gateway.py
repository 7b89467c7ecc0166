#!/usr/bin/env python3
"""Measures umwelt-gateway beside its peers, all in one run on the loopback interface.

usage: bench_gateway.py PROGRAMS.json RESULT.json [PART]...

PROGRAMS.json names the executables (umwelt, load, hudsucker, mitmdump). Prints progress to
stderr and tables to stdout, writes the figures to RESULT.json; exits with 1 if a target is
missed. Each round runs all options one after the other, another one first, and a ratio is the
median of the rounds' ratios, so that what slows the host hits all alike.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import bench_nft
from bench_peers import BULK, MIB, World, free_port, is_open

CONCURRENT = 8
ROUNDS = 7
RATE_SECONDS = 1.0
LATENCY_REQUESTS = 1500
# One that is slower by far needs fewer to be known.
SLOW_REQUESTS = 300
BULK_ROUNDS = 5
STARTS = 20
IDLE = 10_000
RULES = 10_000
FEW_RULES = 10
SETTLE = 1.0
DIRECT = "direct"
UMWELT = "umwelt"
INSPECTING = ("hudsucker", "mitmproxy")
PARTS = ("starts", "load", "rules", "idle", "nft")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def shown(value, unit):
    if unit == "s":
        return f"{value * 1e6:.0f} us" if value < 1e-3 else f"{value * 1e3:.1f} ms"
    if unit == "B":
        return f"{value / MIB:.2f} MiB" if value >= MIB else f"{value / 1024:.1f} KiB"
    if unit == "B/s":
        return f"{value / 1e6:.0f} MB/s"
    return f"{value:.0f}{unit}"


class Table:
    """The figures, each with what was promised."""

    def __init__(self):
        self.rows = []

    def add(self, name, value, unit, limit, samples=None):
        """`limit` is the most that `value` may be."""
        row = {"name": name, "value": value, "unit": unit, "at_most": limit}
        self.push({**row, "met": value <= limit, "samples": samples or {}})

    def compare(self, name, samples, unit, peer, at_least=None, at_most=None):
        """`samples` has the rounds of each option; the limit is for our ratio to `peer`."""
        ratios = [ours / theirs for ours, theirs in zip(samples[UMWELT], samples[peer])]
        values = [statistics.median(samples[option]) for option in (UMWELT, peer)]
        self.relate(name, samples, unit, peer, values, statistics.median(ratios), at_least, at_most)

    def compare_best(self, name, samples, unit, peer, at_least):
        """The same of the best tenth: whoever else runs makes things slower, never faster."""
        values = [statistics.quantiles(samples[option], n=10)[-1] for option in (UMWELT, peer)]
        self.relate(name, samples, unit, peer, values, values[0] / values[1], at_least, None)

    def relate(self, name, samples, unit, peer, values, ratio, at_least, at_most):
        row = {"name": name, "unit": unit, "peer": peer, "ratio": ratio}
        row["value"], row["peer_value"] = values
        if at_least is not None:
            row["at_least"], row["met"] = at_least, row["ratio"] >= at_least
        else:
            row["at_most"], row["met"] = at_most, row["ratio"] <= at_most
        self.push({**row, "samples": samples})

    def push(self, row):
        self.rows.append(row)
        ratio = f", {row['ratio']:.2f} of {row['peer']}" if "ratio" in row else ""
        met = "met" if row["met"] else "MISSED"
        say(f"{row['name']}: {shown(row['value'], row['unit'])}{ratio}: {met}")

    def render(self):
        cells = [("figure", "umwelt", "peer", "its value", "ratio", "target", "")]
        for row in self.rows:
            has_peer = "peer" in row
            sign, limit = ("<=", row["at_most"]) if "at_most" in row else (">=", row["at_least"])
            cells.append(
                (
                    row["name"],
                    shown(row["value"], row["unit"]),
                    row.get("peer", "-"),
                    shown(row["peer_value"], row["unit"]) if has_peer else "-",
                    f"{row['ratio']:.2f}" if has_peer else "-",
                    f"{sign} {limit:.2f}" if has_peer else f"{sign} {shown(limit, row['unit'])}",
                    "met" if row["met"] else "MISSED",
                )
            )
        print_columns(cells)


def print_columns(cells):
    widths = [max(map(len, column)) for column in zip(*cells)]
    for line in cells:
        words = [line[0].ljust(widths[0])]
        words += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join(words).rstrip())


class Loads:
    """What each option did in each round, by figure."""

    def __init__(self):
        self.values = {}
        self.cpu = {}

    def add(self, figure, option, value, cpu):
        self.values.setdefault(figure, {}).setdefault(option, []).append(value)
        self.cpu.setdefault(figure, {}).setdefault(option, []).append(cpu)

    def best(self, figure, options):
        return max(options, key=lambda option: statistics.median(self.values[figure][option]))

    def render(self):
        """For orientation: the options beside each other, with the proxy's own CPU time."""
        options = list(dict.fromkeys(option for row in self.values.values() for option in row))
        cells = [("", *options)]
        for figure, values in self.values.items():
            unit = unit_of(figure)
            medians = {option: statistics.median(values[option]) for option in values}
            cells.append((figure, *(shown(medians[o], unit) if o in medians else "-" for o in options)))
            used = {option: statistics.median(self.cpu[figure][option]) for option in values}
            per = "GiB" if unit == "B/s" else "request"
            words = (shown(used[o], "s") if used.get(o) else "-" for o in options)
            cells.append((f"  CPU of the proxy per {per}", *words))
        print_columns(cells)


def unit_of(figure):
    if "latency" in figure:
        return "s"
    return "B/s" if "bulk" in figure else "/s"


def bench_starts(table, world):
    times = []
    for _ in range(STARTS):
        port = free_port()
        argv = world.gateway_argv("start", port, FEW_RULES)
        with open(world.dir / "start.log", "wb") as log:
            start = time.monotonic()
            process = subprocess.Popen(argv, stdout=log, stderr=log)
            while not is_open(port) and time.monotonic() < start + 5:
                time.sleep(0.0002)
            times.append(time.monotonic() - start)
        process.terminate()
        process.wait()
    table.add("exec until the port is open", statistics.median(times), "s", 0.010, {UMWELT: times})


def turned(options, number):
    """Another one comes first in each round."""
    items = list(options.items())
    first = number % len(items)
    return items[first:] + items[:first]


def rates(world, loads, options, kind, number):
    figure = f"{kind} requests, {CONCURRENT} at once"
    say(f"{figure}, round {number + 1}")
    for name, route in turned(options, number):
        result = world.load(route, "rate", CONCURRENT, RATE_SECONDS, kind, "/f/1k")
        loads.add(figure, name, result["rate"], result["cpu"] / result["total"])
    return figure


# Runs only where nothing else wants to.
STAY_AWAKE = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""


@contextlib.contextmanager
def awake():
    """To wake a virtual processor that sleeps takes its host longer than any proxy needs."""
    argvs = [[sys.executable, "-c", STAY_AWAKE, str(cpu)] for cpu in os.sched_getaffinity(0)]
    idlers = [subprocess.Popen(argv, stdin=subprocess.PIPE) for argv in argvs]
    try:
        yield
    finally:
        for idler in idlers:
            idler.stdin.close()
            idler.wait()


def latencies(world, loads, options, number):
    """With client and server on a processor each, if there are two; a proxy runs where the kernel
    puts it. Where client and server share one, direct takes half the time, and what a proxy adds is
    told by that luck."""
    say(f"latency, round {number + 1}")
    cpus = sorted(os.sched_getaffinity(0))
    with awake(), world.server_on(cpus[-1:]):
        for name, route in turned(options, number):
            count = SLOW_REQUESTS if name == "mitmproxy" else LATENCY_REQUESTS
            result = world.load(route, "latency", count, "/f/1k", cpus=cpus[:1])
            loads.add("latency, median", name, result["p50"], result["cpu"] / result["total"])


def bulks(world, loads, options, number):
    say(f"bulk, round {number + 1}")
    commands = {
        "bulk down, 1 connection": ("down", 1, "/f/one"),
        "bulk down, 4 connections": ("down", 4, "/f/four"),
        "bulk up, 1 connection": ("up", 1, BULK // 2, "/f/up/x"),
        "bulk up, 4 connections": ("up", 4, BULK // 8, "/f/up/x"),
    }
    for figure, command in commands.items():
        size = BULK if command[0] == "down" else BULK // 2
        for name, route in turned(options, number):
            result = world.load(route, *command)
            loads.add(figure, name, size / result["seconds"], result["cpu"] * (1 << 30) / size)


def bench_load(table, world):
    gateway = world.gateway()
    time.sleep(SETTLE)
    table.add("memory (PSS), idle", gateway.pss(), "B", 4 * MIB)
    options = {DIRECT: None, "squid": world.squid(), "mitmproxy": world.mitmproxy()}
    options |= {"hudsucker": world.hudsucker(), UMWELT: gateway}
    # The first request of each is no sample.
    for route in options.values():
        world.load(route, "latency", 20, "/f/1k")
    loads = Loads()
    for number in range(ROUNDS):
        keep = rates(world, loads, options, "keep", number)
        new = rates(world, loads, options, "new", number)
        latencies(world, loads, options, number)
    seeing = {name: route for name, route in options.items() if name != "squid"}
    for number in range(BULK_ROUNDS):
        bulks(world, loads, seeing, number)
    time.sleep(SETTLE)
    table.add("memory (PSS), after the load", gateway.pss(), "B", 16 * MIB)
    judge_load(table, loads, keep, new)
    for process in filter(None, options.values()):
        world.end(process)
    return loads


def judge_load(table, loads, keep, new):
    values = loads.values
    table.compare(keep, values[keep], "/s", "mitmproxy", at_least=25)
    table.compare(keep, values[keep], "/s", "squid", at_least=0.8)
    table.compare(keep, values[keep], "/s", loads.best(keep, INSPECTING), at_least=1)
    table.compare(new, values[new], "/s", "mitmproxy", at_least=20)
    table.compare(new, values[new], "/s", DIRECT, at_least=1)
    latency = values["latency, median"]
    added = [ours - theirs for ours, theirs in zip(latency[UMWELT], latency[DIRECT])]
    table.add("latency added to direct, median", statistics.median(added), "s", 30e-6, latency)
    for figure in values:
        if figure.startswith("bulk"):
            peer = loads.best(figure, INSPECTING)
            table.compare(figure, values[figure], "B/s", peer, at_least=1)


def bench_rules(table, world):
    """The same requests under two policies: CPU time, which hardly depends on who else runs."""
    many = f"{FEW_RULES} rules"
    options = {many: world.gateway("few", FEW_RULES), UMWELT: world.gateway("many", RULES)}
    loads = Loads()
    for number in range(ROUNDS):
        figure = rates(world, loads, options, "keep", number)
    name = f"CPU per request, {RULES} rules"
    table.compare(name, loads.cpu[figure], "s", many, at_most=2)
    for process in options.values():
        world.end(process)


@contextlib.contextmanager
def held(world, gateway, count, kind, port):
    """Connections that do nothing, and live until this ends."""
    argv = world.load_argv(gateway, "hold", count, kind, "/f/1k", port=port)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if json.loads(process.stdout.readline() or "{}").get("open") != count:
        raise SystemExit("bench: the idle connections do not open")
    yield
    process.stdin.close()
    alive = json.loads(process.stdout.readline())["alive"]
    process.wait()
    if alive != count:
        raise SystemExit(f"bench: of {count} idle connections {alive} live")


def bench_idle(table, world):
    # A tunnel needs two descriptors in one process, which keeps 352 for the rest.
    most = min(IDLE, world.files // 2 - 250)
    plans = (
        ("an idle tunnel", "tls", most, world.tunnel_port, 16 << 10),
        ("an idle inspected connection", "used", IDLE, world.server_port, 25 << 10),
    )
    for what, kind, count, port, limit in plans:
        say(f"{count} x {what}")
        gateway = world.gateway()
        time.sleep(SETTLE)
        before = gateway.pss()
        with held(world, gateway, count, kind, port):
            time.sleep(SETTLE)
            each = (gateway.pss() - before) / count
        table.add(f"memory (PSS) of {what}, of {count}", each, "B", limit)
        world.end(gateway)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    parts = sys.argv[3:] or PARTS
    programs = json.loads(pathlib.Path(sys.argv[1]).read_text())
    table, loads = Table(), Loads()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="umwelt-bench-", dir=memory_folder()) as folder:
        world = World(folder, programs)
        try:
            world.nginx()
            if "starts" in parts:
                bench_starts(table, world)
            if "load" in parts:
                loads = bench_load(table, world)
            if "rules" in parts:
                bench_rules(table, world)
            if "idle" in parts:
                bench_idle(table, world)
        finally:
            world.end_all()
        if "nft" in parts:
            bench_nft.bench(table, programs["umwelt"], UMWELT)
    say(f"took {time.monotonic() - began:.0f} s")
    result = {"figures": table.rows, "loads": loads.values, "cpu": loads.cpu}
    pathlib.Path(sys.argv[2]).write_text(json.dumps(result, indent=2) + "\n")
    loads.render()
    print()
    table.render()
    sys.exit(0 if all(row["met"] for row in table.rows) else 1)


def memory_folder():
    """Uploads are written where that costs the least."""
    return "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    main()
