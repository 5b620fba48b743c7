"""Tests of the demo's training text."""

import string

from autofuse.demo.text import CHARACTERS, text
from autofuse.demo.training import harbour_log


def test_the_text_has_the_requested_length():
    assert len(text()) == CHARACTERS and len(text(123)) == 123


def test_the_text_is_always_the_same():
    assert text() == text() and text(200) == text(500)[:200]


def test_no_placeholder_is_left_and_every_sentence_starts_with_a_capital():
    log = text()
    assert not set("{}") & set(log)
    assert all(line[0].isupper() for line in log.splitlines())


def test_a_shorter_text_uses_the_alphabet_of_the_whole_text():
    """The vocabulary comes from the text. A character that is missing there would have no embedding."""
    log = text()
    assert set(text(2 * len(log))) == set(log)
    assert set(log) - set(string.ascii_letters) <= set(" \n.,;:?'\"-")


def test_corpus_ids_map_back_to_the_text():
    corpus = harbour_log()
    assert "".join(corpus.alphabet[i] for i in corpus.ids.tolist()) == text()
