"""Finds comments that describe code that an edit removes.

A comment is stale if it names a variable or a function that only the old code has: "Normalize the attention scores to
probabilities" after `attention_scores` is gone. Words are compared, not sentences.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import libcst as cst

_WORD = re.compile(r"[a-z0-9]+")
_SHORTEST = 3  # characters of a name; shorter ones, such as `x`, are too common as words
_BY_HAND = re.compile(r"\b(manual|manually|naive|naively|by hand|hand-written|explicitly)\b", re.IGNORECASE)
_LONGEST = 3  # lines of a comment about one statement; a longer one says more than that


def names_in(nodes: Iterable[cst.CSTNode]) -> frozenset[str]:
    """The names and attributes in some code."""
    found, todo = set[str](), list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Name):
            found.add(node.value)
        todo += node.children
    return frozenset(found)


def stale_words(old: Collection[str], new: Collection[str]) -> list[tuple[str, ...]]:
    """The names that only the old code has, each as its words. A word that the new code has is not stale alone."""
    kept = {word for name in new for word in _words(name)}
    stale = [_words(name) for name in old if name not in new and len(name) >= _SHORTEST]
    return [words for words in stale if len(words) > 1 or words and words[0] not in kept]


def without_stale(
    lines: list[cst.EmptyLine], stale: list[tuple[str, ...]]
) -> tuple[list[cst.EmptyLine], list[cst.EmptyLine]]:
    """The lines without the paragraphs that describe removed code, and the lines of these paragraphs."""
    kept, removed, paragraph = list[cst.EmptyLine](), list[cst.EmptyLine](), list[cst.EmptyLine]()
    for line in (*lines, None):
        if line is not None and line.comment is not None:
            paragraph.append(line)
            continue
        is_stale = len(paragraph) <= _LONGEST and any(_is_stale(part, stale) for part in paragraph)
        (removed if is_stale else kept).extend(paragraph)
        paragraph = []
        is_double = is_stale and bool(kept) and kept[-1].comment is None
        kept += [line] if line is not None and not is_double else []
    return kept, removed


def _is_stale(line: cst.EmptyLine, stale: list[tuple[str, ...]]) -> bool:
    if line.comment is None:
        return False
    words = _words(line.comment.value)
    is_named = any(words[i : i + len(name)] == name for name in stale for i in range(len(words)))
    return is_named or bool(stale) and _BY_HAND.search(line.comment.value) is not None


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))
