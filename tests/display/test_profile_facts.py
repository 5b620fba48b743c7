"""The sentences about a whole step."""

from __future__ import annotations

from dataclasses import replace

from autofuse.display.profile_facts import facts_of, facts_of_both, step_of, title_of, without_full_stop
from autofuse.results.comparison import Interval
from autofuse.results.profile import Profile
from autofuse.results.profile_parts import Power, Probe, Rank
from tests.display.samples import almost_nothing, gpt, trace_of_a_job


def facts(profile: Profile) -> dict[str, str]:
    return {label: text.plain for label, text in facts_of(profile)}


def test_a_title_names_the_model_and_the_source() -> None:
    assert title_of(gpt()) == "GPT · AMD EPYC, 2 threads"
    assert title_of(trace_of_a_job()) == "rank0.json.gz, and 3 more · from a trace"


def test_one_step_has_no_interval() -> None:
    one = replace(gpt().timing, seconds=(0.25,), samples=None, tokens=None)
    assert step_of(replace(gpt(), timing=one)).plain == "250 ms · 1 step"


def test_unknown_values_are_listed_once_for_each_reason() -> None:
    assert facts(almost_nothing())["n/a"] == "memory, regime, power: n/a, because it was not measured"
    told = [text.plain for label, text in facts_of(gpt()) if label == "n/a"]
    assert told == ["power: n/a, because NVML is not there: it needs an NVIDIA GPU"]


def test_unknown_shares_follow_their_reason() -> None:
    assert facts(gpt())["of it"] == (
        "host overhead: n/a, because on a CPU the host computes · "
        "communication, exposed communication: n/a, because there is one process only"
    )


def test_memory_lists_the_largest_part_first_and_omits_empty_parts() -> None:
    assert facts(gpt())["memory"].startswith("peak 202 MiB · activations 180 MiB · temporaries")
    lean = replace(gpt().memory, optimizer=0)
    assert "optimizer" not in facts(replace(gpt(), memory=lean))["memory"]


def test_the_probe_is_shown_with_its_interval() -> None:
    probe = Probe(1.2, Interval(1.1, 1.3), "overhead")
    assert (
        facts(replace(gpt(), probe=probe))["regime"] == "overhead: twice the batch takes 1.20x the time (1.10 to 1.30)"
    )


def test_power_without_tokens_is_power() -> None:
    assert facts(replace(gpt(), power=Power(300.0)))["power"] == "300 W"


def test_ranks_of_the_same_speed_have_no_spread() -> None:
    ranks = (Rank(0, 0.1), Rank(1, 0.1))
    assert facts(replace(gpt(), ranks=ranks))["ranks"].endswith("all take 100 ms within 2%")
    assert "ranks" not in facts(replace(gpt(), ranks=ranks[:1]))


def test_two_sides_are_shown_as_changes_and_missing_memory_has_a_reason() -> None:
    both = {label: text.plain for label, text in facts_of_both({"before": gpt(), "after": gpt(True)})}
    assert "forward 78.7 ms → 44.9 ms" in both["time"] and "peak 202 MiB → 82 MiB" in both["memory"]
    half = {label: text.plain for label, text in facts_of_both({"before": almost_nothing(), "after": gpt()})}
    assert half["n/a"] == "memory: n/a, because it was not measured"


def test_a_sentence_that_continues_has_no_full_stop() -> None:
    assert without_full_stop("It is so. ") == "It is so"
