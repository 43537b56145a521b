"""What the documentation shows: its code blocks, the marks that stand before them, and how a block is run.

A mark is an HTML comment directly before a block. There are no others than these:

    <!-- file: NAME -->                 the block is the content of this file, for the blocks that follow
    <!-- hidden: python … -->           code that the page needs and a reader does not (the comment holds it)
    <!-- output -->                     text: what the block before printed
    <!-- output: shape -->              the same, whatever the numbers are
    <!-- output: full shape -->         the same, of a long run: compared where it is run in full
    <!-- long run: OPTIONS -->          run with these options added; in full by `make test-all`
    <!-- needs data: OPTIONS -->        needs a data set that is fetched: run with these options added
    <!-- needs install -->              changes the machine: the names in it (make targets, extras, scripts) are checked
    <!-- needs cluster: TEST -->        \\
    <!-- needs deployment: TEST -->      } run by that test file; here every command and option is checked
    <!-- serves: TEST -->               /

A block without a language, of an unknown one, or with an unknown mark is an error.

Why not sybil: it looks for what it knows and passes over the rest, where here the rest is the error. An indented block
is none for it, nor does a comment belong to the block that follows. It makes a test of every block, and pytest-xdist
would give the blocks of one page, which share a folder and a namespace, to several processes. What it could replace is
`Runner.python`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
        *(ROOT / "examples").glob("*/README.md"),
    ]
)
GENERATED = {
    ROOT / "examples" / "flower_quickstart" / "README.md": ("needs deployment", "tests/flower/test_deployment.py")
}
"""Pages that a command writes for a user, who needs no marks: what holds for all of their blocks."""
RUN = ("python", "console")
DATA = ("toml", "text", "math")
DIRECTIVES = ("{toctree}", "{figure}", "{eval-rst}", "{glossary}", "{container}", "{include}", "{image}", "{note}")
ELSEWHERE = ("needs cluster", "needs deployment", "serves")
MARKS = ("file", "hidden", "output", "long run", "needs data", "needs install", *ELSEWHERE)
COMMENT = re.compile(r"<!--\s*(?P<text>.*?)\s*-->\s*", flags=re.DOTALL)


class Escaped(AssertionError):
    """A block that no test would run."""


@dataclass(frozen=True)
class Block:
    """A code block: where it is, its language, its text, and its mark with what stands behind the colon."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    detail: str = ""

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def lines(self) -> list[str]:
        """The commands of a console block: continued lines joined, comments and empty lines left out."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if shlex.split(line, comments=True)]


def blocks(page: Path) -> list[Block]:
    """Return every block of a page in order; raise `Escaped` for one that would not be tested."""
    found: list[Block] = []
    mark, detail = "", ""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.nesting or token.type == "inline":
            continue
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block" and token.content.startswith("<!--"):
            mark, detail = _mark(token.content)
            if mark == "hidden":
                language, _, text = detail.partition("\n")
                found.append(Block(page, line, language.strip(), text + "\n", mark))
                mark, detail = "", ""
            continue
        if token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info.strip() else ""
            if not mark:
                mark, detail = GENERATED.get(page, ("", ""))
            found.append(Block(page, line, language, token.content, mark, detail))
        mark, detail = "", ""
    for block in found:
        _check(block)
    return found


def _mark(comment: str) -> tuple[str, str]:
    match = COMMENT.fullmatch(comment)
    name, _, detail = (match["text"] if match else comment).partition(":")
    return name.strip(), detail.strip() if "\n" not in detail else detail.strip(" ")


def _check(block: Block) -> None:
    if block.language.startswith("{"):
        if block.language not in DIRECTIVES or "```" in block.text:
            raise Escaped(f"{block.where}: directive {block.language} is not known, or hides a block")
        return
    if block.language not in (*RUN, *DATA):
        raise Escaped(f"{block.where}: language {block.language!r}; known: {', '.join((*RUN, *DATA))}")
    if block.mark and block.mark not in MARKS:
        raise Escaped(f"{block.where}: mark {block.mark!r}; known: {', '.join(MARKS)}")
    if block.mark in ELSEWHERE and not (ROOT / block.detail).is_file():
        raise Escaped(f"{block.where}: {block.mark}: there is no test {block.detail!r}")
    if block.mark == "output" and (block.language != "text" or block.detail not in ("", "shape", "full shape")):
        raise Escaped(f"{block.where}: output is text, exact or by its shape")
    if block.mark in ("long run", "needs data", "needs install") and block.language != "console":
        raise Escaped(f"{block.where}: {block.mark} is for commands")


def inline_commands(page: Path) -> Iterator[str]:
    """Commands of fedstale that stand in running text or tables."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            if child.type == "code_inline" and re.match(r"fedstale [a-z]", child.content):
                yield child.content


def shape(text: str) -> str:
    """What an output looks like whatever its numbers are: numbers become #, frames and spaces go."""
    text = re.sub(r"[\u2500-\u257f•]", " ", text)
    text = re.sub(r"\d{8}-\d{6}-\w+", "RUN", text)  # the id of a run holds its date
    text = re.sub(r"[-+]?\d[\d.,]*(\s?%)?(\s±\s[\d.]+%?)?", "#", text)
    return " ".join(text.split())
