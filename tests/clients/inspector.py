"""The official MCP inspector: lists and calls every tool."""

import json

from there import check, finished

TOOLS = ["egress", "grant", "list", "revoke", "shell"]


class Inspector:
    def __init__(self, program, there):
        self.program, self.there = program, there

    def run(self, method, *options, status=0):
        """What the server answers; each run starts one."""
        options = ["--connect-timeout", "120000", "--method", method, *options]
        done = finished([self.program, "--cli", *self.there.server(), *options])
        if done.returncode != status:
            print(done.stdout, done.stderr)
        check(done.returncode == status, f"{' '.join(options[3:])} ends with {status}")
        return json.loads(done.stdout)

    def call(self, tool, *arguments, status=0):
        options = ["--tool-name", tool]
        for argument in arguments:
            options += ["--tool-arg", argument]
        result = self.run("tools/call", *options, status=status)
        for line in result["content"][0]["text"].splitlines():
            print(f"  | {line}")
        return result.get("structuredContent")


def listing(inspector):
    tools = inspector.run("tools/list", "--strict")["tools"]
    check(sorted(tool["name"] for tool in tools) == TOOLS, "every tool is listed, with a portable schema")
    check(all(tool["description"] and tool["outputSchema"] for tool in tools), "and described")


def calls(inspector, there):
    read = f"command=cat {there.other}/note"
    shell = inspector.call("shell", read)
    check(shell["exit_code"] == 1, "what is not granted is not there")
    grant = inspector.call("grant", f"path={there.other}", "mode=ro")
    check(grant["applied"] == "live" and grant["mode"] == "ro", "grant shows it")
    check(inspector.call("shell", read)["output"] == "of another project\n", "shell reads it")
    mounts = {mount["path"]: mount["mode"] for mount in inspector.call("list")["mounts"]}
    check(mounts[there.project] == "rw" and mounts[there.other] == "ro", "list has it")
    revoke = inspector.call("revoke", f"path={there.other}")
    check(there.other not in [mount["path"] for mount in revoke["mounts"]], "revoke takes it back")
    check(inspector.call("egress", "op=list")["network"] == "none", "egress says that there is no network")
    inspector.call("grant", "path=/etc/shadow", "file=true", status=5)


def drive(program, there):
    inspector = Inspector(program, there)
    print("== inspector", flush=True)
    listing(inspector)
    calls(inspector, there)
