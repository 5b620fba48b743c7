"""An adversarial program for the codemod: its files, the code that runs it, and the expected edits.

programs/*.txt contain the programs, in sections under a line `=== title`. A section has lines `> key value`:

    drive CODE       runs the program in the namespace of model.py, with the functions of world.py. The value of the
                     last line is compared. Several such lines are one text
    forms NAMES      the section is one program for each of these forms (forms.txt), and uses their placeholders
    each WORD: a | b one program for each text that replaces WORD; \\n in it is a line break
    safe             a safe edit must be made
    breaks PATTERN   breaks an assumption: an unsafe edit whose message matches may change what the program does
    raises           the program raises an exception
    alone            autofuse gets only model.py, not the files next to it
    bare             no imports are added above the text
    night            runs by night only

A line `#### name.py` begins the text of another file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.adversary.program import Section, sections
from tests.adversary_text.forms import Form, form_named

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
KNOWN = HERE / "known.txt"  # programs that are known to be wrong: lines "name [level]"
LEVELS = ("safe", "unsafe")  # safe edits only, and all edits

IMPORTS = """\
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


"""


@dataclass(frozen=True)
class Program:
    """One program. files: (name, text), including `model.py`. breaks: patterns of messages of edits."""

    name: str
    files: tuple[tuple[str, str], ...]
    drive: str
    safe: bool = False
    breaks: tuple[str, ...] = ()
    raises: bool = False
    alone: bool = False
    night: bool = False

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]

    @property
    def text(self) -> str:
        return "\n".join(text if name == "model.py" else f"#### {name}\n{text}" for name, text in self.files)

    def __str__(self) -> str:
        return self.name


def programs_of(area: str) -> Iterator[Program]:
    """All programs of programs/`area`.txt."""
    for section in sections(f"{area}.txt", PROGRAMS):
        for name in section.one("forms").split() or [""]:
            title = f"{area}/{section.title}" + (f", {name.replace('_', ' ')}" if name else "")
            yield from _with_words(section, title, form_named(name) if name else None)


def _with_words(section: Section, title: str, form: Form | None) -> Iterator[Program]:
    words = [line.partition(": ") for line in section.all("each")]
    for values in itertools.product(*(v.split(" | ") for _, _, v in words)):
        said = {word: value.replace("\\n", "\n") for (word, _, _), value in zip(words, values, strict=True)}
        yield _program(section, ", ".join([title, *values]), said, form)


def _program(section: Section, name: str, said: dict[str, str], form: Form | None) -> Program:
    def put(text: str) -> str:
        for word, value in [*said.items()] * 2:  # the text of one word may contain another word
            text = re.sub(rf"\b{word}\b", lambda _, v=value: v, text)
        return form.put_into(text, "SETUP" in section.code) if form else text

    imports = "" if section.has("bare") else IMPORTS
    first, *others = re.split(r"^#### (.+)\n", put(section.code), flags=re.MULTILINE)
    beside = zip(others[::2], others[1::2], strict=True)
    return Program(
        name,
        (("model.py", f"{imports}{first.rstrip()}\n"), *((n, f"{t.rstrip()}\n") for n, t in beside)),
        put(section.one("drive")),
        safe=section.has("safe"),
        breaks=tuple(put(pattern) for pattern in section.all("breaks")),
        raises=section.has("raises"),
        alone=section.has("alone"),
        night=section.has("night"),
    )
