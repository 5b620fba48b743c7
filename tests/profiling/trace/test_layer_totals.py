"""The totals of layers, compared with numbers computed by hand."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.layer_totals import layers, share_intervals_of, sm_efficiency_of
from autofuse.profiling.trace.layers import LayerTimes, layers_of
from autofuse.profiling.trace.work import Own
from autofuse.results.profile import OPTIMIZER, OUTSIDE, Layer, Work
from tests.profiling.trace.building import op, step, trace

TIMES: Own = {
    ("", "forward"): Work(1.0, operators=1),
    ("h.0.attn", "forward"): Work(2.0, operators=3),
    ("h.0.attn", "backward"): Work(4.0, operators=5),
    ("h.1", "forward"): Work(8.0),
    (OUTSIDE, "forward"): Work(5.0, operators=2),
}
COUNTS: Own = {
    ("h.0.attn", "forward"): Work(flops=100, bytes=10, operators=9, ideal_seconds=0.5),
    ("h.1", "backward"): Work(flops=7, bytes=1, operators=4, ideal_seconds=0.25),
}
KINDS = {"": "GPT", "h": "ModuleList", "h.0": "Block", "h.0.attn": "Attention", "h.1": "Block"}


def layer_totals() -> dict[str, Layer]:
    return {layer.fqn: layer for layer in layers(TIMES, COUNTS, KINDS, {"": 1, "h.0.attn": 2}, 20.0)}


def test_layers_come_in_the_models_order_and_what_is_outside_last() -> None:
    assert list(layer_totals()) == ["", "h", "h.0", "h.0.attn", "h.1", OUTSIDE]


def test_a_layer_has_what_is_below_it_and_what_is_its_own() -> None:
    model = layer_totals()[""]
    assert (model.forward.seconds, model.backward.seconds) == (11.0, 4.0)
    assert model.own_forward == Work(1.0, operators=1)
    assert model.share == pytest.approx(15 / 20)
    assert layer_totals()["h"].forward.seconds == 10.0
    assert layer_totals()["h"].own_seconds == 0.0
    assert (model.kind, model.calls) == ("GPT", 1)


def test_operators_outside_of_modules_are_in_no_layer() -> None:
    assert layer_totals()[OUTSIDE].forward.seconds == 5.0
    assert layer_totals()[OUTSIDE].share == pytest.approx(1 / 4)


def test_flops_and_bytes_join_seconds_and_operators_are_counted_once() -> None:
    attention = layer_totals()["h.0.attn"]
    assert attention.own_forward == Work(2.0, 100, 10, 3, 0.5)
    assert layer_totals()["h.1"].own_backward == Work(0.0, 7, 1, 4, 0.25)
    assert layer_totals()[""].work.flops == 107
    assert layer_totals()[""].work.ideal_seconds == 0.75


def test_a_module_that_only_the_trace_knows_is_a_layer_too() -> None:
    (made, outside) = layers({("made", "forward"): Work(1.0)}, {}, {}, {}, 1.0)
    assert (made.fqn, made.kind, outside.fqn) == ("made", "", OUTSIDE)


def test_names_that_begin_alike_are_not_below_each_other() -> None:
    own: Own = {("layer1", "forward"): Work(1.0), ("layer10", "forward"): Work(2.0)}
    assert [layer.forward.seconds for layer in layers(own, {}, {}, {}, 3.0)] == [1.0, 2.0, 0.0]


def test_sm_efficiency_is_weighted_by_the_time_of_kernels() -> None:
    times = LayerTimes({}, {}, {}, {}, {}, 1.0, 1, True, {"a": 3.0, "a.b": 1.0}, {"a": 3.0, "a.b": 0.5})
    assert sm_efficiency_of(times) == {"a": 3.5 / 4, "a.b": 0.5, "": 3.5 / 4}


def test_a_layers_share_has_an_interval_from_step_to_step() -> None:
    times = layers_of(
        trace(
            *(step(n, 100 * n, 100) for n in (1, 2)),
            *(op("mod::", 100 * n, 80) for n in (1, 2)),
            *(op("mod::a", 100 * n, took) for n, took in ((1, 30), (2, 50))),
            devices=[],
        )
    )  # fmt: skip
    assert times.by_step["a"] == pytest.approx([30e-6, 50e-6])
    intervals = share_intervals_of(times)
    layer_totals = {x.fqn: x for x in layers(times.own, {}, {}, {}, times.step_seconds, None, intervals)}
    assert layer_totals[""].share_interval == pytest.approx((0.8, 0.8))  # what is below counts, and is always as long
    assert layer_totals["a"].share == pytest.approx(0.4) and layer_totals["a"].share_interval == pytest.approx(
        (0.0, 1.0)
    )


def test_operators_of_the_optimizer_are_not_part_of_the_forward() -> None:
    own: Own = {("a", "forward"): Work(3.0), (OPTIMIZER, "forward"): Work(1.0, operators=2)}
    layer_totals = layers(own, {}, {}, {}, 4.0)
    assert [layer.fqn for layer in layer_totals] == ["a", OUTSIDE, OPTIMIZER]
    last = layer_totals[-1]
    assert (last.forward, last.backward, last.optimizer) == (Work(), Work(), Work(1.0, operators=2))
    assert (last.seconds, last.own_seconds, last.share) == (1.0, 1.0, 0.25)
