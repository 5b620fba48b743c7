"""Generated forwards have the original's signature, and run the first variant whose guards hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.fx.install.codegen import Variant, build_forward, build_guard_checker, build_variant, merge_modes
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import trace_forward

TRAINING, EVALUATION = "self.training is True", "self.training is False"


def variant(*tests: str, source: str = "return _said", inputs: tuple[str, ...] = (), said: Any = "fused") -> Variant:
    parameters = ", ".join(["self", *(f"in{i}" for i in range(len(inputs)))])
    return Variant(f"def forward({parameters}):\n    {source}\n", tests, inputs, (), (("_said", said),), True)


def plain(self, x): ...  # type: ignore[no-untyped-def]


def defaults(self, x, y=2, *, z=3): ...  # type: ignore[no-untyped-def]


def starred(self, x, *rest, z=3, **more): ...  # type: ignore[no-untyped-def]


def by_place(self, x, /, y, z=5): ...  # type: ignore[no-untyped-def]


def all_by_place(self, x, y=1, /): ...  # type: ignore[no-untyped-def]


def by_name(self, *, x, y=None): ...  # type: ignore[no-untyped-def]


def otherwise_called(me, x): ...  # type: ignore[no-untyped-def]


def annotated(self, x: Tensor, y: list[int] | None = None) -> Tensor: ...  # type: ignore[empty-body]


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (), {"x": 1}),
    (defaults, (1,), {}),
    (defaults, (1, 5), {"z": 6}),
    (starred, (1, 2, 3), {"z": 4, "w": 5}),
    (starred, (1,), {}),
    (by_place, (1,), {"y": 2}),
    (by_place, (1, 2, 3), {}),
    (all_by_place, (1,), {}),
    (all_by_place, (1, 2), {}),
    (by_name, (), {"x": 1}),
    (otherwise_called, (1,), {}),
    (annotated, (1,), {"y": [1]}),
]


@pytest.mark.parametrize(("base", "args", "kwargs"), CALLS)
def test_a_forward_has_the_originals_signature_and_passes_on_calls_that_no_variant_fits(
    base: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    got: list[dict[str, Any]] = []

    def missed(*given: Any, **named: Any) -> str:
        bound = inspect.signature(base).bind(*given, **named)
        bound.apply_defaults()
        got.append(bound.arguments)
        return "missed"

    forward, module = build_forward(base, (), missed), nn.Module()
    expected = inspect.signature(base).bind(module, *args, **kwargs)
    expected.apply_defaults()
    assert forward(module, *args, **kwargs) == "missed" and got == [expected.arguments]
    own = inspect.signature(forward, follow_wrapped=False).parameters
    of_base = inspect.signature(base).parameters
    assert [(p.name, p.kind, p.default) for p in own.values()] == [
        (p.name, p.kind, p.default) for p in of_base.values()
    ]
    assert (forward.__qualname__, forward.__module__, forward.__doc__) == (
        base.__qualname__,
        base.__module__,
        base.__doc__,
    )
    assert inspect.unwrap(forward) is base


def test_the_first_variant_whose_tests_hold_runs_with_its_inputs() -> None:
    variants = (
        variant("x == 1", said="one"),
        variant("x == 2", "y is None", source="return _said, in0, in1", inputs=("y", "x"), said="two"),
        variant("x == 2", source="return _said, self, in0", inputs=("self.kind",), said="other"),
    )

    class Kind(nn.Module):
        kind = "a module's own"

    def base(self, x, y=None): ...  # type: ignore[no-untyped-def]

    module, forward = Kind(), build_forward(base, variants, lambda self, x, y: ("missed", x, y))
    assert forward(module, 1) == "one" and forward(module, 1, y=3) == "one"
    assert forward(module, 2) == ("two", None, 2)
    assert forward(module, 2, 7) == ("other", module, "a module's own")
    assert forward(module, 3, 7) == ("missed", 3, 7)


def test_failed_tests_are_reported_for_the_actual_call() -> None:
    ask = build_guard_checker(by_place, variant("x == 1", "y.missing == 2", "z == 5", TRAINING))
    assert ask(nn.Module(), 1, 2) == [1]
    assert ask(nn.Module().eval(), 0, y=2, z=4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("variants", "tests"),
    [
        ((variant(TRAINING, "x is None"), variant(EVALUATION, "x is None")), [("x is None",)]),
        ((variant(EVALUATION, "x is None"), variant(TRAINING, "x is None")), [("x is None",)]),
        ((variant(TRAINING), variant(TRAINING)), None),
        ((variant(TRAINING, "x is None"), variant(EVALUATION, "x == 1")), None),
        ((variant(TRAINING), variant(EVALUATION, said="another")), None),
        ((variant(TRAINING), variant(EVALUATION, source="return 1")), None),
        ((variant(TRAINING), variant("x == 1"), variant(EVALUATION)), [("x == 1",), ()]),
        ((variant("x == 1"), variant("x == 2")), None),
        ((), None),
    ],
)
def test_variants_that_do_the_same_in_both_modes_become_one(
    variants: tuple[Variant, ...], tests: list[tuple[str, ...]] | None
) -> None:
    assert [v.tests for v in merge_modes(variants)] == ([v.tests for v in variants] if tests is None else tests)


def test_a_repeated_call_tests_the_mode_alone_or_all_but_dtypes_and_gradients() -> None:
    asked = variant("x.dtype is _c0", 'not _autocast("cpu")', "x.requires_grad", "_unwatched(self)", "_unhooked()",
                    "_plain(x)", "_holds_form(m, 'lower')", "x.ndim == 3", EVALUATION)  # fmt: skip
    assert asked.for_similar_calls.tests == ("x.ndim == 3", EVALUATION)
    assert asked.for_the_traced_call.tests == (TRAINING,)
    assert replace(asked, training=False).for_the_traced_call.tests == (EVALUATION,)
    assert asked.for_the_traced_call.source == asked.for_similar_calls.source == asked.source


def test_variants_are_interchangeable_if_their_objects_are_equal_too() -> None:
    one, other = variant("x == _c0"), variant("x == _c0")
    assert replace(one, names=(("_c0", 1),)).key == replace(other, names=(("_c0", 1),)).key
    assert replace(one, names=(("_c0", 1),)).key != replace(other, names=(("_c0", 2),)).key
    assert replace(one, names=(("_c0", 1),)).key != replace(other, names=(("_c0", 1.0),)).key
    assert one.key != variant("x == _c0", said="another").key and one.key != variant("x == _c1").key
    assert replace(one, names=(("_c0", torch.float32),)).describe_test(0) == "x == torch.float32"


class Nested(nn.Module):
    """A child that is called `self`, with a parameter and a buffer of the module and a parameter of the child."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("self", nn.Linear(4, 4))
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        child = getattr(self, "self")  # noqa: B009
        y: Tensor = child(x) * self.weight + self.shift * child.weight[0]
        return y + self.weight


def of(module: nn.Module, *args: Tensor) -> Variant:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return build_variant(trace_forward(module, args, {}, fake_world(mode), mode))


def test_a_variant_of_a_trace_computes_what_the_forward_does() -> None:
    module, x = Nested(), torch.randn(2, 4)
    found = of(module, x)
    forward = build_forward(Nested.forward, (found,), lambda *_: "missed")
    torch.testing.assert_close(forward(module, x), module(x))
    assert found.training and TRAINING in found.tests
    assert forward(module.eval(), x) == "missed"
    assert not of(module, x).training and forward(module.train(), x.double()) == "missed"


def test_reads_of_guards_become_inputs_once_and_in_order() -> None:
    found = of(Nested(), torch.randn(2, 4))
    assert len(found.inputs) == len(set(found.inputs))
    own = [i for i in found.inputs if i.startswith("_held(self,")]
    assert own == ['_held(self, "_parameters", "weight")', '_held(self, "_buffers", "shift")']
    assert " self.weight" not in found.source and " self.shift" not in found.source
    assert "self.self.weight" in found.source  # the child is not known to be pure


def test_a_variant_is_for_the_autocast_that_it_was_traced_under() -> None:
    module, x = Nested(), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = of(module, x)
    without = of(module, x)
    assert {'_autocast("cpu")', '_autocast_dtype("cpu") is _torch.bfloat16'} <= {*under.tests}
    assert 'not _autocast("cpu")' in without.tests and '_autocast("cpu")' not in without.tests
    forward = build_forward(Nested.forward, (under, without), lambda *_: "missed")
    assert forward(module, x).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(forward(module, x), module(x))
    with torch.autocast("cpu", dtype=torch.float16):
        assert forward(module, x) == "missed"
