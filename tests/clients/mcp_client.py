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
    result = await shell(client, "echo before; sleep 60", timeout_s=1)
    check(result.structured_content["ended"] == "timed_out", "a timeout is neither")
    check("before" in result.content[0].text, "the output up to it is there")


async def progress(client):
    seen = []

    async def on_progress(value, total, message):
        print(f"  progress {value}: {message}")
        seen.append((value, message))

    command = "for n in 1 2 3; do echo line $n; sleep 0.4; done"
    print(f"$ {command}")
    await client.call_tool("shell", {"command": command}, progress_callback=on_progress)
    await anyio.sleep(0.3)
    values = [value for value, _ in seen]
    check(len(seen) >= 2, "there is progress")
    check(values == sorted(set(values)), "it increases")
    check("line 2" in [message for _, message in seen], "it shows the output")


async def cancellation(client):
    marker = f"${{TMPDIR:-/tmp}}/marker-{uuid.uuid4()}"
    with anyio.move_on_after(1):
        await shell(client, f"sleep 3; touch {marker}")
        check(False, "the call is cancelled")
    await anyio.sleep(3)
    result = await shell(client, f"test -e {marker}")
    check(result.structured_content["exit_code"] == 1, "the cancelled command is dead")


async def concurrency(client):
    results = {}

    async def one(number):
        arguments = {"command": f"sleep 1; echo {number}"}
        result = await client.call_tool("shell", arguments)
        results[number] = result.structured_content["output"]

    start = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(one, number)
    took = time.monotonic() - start
    check(all(results[n] == f"{n}\n" for n in range(6)), "six calls at once are answered")
    check(took < 5, f"they ran side by side ({took:.1f} s)")


async def mistakes(client):
    for name, arguments in (("dance", {}), ("shell", {}), ("shell", {"command": 1})):
        try:
            await client.call_tool(name, arguments)
            check(False, "a wrong call is refused")
        except MCPError as error:
            print(f"  | {error}")
            check(error.error.code == -32602, f"{name} {arguments} is refused")


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
