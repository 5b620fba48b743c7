"""Searches texts for the words of rules, much faster than a parser reads them.

A rule has a few words that every match contains, such as `softmax` and a matrix product. This module compares words; it
does not know what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass


@dataclass(frozen=True)
class RuleWords:
    """The words that the text of a match contains, for one rule.

    Attributes:
        one_of: Pairs of regular expressions: for a hint, and for the text that must accompany it (b"" for any). The
            text contains both parts of one pair.
        all_of: Regular expressions that all match.
    """

    one_of: tuple[tuple[bytes, bytes], ...]
    all_of: tuple[bytes, ...] = ()


_Needs = tuple[frozenset[int], frozenset[int]]  # hints of which one is needed, and hints that are all needed


class WordHints:
    """The words of several rules. A text without the words of any rule contains no match.

    A hint is identified by its index `i`, or by `~i` if the text that must accompany it was found too.
    """

    def __init__(self, rules: Sequence[RuleWords]) -> None:
        self.rules = tuple(dict.fromkeys(rules))
        hints = dict.fromkeys(pair for r in self.rules for pair in (*r.one_of, *((word, b"") for word in r.all_of)))
        self._index = {pair: i for i, pair in enumerate(hints)}
        self._all_words = [[_WORDS[each] for each in word.split(b"|")] for word, _ in hints]
        self._different_words = tuple(dict.fromkeys(word for words in self._all_words for word in words))
        self._hints_of_words = self._group_by_word(self._different_words)
        self._companions = [re.compile(companion) if companion else None for _, companion in hints]
        self._needs: tuple[_Needs, ...] = tuple(map(self._needs_of, self.rules))
        self._parts: dict[tuple[RuleWords, ...], WordHints] = {}
        self.all = frozenset(i for n in range(len(hints)) for i in (n, ~n))

    def _needs_of(self, rule: RuleWords) -> _Needs:
        one_of = frozenset(~self._index[pair] if pair[1] else self._index[pair] for pair in rule.one_of)
        return one_of, frozenset(self._index[word, b""] for word in rule.all_of)

    def _group_by_word(self, words: Iterable[_Word]) -> list[tuple[_Word, frozenset[int]]]:
        """Each of these words, with the hints that have it."""
        return [(w, frozenset(i for i, own in enumerate(self._all_words) if w in own)) for w in words]

    def words_in(self, text: bytes) -> frozenset[int]:
        """The hints in `text`, with or without the accompanying text."""
        found = frozenset[int]()
        for word, hints in self._hints_of_words:  # each word is searched for once, though several hints have it
            if not hints <= found and word.is_in(text):
                found |= hints
        return found

    def complete(self, hints: Iterable[int], text: bytes) -> frozenset[int]:
        """The hints that need no accompanying text, or whose accompanying text is in `text`."""
        completed = set()
        for i in hints:
            companion = self._companions[i] if i >= 0 else None
            if companion is None:
                completed.add(i)
            elif companion.search(text):
                completed.add(~i)
        return frozenset(completed)

    def suffice(self, complete: frozenset[int]) -> bool:
        """Whether these hints are all that a rule needs."""
        return any(not one_of.isdisjoint(complete) and all_of <= complete for one_of, all_of in self._needs)

    def search(self, text: bytes) -> bool:
        """Whether `text` contains the words of a rule."""
        return self.suffice(self.complete(self.words_in(text), text))

    def possible_in(self, text: bytes, others: bool) -> WordHints:
        """The hints of the rules that may match in the file `text`.

        Args:
            text: The content of the file.
            others: Whether layers of other files may add words.
        """
        present = {word for word in self._different_words if word.is_in(text)}
        hinted = (i for i, words in enumerate(self._all_words) if not present.isdisjoint(words))
        found = self.complete(hinted, text)
        rules = tuple(
            rule
            for rule, (one_of, all_of) in zip(self.rules, self._needs, strict=True)
            if not one_of.isdisjoint(found) and (others or all_of <= found)
        )
        if rules not in self._parts:
            self._parts[rules] = WordHints(rules)
        return self._parts[rules]._with_words(present)

    def _with_words(self, present: set[_Word]) -> WordHints:
        """The same hints for parts of a text that contains only these words: no other words are searched for."""
        hints = copy(self)
        hints._hints_of_words = [(word, own) for word, own in self._hints_of_words if word in present]
        return hints

    def of_name(self, name: bytes) -> frozenset[int]:
        """The hints that a name is, if it is called."""
        text = name + b"("
        return frozenset(i for i, words in enumerate(self._all_words) if any(word.is_in(text) for word in words))


class _Word:
    """A regular expression that is a literal text, with or without `\\b` at its ends, or any other expression.

    A literal text is searched for with `find`, which is much faster than a regular expression.
    """

    def __init__(self, expression: bytes) -> None:
        self.at_start, self.at_end = expression.startswith(rb"\b"), expression.endswith(rb"\b")
        middle = expression[2 * self.at_start : len(expression) - 2 * self.at_end]
        self.literal = re.sub(rb"\\([^\w\s])", lambda m: m[1], middle)
        is_literal = re.escape(self.literal) == middle
        self.expression = None if is_literal else re.compile(expression)

    def is_in(self, text: bytes) -> bool:
        """Whether the expression matches anywhere in `text`."""
        if self.expression is not None:
            return self.expression.search(text) is not None
        if not self.at_start and not self.at_end:
            return self.literal in text
        at = text.find(self.literal)
        while at >= 0:
            end = at + len(self.literal)
            if not (self.at_start and _is_inside_word(text, at)) and not (self.at_end and _is_inside_word(text, end)):
                return True
            at = text.find(self.literal, at + 1)
        return False


def _is_inside_word(text: bytes, at: int) -> bool:
    """Whether there is no boundary of a word at this position."""
    return bool(at) and at < len(text) and _is_word_byte(text[at - 1 : at]) == _is_word_byte(text[at : at + 1])


def _is_word_byte(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"


class _SharedWords(dict[bytes, _Word]):
    """One word for each expression, so that a text is searched once for a word of several rules."""

    def __missing__(self, expression: bytes) -> _Word:
        self[expression] = _Word(expression)
        return self[expression]


_WORDS = _SharedWords()
