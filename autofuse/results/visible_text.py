"""Text from a stranger's tree, fit to be printed: a name may hold line ends, escape sequences and worse."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format (text from right to left), half pairs, separators


def visible(text: str) -> str:
    """A name in one line: what cannot be printed is written as Python escapes it, `\\n` or `\\x1b`.

    A byte that is no text in the file system's encoding (a half pair to Python) is written as that byte.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    return f"./{text}" if text.startswith("::") else text  # a CI log takes a line that begins so for a command


def harmless(text: str) -> str:
    """Text of several lines without what a terminal would obey: line ends, tabs and spaces of any kind stay."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if c not in _KEPT and unicodedata.category(c) in _UNSEEN else c for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
