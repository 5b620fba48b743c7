"""autofuse.verify.runs: everything that a call leaves behind is found, and the module is restored."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autofuse.fx.trace.twin import copied_object
from autofuse.verify.arithmetic import AsWrittenMode, DoubleMode
from autofuse.verify.modules import verify
from autofuse.verify.runs import ModuleCall, ModuleRun, copy_in_double, results_with_dropout, run, temporary_double_copy


class Layer(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last, self.turn = nn.Linear(4, 4), None, torch.ones(4, dtype=torch.complex64)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **rest: Any) -> Any:
        self.last = self.linear(x)
        self.mean.lerp_(x.detach().mean(0), 0.1)
        y = self.last if attention_mask is None else self.last + attention_mask
        return OrderedDict(y=y, more=(y.argmax(-1), rest.get("z")))


def run_layer(*args: Any, masks_too: bool = True, arithmetic: AsWrittenMode | None = None, **kwargs: Any) -> ModuleRun:
    return run(Layer(), ModuleCall(args, kwargs), True, arithmetic or AsWrittenMode(), masks_too=masks_too)


def test_results_gradients_and_state_have_names() -> None:
    done = run_layer(torch.randn(2, 4), z=torch.randn(3))
    assert set(done.tensors) == {
        "result['y']", "result['more'][1]", "self.mean after the call", "self.last after the call",
    }  # fmt: skip
    assert done.others["result['more'] as a whole"] is tuple
    assert done.others["result['more'][0]"].dtype is torch.int64
    assert set(done.gradients) == {"x", "z", "self.linear.weight", "self.linear.bias"}
    assert all(g is not None for g in done.gradients.values())
    assert done.with_gradient == {"result['y']", "result['more'][1]"}


def test_a_mask_gets_a_gradient_if_all_inputs_do_or_it_requires_one() -> None:
    x, mask = torch.randn(2, 4), torch.randn(4)
    assert "attention_mask" in run_layer(x, mask).gradients
    assert "attention_mask" not in run_layer(x, attention_mask=mask, masks_too=False).gradients
    assert "attention_mask" in run_layer(x, mask.requires_grad_(), masks_too=False).gradients


def test_an_argument_that_is_passed_twice_stays_one_object() -> None:
    class Both(nn.Module):
        def forward(self, a: Tensor, b: Tensor, *rest: Tensor) -> Tensor:
            assert a is b is rest[0]
            return a * b

    x = torch.randn(3)
    done = run(Both(), ModuleCall((x, x, x), {}), False, AsWrittenMode())
    assert torch.allclose(done.gradients["a"] / x, done.gradients["a"].div(x)) and len(done.gradients) == 1


def test_the_module_is_restored() -> None:
    module = Layer().eval()
    before = module.mean.clone()
    run(module, ModuleCall((torch.randn(2, 4),), {}), True, AsWrittenMode())
    assert module.last is None and not module.training and module.linear.weight.grad is None
    assert torch.equal(module.mean, before)


def test_the_module_is_restored_after_an_error() -> None:
    module, call = Layer(), ModuleCall((torch.randn(2, 4), torch.randn(7)), {})
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="size"):
        run(module, call, True, AsWrittenMode())
    assert module.last is None and not module.mean.any() and torch.equal(torch.get_rng_state(), state)


def test_runs_are_deterministic() -> None:
    x, module = torch.randn(2, 4), nn.Sequential(nn.Linear(4, 4), nn.RReLU())
    one, other = (run(module, ModuleCall((x,), {}), True, AsWrittenMode()) for _ in range(2))
    assert torch.equal(one.tensors["result"], other.tensors["result"])


def test_a_double_copy_has_only_doubles_and_the_original_is_unchanged() -> None:
    module = Layer()
    double = copy_in_double(module)
    assert {t.dtype for t in double.state_dict().values()} == {torch.float64}
    assert double.turn.dtype is torch.complex128 and module.turn.dtype is torch.complex64
    assert module.linear.weight.dtype is torch.float32
    done = run(double, ModuleCall((torch.randn(2, 4),), {}), True, DoubleMode(torch.float32))
    assert {t.dtype for t in done.tensors.values()} == {torch.float64}


def test_random_numbers_follow_the_seed() -> None:
    module, call = nn.Dropout(0.5), ModuleCall((torch.ones(100),), {})
    one, same, other = (results_with_dropout(module, call, True, seed)["result"] for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


class _Cache:
    """Stores results of a run, which deepcopy cannot copy."""

    def __init__(self) -> None:
        self.held: list[Tensor] = []

    def extended(self, x: Tensor) -> Tensor:
        self.held.append(x)
        return torch.cat(self.held)


class _Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: _Cache) -> Tensor:
        return cache.extended(self.linear(x))


def test_a_run_does_not_extend_the_cache_of_another() -> None:
    module, cache = _Cached(), _Cache()
    module(torch.randn(2, 4), cache)
    run(module, ModuleCall((torch.randn(2, 4), cache), {}, copy_object=copied_object), True, AsWrittenMode())
    results_with_dropout(module, ModuleCall((torch.randn(2, 4), cache), {}, copy_object=copied_object), True, 0)
    assert len(cache.held) == 1


class Stores(nn.Module):
    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.proj, self.keeps = nn.Linear(4, 4), keeps

    def forward(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        y: Tensor = self.proj(x)
        if self.keeps:
            cache["n"] = cache.get("n", 0) + 1
            cache.setdefault("ys", []).append(y)
        return y


def test_values_that_a_forward_stores_in_its_arguments_are_compared() -> None:
    kept, lost = Stores(True), Stores(False)
    lost.load_state_dict(kept.state_dict())
    assert verify(kept, kept, (torch.randn(2, 4), {})).ok
    outcome = verify(kept, lost, (torch.randn(2, 4), {}))
    assert not outcome.ok and "cache" in outcome.culprit, outcome


def test_a_released_copy_has_no_tensors_and_its_original_keeps_them() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module.extra = torch.ones(3)  # type: ignore[assignment]
    with temporary_double_copy(module) as double:
        assert all(p.dtype is torch.float64 for p in double.parameters())
        assert "extra" in vars(double)
    assert not list(double.parameters()) and not list(double.buffers()) and "extra" not in vars(double)
    assert len(list(module.parameters())) == 4 and len(list(module.buffers())) == 3 and "extra" in vars(module)


def test_a_run_has_a_size_and_shares_the_tensors_of_an_equal_run() -> None:
    module, call = nn.Linear(4, 4), ModuleCall((torch.ones(2, 4),), {})
    one, other = (run(module, call, True, AsWrittenMode()) for _ in range(2))
    assert one.bytes == 4 * (2 * 4 + 2 * 4 + 4 * 4 + 4)  # the result, and the gradients of x, weight and bias
    shared = other.share_tensors(one)
    assert shared.tensors is one.tensors and shared.gradients is one.gradients and shared.others is other.others


def test_a_scripted_child_of_a_copy_keeps_its_tensors() -> None:
    module = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)))
    with temporary_double_copy(module) as double:
        assert double(torch.ones(2, 4, dtype=torch.float64)).dtype is torch.float64
    assert double[1].weight.dtype is torch.float64 and not list(double[0].parameters())
    assert module(torch.ones(2, 4)).dtype is torch.float32
