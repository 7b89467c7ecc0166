#!/usr/bin/env python3
"""An MCP session on Debian 12, by JSON lines: umwelt-mcp, project, other folder.

Prints "ok NAME" or "not ok NAME" for each check. The machine has no network
and no SDK, so the client is this file.
"""

import json
import subprocess
import sys

server, project, other = sys.argv[1:]
process = subprocess.Popen([server], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
failed = 0
ids = iter(range(1, 1000))


def send(message):
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def ask(method, params):
    number = next(ids)
    send({"id": number, "method": method, "params": params})
    for line in process.stdout:
        answer = json.loads(line)
        if answer.get("id") == number:
            return answer.get("result", answer)
    raise SystemExit("not ok umwelt-mcp has ended")


def call(name, **arguments):
    result = ask("tools/call", {"name": name, "arguments": arguments})
    return "\n".join(part.get("text", "") for part in result.get("content", [])) or json.dumps(result)


def check(name, text, *words, absent=()):
    global failed
    lacks = [word for word in words if word not in text]
    shows = [word for word in absent if word in text]
    print("not ok" if lacks or shows else "ok", name)
    if lacks or shows:
        failed = 1
        print(f"    lacks {lacks}, shows {shows}: {text}")


about = {"name": "session", "version": "1"}
ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about})
send({"method": "notifications/initialized"})

SEAL = f"""id -u; cat /proc/self/status /proc/self/mountinfo; ls /proc/self/net/ 2>&1
echo made >made && echo written; cat {other}/file 2>&1; echo x >/etc/x"""
text = call("shell", command=SEAL)
check("a command runs", text, "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2")
mount = next((line for line in text.splitlines() if f" {project} " in line), text)
check("the project is mounted with its flags", mount, " rw,nosuid,nodev")
check("it is written, the system and other folders are not", text, "written", "Read-only file system", "No such file", absent=["shown"])

check("a folder is granted", call("grant", path=other), other)
text = call("shell", command=f"cat {other}/file; echo x >{other}/new")
check("and is read and not written", text, "shown", "Read-only file system")
call("revoke", path=other)
check("taken back it is gone", call("shell", command=f"cat {other}/file"), "No such file", absent=["shown"])

process.stdin.close()
process.wait()
sys.exit(failed)
