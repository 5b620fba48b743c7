"""Shortens repeated names of modules, and texts that contain them: "h.*.attn" for twelve layers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

_BLOCK = re.compile(r"(?<=[A-Za-z_]\.)\d+(?=\.|\b)")  # the number of a block within a dotted name
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?<=\d)")
_ENOUGH = 3  # with so many siblings of one class, these are blocks; two may be the layers of an MLP


def pattern_of(text: str) -> str:
    """The text with "*" for the numbers of blocks and "…" for other numbers."""
    return _NUMBER.sub("…", _BLOCK.sub("*", text))


def in_common(texts: Sequence[str]) -> str:
    """One text for texts that differ in numbers only; "" if they differ in more.

    The numbers of blocks become "*", other numbers "…".
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
    """Each module's name with the numbers of repeated blocks as "*".

    A number is that of a repeated block if all its siblings, from 0 to the last, are of its class, or at least three
    are. So the layers of a small nn.Sequential keep their numbers.

    Args:
        kinds: the class of each module, by name.
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
