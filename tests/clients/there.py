"""A project in the place where sandboxes can be started, and programs that run there.

That place is this machine or another one: what is run there begins with the words of scripts/test.
"""

import json
import subprocess


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"  ok: {what}", flush=True)


class There:
    """As a context, makes the project and removes it."""

    def __init__(self, words):
        self.words = words
        self.folder = None
        self.keeper = None

    def __enter__(self):
        self.folder = self.run("sh", "-c", 'realpath "$(mktemp -d "$HOME/umwelt-client.XXXXXX")"').strip()
        try:
            self.run("mkdir", self.project, self.other)
            self.run("sh", "-c", 'echo of another project >"$1/note"', "sh", self.other)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.keeper:
            # The end of its input ends it, and with it the sandbox.
            self.keeper.stdin.close()
            self.keeper.wait(60)
        self.run("rm", "-rf", self.folder)

    @property
    def project(self):
        return f"{self.folder}/project"

    @property
    def other(self):
        """A directory beside the project, which the sandbox does not show."""
        return f"{self.folder}/other"

    def run(self, *command, text=None):
        done = subprocess.run(
            [*self.words, *command], input=text or "", capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"FAILED: {command} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def server(self):
        """The command of umwelt-mcp in the project."""
        return [*self.words, "env", "-C", self.project, "umwelt-mcp"]

    def keep(self):
        """Starts the sandbox, and keeps it: the clients that follow find it up."""
        command = [*self.words, "umwelt-ctl", "exec", self.project, "--", "sh", "-c", "echo up; cat"]
        self.keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(self.keeper.stdout.readline() == "up\n", "the sandbox is up")

    def mounts(self):
        """What the sandbox shows, by path, as a person sees it."""
        listing = json.loads(self.run("umwelt-ctl", "list", "--json", self.project))
        return {mount["path"]: mount["mode"] for mount in listing["mounts"]}
