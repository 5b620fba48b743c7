"""Repeated layers are shown as one: which names are one pattern, and their sums."""

from __future__ import annotations

import pytest

from autofuse.display.folding import fold_layers, folded_places, gain_together, own_share
from autofuse.results.comparison import Interval
from autofuse.results.profile_parts import Layer, Place, Work
from autofuse.results.repeated_names import patterns_of
from tests.display.samples import gpt, layer, place, work


def test_blocks_of_one_kind_and_their_children_are_one_pattern() -> None:
    kinds = {"h.0": "Block", "h.0.attn": "Attention", "h.1": "Block", "h.1.attn": "Attention", "head": "Linear"}
    assert patterns_of(kinds) == {
        "h.0": "h.*",
        "h.0.attn": "h.*.attn",
        "h.1": "h.*",
        "h.1.attn": "h.*.attn",
        "head": "head",
    }


def test_the_layers_of_a_small_sequential_keep_their_numbers() -> None:
    kinds = {"mlp.0": "Linear", "mlp.1": "GELU", "mlp.2": "Linear"}
    assert patterns_of(kinds) == {name: name for name in kinds}


def test_a_sequential_without_a_profiled_activation_keeps_its_numbers() -> None:
    assert patterns_of({"mlp.0": "Linear", "mlp.2": "Linear"}) == {"mlp.0": "mlp.0", "mlp.2": "mlp.2"}


def test_numbers_within_repeated_blocks_stay_separate() -> None:
    kinds = {f"h.{i}.{part}": kind for i in range(3) for part, kind in (("mlp.0", "Linear"), ("mlp.1", "GELU"))}
    kinds |= {f"h.{i}": "Block" for i in range(3)}
    assert set(patterns_of(kinds).values()) == {"h.*", "h.*.mlp.0", "h.*.mlp.1"}


def test_alternating_blocks_are_folded_by_their_kind() -> None:
    kinds = {f"layers.{i}": "Mamba" if i % 4 else "Attention" for i in range(12)}
    layers = [layer(name, kind, work(1), work(1)) for name, kind in kinds.items()]
    assert {(fold.name, fold.kind, fold.count) for fold in fold_layers(layers)} == {
        ("layers.*", "Mamba", 9), ("layers.*", "Attention", 3),
    }  # fmt: skip


def test_a_fold_is_the_sum_of_its_layers_and_nothing_is_lost() -> None:
    layers = gpt().layers
    folds = fold_layers(layers)
    assert sum(fold.count for fold in folds) == len(layers)
    assert sum(fold.work.seconds for fold in folds) == pytest.approx(sum(found.own_seconds for found in layers))
    attention = next(fold for fold in folds if fold.name == "h.*.attn")
    assert attention.forward.seconds == pytest.approx(4 * 0.009)
    assert attention.backward.operators == 4 * 20
    assert attention.share == pytest.approx(0.1 / 0.254)
    assert attention.peak_bytes == 4 * 12 * 2**20
    assert [fold.work.seconds for fold in folds] == sorted((fold.work.seconds for fold in folds), reverse=True)


def test_averages_are_weighted_by_time_and_omit_unknown_values() -> None:
    layers = [
        layer("h.0", "A", work(3), work(0), roofline=0.2), layer("h.1", "A", work(1), work(0), roofline=0.6),
        layer("h.2", "A", work(9), work(0), roofline=None),
    ]  # fmt: skip
    (fold,) = fold_layers(layers)
    assert fold.roofline == pytest.approx(0.3)
    assert fold.sm_efficiency is None


def test_a_layers_own_share_is_its_part_of_the_whole_share() -> None:
    own, whole = Work(0.01), Work(0.04)
    assert own_share(Layer("a", "A", 1, whole, whole, own, own, 0.8)) == pytest.approx(0.2)
    assert own_share(Layer("a", "A", 1, Work(), Work(), Work(), Work(), 0.0)) == 0.0


def test_equal_places_are_one_with_their_sums_and_the_gain_of_all() -> None:
    one = place("AF101", "applies", 0.02, 0.0127, step=0.254)  # each saves 5 % of the step
    (fold,) = folded_places([("h.*.attn", one)] * 4)
    assert (fold.count, fold.saved_bytes) == (4, 4 * 64 * 2**20)
    assert fold.predicted_saving == pytest.approx(4 * 0.0127)
    assert fold.predicted_gain == pytest.approx(1 / (1 - 0.2))
    assert fold.measured_saving is None


def test_places_that_differ_in_reason_or_status_stay_apart() -> None:
    reasons = [Place("AF101", "declined", reason) for reason in ("a", "b", "a")]
    assert [(p.reason, p.count) for p in folded_places([("x", found) for found in reasons])] == [("a", 2), ("b", 1)]


def test_places_that_name_their_own_blocks_are_one() -> None:
    parts = [
        Place("AF301", "applies", f"it is part of AF304 in h.{i}.mlp", part_of=f"AF304 in h.{i}.mlp") for i in (0, 1)
    ]
    (fold,) = folded_places([("h.*.mlp.gelu", found) for found in parts])
    assert (fold.count, fold.reason, fold.part_of) == (2, "it is part of AF304 in h.*.mlp", "AF304 in h.*.mlp")
    (one,) = folded_places([("h.0.mlp.gelu", parts[0])])
    assert one.part_of == "AF304 in h.0.mlp"


def test_reasons_that_differ_in_numbers_only_are_one_and_equal_numbers_stay() -> None:
    reasons = [f"nothing to gain: {ms} ms of 16 ms in h.{i}" for i, ms in enumerate((0.09, 1.2))]
    (fold,) = folded_places([("h.*", Place("AF304", "applies", reason)) for reason in reasons])
    assert fold.reason == "nothing to gain: … ms of 16 ms in h.*"


def test_places_where_a_rule_applies_are_one_whatever_their_gain() -> None:
    found = [
        Place("AF101", "applies", reason, "autofuse.ops.attention") for reason in ("", "", "nothing to gain: 0 ms")
    ]
    (fold,) = folded_places([("h.*.attn", one) for one in found])
    assert (fold.count, fold.reason) == (3, "")


def test_numbers_in_reasons_that_name_no_block_are_kept() -> None:
    (fold,) = folded_places([("x", Place("AF101", "declined", "1.5 is not 2.0 in torch.float32"))] * 2)
    assert fold.reason == "1.5 is not 2.0 in torch.float32"


def test_gains_that_add_up_to_the_whole_step_are_not_shown() -> None:
    assert gain_together([2.0, 2.0]) is None
    assert gain_together([None]) is None
    assert gain_together([2.0, None]) == pytest.approx(2.0)


def test_ranges_add_up_and_one_unknown_range_leaves_the_sum_unknown() -> None:
    def with_range(saving_range: Interval | None) -> Place:
        return Place("AF203", "applies", seconds=0.002, predicted_seconds=0.001, saving_range=saving_range)

    known = [("h.0", with_range(Interval(0.0001, 0.0004))), ("h.0", with_range(Interval(-0.0002, 0.0003)))]
    (found,) = folded_places(known)
    assert found.saving_range == pytest.approx((-0.0001, 0.0007))
    (found,) = folded_places([*known, ("h.0", with_range(None))])
    assert found.saving_range is None
