"""The text that the demo's model reads."""

from autofuse.demo.text import CHARACTERS, text


def test_it_is_as_long_as_asked_for():
    assert len(text()) == CHARACTERS and len(text(123)) == 123


def test_it_is_the_same_every_time():
    assert text() == text() and text(200) == text(500)[:200]


def test_every_hole_is_filled_and_every_sentence_begins_with_a_capital():
    log = text()
    assert not set("{}") & set(log)
    assert all(line[0].isupper() for line in log.splitlines())


def test_its_alphabet_is_small_enough_for_a_small_model():
    assert len(set(text())) < 64 and text().isascii()
