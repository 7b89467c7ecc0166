"""opencode: a whole session, by the settings that `umwelt-install client opencode` prints.

Only the command of the server is changed, so that it runs where sandboxes can be started.
"""

import json
import re

from agent import Agent, host_environment
from model import call
from there import check

TOOLS = ["umwelt_egress", "umwelt_grant", "umwelt_list", "umwelt_revoke", "umwelt_shell"]
HOST_TOOLS = ("bash", "edit", "read", "write")


class Opencode(Agent):
    def settings(self):
        """Those that are printed, with a further server, which no agent of ours is to use."""
        page = self.there.run("umwelt-install", "client", "opencode")
        printed = re.findall(r'"command": \["/[^"]*/umwelt-mcp"\],', page)
        check(len(printed) == 1, f"the settings have one command, {printed}")
        server = json.dumps(self.there.server())
        command = f'"command": {server}, "environment": {json.dumps(host_environment())}, "timeout": 120000,'
        return page.replace(printed[0], command)

    def session(self, page, turns, *options):
        self.write(".config/opencode/opencode.jsonc", page)

        def start(model):
            words = ["run", *options, "--model", "scripted/scripted", "do as you are told"]
            return self.start(*words, environment=environment(self, model))

        return self.converse(turns, start)


def environment(opencode, model):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "none"},
        "models": {"scripted": {}},
    }
    other = {"type": "local", "command": opencode.there.server(), "environment": host_environment(), "enabled": True}
    # Merged over the settings file.
    ours = {"provider": {"scripted": provider}, "small_model": "scripted/scripted", "mcp": {"other": other}}
    names = ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD")
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(ours), **dict.fromkeys(names, "1")}


def denied(opencode, page, there):
    """Commands run; a grant is asked for, and nobody is there to allow it."""
    turns = [
        call("umwelt_shell", command="echo made inside >made; cat made; pwd; exit 3"),
        call("umwelt_list"),
        call("umwelt_shell", command=f"cat {there.other}/note"),
        call("umwelt_grant", path=there.other),
        "this is not reached",
    ]
    model, shown = opencode.session(page, turns, "--agent", "umwelt")
    check(model.offered() == TOOLS, f"only the tools of umwelt are offered: {' '.join(model.offered())}")
    check("<mcp_instructions>" in model.instructions(), "the instructions of the server are told to the model")
    shell, listing, missing = model.results()
    check("made inside" in shell and there.project in shell, "the command's output has come back")
    check("exit code 3" in shell, "so has its exit code")
    check(there.run("cat", f"{there.project}/made") == "made inside\n", "the file is in the project")
    check(f"workspace: {there.project}" in listing, "list shows the project")
    check("No such file" in missing, "what is not granted is not there")
    check("permission requested: umwelt_grant" in shown, "the permission to grant is asked for")
    check(len(model.requests) == 4, "and the turn ends with the refusal")
    check(there.other not in there.mounts(), "nothing was granted")


def allowed(opencode, page, there):
    """The same grant, with a person who allows everything."""
    turns = [
        call("umwelt_grant", path=there.other, mode="ro"),
        call("umwelt_shell", command=f"cat {there.other}/note; touch {there.other}/x"),
        call("umwelt_egress", op="list"),
        call("umwelt_revoke", path=there.other),
        "the last word",
    ]
    model, shown = opencode.session(page, turns, "--agent", "umwelt", "--auto")
    grant, shell, egress, revoke = model.results()
    check(f"{there.other} can be read in the sandbox" in grant, "what is allowed is granted")
    check("of another project" in shell, "and can be read")
    check("Read-only file system" in shell, "but not written")
    check("network: none" in egress, "egress says that there is no network")
    check("is not shown in the sandbox" in revoke, "revoke says what has become of it")
    check(there.other not in there.mounts(), "what is revoked is gone")
    check("the last word" in shown, "the session ends with the model's last word")


def other_settings(opencode, page, there):
    """A person who lets grants pass, and opencode's default agent, of which the README warns."""
    turns = [call("umwelt_grant", path=there.other), call("umwelt_revoke", path=there.other), "not reached"]
    model, shown = opencode.session(page.replace('"umwelt_grant": "ask"', '"umwelt_grant": "allow"'), turns)
    check({*HOST_TOOLS, *TOOLS} <= set(model.offered()), "the default agent has tools of the host as well")
    check(len(model.results()) == 1, "nobody is asked for the grant")
    check("permission requested: umwelt_revoke" in shown, "but for the revoke")
    check(there.mounts().get(there.other) == "ro", "so it is granted, and stays")
    there.run("umwelt-ctl", "revoke", there.project, there.other)


def drive(program, there):
    with Opencode(program, there) as opencode:
        page = opencode.settings()
        for part in (denied, allowed, other_settings):
            print(f"== opencode, {part.__name__}", flush=True)
            part(opencode, page, there)
