#!/usr/bin/env python3
"""Drives umwelt-mcp with the official Python SDK (the package `mcp`).

usage: mcp_client.py COMMAND [ARGUMENT...]

COMMAND is the server, for example `umwelt-mcp --workspace DIR`. Prints what it
does and what comes back; exits with 1 at the first thing that is not right.
"""

import os
import sys
import time
import uuid
import warnings

import anyio
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters

# The SDK hands on a handful of variables only; umwelt needs these too.
ENVIRONMENT = (
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
)


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"  ok: {what}")


def show(result):
    for line in result.content[0].text.splitlines():
        print(f"  | {line}")


async def shell(client, command, **arguments):
    print(f"$ {command}")
    result = await client.call_tool("shell", {"command": command, **arguments})
    show(result)
    return result


async def commands(client):
    result = await shell(client, "echo out; echo err >&2; exit 7")
    check(not result.is_error, "a failed command is a normal result")
    check(result.structured_content["ended"] == "exited", "it has exited")
    check(result.structured_content["exit_code"] == 7, "its exit code is 7")
    output = result.structured_content["output"]
    check(sorted(output.splitlines()) == ["err", "out"], "its output is there")
    result = await shell(client, "kill -9 $$")
    check(result.structured_content["ended"] == "signaled", "a signal is no exit code")
    check(result.structured_content["signal"] == 9, "it is signal 9")
    result = await shell(client, "echo before; sleep 60", timeout_s=3)
    check(result.structured_content["ended"] == "timed_out", "a timeout is neither")
    check("before" in result.content[0].text, "the output up to it is there")


def new_file():
    """In a scratch place of the sandbox, as its shell says it."""
    return f"${{TMPDIR:-/tmp}}/{uuid.uuid4()}"


def until(condition):
    return f"until {condition}; do sleep 0.1; done"


async def progress(client):
    seen = []
    told = {f"line {n}": anyio.Event() for n in (1, 2, 3)}
    file = new_file()

    async def on_progress(value, total, message):
        print(f"  progress {value}: {message}")
        seen.append(value)
        if message in told:
            told[message].set()

    async def go_on():
        for n, event in enumerate(told.values(), 1):
            await event.wait()
            await shell(client, f"touch {file}-{n}")

    # Each line stays until it was told.
    command = f"for n in 1 2 3; do echo line $n; {until(f'[ -e {file}-$n ]')}; done; rm {file}-*"
    print(f"$ {command}")
    async with anyio.create_task_group() as group:
        group.start_soon(go_on)
        result = await client.call_tool("shell", {"command": command}, progress_callback=on_progress)
        check(result.structured_content["exit_code"] == 0, "the output is shown as progress")
    check(len(seen) >= 3, "there is progress")
    check(seen == sorted(set(seen)), "it increases")


async def cancellation(client):
    file = new_file()
    scope = anyio.CancelScope()

    async def call():
        with scope:
            await shell(client, f"echo $$ >{file}; exec sleep 300")

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await shell(client, until(f"[ -s {file} ]"))
        scope.cancel()
    check(scope.cancelled_caught, "the call is cancelled")
    is_dead = f"! kill -0 $(cat {file}) 2>/dev/null"
    result = await shell(client, f"{until(is_dead)}; rm {file}", timeout_s=40)
    check(result.structured_content["ended"] == "exited", "the cancelled command is dead")


async def concurrency(client):
    results = {}
    file = new_file()

    async def one(number):
        # None ends before all have begun.
        all_are_there = f"[ $(ls {file}-* | wc -l) = 6 ]"
        arguments = {"command": f"touch {file}-{number}; {until(all_are_there)}; echo {number}"}
        result = await client.call_tool("shell", arguments)
        results[number] = result.structured_content["output"]

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(one, number)
    await shell(client, f"rm {file}-*")
    check(all(results[n] == f"{n}\n" for n in range(6)), "six calls ran side by side")


async def mistakes(client):
    for name, arguments in (("dance", {}), ("shell", {}), ("shell", {"command": 1})):
        try:
            await client.call_tool(name, arguments)
            check(False, "a wrong call is refused")
        except MCPError as error:
            print(f"  | {error}")
            check(error.error.code == -32602, f"{name} {arguments} is refused")


async def time_to_leave(server, mode):
    async with Client(server, mode=mode) as client:
        await client.call_tool("list", {})
        start = time.monotonic()
    return time.monotonic() - start


async def drive(server, mode):
    print(f"== connect, mode {mode}")
    async with Client(server, mode=mode) as client:
        print(f"  {client.server_info.name} {client.server_info.version}, {client.protocol_version}")
        print(f"  | {client.instructions}")
        check(client.server_info.name == "umwelt", "the server is umwelt")
        check(client.protocol_version == "2025-11-25", "the newest version is used")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        check({"shell", "list"} <= set(tools), "shell and list are there")
        check(tools["list"].annotations.read_only_hint, "list is read-only")
        await client.send_ping()
        result = await client.call_tool("list", {})
        show(result)
        check(result.structured_content["mounts"], "list shows mounts")
        for part in (commands, progress, cancellation, concurrency, mistakes):
            print(f"== {part.__name__}")
            await part(client)
        await client.send_ping()
        start = time.monotonic()
    took = time.monotonic() - start
    # The SDK ends a server that is still there after two seconds, which may be the machine's fault.
    for _ in range(2):
        took = took if took < 2 else await time_to_leave(server, mode)
    check(took < 2, f"the server has left by itself ({took:.1f} s)")


def main():
    # The SDK calls ping deprecated; umwelt answers it all the same.
    warnings.simplefilter("ignore")
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    server = StdioServerParameters(
        command=sys.argv[1],
        args=sys.argv[2:],
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    )
    for mode in ("auto", "legacy"):
        anyio.run(drive, server, mode)
    print("all well")


if __name__ == "__main__":
    main()
