#!/usr/bin/env python3
"""Drives umwelt-mcp with the programs that people use, each with a model that is scripted.

usage: agents.py FOLDER [WORD...]

FOLDER has their npm packages; WORDs come before a command that has to run where sandboxes can be
started. Prints what each does and "ok NAME" or "not ok NAME". One that is not installed is skipped,
unless UMWELT_REQUIRE_AGENTS names it.
"""

import os
import pathlib
import signal
import sys
import traceback

# They are run from a checkout.
sys.dont_write_bytecode = True

import claude
import codex
import inspector
import opencode
from there import There

# Where each program is, below node_modules: what the packages of npm start in the end.
PROGRAMS = {
    "inspector": (inspector, ".bin/mcp-inspector"),
    "opencode": (opencode, "opencode-linux-*/bin/opencode"),
    "claude": (claude, "@anthropic-ai/claude-code-linux-*/claude"),
    "codex": (codex, "@openai/codex-linux-*/vendor/*/bin/codex"),
}


def attempt(name, module, program, there):
    try:
        module.drive(str(program.absolute()), there)
    except (Exception, SystemExit) as error:  # The others are tried as well.
        traceback.print_exception(error)
        print(f"not ok {name}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    # The sandbox and the project are removed in any case.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    modules = pathlib.Path(sys.argv[1]) / "node_modules"
    required = os.environ.get("UMWELT_REQUIRE_AGENTS", "").split()
    results = []
    with There(sys.argv[2:]) as there:
        there.keep()
        for name, (module, pattern) in PROGRAMS.items():
            found = sorted(modules.glob(pattern))
            if found:
                results.append(attempt(name, module, found[0], there))
            elif name in required:
                print(f"not ok {name}: it is not installed")
                results.append(False)
            else:
                print(f"skipped: {name} is not installed")
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
