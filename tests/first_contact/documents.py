"""Reads a page as a newcomer does: files to save, and commands to type, in their order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?P<before>(?:[^\n]+\n)*)\n*^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVED_AS = re.compile(r"as\s+`(?P<name>[\w./-]+)`")
_NAMED = re.compile(r"\A`(?P<name>[\w./-]+)`\n\Z")  # a paragraph that is a name
_INSTALLS = re.compile(r"(^|/)(python3(\.\d+)? -m venv|pip install) ")


@dataclass(frozen=True)
class Saved:
    """A block that the page asks the reader to save."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line of a shell block."""

    line: str

    @property
    def installs(self) -> bool:
        """Whether it makes an environment, or installs something into one."""
        return bool(_INSTALLS.search(self.line))


def steps_of(page: str) -> list[Saved | Command]:
    """The steps of a page, such as "docs/start/files.md"."""
    return steps_in((REPOSITORY / page).read_text())


def steps_in(text: str) -> list[Saved | Command]:
    """The steps of a text in Markdown. Code that the text does not ask to save is no step."""
    steps: list[Saved | Command] = []
    for block in _BLOCK.finditer(text):
        if block["language"] == "sh":
            steps += [Command(line) for line in _lines(block["code"])]
        elif names := _SAVED_AS.findall(block["before"]) or _NAMED.findall(block["before"]):
            steps.append(Saved(names[-1], block["code"]))
    return steps


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next heading of its level or above."""
    text = (REPOSITORY / page).read_text()
    (level,) = re.findall(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    after = text.split(f"{level} {heading}\n", 1)[1]
    return re.split(rf"^#{{1,{len(level)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def _lines(code: str) -> list[str]:
    """The commands, without comments. A newcomer copies a line at a time."""
    lines = (re.sub(r"\s+#.*$", "", line).strip() for line in code.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
