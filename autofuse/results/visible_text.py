"""Makes text from untrusted files safe to print. A name may contain line ends, escape sequences and other controls."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format (such as right-to-left marks), surrogates, separators


def visible(text: str) -> str:
    r"""A name on one line. Characters that cannot be printed are written as Python escapes them, `\n` or `\x1b`.

    A byte that is not text in the file system's encoding (Python holds it as a surrogate) is written as that byte.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escape(c) for c in text)
    return f"./{text}" if text.startswith("::") else text  # a CI system would read such a line as a command


def harmless(text: str) -> str:
    """Text of several lines without characters that control a terminal. Line ends, tabs and spaces of any kind stay."""
    if text.isprintable():
        return text
    return "".join(_escape(c) if c not in _KEPT and unicodedata.category(c) in _UNSEEN else c for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
