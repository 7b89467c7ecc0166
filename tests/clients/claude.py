"""Claude Code: a session by the settings and the words that `umwelt-install client claude` prints."""

import json
import re

from agent import Agent, host_environment
from model import call
from there import check

TOOLS = ["mcp__umwelt__egress", "mcp__umwelt__grant", "mcp__umwelt__list", "mcp__umwelt__revoke", "mcp__umwelt__shell"]
# No tool: it tells the model that some are not described.
PLACEHOLDER = "DeferredToolPlaceholder"
# The first turn does not begin before the server has answered, and that may take a while.
PATIENT = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "120000", "MCP_TIMEOUT": "120000"}
QUIET = ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")


def printed(page, begin):
    lines = [line for line in page.splitlines() if line.startswith(begin)]
    check(len(lines) == 1, f"the page has one line {begin!r}")
    return lines[0]


def add_server(claude, page):
    """As the page says, but for the command, which runs where sandboxes can be started."""
    words = printed(page, "claude mcp add").split(" -- ")[0].split()[1:]
    variables = [word for name, value in host_environment().items() for word in ("-e", f"{name}={value}")]
    claude.start(*words[:-1], words[-1], *variables, "--", *claude.there.server(), environment=quiet())
    shown = claude.start("mcp", "get", "umwelt", environment={**quiet(), **PATIENT})
    check("Connected" in shown, "the server is known, and answers")


def quiet():
    return dict.fromkeys(QUIET, "1")


def drive(program, there):
    page = there.run("umwelt-install", "client", "claude")
    turns = [
        call("mcp__umwelt__shell", command="echo made by claude; exit 3"),
        call("mcp__umwelt__list"),
        call("mcp__umwelt__grant", path=there.other),
        "the last word",
    ]
    print("== claude", flush=True)
    with Agent(program, there) as claude:
        add_server(claude, page)
        claude.write(".claude/settings.json", re.search(r"^\{$.*?^\}$", page, re.M | re.S).group())
        option = json.loads(printed(page, "claude --tools ").split(" ", 2)[2])

        def session(model):
            own = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", **quiet(), **PATIENT}
            return claude.start("-p", "do as you are told", "--tools", option, environment=own)

        model, shown = claude.converse(turns, session)
    offered = [name for name in model.offered() if name != PLACEHOLDER]
    check(offered == TOOLS, f"only the tools of umwelt are offered: {' '.join(offered)}")
    shell, listing, grant = model.results()
    # Where there is a structured result, the model reads that.
    check("made by claude" in shell and '"exit_code":3' in shell, "the command has run")
    check(f'"workspace":"{there.project}"' in listing, "list shows the project")
    check("requested permissions" in grant, "the grant is asked for, and nobody is there to allow it")
    check("the last word" in shown, "the session ends with the model's last word")
    check(there.other not in there.mounts(), "nothing was granted")
