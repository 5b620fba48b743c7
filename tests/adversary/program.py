"""What a program of the attack is: the text of a module, how it is called, and what is changed between the calls.

The text may define, beside the class `M`:

    make()           the model; `M()` if it is not there
    inputs(step)     the arguments of the call of that number; one tensor if it is not there
    change(m)        what somebody does to the program after the first calls
    undo(m)          puts back what `change` did to the whole process, e.g. to the environment
    use(m, *args)    how the model is called; `m(*args)` if it is not there
    wrap(m)          what is called instead of the optimized model, e.g. a copy of it
    SETTINGS         the text of a module that this one can import as `adversary_settings`
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

HERE = Path(__file__).parent
KNOWN = HERE / "known.txt"  # what is wrong, until it is mended: lines "name [way]"
WAYS = ("examples", "lazily")  # optimize is given example inputs, or looks at each module when it is first called

TRAIN_FIRST = ("train", "eval", "change", "eval", "train")
EVAL_FIRST = ("eval", "train", "change", "train", "eval")

PRELUDE = (HERE / "programs" / "prelude.txt").read_text()


@dataclass(frozen=True)
class Program:
    """One program.

    name: "area/what it is". calls: modes of calls, and "change" between them; see world.Call. tolerance: relative to
    the largest entry. random: whether calls draw numbers, whose order a fused layer may change. fused: whether it must
    be fused in both ways, since nothing stands in the way. night: whether it runs by night only.
    """

    name: str
    source: str
    calls: tuple[str, ...] = ()
    tolerance: float = 1e-9
    random: bool = False
    fused: bool = False
    night: bool = False
    double: bool = True
    text: str = PRELUDE

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]

    @property
    def sequence(self) -> tuple[str, ...]:
        """The calls; programs that do not say begin in training or in evaluation, by their name."""
        return self.calls or (TRAIN_FIRST, EVAL_FIRST)[crc32(self.name.encode()) % 2]

    @property
    def whole(self) -> str:
        return f"{self.text}\n\n{self.source}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Section:
    """A part of a file of programs: its title, its lines of code, and its lines `> key value`."""

    title: str
    code: str
    said: tuple[tuple[str, str], ...]

    def all(self, key: str) -> list[str]:
        return [value for k, value in self.said if k == key]

    def one(self, key: str, default: str = "") -> str:
        return "\n".join(self.all(key)) or default

    def has(self, key: str) -> bool:
        return any(k == key for k, _ in self.said)


def sections(file: str, folder: Path = HERE / "programs") -> Iterator[Section]:
    """The sections of a `file` in `folder`, each under a line `=== title`."""
    text = (folder / file).read_text()
    for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lines = body.splitlines()
        said = [line[2:].partition(" ") for line in lines if line.startswith("> ")]
        code = "\n".join(line for line in lines if not line.startswith("> ")).strip("\n")
        yield Section(title.strip(), code, tuple((key, value) for key, _, value in said))


def programs_of(section: Section, area: str) -> Iterator[Program]:
    """The programs of a section: one, or one for each word that its lines `> each WORD: this | that` give.

    Of more than two, every other one is for the night.
    """
    words = [line.partition(": ") for line in section.all("each")]
    every = list(itertools.product(*(v.split(" | ") for _, _, v in words)))
    start = crc32(section.title.encode()) % 2
    for number, values in enumerate(every):
        title, code = section.title, section.code
        for (word, _, _), value in zip(words, values, strict=True):
            title, code = f"{title}, {value}", re.sub(rf"\b{word}\b", lambda _, v=value: v, code)
        yield _program(section, f"{area}/{title}", code, night=len(every) > 2 and number % 2 != start)


def _program(section: Section, name: str, code: str, night: bool) -> Program:
    return Program(
        name,
        code,
        calls=tuple(section.one("calls").split()),
        tolerance=float(section.one("tolerance", "1e-9")),
        random=section.has("random"),
        fused=section.has("fused"),
        night=night or section.has("night"),
        double=not section.has("single"),
    )
