"""The loss to an optimizer that is not fused, in traces of a CPU."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.diagnosis.diagnose import diagnosis_of
from autofuse.profiling.trace.diagnosis.optimizer_losses import fuse_optimizer_text, optimizer_loss_on_host
from autofuse.profiling.trace.scope import Scope, scope_of
from autofuse.profiling.trace.trace import Trace
from tests.profiling.trace.building import Entry, mark, op, step, trace

ADAM = ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::div", "aten::add_", "aten::addcdiv_")


def recorded(optimizer: str, operators: tuple[str, ...], microseconds: float = 40.0) -> Trace:
    """Two steps of 1 ms: a product, then an optimizer's operators one after another."""
    entries: list[Entry] = []
    for number in range(2):
        start = number * 1000.0
        stepped = mark(f"Optimizer.step#{optimizer}.step", start + 600, microseconds * len(operators))
        entries += [step(number, start, 1000), op("aten::mm", start, 590), stepped]
        entries += [op(name, start + 600 + at * microseconds, microseconds) for at, name in enumerate(operators)]
    return trace(*entries, devices=[])


def scope(optimizer: str, operators: tuple[str, ...]) -> Scope:
    return scope_of(recorded(optimizer, operators))


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_adam_of_several_operators_saves_three_fifths_of_its_time(optimizer: str) -> None:
    loss = optimizer_loss_on_host(scope(optimizer, ADAM), 1e-3)
    assert loss is not None and loss.seconds == pytest.approx(0.6 * 7 * 40e-6)
    assert f"torch.optim.{optimizer}(" in loss.actions[0].text and "fused=True" in loss.actions[0].text


def test_a_measured_time_replaces_that_of_the_recording() -> None:
    loss = optimizer_loss_on_host(scope("Adam", ADAM), 1e-3, 1e-4)
    assert loss is not None and loss.seconds == pytest.approx(0.6e-4)


@pytest.mark.parametrize(
    ("optimizer", "operators"),
    [
        ("SGD", ("aten::add_", "aten::add_", "aten::add_")),
        ("AdamW", ("aten::_fused_adamw_",)),
        ("AdamW", ("aten::_fused_adamw_", "aten::add_")),
        ("Lion", ADAM),
        ("MyAdam", ADAM),
        ("Adam", ()),
    ],
    ids=["one pass", "fused", "fused, with a counter", "without the option", "a class of the user's", "no operators"],
)
def test_an_optimizer_that_the_option_does_not_make_faster_loses_nothing(
    optimizer: str, operators: tuple[str, ...]
) -> None:
    assert optimizer_loss_on_host(scope(optimizer, operators), 1e-3) is None


def test_the_diagnosis_of_a_trace_names_it() -> None:
    found = diagnosis_of({0: scope("AdamW", ADAM)}, 0, None)
    assert found is not None
    assert found.limit == "fusable" and found.sentence.startswith("Unfused optimizer")
    assert found.actions[0].kind == "fuse-optimizer"
    assert found.actions[0].milliseconds == pytest.approx(0.168, rel=0.01)


def test_an_optimizer_without_the_option_is_compiled() -> None:
    assert "torch.compile(optimizer.step)" in fuse_optimizer_text(scope("Lion", ADAM))
