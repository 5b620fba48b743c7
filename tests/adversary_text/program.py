"""What a program of the attack on files is: its files, how it is driven, and what is expected of its edits.

programs/*.txt hold them, in sections under a line `=== title`. A section says, in lines `> key value`:

    drive CODE       runs the program, in the namespace of model.py with the words of world.py; the last line is the
                     outcome that is compared. Several such lines are one text
    forms NAMES      the section is a program for each of these forms (forms.txt), in whose words its text is written
    each WORD: a | b one program for each text that stands for WORD; \\n in it is a line break
    safe             nothing stands in the way, so an edit must be made without asking
    breaks PATTERN   breaks an assumption: an unsafe edit whose message matches may change what the program does
    raises           the program lets an exception out
    alone            only model.py is given to autofuse, not the files beside it
    bare             no imports stand above the text
    night            runs by night only

The text of another file stands under a line `#### name.py`.
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
KNOWN = HERE / "known.txt"  # what is wrong, until it is mended: lines "name [level]"
LEVELS = ("safe", "unsafe")  # edits that are made without asking, and all of them

IMPORTS = """\
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


"""


@dataclass(frozen=True)
class Program:
    """One program. files: texts by their names, `model.py` among them. breaks: patterns of messages of edits."""

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
        for word, value in [*said.items()] * 2:  # a word may stand in what is put for another
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
