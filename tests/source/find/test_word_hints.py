"""A text has the words of a rule if it has one of its hints, with the text that must accompany it, and all others."""

from __future__ import annotations

import re

import pytest

from autofuse.loading.registry import load_rules
from autofuse.source.find.required_words import words_of_rule
from autofuse.source.find.word_hints import RuleWords, WordHints

ATTENTION = RuleWords(((b"softmax", b""),), (b"@|matmul",))
NORM = RuleWords(((rb"norm\(", rb"[+/]"),))
HINTS = WordHints([ATTENTION, NORM])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"softmax(q @ k)", True),
        (b"softmax(x)", False),
        (b"q @ k", False),
        (b"norm(x) + y", True),
        (b"norm(x)", False),
        (b"norm + y", False),
        (b"softmax norm(x)", False),
    ],
)
def test_a_rule_needs_all_its_words(text: bytes, found: bool) -> None:
    assert HINTS.search(text) is found
    assert bool(HINTS.possible_in(text, others=False).rules) is found


def test_other_files_may_add_words_to_one_hint_of_a_rule() -> None:
    assert HINTS.possible_in(b"softmax(x)", others=True).rules == (ATTENTION,)
    assert HINTS.possible_in(b"q @ k", others=True).rules == ()


def test_helpers_may_hold_a_part_of_the_words() -> None:
    helper = HINTS.complete(HINTS.words_in(b"matmul(q, k)"), b"matmul(q, k)")
    own = HINTS.complete(HINTS.words_in(b"softmax(x)"), b"softmax(x)")
    assert not HINTS.suffice(helper) and not HINTS.suffice(own) and HINTS.suffice(helper | own)


_TEXTS = [
    b"", b"cat", b"concat(x)", b"torch.cat((a, b))", b"category(x)", b"_cat(x)", b"x.exp_()", b"exponent", b"mm",
    b"bmm(", b"summary", b"x ** .5", b"1.55", b"std", b"std::move", b"6", b"16", b"LayerNorm(8)", b"norm (", b"lu",
    b"relu(x)", b"x",
]  # fmt: skip


def test_words_are_found_where_their_regular_expressions_match() -> None:
    rules = [words_of_rule(r) for r in load_rules() if r.change is None]
    words = {w for r in rules for pair in r.one_of for w in pair[:1]} | {w for r in rules for w in r.all_of}
    for word in sorted(words):
        single = WordHints([RuleWords(((word, b""),))])
        assert [single.search(t) for t in _TEXTS] == [re.search(word, t) is not None for t in _TEXTS], word
