#!/usr/bin/env python3
"""A real MCP session with umwelt, by the official Python SDK, to be read.

usage: demo_client.py [THERE...]

THERE are the words that run a command where the sandboxes are, such as
`scripts/vm run`; without them it is this host. Says what was asked and what
came, and checks each claim about it; exits with 1 if one does not hold.
scripts/demo calls it.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import warnings

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

ENVIRONMENT = ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "DBUS_SESSION_BUS_ADDRESS")
GONE_WITHIN = 30


class Host:
    """The host of the sandbox, as its user sees it."""

    def __init__(self, words):
        self.words = words

    def run(self, script):
        """Runs a line of shell there; returns its exit status and its output."""
        argv = [*self.words, "sh", "-c", script]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.returncode, (done.stdout + done.stderr).strip()

    def out(self, script):
        status, output = self.run(script)
        if status != 0:
            raise SystemExit(f"{script}: {output}")
        return output


class Transcript:
    """What is printed: who asked what, what came, and what that shows."""

    def __init__(self):
        self.held = 0
        self.broken = 0

    def title(self, text):
        print(f"\n== {text}")

    def asked(self, who, text):
        print(f"\n{who} > {text}")

    def came(self, text):
        for line in text.splitlines():
            print(f"    {line}")

    def claim(self, holds, text):
        print(f"  {'✓' if holds else '✗'} {text}", flush=True)
        if holds:
            self.held += 1
        else:
            self.broken += 1


class Demo:
    """One sandbox, in a workspace made for it."""

    def __init__(self, host, transcript):
        self.host = host
        self.say = transcript
        self.client = None
        self.workspace = host.out('mktemp -d "$HOME/umwelt-demo.XXXXXX"')

    def server(self):
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        words = [*self.host.words, "env", "-C", self.workspace, "umwelt-mcp"]
        return StdioServerParameters(command=words[0], args=words[1:], env=environment)

    async def shell(self, command, **limits):
        """A call of the shell tool; returns its structured result."""
        self.say.asked("agent", command)
        result = await self.client.call_tool("shell", {"command": command, **limits})
        self.say.came(result.content[0].text)
        return result.structured_content

    def look(self, script):
        """A look from outside; returns exit status and output."""
        self.say.asked("host", script)
        status, output = self.host.run(script)
        self.say.came(output)
        return status, output

    async def session(self):
        self.say.title("initialize")
        server = self.server()
        self.say.asked("client", shlex.join([server.command, *server.args]))
        async with Client(server, mode="legacy") as client:
            self.client = client
            info = client.server_info
            self.say.came(f"{info.name} {info.version}, protocol {client.protocol_version}\n{client.instructions}")
            self.say.claim(info.name == "umwelt", "the server is umwelt")
            await self.tools()
            for part in (self.identity, self.files, self.network, self.limits, self.escape, self.workspace_file, self.grants, self.time):
                await part()
            running = self.running()
            self.say.title("the client leaves")
        return running

    async def tools(self):
        self.say.title("tools/list")
        tools = {tool.name: tool for tool in (await self.client.list_tools()).tools}
        for name, tool in tools.items():
            self.say.came(f"{name}: {tool.description.splitlines()[0][:100]}")
        wanted = {"shell", "list", "grant", "revoke"}
        self.say.claim(wanted <= set(tools), "shell, list, grant and revoke are offered")
        self.say.asked("agent", "(tool list)")
        result = await self.client.call_tool("list", {})
        self.say.came(result.content[0].text)
        self.resources = result.structured_content["resources"]
        self.say.claim(result.structured_content["network"] == "none", "there is no network")

    async def identity(self):
        self.say.title("who the agent is")
        uid = self.host.out("id -u")
        result = await self.shell("id -u")
        self.say.claim(result["output"].strip() == uid != "0", f"the user's own uid, {uid}; not root")
        result = await self.shell("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
        sets = re.findall(r"Cap\w+:\s*(\w+)", result["output"])
        self.say.claim(len(sets) == 5 and not any(int(word, 16) for word in sets), "all five capability sets are empty")
        self.say.claim(re.search(r"NoNewPrivs:\s*1\b", result["output"]), "no new privileges")
        self.say.claim(re.search(r"Seccomp:\s*2\b", result["output"]), "a seccomp filter is on")

    async def files(self):
        self.say.title("what it can write, and what it can see")
        result = await self.shell("touch /mark /usr/bin/mark /etc/mark")
        refusals = result["output"].count("Read-only file system")
        self.say.claim(result["exit_code"] != 0 and refusals == 3, "the root is read-only")
        secret = self.host.out('mktemp "$HOME/umwelt-secret.XXXXXX"')
        file, home = shlex.quote(secret), shlex.quote(os.path.dirname(secret))
        self.look(f"echo 'a key' >{file} && ls -l {file}")
        result = await self.shell(f"cat {file}; ls -A {home}")
        self.say.claim("No such file" in result["output"], "a file in the user's home is not there")
        names = set(result["output"].split("\n")[1:]) - {""}
        # The shipped configuration shows these, read-only and with masks, where they exist.
        shown = {os.path.basename(self.workspace), "dev", ".config"}
        self.say.claim(names <= shown, "of the home it sees the workspace, and what the configuration lists")
        result = await self.shell(f"touch {home}/.config/mark; ls {home}/.config/umwelt")
        told = "Read-only file system" in result["output"] or "No such file" in result["output"]
        self.say.claim(told and "umwelt.toml" not in result["output"], "which is read-only, umwelt's own files hidden")
        self.host.out(f"rm {file}")

    async def network(self):
        self.say.title("the network")
        result = await self.shell("ls /sys/class/net; cat /proc/net/route /proc/net/ipv6_route")
        interfaces = result["output"].split("Iface")[0].split()
        self.say.claim(interfaces == ["lo"], "the loopback is the only interface")

    async def limits(self):
        self.say.title("the caps")
        result = await self.shell("cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max")
        wanted = [self.resources["memory"], self.resources["pids_limit"]]
        self.say.claim([int(word) for word in result["output"].split()] == wanted, "memory.max and pids.max as configured")
        container = self.running()["containers"][0]
        init = self.host.out(f"podman inspect --format '{{{{.State.Pid}}}}' {container}")
        scope = os.path.dirname(self.host.out(f"cut -d: -f3 /proc/{init}/cgroup"))
        _, seen = self.look(f"cat /sys/fs/cgroup{scope}/memory.max")
        self.say.claim(seen == str(wanted[0]), "the kernel holds the same for the whole container")

    async def escape(self):
        self.say.title("a way out")
        result = await self.shell("unshare --user --map-root-user id")
        refused = "Operation not permitted" in result["output"] and result["exit_code"] != 0
        self.say.claim(refused, "a new user namespace is refused")

    async def workspace_file(self):
        self.say.title("a file made inside")
        await self.shell("echo 'made inside' >hello.txt")
        file = shlex.quote(f"{self.workspace}/hello.txt")
        status, output = self.look(f"stat -c '%U %a %n' {file} && cat {file}")
        user = self.host.out("id -un")
        self.say.claim(status == 0 and output.endswith("made inside"), "outside it is the same file")
        self.say.claim(output.split()[0] == user, f"and it belongs to {user}")

    async def change(self, tool, **arguments):
        """A call of grant or revoke; returns whether it worked, and its result."""
        self.say.asked("agent", f"({tool}) {json.dumps(arguments)}")
        result = await self.client.call_tool(tool, arguments)
        self.say.came(result.content[0].text.split("\nmounts", 1)[0][:600])
        return not result.is_error, result.structured_content

    async def grants(self):
        self.say.title("more of the host, which a person has to allow")
        library = self.host.out('mktemp -d "$HOME/umwelt-library.XXXXXX"')
        folder = shlex.quote(library)
        self.look(f"echo 'to be read' >{folder}/file && ls {folder}")
        await self.shell(f"sleep 1000 >/dev/null & cat {folder}/file")
        works, changed = await self.change("grant", path=library, mode="ro")
        self.say.claim(works and changed["applied"] == "live", "it is granted in the running sandbox")
        result = await self.shell(f"cat {folder}/file; touch {folder}/mark; pgrep -l sleep")
        told = result["output"]
        self.say.claim("to be read" in told and "Read-only file system" in told, "it can be read, and not written")
        self.say.claim("sleep" in told, "what ran in the background still runs")
        works, _ = await self.change("revoke", path=library)
        result = await self.shell(f"cat {folder}/file; pkill sleep")
        self.say.claim(works and "No such file" in result["output"], "and it is taken back")
        works, _ = await self.change("grant", path="/etc", mode="rw")
        self.say.claim(not works, "the system's own is not granted")
        await self.shell(f"printf '[[grants]]\\npath = \"%s\"\\nmode = \"rw\"\\n' {folder} >.umwelt.toml")
        result = await self.shell("true")
        told = " ".join(result["notices"])
        self.say.claim("umwelt-ctl trust" in told, "what the agent writes into .umwelt.toml does not count")
        self.host.out(f"rm -r {folder}")

    async def time(self):
        self.say.title("a command that takes too long")
        result = await self.shell("(setsid sleep 1000 &) ; echo started; sleep 1000", timeout_s=2)
        self.say.claim(result["ended"] == "timed_out", "it is ended after its two seconds, and that is what is told")
        self.say.claim("started" in result["output"], "what it printed is there")
        result = await self.shell("pgrep -l sleep")
        self.say.claim(result["exit_code"] == 1, "nothing of it is left, a daemon neither; the next command works")

    def running(self):
        """Of umwelt-ctl status, the entry of this sandbox."""
        entries = json.loads(self.host.out("umwelt-ctl status --json"))
        return next(entry for entry in entries if entry["workspace"] == self.workspace)

    def nothing_left(self, running):
        self.say.title("what is left")
        sid, pid = running["sid"], running["pid"]
        deadline = time.monotonic() + GONE_WITHIN
        while time.monotonic() < deadline and self.host.run(f"kill -0 {pid}")[0] == 0:
            time.sleep(0.5)
        _, output = self.look(f"podman ps --all --quiet --filter label=umwelt.sid={sid}")
        self.say.claim(output == "", "no container")
        _, output = self.look(f'ls "$XDG_RUNTIME_DIR" | grep {sid}')
        files = output.split()
        self.say.claim(all(name.endswith(".lock") for name in files), "no socket; the lock file itself stays")
        status, _ = self.look(f'flock --nonblock "$XDG_RUNTIME_DIR/{files[0]}" echo free')
        self.say.claim(status == 0, "nobody holds the lock")
        workspace = re.escape(self.workspace)
        # With exec, no shell is there whose arguments would be found.
        _, output = self.look(f"exec pgrep --list-full --full {shlex.quote(f'{sid}|{workspace}')}")
        self.say.claim(output == "", "no process")
        self.host.out(f"rm -r {shlex.quote(self.workspace)}")


def main():
    # The SDK calls the older handshake deprecated.
    warnings.simplefilter("ignore")
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    transcript = Transcript()
    demo = Demo(Host(sys.argv[1:]), transcript)
    demo.nothing_left(anyio.run(demo.session))
    print(f"\n{transcript.held} claims hold, {transcript.broken} do not")
    sys.exit(1 if transcript.broken else 0)


if __name__ == "__main__":
    main()
