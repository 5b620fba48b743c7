"""An adversarial program: the text of a module, how it is called, and what changes between the calls.

Besides the class `M`, the text may define:

    make()           returns the model; default: `M()`
    inputs(step)     returns the arguments of the call with this number; default: one tensor
    change(m)        changes the program after the first calls
    undo(m)          undoes what `change` did to the process, e.g. to the environment
    use(m, *args)    calls the model; default: `m(*args)`
    wrap(m)          returns what is called instead of the optimized model, e.g. a copy
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
KNOWN = HERE / "known.txt"  # programs that are known to be wrong: lines "name [way]"
WAYS = ("examples", "lazily")  # optimize gets example inputs, or traces each module at its first call

TRAIN_FIRST = ("train", "eval", "change", "eval", "train")
EVAL_FIRST = ("eval", "train", "change", "train", "eval")

PRELUDE = (HERE / "programs" / "prelude.txt").read_text()


@dataclass(frozen=True)
class Program:
    """One program.

    name: "area/title".
    calls: the modes of the calls, and "change" between them; see world._mode.
    tolerance: relative to the largest entry.
    random: whether calls draw random numbers. A fused layer may draw them in another order.
    fused: whether the program must be fused in both ways.
    night: whether it runs by night only.
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
        """The calls. By default, a hash of the name decides whether they begin in training or in evaluation."""
        return self.calls or (TRAIN_FIRST, EVAL_FIRST)[crc32(self.name.encode()) % 2]

    @property
    def full_text(self) -> str:
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
    """The programs of a section: one, or one for each value in its lines `> each WORD: this | that`.

    If there are more than two, every second one runs by night.
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
