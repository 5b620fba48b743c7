"""Folds names of modules that repeat, and texts about them: "h.*.attn" for twelve layers. Knows text only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

_BLOCK = re.compile(r"(?<=[A-Za-z_]\.)\d+(?=\.|\b)")  # its number, within a dotted name
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?<=\d)")
_ENOUGH = 3  # this many siblings of one class among others are blocks; two may be the layers of an MLP


def pattern_of(text: str) -> str:
    """The text with "*" for numbers of blocks and "…" for other numbers."""
    return _NUMBER.sub("…", _BLOCK.sub("*", text))


def in_common(texts: Sequence[str]) -> str:
    """Texts that differ in numbers only as one: "*" for those of blocks, "…" for others, what is equal as it is.

    "" where they differ in more.
    """
    if all(text == texts[0] for text in texts):
        return texts[0]
    if len(set(map(pattern_of, texts))) > 1:
        return ""
    starred = [_BLOCK.sub("*", text) for text in texts]
    numbers = zip(*(_NUMBER.findall(text) for text in starred), strict=True)
    shown = iter([each[0] if len(set(each)) == 1 else "…" for each in numbers])
    return _NUMBER.sub(lambda _: next(shown), starred[0])


def patterns_of(kinds: Mapping[str, str]) -> dict[str, str]:
    """Each module's name with the numbers of repeated blocks as "*". `kinds`: the class of every module, by name.

    A number is a repeated block's where all its siblings, 0 to the last, are of its class, or at least three are; so
    the layers of a small nn.Sequential keep their numbers.
    """
    siblings: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in kinds:
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdecimal():
                siblings[".".join(parts[:i])][part] = kinds.get(".".join(parts[: i + 1]), "")
    return {name: _pattern(name, siblings) for name in kinds}


def _pattern(name: str, siblings: Mapping[str, Mapping[str, str]]) -> str:
    parts = name.split(".")
    shown = [
        "*" if part.isdecimal() and _repeats(part, siblings[".".join(parts[:i])]) else part
        for i, part in enumerate(parts)
    ]
    return ".".join(shown)


def _repeats(number: str, siblings: Mapping[str, str]) -> bool:
    alike = sum(kind == siblings[number] for kind in siblings.values())
    whole = alike == len(siblings) == 1 + max(map(int, siblings))
    return alike >= _ENOUGH or (alike > 1 and whole)
