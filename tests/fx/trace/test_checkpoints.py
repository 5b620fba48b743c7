"""Functions that a forward checkpoints are fused, and are computed again in the backward pass as before."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

import autofuse
from autofuse.torch_private import functional
from tests.fx.conftest import fused_rules

WIDTH = 16
keep = functools.partial(checkpoint, use_reentrant=False)


class Ran(TorchDispatchMode):
    """Counts the softmaxes and the projections of queries, keys and values that run."""

    __module__ = "autofuse.observer"  # a mode of the user would make the original run

    def __init__(self) -> None:
        super().__init__()
        self.softmaxes = self.projections = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.softmaxes += "_softmax" in str(func)
        self.projections += "addmm" in str(func) and args[2].shape[-1] == 3 * WIDTH
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """A block with attention, a residual, a norm and an MLP. `way` says how forward checkpoints them."""

    def __init__(self, way: Callable[[Block, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("steps", torch.zeros(()))
        self.calls, self.way = 0, way

    def attend(self, x: Tensor, *, scale: float = 0.25) -> Tensor:
        query, key, value = self.qkv(self.first(x)).chunk(3, -1)
        return self.out(torch.softmax(query @ key.transpose(-2, -1) * scale, -1) @ value)  # type: ignore[no-any-return]

    def expand(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.second(x))))  # type: ignore[no-any-return]

    def compute(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(x))
        return x + self.drop(self.expand(x))

    def counted(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.compute(x)

    def stepped(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return self.compute(x)

    def pair(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x + self.attend(x), {"mean": x.mean(-1)}

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def _two(block: Block, x: Tensor) -> Tensor:
    x = x + keep(block.attend, x)
    return x + keep(block.expand, x)  # type: ignore[no-any-return]


def _closure(block: Block, x: Tensor) -> Tensor:
    shift = block.second(x)

    def function(y: Tensor) -> Tensor:
        return block.compute(y) + shift

    return keep(function, x)  # type: ignore[no-any-return]


def _several_results(block: Block, x: Tensor) -> Tensor:
    y, others = keep(block.pair, x)
    return block.compute(y) * others["mean"].unsqueeze(-1)


def _without_gradients(block: Block, x: Tensor) -> Tensor:
    with torch.no_grad():
        start = keep(block.expand, x)
    return keep(block.compute, x + start)  # type: ignore[no-any-return]


def _catch_error(block: Block, x: Tensor) -> Tensor:
    def fails(y: Tensor) -> Tensor:
        raise ValueError(block.attend(y).shape)

    try:
        return keep(fails, x)  # type: ignore[no-any-return]
    except ValueError:
        return block.compute(x)


FUSED: dict[str, Callable[[Block, Tensor], Any]] = {
    "a method": lambda b, x: keep(b.compute, x),
    "a partial with a keyword": lambda b, x: x + keep(functools.partial(b.attend, scale=0.5), x),
    "a keyword": lambda b, x: b.compute(keep(b.attend, x, scale=0.5)),
    "a lambda": lambda b, x: keep(lambda y: b.compute(y).tanh(), x),
    "by the module's name": lambda b, x: checkpoints.checkpoint(b.compute, x, use_reentrant=False),
    "a child": lambda b, x: b.compute(keep(b.out, x)),
    "two functions": _two,
    "one within code": lambda b, x: b.expand(keep(b.attend, b.first(x)) + x),
    "a closure over a tensor": _closure,
    "several results": _several_results,
    "without generators": lambda b, x: keep(b.compute, x, preserve_rng_state=False),
    "without a check": lambda b, x: keep(b.compute, x, determinism_check="none"),
    "partly without gradients": _without_gradients,
    "only in training": lambda b, x: keep(b.compute, x) if b.training else b.compute(x),
}


def _selective() -> tuple[Any, Any]:
    return checkpoints.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


class Seen:
    """An object that notes how many rows it has seen."""

    def __init__(self) -> None:
        self.rows = 0

    def note(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return x


SEEN = Seen()


UNCHANGED: dict[str, Callable[[Block, Tensor], Any]] = {
    "reentrant": lambda b, x: checkpoint(b.compute, x, use_reentrant=True),
    "selective": lambda b, x: keep(b.compute, x, context_fn=_selective),
    "nested": lambda b, x: keep(lambda y: b.attend(keep(b.expand, y)), x),
    "an error that forward catches": _catch_error,
    "counts its calls": lambda b, x: keep(b.counted, x),
    "writes a buffer": lambda b, x: keep(b.stepped, x),
    "calls a method of an object": lambda b, x: keep(lambda y: b.compute(SEEN.note(y)), x),
    "sequential": lambda b, x: checkpoint_sequential([b.attend, b.expand], 2, x, use_reentrant=False),
}


def _x() -> Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)


def _step(model: nn.Module, x: Tensor, *, early: bool = True) -> tuple[list[Tensor], Ran]:
    """The result, all gradients and buffers of a step, and what ran."""
    model.zero_grad()
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    with set_checkpoint_early_stop(early), Ran() as ran:
        result = model(x)
        (result * torch.linspace(0, 1, result.numel(), dtype=result.dtype).view_as(result)).sum().backward()
    gradients = [p.grad for p in (x, *model.parameters()) if p.grad is not None]
    return [result, *gradients, *model.buffers()], ran


def _compare(model: nn.Module, other: nn.Module, x: Tensor, *, early: bool = True) -> Ran:
    """Compare a step of two models, and how often they project. Returns what ran in the other one."""
    (expected, ran), (found, others) = _step(model, x, early=early), _step(other, x, early=early)
    assert ran.projections == others.projections, "each function is computed as often as before"
    for one, two in zip(expected, found, strict=True):
        torch.testing.assert_close(two, one)
    return others


@pytest.mark.parametrize("name", FUSED)
def test_a_checkpointed_function_is_fused_and_computed_again(name: str) -> None:
    model = Block(FUSED[name]).double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    assert "AF101" in fused_rules(fused)
    assert _compare(model, fused, _x()).softmaxes == 0, "neither forward nor when it is computed again"
    assert not autofuse.report(fused).fallbacks
    autofuse.restore(fused)
    assert _compare(model, fused, _x()).softmaxes


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_checkpoints_compute_what_they_computed(name: str) -> None:
    model = Block(UNCHANGED[name]).double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    for _ in range(2):
        SEEN.rows = 0
        _compare(model, fused, _x())
        assert SEEN.rows in (0, 2 * 2 * 2) and model.calls == fused.calls


def test_dropout_drops_the_same_elements_when_it_is_computed_again() -> None:
    model = Block(FUSED["a method"]).double()
    model.drop.p = 0.5
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    assert "AF101" in fused_rules(fused)
    _compare(model, fused, _x())


def test_parameters_are_read_again_in_the_backward_pass() -> None:
    """As under FSDP, which puts other tensors there in the meantime."""
    model = Block(FUSED["a method"]).double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    found = []
    for each in (model, fused):
        x = _x().detach().copy_(torch.ones(()).expand(2, 5, WIDTH)).requires_grad_()
        result = each(x)
        each.second.weight = nn.Parameter(torch.full_like(each.second.weight, 2.0))
        result.sum().backward()
        found.append([x.grad, each.second.weight.grad, each.up.weight.grad])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("early", [True, False])
def test_the_setting_to_stop_early_holds(early: bool) -> None:
    model = Block(FUSED["one within code"]).double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    _compare(model, fused, _x(), early=early)
    assert not autofuse.report(fused).fallbacks


def test_autocast_holds_when_it_is_computed_again() -> None:
    model = Block(FUSED["a method"])
    x = torch.randn(2, 5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        fused = autofuse.optimize(copy.deepcopy(model), x, tune=False)
    expected, _ = _step(copy.deepcopy(model).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = _step(fused, x)
        original, _ = _step(model, x)
    for exact, one, other in zip(expected, original, found, strict=True):
        assert (other.double() - exact).norm() <= 2 * (one.double() - exact).norm() + 1e-12


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(lambda b, x: b.compute(x)) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40)
        self.checkpointing = True

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        for block in self.blocks:
            x = keep(block, x) if self.checkpointing and self.training else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def test_a_model_that_checkpoints_its_blocks_is_fused_around_and_inside_of_them() -> None:
    model, targets = Model().double(), torch.randint(40, (2, 5))
    fused = autofuse.optimize(copy.deepcopy(model), (_x().detach(), targets), tune=False)
    rules = {s.module.partition(".")[0]: s.rule for s in autofuse.report(fused).with_status("fused")}
    assert rules.get("", "").startswith("AF5") and "blocks" in rules
    for checkpointing in (True, False, True):
        model.checkpointing = fused.checkpointing = checkpointing
        start, found = _x(), []
        for each in (model, fused):
            each.zero_grad()
            x = start.detach().requires_grad_()
            with Ran() as ran:
                each(x, targets).backward()
            found.append([p.grad for p in (x, *each.parameters())])
            assert ran.projections == (4 if checkpointing else 2), "each block is computed twice if it is checkpointed"
        torch.testing.assert_close(found[1], found[0])


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(self.up(x)))  # type: ignore[no-any-return]


class Gate(nn.Module):
    """A child that is small enough to become a part of its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return keep(lambda y: 0.5 * y * (1 + torch.erf(y / 2**0.5)), x)  # type: ignore[no-any-return]


def test_a_small_child_that_checkpoints_stays_a_child() -> None:
    model = Parent().double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    _compare(model, fused, _x())


def test_the_original_runs_after_an_error_in_a_fused_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Block(FUSED["a method"]).double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)

    def fails(*_: object, **__: object) -> Tensor:
        raise RuntimeError("this operation fails")

    monkeypatch.setattr(functional, "scaled_dot_product_attention", fails)
    start = _x()
    torch.testing.assert_close(_step(fused, start)[0], _step(model, start)[0])
    assert not autofuse.report(fused).with_status("fused")


def test_an_error_in_a_checkpointed_function_is_that_of_the_original() -> None:
    model = Block(FUSED["a method"]).double()
    fused = autofuse.optimize(copy.deepcopy(model), _x().detach(), tune=False)
    for each in (model, fused):
        with pytest.raises(RuntimeError, match="shape"):
            each(torch.randn(2, 5, WIDTH + 1, dtype=torch.float64))
    _compare(model, fused, _x())
