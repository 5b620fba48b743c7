"""The levels of utilisation: their order, the loss on each level, and the reasons for unknown levels."""

from __future__ import annotations

import pytest

from autofuse.results.ladder import KINDS, LEVELS, ON_CPU, Level, ladder, of_a_cpu


def losses(**values: float) -> dict[str, float | None]:
    levels = ladder({name: Level(name, value) for name, value in values.items()}, "not looked at")
    return {level.name: level.loss for level in levels}


def test_every_level_occurs_once_in_order_with_its_question() -> None:
    assert [level.name for level in ladder({}, "no")] == [kind.name for kind in LEVELS] == list(KINDS)
    assert all(kind.title and kind.formula and kind.source and kind.get for kind in LEVELS)
    assert all(kind.above in (None, "", *KINDS) for kind in LEVELS)


def test_a_loss_is_counted_from_the_level_above() -> None:
    lost = losses(busy=0.9, sm_efficiency=0.5, hfu=0.4, mfu=0.3, ideal=0.2)
    assert lost["busy"] == pytest.approx(0.1)
    assert lost["sm_efficiency"] == pytest.approx(0.4)
    assert lost["hfu"] == pytest.approx(0.5)
    assert lost["mfu"] == pytest.approx(0.1)
    assert lost["ideal"] == pytest.approx(0.7)


def test_if_the_level_above_is_unknown_the_next_one_counts() -> None:
    assert losses(busy=0.9, mfu=0.3)["mfu"] == pytest.approx(0.6)
    assert losses(mfu=0.3)["mfu"] == pytest.approx(0.7)


def test_a_level_that_is_not_part_of_the_level_above_has_no_loss() -> None:
    assert losses(busy=1.0, occupancy=0.13)["occupancy"] is None
    assert losses(sm_active=0.5)["sm_active"] is None


def test_one_block_on_132_sms_is_busy_all_the_time_and_loses_nearly_all() -> None:
    lost = losses(busy=1.0, sm_efficiency=1 / 132)
    assert lost["busy"] == 0.0
    assert lost["sm_efficiency"] == pytest.approx(131 / 132)


def test_a_missing_level_has_a_reason_and_no_number() -> None:
    known = {"busy": Level("busy", None, reason="no kernel ran")}
    levels = {level.name: level for level in ladder(known, "not looked at")}
    assert (levels["busy"].value, levels["busy"].loss, levels["busy"].reason) == (None, None, "no kernel ran")
    assert levels["mfu"].reason == "not looked at"


def test_on_a_cpu_gpu_levels_say_so_and_the_other_levels_stay() -> None:
    known = {"busy": Level("busy", 0.9), "mfu": Level("mfu", reason="no peak is known")}
    levels = {level.name: level for level in of_a_cpu(ladder(known, "not looked at"))}
    assert {name for name, level in levels.items() if level.reason == ON_CPU} == set(KINDS) - {
        "busy",
        "hfu",
        "mfu",
        "ideal",
    }
    assert (levels["busy"].value, levels["busy"].reason) == (0.9, "")
    assert (levels["mfu"].reason, levels["hfu"].reason) == ("no peak is known", "not looked at")


def test_a_level_of_a_later_version_is_known_by_its_name() -> None:
    assert Level("tma_active", 0.5).kind.title == "tma_active"


def test_a_level_above_without_a_value_is_skipped() -> None:
    known = {"busy": Level("busy", 0.9), "hfu": Level("hfu", reason="no peak is known"), "mfu": Level("mfu", 0.3)}
    assert {r.name: r.loss for r in ladder(known, "")}["mfu"] == pytest.approx(0.6)
    del known["busy"]
    assert {r.name: r.loss for r in ladder(known, "")}["mfu"] == pytest.approx(0.7)


def test_on_a_cpu_a_level_with_a_value_keeps_it_without_a_reason() -> None:
    (level,) = of_a_cpu((Level("sm_efficiency", 0.5, "3 steps"),))
    assert level == Level("sm_efficiency", 0.5, "3 steps")


def test_a_known_level_has_its_kind_and_states_whether_it_needs_a_gpu() -> None:
    assert all(Level(name).kind is KINDS[name] for name in KINDS)
    assert {name for name in KINDS if not KINDS[name].gpu} == {"busy", "hfu", "mfu", "ideal"}
    assert Level("tma_active").kind.gpu
