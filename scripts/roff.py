#!/usr/bin/env python3
"""Manual pages of docs/man, in the Markdown that pandoc reads -> roff, for man(1).

Only what our pages use is known: a title line, headings, paragraphs, terms with
their definitions, items, indented examples, bold, italic and code. All else is
an error, so that no page is shown with its marks. What it makes is in share/man, which
tests/docs compares and UMWELT_WRITE_GOLDEN=1 writes. See docs/decisions/0032.

usage: roff.py SOURCE.md VERSION > PAGE.1
"""

import re
import sys

TITLE = re.compile(r"% ([A-Z.-]+)\((\d)\) (.+) \| (.+)")
SPAN = re.compile(r"\*\*(.+?)\*\*|\*(.+?)\*|`(.+?)`", re.DOTALL)
# What Markdown gives a meaning that is not rendered here.
FOREIGN = re.compile(r"^(\||>|\d+\. |\* |\+ |```|~~~|---|===|!?\[)|\]\(")


class Unknown(Exception):
    pass


def escaped(text):
    """Text in which roff finds nothing to act on: options can be copied from it."""
    for mark, roff in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")):
        text = text.replace(mark, roff)
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def inline(text):
    out, at = "", 0
    for span in SPAN.finditer(text):
        bold, italic, code = span.groups()
        font, inner = ("I", italic) if italic else ("B", bold or code)
        out += escaped(text[at : span.start()]) + f"\\f{font}{escaped(inner)}\\fR"
        at = span.end()
    rest = text[at:]
    if "*" in rest or "`" in rest or FOREIGN.search(text):
        raise Unknown(text)
    return re.sub(r"^\.", r"\\&.", out + escaped(rest), flags=re.MULTILINE)


def blocks(lines):
    """Groups of lines between empty ones; examples stay whole across those."""
    block = []
    for line in [*lines, ""]:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []


def definition(lines):
    """`: ` and what stands under it, without the indentation."""
    bad = [line for line in lines[1:] if not line.startswith("    ")]
    if bad:
        raise Unknown(bad[0])
    return inline("\n".join(line[4:] for line in lines))


class Page:
    def __init__(self):
        self.out = []
        self.is_defining = False

    def block(self, block):
        first = block[0]
        if first.startswith("#"):
            self.heading(block)
        elif first.startswith("    ") and self.is_defining:
            self.out += [".IP", definition(block)]
        elif first.startswith("    "):
            self.example(block)
        elif len(block) > 1 and block[1].startswith(":   "):
            self.is_defining = True
            self.out += [".TP 4", inline(first), definition(block[1:])]
        elif first.startswith("- "):
            self.items(block)
        else:
            self.is_defining = False
            self.paragraph()
            self.out.append(inline("\n".join(block)))

    def paragraph(self):
        # A heading begins one by itself.
        if not self.out[-1].startswith(".S"):
            self.out.append(".PP")

    def heading(self, block):
        marks, _, words = block[0].partition(" ")
        if len(block) > 1 or marks not in ("#", "##"):
            raise Unknown(block[0])
        self.is_defining = False
        self.out.append(f".{'SH' if marks == '#' else 'SS'} {inline(words)}")

    def example(self, block):
        text = escaped("\n".join(line.removeprefix("    ") for line in block))
        if self.out[-1] == ".EE":
            # The same example goes on after an empty line.
            self.out[-2:] = ["", text, ".RE", ".EE"]
        else:
            self.paragraph()
            self.out += [".EX", ".RS 4", text, ".RE", ".EE"]

    def items(self, block):
        self.is_defining = False
        for item in re.split(r"\n- ", "\n".join(block)[2:]):
            lines = item.split("\n")
            self.out += [".IP \\(bu 2", inline("\n".join(line.strip() for line in lines))]


def render(text, version):
    first, *lines = text.rstrip("\n").split("\n")
    title = TITLE.fullmatch(first)
    if not title:
        raise Unknown(first)
    name, section, project, manual = title.groups()
    page = Page()
    # No date: the version tells what the page is about, and the same source makes the same page.
    page.out.append(f'.TH {escaped(name)} {section} "" "{project} {version}" "{manual}"')
    for block in blocks(lines):
        page.block(block)
    return "\n".join(page.out) + "\n"


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(sys.argv) != 3:
        sys.exit("roff.py: it takes a page and a version\n" + __doc__.strip().splitlines()[-1])
    source, version = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    try:
        sys.stdout.write(render(text, version))
    except Unknown as unknown:
        sys.exit(f'roff.py: "{source}" has what is not known here: {unknown}\nhint: see scripts/roff.py for what is')


main()
