"""A profile as data: to JSON and back, and what follows from its fields."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from autofuse.display.profile_page import html
from autofuse.results.comparison import Interval
from autofuse.results.data import Malformed
from autofuse.results.profile import Profile
from tests.display.samples import almost_nothing, gpt, large, trace_of_a_job


@pytest.mark.parametrize("made", [gpt, trace_of_a_job, almost_nothing, large])
def test_written_data_is_read_back_unchanged(made: object) -> None:
    profile = made()  # type: ignore[operator]
    assert Profile.from_dict(json.loads(profile.to_json())) == profile


def test_version_and_type_come_first() -> None:
    assert list(gpt().to_dict())[:3] == ["version", "type", "name"]


def test_a_diverged_loss_stays_nan_and_the_file_stays_json() -> None:
    profile = replace(gpt(), losses=(2.0, math.nan, math.inf))
    text = profile.to_json()
    assert "NaN" not in text and "Infinity" not in text
    first, *others = Profile.from_dict(json.loads(text)).losses
    assert first == 2.0 and all(map(math.isnan, others))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "not a profile"), ({}, "not a profile"), ({"version": 1, "verdict": "confirmed"}, "not a profile"),
        ({"type": "profile", "version": 2}, "format version 2"),
        ({"type": "profile", "version": 1}, "Profile lacks name"),
    ],
)  # fmt: skip
def test_other_data_is_refused_with_a_message(data: object, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        Profile.from_dict(data)


def test_fields_of_a_later_version_are_ignored_and_missing_ones_have_defaults() -> None:
    data = json.loads(almost_nothing().to_json())
    minimal = {key: data[key] for key in ("version", "type", "name", "timing", "ladder")} | {"news": 1}
    assert Profile.from_dict(minimal) == replace(almost_nothing(), kind="live")


def test_rates_are_of_the_median_step() -> None:
    timing = replace(gpt().timing, seconds=(0.1, 0.2, 0.9), interval=Interval(0.1, 0.9), samples=4, tokens=400)
    assert (timing.median, timing.samples_per_second, timing.tokens_per_second) == (0.2, 20.0, 2000.0)
    assert replace(timing, tokens=None).tokens_per_second is None
    assert math.isnan(almost_nothing().timing.median)


def test_layers_and_levels_are_found_by_name() -> None:
    assert gpt().layer("h.0.attn").kind == "Attention"
    assert gpt().level("busy").value == 0.941
    with pytest.raises(KeyError):
        gpt().layer("h.9.attn")


def test_places_come_with_the_greatest_saving_first() -> None:
    savings = [place.predicted_saving or 0.0 for _, place in gpt().places]
    assert savings == sorted(savings, reverse=True)
    assert savings[-1] == 0.0


def test_the_page_of_a_profile_equals_that_of_the_command() -> None:
    assert gpt().to_html() == html(gpt())


def test_a_profile_is_printed_on_a_terminal_and_in_a_notebook() -> None:
    assert str(gpt()).startswith("GPT")
    assert "<table" in gpt()._repr_html_() and "<script" not in gpt()._repr_html_()
