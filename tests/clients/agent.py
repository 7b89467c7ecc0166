"""An agent's program with a home of its own, whose model is scripted, and umwelt as its server."""

import os
import pathlib
import re
import subprocess
import tempfile
import time

from model import Model
from there import check, finished

# What umwelt-mcp needs of this machine, and the agent is not to have.
HOST = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
# What whoever runs the tests has set for these programs, or for their way to the network: the model
# is on this machine, and nothing else is to be reached.
PERSONAL = re.compile("(ANTHROPIC|CLAUDE|CODEX|OPENAI|OPENCODE)_.*|.*_proxy", re.IGNORECASE)


def host_environment():
    return {name: os.environ[name] for name in HOST if name in os.environ}


class Agent:
    """As a context, has a home that is removed at the end."""

    def __init__(self, program, there):
        self.program, self.there = program, there
        self.folder = None
        self.home = None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="umwelt-agent.")
        self.home = pathlib.Path(self.folder.name)
        (self.home / "project").mkdir()
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, *arguments, environment=None):
        """Runs the program; what a person sees of it."""
        begin = time.monotonic()
        mine = {name: value for name, value in os.environ.items() if name not in HOST and not PERSONAL.fullmatch(name)}
        done = finished(
            [self.program, *arguments],
            cwd=self.home / "project",
            env={**mine, "HOME": str(self.home), **(environment or {})},
            stderr=subprocess.STDOUT,
        )
        shown = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        for line in shown.splitlines():
            print(f"  | {line}")
        check(done.returncode == 0, f"{arguments[0]} has ended well ({time.monotonic() - begin:.1f} s)")
        return shown

    def converse(self, turns, session):
        """`session` starts the program with a model that takes these turns."""
        with Model(turns) as model:
            try:
                return model, session(model)
            except BaseException:
                model.tell()
                raise
