"""To Python, a dispatcher looks like the forward that it replaces."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.dispatch import is_installed
from autofuse.fx.trace.own_forward import own_forward, own_function
from tests.fx.conftest import Attention, assert_same, fused_rules, optimized


class Attend(nn.Module):
    """A forward with each kind of parameter."""

    def forward(
        self, q: Tensor, scale: float = 0.5, /, *more: Tensor, double: bool = False, **options: float
    ) -> Tensor:
        """Attends to itself."""
        made = torch.softmax(q @ q.mT * scale, -1) @ q
        return sum(more, made) * (2 if double else 1) + options.get("shift", 0.0)


def function_of(cls: type) -> types.FunctionType:
    found: types.FunctionType = vars(cls)["forward"]
    return found


def test_it_has_the_parameters_the_names_the_defaults_and_the_source() -> None:
    original = function_of(Attend)
    fused = optimized(Attend(), torch.randn(2, 4, 4))
    found = function_of(Attend)
    assert is_installed(fused) and found is not original
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__globals__", "__closure__"):
        assert getattr(found, name) == getattr(original, name), name
    assert found.__kwdefaults__ == original.__kwdefaults__
    assert found.__annotations__ == original.__annotations__
    assert inspect.signature(found) == inspect.signature(original)
    assert inspect.getfullargspec(found) == inspect.getfullargspec(original)
    assert inspect.getsource(fused.forward) == inspect.getsource(original)


@pytest.mark.parametrize(
    "extra", [((), {}), ((0.25,), {}), ((0.25, torch.ones(2, 4, 4)), {"double": True, "shift": 3.0})]
)
def test_it_passes_on_every_kind_of_argument(extra: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    q = torch.randn(2, 4, 4)
    fused, plain = optimized(Attend(), q), Attend()
    expected = own_forward(Attend)(plain, q, *extra[0], **extra[1])
    torch.testing.assert_close(plain(q, *extra[0], **extra[1]), expected, atol=0, rtol=0)
    torch.testing.assert_close(fused(q, *extra[0], **extra[1]), expected)


class Shifted(nn.Module):
    def forward(self, q: Tensor, *, shift: float = 0.5) -> Tensor:
        return torch.softmax(q @ q.mT, -1) @ q + shift


class ShiftedMore(Shifted):
    def forward(self, q: Tensor, *, shift: float = 0.25) -> Tensor:
        return super().forward(q, shift=shift * 2) + torch.softmax(q @ q.mT, -1) @ q


@pytest.mark.parametrize("kind", [Shifted, ShiftedMore])
@pytest.mark.parametrize("compiles", [False, True])
def test_defaults_of_keyword_only_parameters_can_be_replaced(kind: type[nn.Module], compiles: bool) -> None:
    q = torch.randn(2, 4, 4, dtype=torch.float64)
    fused, function = optimized(kind().double(), q), function_of(kind)
    called = torch.compile(fused, backend="eager") if compiles else fused
    before, given = called(q), function.__kwdefaults__
    try:
        kind.forward.__kwdefaults__ = {"shift": 3.0}  # type: ignore[attr-defined]
        times, less = (2, 0.5) if kind is ShiftedMore else (1, 0.5)
        torch.testing.assert_close(called(q), before + 3.0 * times - less)
        torch.testing.assert_close(kind()(q), before + 3.0 * times - less)
        autofuse.restore(fused)
        torch.testing.assert_close(kind()(q), before + 3.0 * times - less)
    finally:
        function_of(kind).__kwdefaults__ = given


def test_defaults_that_are_assigned_while_a_model_is_fused_stay_when_it_is_restored() -> None:
    class Scaled(nn.Module):
        def forward(self, q: Tensor, scale: float = 0.5) -> Tensor:
            return torch.softmax(q @ q.mT * scale, -1) @ q

    q = torch.randn(2, 4, 4)
    fused = optimized(Scaled(), q)
    Scaled.forward.__defaults__ = (3.0,)  # type: ignore[attr-defined]
    expected = Scaled()(q, 3.0)
    torch.testing.assert_close(fused(q), expected)
    autofuse.restore(fused)
    assert function_of(Scaled).__defaults__ == (3.0,)
    torch.testing.assert_close(fused(q), expected)


class Wrapped(nn.Module):
    """Wraps the forward of each class that is derived from it, as layers of transformers do."""

    doubled = False

    def __init_subclass__(cls) -> None:
        forward = cls.forward

        @functools.wraps(forward)
        def wrapper(self: Any, q: Tensor) -> Any:
            is_outermost = type(self).forward is wrapper
            return forward(self, q) * (2 if self.doubled and is_outermost else 1)

        cls.forward = wrapper  # type: ignore[method-assign]


@pytest.mark.parametrize("example", [True, False])
def test_a_wrapper_finds_itself_in_its_class(example: bool) -> None:
    class Asks(Wrapped):
        def forward(self, q: Tensor) -> Tensor:
            return torch.softmax(q @ q.mT, -1) @ q

    q, original = torch.randn(2, 4, 4), function_of(Asks)
    expected, model = Asks()(q), Asks()
    autofuse.optimize(model, q if example else None, tune=False)
    torch.testing.assert_close(model(q), expected)
    assert is_installed(model) and fused_rules(model) == {"AF101"}
    model.doubled = True
    torch.testing.assert_close(model(q), expected * 2)
    autofuse.restore(model)
    assert function_of(Asks) is original
    torch.testing.assert_close(model(q), expected * 2)


def test_a_wrapper_that_counts_its_calls_counts_on_the_function_in_its_class() -> None:
    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def inner(self: nn.Module, q: Tensor) -> Any:
            inner.calls += 1  # type: ignore[attr-defined]
            return function(self, q)

        inner.calls = 0  # type: ignore[attr-defined]
        return inner

    class Counts(nn.Module):
        @counted
        def forward(self, q: Tensor) -> Tensor:
            return torch.softmax(q @ q.mT, -1) @ q

    model = autofuse.optimize(Counts())
    for calls in range(1, 4):
        model(torch.randn(2, 4, 4))
        assert function_of(Counts).calls == calls  # type: ignore[attr-defined]
    autofuse.restore(model)
    assert function_of(Counts).calls == 3  # type: ignore[attr-defined]


def test_wrong_arguments_raise_the_same_message() -> None:
    class Plain(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return torch.softmax(q @ q.mT, -1) @ q

    said = []
    for model in (Plain(), optimized(Plain(), torch.randn(2, 4, 4)), Plain()):
        with pytest.raises(TypeError) as raised:
            model(torch.ones(2, 4, 4), 3, 4)
        said.append(str(raised.value))
    assert len(set(said)) == 1


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return doubled


class Decorated(nn.Module):
    @decorated
    def forward(self, q: Tensor) -> Tensor:
        return torch.softmax(q @ q.mT, -1) @ q


def test_a_decorated_forward_with_any_parameters_gets_the_module() -> None:
    q = torch.randn(2, 4, 4, requires_grad=True)
    plain = Decorated()
    fused = optimized(plain, q)
    assert fused_rules(fused) == {"AF101"}
    assert_same(plain, fused, q)
    torch.testing.assert_close(fused(q=q), plain(q))


def test_own_function_returns_the_original_of_a_dispatcher_only() -> None:
    original = function_of(Attention)
    fused = optimized(Attention(), torch.randn(2, 8, 16))
    found = function_of(Attention)
    wrapper = functools.wraps(found)(lambda self, x: found(self, x))
    assert own_function(found) is original and own_function(original) is original and own_function(wrapper) is wrapper
    autofuse.restore(fused)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_scripts_other_instances_as_before() -> None:
    """torch.jit looks up names of the source in the function's globals and free variables."""

    def helper(q: Tensor) -> Tensor:
        return q * 2

    class Scripted(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return helper(torch.softmax(q @ q.mT, -1) @ q)

    q = torch.randn(2, 4, 4)
    expected = torch.jit.script(Scripted())(q)
    fused = optimized(Scripted(), q)
    assert is_installed(fused)
    torch.testing.assert_close(torch.jit.script(Scripted())(q), expected)
    torch.testing.assert_close(torch.jit.script(fused)(q), expected)


def test_a_kept_dispatcher_runs_the_original_after_restore() -> None:
    model, x = Attention(), torch.randn(2, 8, 16)
    expected = model(x)
    fused = autofuse.optimize(model, x, verify=False, tune=False)
    kept, bound = function_of(Attention), fused.forward
    autofuse.restore(fused)
    gc.collect()
    assert torch.equal(kept(model, x), expected) and torch.equal(bound(x), expected)


def test_threads_optimize_and_restore_models_of_one_class() -> None:
    original, x, failed = own_forward(Attention), torch.randn(2, 8, 16), list[BaseException]()

    def work() -> None:
        try:
            for _ in range(3):
                model = Attention()
                expected = model(x)
                autofuse.optimize(model, x, verify=False, tune=False)
                torch.testing.assert_close(model(x), expected)
                autofuse.restore(model)
                assert torch.equal(model(x), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and own_forward(Attention) is original


class Reloaded(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return torch.softmax(q @ q.mT, -1) @ q


def test_code_that_is_assigned_to_the_forward_runs_as_after_an_autoreload() -> None:
    def edited(self: nn.Module, q: Tensor, times: float = 2.0) -> Tensor:
        return torch.softmax(q @ q.mT, -1) @ q * times

    original, q = function_of(Reloaded), torch.randn(2, 4, 4)
    before = original.__code__, original.__defaults__
    fused, other, lazy = optimized(Reloaded(), q), Reloaded(), autofuse.optimize(Reloaded(), tune=False)
    expected = other(q)
    function = function_of(Reloaded)
    function.__code__, function.__defaults__ = edited.__code__, edited.__defaults__
    try:
        for module in (fused, other, lazy, Reloaded()):
            torch.testing.assert_close(module(q), expected * 2)
            torch.testing.assert_close(module(q, times=3.0), expected * 3)
        assert not is_installed(fused)
        assert fused_rules(optimized(Reloaded(), q)) == {"AF101"}
        autofuse.restore(fused)
        del fused, lazy
        gc.collect()
        autofuse.restore(other)
        torch.testing.assert_close(Reloaded()(q), expected * 2)
        torch.testing.assert_close(Reloaded()(q, 5.0), expected * 5)
    finally:
        original.__code__, original.__defaults__ = before
        Reloaded.forward = original  # type: ignore[method-assign]
