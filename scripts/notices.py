#!/usr/bin/env python3
"""The crates that the program is made of -> their names, licences and notices, for a release."""

import json
import pathlib
import re
import subprocess
import sys

FILES = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)
HEAD = """\
umwelt is one static program. These are the crates that it is made of beside its own source, with
their licences; the texts that they come with follow. The standard library of Rust (MIT or
Apache-2.0) and the GNU C library (LGPL-2.1 or later) are linked in as well. Whoever wants to link
it with another C library finds the source, and scripts/release, where umwelt is.
"""


def linked(metadata):
    """Packages that the program is linked with: no tools of the build or of tests."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    # These run in the compiler.
    macros = {
        package["id"]
        for package in metadata["packages"]
        if any("proc-macro" in target["kind"] for target in package["targets"])
    }
    found, waiting = set(), [metadata["resolve"]["root"]]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in macros:
            found.add(name)
            waiting += [
                dependency["pkg"]
                for dependency in nodes[name]["deps"]
                if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            ]
    found.remove(metadata["resolve"]["root"])
    packages = [package for package in metadata["packages"] if package["id"] in found]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    for file in sorted(folder.iterdir()):
        if file.is_file() and FILES.match(file.name):
            yield file.read_text(encoding="utf-8", errors="replace").strip()


def main():
    host = sys.argv[1]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    packages = linked(json.loads(subprocess.check_output(command)))
    print(HEAD)
    users = {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license']}")
        for text in texts(package):
            users.setdefault(text, []).append(name)
    for text, names in users.items():
        print(f"\n{'-' * 80}\n{', '.join(dict.fromkeys(names))}:\n\n{text}")


main()
