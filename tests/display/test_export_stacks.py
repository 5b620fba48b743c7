"""Flame graphs: the weights add up to the time of the layers, and the files have the published formats."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from autofuse.display.export_stacks import collapsed, speedscope, stacks
from tests.display.samples import almost_nothing, gpt


def test_the_weights_are_own_times_so_that_they_add_up() -> None:
    profile = gpt()
    total = sum(seconds for *_, seconds in stacks(profile))
    assert total == pytest.approx(sum(layer.own_seconds for layer in profile.layers))
    by_path: defaultdict[str, float] = defaultdict(float)
    for path, _, seconds in stacks(profile):
        by_path[path[-1]] += seconds
    assert by_path["h.0.attn (Attention)"] == pytest.approx(profile.layer("h.0.attn").own_seconds)


def test_a_collapsed_line_is_frames_and_a_whole_number_and_no_name_breaks_it() -> None:
    evil = replace(gpt(), name="a;b\nc 1")
    lines = collapsed(evil).splitlines()
    assert len(lines) == len(list(stacks(evil)))
    assert all(re.fullmatch(r"[^;\n]+(;[^;\n]+)* [1-9]\d*", line) for line in lines)
    assert {line.partition(";")[0] for line in lines} == {"a,b c 1"}


def test_the_file_follows_the_published_form_of_speedscope() -> None:
    """src/lib/file-format-spec.ts of jlfwong/speedscope: FileFormat.File, SampledProfile, Frame."""
    file = speedscope(gpt())
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = file["shared"]["frames"]
    assert all(set(frame) == {"name"} and isinstance(frame["name"], str) for frame in frames)
    assert len({frame["name"] for frame in frames}) == len(frames)
    assert [profile["name"] for profile in file["profiles"]] == ["all phases", "forward", "backward"]
    for profile in file["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert profile["type"] == "sampled" and profile["unit"] == "seconds"
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= index < len(frames) for sample in profile["samples"] for index in sample)
        assert profile["endValue"] - profile["startValue"] == pytest.approx(sum(profile["weights"]))
    assert 0 <= file["activeProfileIndex"] < len(file["profiles"])


def test_a_profile_without_layers_has_no_stacks() -> None:
    assert collapsed(almost_nothing()) == "" and speedscope(almost_nothing())["profiles"] == []
