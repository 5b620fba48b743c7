"""Tests of sparklines."""

from autofuse.demo.terminal import WIDTH, sparkline


def test_a_falling_curve_is_drawn_falling():
    assert sparkline([7.0, 4.0, 0.0], (0.0, 7.0)) == "█▅▁"


def test_a_long_curve_is_averaged_to_the_width():
    bars = sparkline([1.0] * 100 + [0.0] * 100, (0.0, 1.0))
    assert bars == "█" * (WIDTH // 2) + "▁" * (WIDTH // 2)


def test_there_is_an_ascii_form():
    assert sparkline([8.0, 4.0, 0.0], (0.0, 8.0), ascii_only=True).isascii()


def test_a_flat_curve_can_be_drawn():
    assert len(sparkline([2.0], (2.0, 2.0))) == 1
