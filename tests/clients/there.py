"""A project in the place where sandboxes can be started, and programs that run there.

That place is this machine or another one: what is run there begins with the words of scripts/test.
"""

import json
import os
import select
import signal
import subprocess

# Seconds. Longer than anything takes that works, under emulation too.
LIMIT = 300


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"  ok: {what}", flush=True)


def finished(command, **options):
    """A command that has ended by itself. After LIMIT it is ended, with all that it has started, and
    what it said until then is shown."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen(command, text=True, start_new_session=True, **streams) as process:
        try:
            said = process.communicate(timeout=LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            print(f"this was cut short: {command}", *process.communicate(), sep="\n", flush=True)
            raise
    return subprocess.CompletedProcess(command, process.returncode, *said)


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
        try:
            if self.keeper:
                # The end of its input ends it, and with it the sandbox.
                self.keeper.stdin.close()
                self.keeper.wait(60)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            print("the sandbox is still there, 60 s after the end of its last client", flush=True)
        finally:
            self.run("rm", "-rf", self.folder)

    @property
    def project(self):
        return f"{self.folder}/project"

    @property
    def other(self):
        """A directory beside the project, which the sandbox does not show."""
        return f"{self.folder}/other"

    def run(self, *command):
        done = finished([*self.words, *command])
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
        # It says one line, or ends.
        ready = select.select([self.keeper.stdout], [], [], LIMIT)[0]
        check(ready and self.keeper.stdout.readline() == "up\n", "the sandbox is up")

    def mounts(self):
        """What the sandbox shows, by path, as a person sees it."""
        listing = json.loads(self.run("umwelt-ctl", "list", "--json", self.project))
        return {mount["path"]: mount["mode"] for mount in listing["mounts"]}
