"""A kind of call that passed its tests is recognised again. A call that differs in a tested property runs the tests."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import autofuse
from autofuse.fx.install.conditions import FOUND, VariantTests, write_dispatch
from autofuse.fx.install.seen_calls import (
    _KINDS,
    QUIET,
    SEEN_BEFORE,
    SeenCalls,
    dimensions_read,
    metadata_tests,
    tensor_test_argument,
)
from autofuse.kernels.operation import record_calls
from tests.fx.test_later_changes import Attend, Loud, of

Q, K = torch.randn(2, 3, 4), torch.randn(2, 3, 4)


def learned(*tensors: Tensor) -> SeenCalls:
    seen = SeenCalls()
    assert seen.learn(*tensors)
    return seen


def test_a_call_of_a_kind_that_passed_is_known() -> None:
    seen = learned(Q, K)
    assert seen.check(Q, K) and seen.check(torch.randn(2, 3, 4), torch.randn(2, 4, 3).mT)


@pytest.mark.parametrize(
    "other",
    [
        Q.double(), Q.half(), torch.randn(2, 3, 5), torch.randn(2, 3), torch.randn(1, 2, 3, 4), Q.to("meta"),
        torch.randn(2, 3, 4, requires_grad=True), torch.nn.Parameter(Q), Q.as_subclass(Loud), Q.to_sparse(),
        torch.randn(2, 3, 4, dtype=torch.complex64), Q.to(torch.int32),
    ],
    ids=lambda t: f"{type(t).__name__} {t.dtype} {tuple(t.shape)} {t.device} {t.layout} {t.requires_grad}",
)  # fmt: skip
def test_another_kind_of_tensor_is_not(other: Tensor) -> None:
    assert not learned(Q, K).check(Q, other) and not learned(Q, K).check(other, K)


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        return result * 2 if func is torch.ops.aten._softmax.default else result


class DoublingFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        return result * 2 if func is torch.softmax else result


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu"),
    "a dispatch mode": Doubling,
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_call_in_other_surroundings_is_not(name: str) -> None:
    seen = learned(Q, K)
    with SURROUNDINGS[name]():
        assert not seen.check(Q, K)
    assert seen.check(Q, K)


def test_a_call_under_a_transform_or_a_tracer_is_not() -> None:
    seen, told = learned(Q, K), list[bool]()

    def f(q: Tensor) -> Tensor:
        told.append(seen.check(q, K))
        return q * 2

    torch.func.vmap(f)(torch.randn(5, 2, 3, 4))
    torch.func.vmap(lambda i: f(Q) + i)(torch.ones(5))
    torch.func.grad(lambda q: f(q).sum())(Q)
    torch.jit.trace(f, (Q,), check_trace=False)
    assert len(told) == 4 and not any(told)


@pytest.mark.parametrize("name", ["a dispatch mode", "torch's own mode", "vmap", "trace"])
def test_an_observed_call_is_not_remembered(name: str) -> None:
    seen = SeenCalls()

    def f(q: Tensor) -> Tensor:
        seen.learn(q, K)
        return q * 2

    if name == "vmap":
        torch.func.vmap(lambda i: f(Q) + i)(torch.ones(5))
    elif name == "trace":
        torch.jit.trace(f, (Q,), check_trace=False)
    else:
        with Doubling() if name == "a dispatch mode" else FlopCounterMode(display=False):
            f(Q)
    assert not seen.check(Q, K)


@pytest.mark.parametrize(
    ("tests", "sizes"),
    [
        (("q.dtype is _k1", "len(q.shape) == 3"), frozenset()),
        (("q.ndim == 3",), frozenset()),
        (("q.shape[1] == 2", "q.shape[-1] <= k.shape[0]"), frozenset({1, -1})),
        (("k.shape[0] == 2",), frozenset()),
        (("q.shape == k.shape",), None),
        (("q.shape[n] == 2",), None),
        (("q.shape[0] == 2", "q.shape[:1] == k.shape[:1]"), None),
        (("len(q.shape) == 3", "min(q.shape) == 2"), None),
    ],
)
def test_which_sizes_make_a_kind(tests: tuple[str, ...], sizes: frozenset[int] | None) -> None:
    assert dimensions_read(parse_texts(*tests).values(), "q") == sizes


def test_sizes_that_no_test_reads_do_not_distinguish_kinds() -> None:
    seen = SeenCalls((frozenset({-1}), None))
    seen.learn(Q, K)
    assert seen.check(torch.randn(7, 5, 4), K)
    assert not seen.check(torch.randn(7, 5, 3), K) and not seen.check(Q, torch.randn(7, 3, 4))
    assert not seen.check(torch.randn(1, 2, 3, 4), K)


@pytest.mark.parametrize(
    ("tensors", "below", "level"),
    [
        ((Q, K), 0, QUIET), ((Q, K), 25, QUIET), ((Q, K), 24, SEEN_BEFORE), ((Q, torch.randn(50)), 25, SEEN_BEFORE),
        ((Q, K.clone().requires_grad_()), 0, SEEN_BEFORE),
    ],
)  # fmt: skip
def test_quiet_calls_have_few_elements_and_no_gradients(tensors: tuple[Tensor, ...], below: int, level: int) -> None:
    seen = SeenCalls((), below)
    seen.learn(*tensors)
    assert seen.kind.level == level and SeenCalls().kind.level == 0


def test_two_alternating_kinds_are_known() -> None:
    seen, trained = learned(Q, K), torch.randn(2, 3, 4, requires_grad=True)
    seen.learn(trained, K)
    left = seen._kinds_left
    for _ in range(5):
        assert seen.check(trained, K) and not seen.check(Q, K)
        seen.learn(Q, K)
        assert seen.check(Q, K) and not seen.check(trained, K)
        seen.learn(trained, K)
    assert seen._kinds_left == left


def test_one_tensor_given_twice_is_not_remembered() -> None:
    seen = learned(Q, Q)
    assert not seen.check(Q, Q) and not seen.check(Q, K)


def test_if_each_call_is_of_a_new_kind_few_are_remembered() -> None:
    seen = SeenCalls()
    for n in range(1, _KINDS + 50):
        x = torch.ones(n)
        seen.learn(x)
        assert seen.check(x) == (n <= _KINDS)


def parse_texts(*texts: str) -> dict[str, ast.expr]:
    return {text: ast.parse(text, mode="eval").body for text in texts}


AS_TENSOR = "type(q) is _Tensor or (isinstance(q, _Tensor) and _keeps(type(q)))"


def test_which_tests_are_covered() -> None:
    covered = {AS_TENSOR, "q.dtype is _k1", "len((_t0 := q.shape)) == 4", "q.is_cpu", "q.shape[1] == 2",
               "not (_any_autocast() and _autocast('cpu'))"}  # fmt: skip
    kept = {
        "k.dtype is _k1", "mask is None", "self.p == 0.5", "q.is_contiguous()", "q.grad_fn is None", "q.shape[0] == n",
        "_k2()", "q.dtype is _k3", "q._version == 0", "q[0].dtype is _k1", "_autocast_dtype('cpu') is _k1",
    }  # fmt: skip
    constants = {"_k1": torch.float32, "_k2": len, "_k3": [torch.float32]}
    given = parse_texts(*sorted(covered - {"len((_t0 := q.shape)) == 4"} | kept), "len(q.shape) == 4")
    assert metadata_tests(given, frozenset({"q"}), constants) == covered - {"len((_t0 := q.shape)) == 4"} | {
        "len(q.shape) == 4"
    }


def test_autocast_is_tested_if_no_tensor_is_on_a_cpu() -> None:
    given = parse_texts(AS_TENSOR, "q.dtype is _k1", "not (_any_autocast() and _autocast('cpu'))")
    assert len(metadata_tests(given, frozenset({"q"}), {"_k1": torch.float32})) == 2
    assert tensor_test_argument(given[AS_TENSOR]) == "q"
    assert tensor_test_argument(given["q.dtype is _k1"]) is None


def test_a_forward_finds_its_variant_by_what_it_has_seen() -> None:
    asked = ("_keeps_functions(q)", "q.dtype is _torch.float32", "q.ndim == 3", "q.shape[2] == 4")
    made = write_dispatch([VariantTests(asked, ("q",), {})], "self")
    lines = "".join(f"    {line}\n" for line in made.lines)
    scope = dict(made.scope)
    exec(f"def find(self, q):\n{lines}    return {FOUND}\n", scope)
    (seen,) = (v for v in scope.values() if isinstance(v, SeenCalls))
    assert scope["find"](None, Q) == 0 and seen.check(Q)
    for other in (Q.double(), torch.randn(2, 4), torch.randn(2, 3, 5), None, 1.0):
        assert scope["find"](None, other) == -1
    assert scope["find"](None, torch.randn(7, 1, 4)) == 0 == scope["find"](None, Q)


@pytest.mark.parametrize("mode", [Doubling, DoublingFunctions])
@pytest.mark.parametrize("tensors", ["few", "many"])
def test_a_mode_of_the_users_sees_the_operations_of_the_original(mode: Callable[[], Any], tensors: str) -> None:
    class One(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.transpose(-2, -1) * 0.3, -1) @ x

    original: torch.nn.Module = Attend() if tensors == "many" else One()
    inputs = of(*((2, 3, 5, 8),) * 3) if tensors == "many" else of((2, 3, 5, 8))
    with mode():
        expected = original(*inputs)
    optimized = autofuse.optimize(original, inputs, tune=False)
    assert autofuse.report(optimized).with_status("fused")
    plain = optimized(*inputs)
    for _ in range(3):
        with mode():
            assert torch.equal(optimized(*inputs), expected)
        torch.testing.assert_close(optimized(*inputs), plain)
        assert not torch.allclose(plain, expected)
    assert "none of your modes is active" in str(autofuse.report(optimized))


def test_torchs_own_modes_see_what_runs() -> None:
    inputs = of(*((2, 3, 5, 8),) * 3)
    optimized = autofuse.optimize(Attend(), inputs, tune=False)
    with torch.device("cpu"), torch.utils._python_dispatch._disable_current_modes():
        optimized(*inputs)
    assert "mode of yours" not in str(autofuse.report(optimized))


@pytest.mark.parametrize("sizes", [((2, 3, 5, 8),) * 3, ((1, 2, 7, 4),) * 3])
def test_a_counter_of_operations_counts_those_of_the_original(sizes: tuple[tuple[int, ...], ...]) -> None:
    inputs, original = of(*sizes), Attend()
    optimized = autofuse.optimize(copy.deepcopy(original), inputs, tune=False)
    counts = []
    for module in (original, optimized):
        with FlopCounterMode(display=False) as counter:
            module(*inputs)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_forward_mode_derivatives_are_the_originals() -> None:
    inputs = of(*((2, 3, 5, 8),) * 3)
    optimized = autofuse.optimize(Attend(), inputs, tune=False)
    optimized(*inputs)

    def tangent(module: torch.nn.Module) -> Tensor:
        with forward_ad.dual_level():
            dual: Any = forward_ad.make_dual
            made: Tensor = torch.autograd.forward_ad.unpack_dual(  # type: ignore[no-untyped-call]
                module(*(dual(x, torch.ones_like(x)) for x in inputs))
            ).tangent
            return made

    torch.testing.assert_close(tangent(optimized), tangent(Attend()))


class Curve(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8)), torch.nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


QUIET_MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[Tensor, ...]]] = {
    "attention": (Attend, of(*((2, 3, 5, 8),) * 3)),
    "an activation": (Curve, of((2, 5, 8))),
    "a norm": (Norm, of((2, 5, 8))),
}


@pytest.mark.parametrize("name", QUIET_MODULES)
def test_after_quiet_calls_come_others(name: str) -> None:
    made, inputs = QUIET_MODULES[name]
    original, optimized = made(), autofuse.optimize(made(), inputs, tune=False)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(optimized(*inputs), original(*inputs))
    results = []
    for module in (original, optimized):
        trained = [x.clone().requires_grad_() for x in inputs]
        y = module(*trained)
        y.sin().sum().backward()
        with forward_ad.dual_level():
            dual: Any = forward_ad.make_dual
            unpacked: Any = forward_ad.unpack_dual(module(*(dual(x, torch.ones_like(x)) for x in inputs)))  # type: ignore[no-untyped-call]
        large = module(*(x.repeat(400, *[1] * (x.ndim - 1)) for x in inputs))
        mapped = torch.func.vmap(module)(*(x.unsqueeze(0) for x in inputs))
        write_dispatch = module(*inputs).mul_(2)
        results.append([y, *(x.grad for x in trained), unpacked.tangent, large, mapped, write_dispatch])
    torch.testing.assert_close(results[1], results[0])


def test_recorders_see_the_operations_of_quiet_calls() -> None:
    made, inputs = QUIET_MODULES["an activation"]
    optimized = autofuse.optimize(made(), inputs, tune=False)
    optimized(*inputs), optimized(*inputs)
    with record_calls() as calls:
        optimized(*inputs)
    assert [call.operation.name for call in calls] == ["gelu_tanh"]
