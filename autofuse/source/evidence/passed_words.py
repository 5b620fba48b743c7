"""Finds out by the bytes of a file whether it may pass on a module of torch: `alias = torch`, `replace(torch)`.

Reading bytes is much faster than parsing. passed_modules.py reads the syntax tree of such a file.
"""

from __future__ import annotations

import re

_MAX_NAME = 100  # bytes before a name that are looked at
_END_OF_VALUE = frozenset(bytes([c]) for c in b"),]};:\n\r #\t") | {b""}
_BEFORE_VALUE = re.compile(rb"(?:[=,(\[:{]|\breturn|\bin|\belse|\bor|\band|\bif)[ \t\n]*(?:\w+\.)*\Z")
_ONLY_TESTED = re.compile(
    rb"(?:\b(?:hasattr|isinstance|issubclass|getmembers|dir|getattr)\([ \t]*|^[ \t]*(?:import|from)\b[^\n]*)"
    rb"(?:\w+\.)*\Z",
    re.MULTILINE,
)
_TENSOR_CLASS = (
    b"Tensor.__",
    b"Tensor.mro",
    b"getmro(",
    b"= torch.Tensor",
    b"= Tensor",
    b"in torch.Tensor",
    b"in Tensor",
)
_CLASS_VALUE = re.compile(rb"(?:=|\bin|getmro\()[ \t]*\(?[ \t]*(?:torch\.)?Tensor(?:\.__\w+__|\.mro\(\))?[^\w.(]")
_CLASS_OF_OBJECT = re.compile(
    rb"(?:type\([^()\n]*(?:\([^()\n]*\))?\)|__class__)(?:\.\w+[ \t]*=(?!=)|,[ \t]*[\"']|[ \t]*$)", re.MULTILINE
)
_BY_TEXT = re.compile(
    rb"(?:import_module|__import__|\bmodules)[(\[][ \t]*[\"']torch\b"
    rb"|getattr\([ \t]*(?:torch|nn)\b[\w.]*, *[\"'](?:nn|func|Ten)"
)


def passes_torch(source: bytes, other_names: set[bytes]) -> bool:
    """Whether a file may pass on a module of torch, also under one of `other_names`, or the tensor class."""
    names = other_names | {b"torch", b"functional", b"torch.__dict__"} | ({b"F"} if b" as F" in source else set())
    names |= {b"nn"} if b"import nn" in source or b"torch.nn" in source or b"as nn" in source else set()
    if any(_passes_name(source, name) for name in names if name in source):
        return True
    if any(w in source for w in _TENSOR_CLASS) and _CLASS_VALUE.search(source):
        return True
    if any(_matches_at(_CLASS_OF_OBJECT, source, word) for word in (b"type(", b"__class__")):
        return True
    return any(
        _matches_at(_BY_TEXT, source, word) for word in (b"import_module", b"__import__", b"modules[", b"getattr(")
    )


def _matches_at(pattern: re.Pattern[bytes], source: bytes, word: bytes) -> bool:
    """Whether a pattern matches at one of the places of a word. Faster than a search."""
    at = source.find(word)
    while at >= 0:
        if pattern.match(source, at):
            return True
        at = source.find(word, at + 1)
    return False


def _passes_name(source: bytes, name: bytes) -> bool:
    """Whether a file uses a name of a module as a value, not only to look up something in it."""
    at = source.find(name)
    while at >= 0:
        end = at + len(name)
        if source[end : end + 1] in _END_OF_VALUE and not is_word_character(source[at - 1 : at]):
            before = source[max(0, at - _MAX_NAME) : at]
            if _BEFORE_VALUE.search(before) and not _ONLY_TESTED.search(before):
                return True
        at = source.find(name, end)
    return False


def is_word_character(character: bytes) -> bool:
    """Whether a byte may be a part of a name."""
    return character.isalnum() or character == b"_"
