#!/usr/bin/env python3
"""A transcript of scripts/demo on stdin -> a picture of a terminal on stdout, as SVG.

usage: record.py PART...

PART is the title of a part, as it stands after "== ". Text only: no script,
nothing that is loaded, one font of whoever looks at it.
"""

import re
import sys
import textwrap
from xml.sax.saxutils import escape

COLUMNS = 100
WIDTH, HEIGHT, MARGIN = 8.4, 19, 16
STYLE = """
svg { background: #fbfbf9; }
text { font: 14px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #24292f; white-space: pre; }
.title { font-weight: bold; fill: #0550ae; }
.who { font-weight: bold; }
.holds { fill: #116329; }
.broken { fill: #a40e26; }
@media (prefers-color-scheme: dark) {
  svg { background: #16181d; }
  text { fill: #d5d9df; }
  .title { fill: #79b8ff; }
  .holds { fill: #7ee08a; }
  .broken { fill: #ff8f8f; }
}
"""


def parts(transcript):
    """The lines of each part, by its title."""
    found, lines = {}, []
    for line in transcript.splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line.removeprefix("== "), [line])
        else:
            lines.append(line)
    return found


def kind(line):
    for start, name in (("== ", "title"), ("  ✓ ", "holds"), ("  ✗ ", "broken")):
        if line.startswith(start):
            return name
    return "who" if re.match(r"\w+ > ", line) else None


def wrapped(line):
    """At most COLUMNS wide, control characters made visible: XML has none."""
    line = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", line.expandtabs())
    return textwrap.wrap(line, COLUMNS, subsequent_indent="      ", drop_whitespace=False) or [""]


def render(lines):
    rows = [(kind(line), row) for line in lines for row in wrapped(line)]
    width = round(2 * MARGIN + COLUMNS * WIDTH)
    height = 2 * MARGIN + HEIGHT * len(rows)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    yield f"<title>A session with umwelt</title><style>{STYLE}</style>"
    for at, (name, row) in enumerate(rows):
        of_kind = f' class="{name}"' if name else ""
        yield f'<text x="{MARGIN}" y="{MARGIN + HEIGHT * at + 14}" xml:space="preserve"{of_kind}>{escape(row)}</text>'
    yield "</svg>"


def main(titles):
    found = parts(sys.stdin.read())
    missing = [title for title in titles if title not in found]
    if missing or not titles:
        raise SystemExit(f"record.py: no part is called {missing}; there are: {', '.join(found)}")
    lines = []
    for title in titles:
        lines += [*"\n".join(found[title]).strip("\n").split("\n"), ""]
    print("\n".join(render(lines[:-1])))


if __name__ == "__main__":
    main(sys.argv[1:])
