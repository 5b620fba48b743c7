"""A profile on a terminal fits one screen and shows only measured values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.display.profile_terminal import notebook, summary, summary_of_both
from autofuse.display.terminal import text
from autofuse.results.ladder import LEVELS, ON_CPU, of_a_cpu
from autofuse.results.profile import Profile
from tests.display.samples import almost_nothing, comparison, gpt, large, rank_steps, trace_of_a_job


def screen(profile: Profile, width: int = 110) -> str:
    return text(summary(profile), width)


def joined_text(profile: Profile) -> str:
    """The text without line breaks, for sentences that may start anywhere in a line."""
    return " ".join(screen(profile).split())


@pytest.mark.parametrize("blocks", [2, 12, 96])
def test_a_profile_fits_one_screen_for_a_model_of_any_depth(blocks: int) -> None:
    assert len(screen(gpt(blocks=blocks)).splitlines()) <= 60


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("profile", [gpt(), trace_of_a_job(), almost_nothing(), large(4)], ids=lambda p: p.name[:12])
def test_no_line_is_wider_than_the_terminal(profile: Profile, width: int) -> None:
    assert max(map(len, screen(profile, width).splitlines())) <= width
    assert max(map(len, text(summary_of_both(profile, profile), width).splitlines())) <= width


@pytest.mark.parametrize("profile", [gpt(), trace_of_a_job()], ids=lambda p: p.name[:12])
def test_levels_that_are_missing_for_several_reasons_are_one_line(profile: Profile) -> None:
    told = joined_text(profile)
    assert all(kind.title in told for kind in LEVELS)
    missing = ", ".join(level.kind.title for level in profile.ladder if level.value is None)
    assert sum(told.count(level.reason) for level in profile.ladder if level.reason) == 0
    assert f"Not available: {missing[:40]}" in told
    assert "The page and the JSON say why, and how to get them." in told


def test_without_a_known_level_the_reasons_are_shown() -> None:
    told = joined_text(almost_nothing())
    assert all(level.reason in told and " ".join(level.kind.get.split()) in told for level in almost_nothing().ladder)


def test_on_a_cpu_missing_gpu_values_are_one_sentence() -> None:
    told = joined_text(replace(gpt(), ladder=of_a_cpu(gpt().ladder)))
    assert f"SM sub-partitions active: n/a, because {ON_CPU}; to get it, profile on a GPU" in told
    assert told.count("n/a, because the step ran") == 1 and all(kind.title in told for kind in LEVELS)


def test_repeated_layers_are_one_row_with_their_sum_and_their_rule() -> None:
    lines = screen(gpt()).splitlines()
    (row,) = [i for i, line in enumerate(lines) if "h.*.attn ×4" in line and "36.00" in line]
    assert all(number in lines[row] for number in ("36.00", "64.00", "39.4 %", "memory", "136"))
    assert "AF101 applies: 1.23x" in lines[row + 1]
    assert "h.2" not in screen(gpt())


def test_a_declined_place_has_its_reason() -> None:
    assert "the scores are returned too" in joined_text(gpt())


def test_rates_shares_memory_and_notes_are_shown() -> None:
    told = joined_text(gpt())
    for part in ("254 ms (251 ms to 257 ms)", "31.5 samples/s", "8,065 tokens/s", "forward 31 %", "optimizer 5 %",
                 "peak 202 MiB", "activations 180 MiB", "twice the batch takes 1.93x the time (1.88 to 1.99)",
                 "98.1 % of the forward", "1.31x as long", "The step's time is of 30 steps"):  # fmt: skip
        assert part in told


def test_an_unmeasured_value_has_no_number() -> None:
    told = joined_text(almost_nothing())
    assert "no step was timed" in told
    assert not any(sign in told for sign in ("%", " ms", "MiB", "samples/s", " W"))


def test_ranks_name_the_slowest_and_the_spread() -> None:
    assert "the slowest is rank 3 with 103 ms · spread 2.91 % of it" in joined_text(trace_of_a_job())


def test_power_is_shown_with_its_tokens() -> None:
    power = replace(gpt().power, watts=412.0, joules_per_step=104.6, tokens_per_joule=19.6, reason="")
    assert "412 W · 105 J/step · 19.6 tokens/J" in joined_text(replace(gpt(), power=power))


def test_before_and_after_are_shown_side_by_side_with_the_verdict() -> None:
    told = " ".join(text(summary_of_both(gpt(), gpt(True), comparison()), 110).split())
    for part in ("confirmed: 1.75x (1.60 to 1.81)", "peak 202 MiB → 82 MiB", "forward 78.7 ms → 44.9 ms",
                 "h.*.attn ×4 100 ms 28.4 ms", "AF101 fused", "17.1 %", "27.4 %"):  # fmt: skip
        assert part in told


def test_square_brackets_in_names_are_no_markup() -> None:
    assert "[red]model[/red]" in screen(replace(gpt(), name="[red]model[/red]", notes=("[b]note[/b]",)))
    assert "[b]note[/b]" in screen(replace(gpt(), notes=("[b]note[/b]",)))


def test_a_notebook_has_the_same_tables() -> None:
    made = notebook({"before": gpt(), "after": gpt(True)}, comparison())
    assert "h.*.attn ×4" in made and "before value" in made and "1.75x" in made


def test_the_heat_map_of_a_job_is_below_its_levels() -> None:
    told = screen(replace(trace_of_a_job(), rank_steps=rank_steps()))
    assert told.index("how much of the machine it uses") < told.index("ranks and steps")
    assert "rank   2  ···█··  100 ms" in told
    assert "ranks and steps" not in screen(trace_of_a_job())
