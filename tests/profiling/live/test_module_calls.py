"""Calls of modules are observed by name, and leave no trace on the modules."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import autofuse
from autofuse.profiling.live.module_calls import ModuleNames, around_calls


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


def _heard(models: dict[str, nn.Module], run: object) -> list[str]:
    heard: list[str] = []

    @contextmanager
    def around(name: str, module: nn.Module) -> Iterator[None]:
        heard.append(f"+{name}")
        yield
        heard.append(f"-{name}")

    with around_calls(ModuleNames(models), around):
        run()  # type: ignore[operator]
    return heard


def test_calls_are_observed_by_name_and_outer_calls_enclose_inner_ones() -> None:
    model = nn.Sequential(Block(), Block())
    assert _heard({"": model}, lambda: model(torch.ones(1, 8))) == [
        "+", "+0", "+0.inner", "-0.inner", "-0", "+1", "+1.inner", "-1.inner", "-1", "-",
    ]  # fmt: skip


def test_names_are_the_users_and_a_shared_module_has_its_first_name() -> None:
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": shared, "b": shared})
    wrapped = nn.parallel.DataParallel(model)
    names = ModuleNames({"net": wrapped})
    assert [name for name, _ in names.items()] == ["net", "net.a"]
    assert names[shared] == "net.a"
    assert names[wrapped] is None


def test_modules_of_other_models_are_not_observed() -> None:
    mine, other = Block(), Block()
    assert _heard({"": mine}, lambda: other(torch.ones(1, 8))) == []


def test_a_recomputed_forward_is_a_call_too() -> None:
    block = Block()
    x = torch.ones(1, 8, requires_grad=True)
    heard = _heard({"": block}, lambda: checkpoint(block, x, use_reentrant=False).sum().backward())
    assert heard.count("+inner") == 2


def test_a_module_with_its_own_call_is_observed_when_it_calls_the_base() -> None:
    class Odd(Block):
        def __call__(self, *args: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = super().__call__(*args)
            return result

    model = Odd()
    assert _heard({"": model}, lambda: model(torch.ones(1, 8)))[0] == "+"


def test_nothing_is_left_on_the_class_and_an_error_passes_through() -> None:
    before = nn.Module.__call__
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model = Block()
        _heard({"": model}, lambda: model(torch.ones(1, 3)))
    assert nn.Module.__call__ is before


def test_two_watchers_at_once_are_refused() -> None:
    with pytest.raises(RuntimeError, match="watched already"):
        _heard({}, lambda: _heard({}, lambda: None))


def test_a_second_watcher_in_another_thread_is_refused_and_does_not_wait() -> None:
    with ThreadPoolExecutor(1) as pool, around_calls(ModuleNames({}), lambda name, module: nullcontext()):
        second = pool.submit(_heard, {}, lambda: None)
        with pytest.raises(RuntimeError, match="watched already"):
            second.result(timeout=60)
    assert _heard({}, lambda: None) == []


def test_an_optimized_model_runs_its_fused_code_while_it_is_watched() -> None:
    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)

    class Post(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm, self.drop = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x + self.drop(self.inner(x)))

    model = nn.Sequential(Norm(), Post())
    x = torch.randn(4, 8)
    autofuse.optimize(model, (x,), tune=False)
    assert {site.rule for site in autofuse.report(model).with_status("fused")} == {"AF201", "AF203"}
    heard = _heard({"": model}, lambda: model(x))
    assert "+1.inner" in heard and "+1.norm" not in heard  # the fused operation reads past it
    assert autofuse.report(model).fallbacks == ()


def test_the_result_of_torch_compile_has_its_modules_name_and_is_observed() -> None:
    model = nn.Sequential(Block())
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(1, 8))
    assert [name for name, _ in ModuleNames({"": compiled}).items()] == ["", "0", "0.inner"]
    assert _heard({"": compiled}, lambda: compiled(torch.ones(1, 8))) == ["+", "-"]


def test_compiling_while_calls_are_observed_breaks_no_graph() -> None:
    model = nn.Sequential(Block(), Block())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert _heard({"": compiled}, lambda: compiled(torch.ones(1, 8))) == ["+", "-"]
    assert torch.equal(compiled(torch.ones(1, 8)), model(torch.ones(1, 8)))
