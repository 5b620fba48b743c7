"""The text that the demo's model reads."""

import string

from autofuse.demo.text import CHARACTERS, text
from autofuse.demo.training import harbour_log


def test_it_is_as_long_as_asked_for():
    assert len(text()) == CHARACTERS and len(text(123)) == 123


def test_it_is_the_same_every_time():
    assert text() == text() and text(200) == text(500)[:200]


def test_every_hole_is_filled_and_every_sentence_begins_with_a_capital():
    log = text()
    assert not set("{}") & set(log)
    assert all(line[0].isupper() for line in log.splitlines())


def test_any_part_of_it_is_written_in_the_alphabet_of_the_whole():
    """The model's vocabulary is made from the text that it reads: a character that is missing would have no row."""
    log = text()
    assert set(text(2 * len(log))) == set(log)
    assert set(log) - set(string.ascii_letters) <= set(" \n.,;:?'\"-")


def test_the_corpus_of_the_demo_numbers_every_character_and_gives_it_back():
    corpus = harbour_log()
    assert "".join(corpus.alphabet[i] for i in corpus.ids.tolist()) == text()
