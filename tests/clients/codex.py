"""Codex: a session by the settings and the words that `umwelt-install client codex` prints."""

import json
import re

from agent import Agent, host_environment
from model import call
from there import check

TOOLS = ["mcp__umwelt__egress", "mcp__umwelt__grant", "mcp__umwelt__list", "mcp__umwelt__revoke", "mcp__umwelt__shell"]
# Whatever runs or writes on the host.
HOST_TOOLS = {"apply_patch", "exec_command", "local_shell", "shell", "shell_command", "write_stdin"}


def settings(there, page):
    """With the command of the server changed, so that it runs where sandboxes can be started."""
    printed = re.findall(r'^command = "/[^"]*/umwelt-mcp"$', page, re.M)
    check(len(printed) == 1, f"the settings have one command, {printed}")
    command, *arguments = there.server()
    variables = ", ".join(f"{name} = {json.dumps(value)}" for name, value in host_environment().items())
    ours = f"command = {json.dumps(command)}\nargs = {json.dumps(arguments)}\nenv = {{ {variables} }}"
    return page.replace(printed[0], ours)


def provider(model):
    return f"""model = "scripted"
model_provider = "scripted"
[model_providers.scripted]
name = "scripted"
base_url = "{model.url}/v1"
wire_api = "responses"
"""


def drive(program, there):
    page = there.run("umwelt-install", "client", "codex")
    ours = settings(there, page)
    options = re.search(r"^# codex (--.*)$", page, re.M).group(1).split()
    turns = [
        call("mcp__umwelt__shell", command="echo made by codex; exit 3"),
        call("mcp__umwelt__list"),
        call("mcp__umwelt__grant", path=there.other),
        "the last word",
    ]
    print("== codex", flush=True)
    with Agent(program, there) as codex:

        def session(model):
            codex.write(".codex/config.toml", provider(model) + ours)
            # Settings that it does not know are an error.
            words = ["exec", "--strict-config", "--skip-git-repo-check", "do as you are told"]
            # The first turn does not begin before the server has answered.
            patient = ("mcp_servers.umwelt.required=true", "mcp_servers.umwelt.startup_timeout_sec=120")
            return codex.start(*options, *(word for setting in patient for word in ("-c", setting)), *words)

        model, shown = codex.converse(turns, session)
    offered = set(model.offered())
    check(set(TOOLS) <= offered, f"the tools of umwelt are offered: {' '.join(sorted(offered))}")
    check(not offered & HOST_TOOLS, "and none that runs or writes on the host")
    shell, listing, grant = model.results()
    # Where there is a structured result, the model reads that.
    check("made by codex" in shell and '"exit_code":3' in shell, "the command has run")
    check(f'"workspace":"{there.project}"' in listing, "list shows the project")
    check("requires approval" in grant, "the grant is asked for, and nobody is there to allow it")
    check("the last word" in shown, "the session ends with the model's last word")
    check(there.other not in there.mounts(), "nothing was granted")
