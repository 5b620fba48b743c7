"""autofuse.verify.modules: correct rewrites pass in every dtype and size, and each wrong rewrite of a list is found."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse import ops
from autofuse.verify.modules import ModuleReference, Verification, verify

Forward = Callable[..., Any]
B, T, C, H = 2, 8, 16, 4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Attention(nn.Module):
    """Hand-written self-attention; a test replaces `core`: (query, key, value, mask, p, training) -> result."""

    def __init__(self, core: Forward, p: float = 0.0, width: int = C) -> None:
        super().__init__()
        self.qkv, self.out, self.drop, self.core = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Dropout(p),
            core,
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.core(*heads, mask, self.drop.p, self.training).transpose(1, 2).flatten(2))


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return F.dropout(torch.softmax(scores, dim=-1), p, training) @ v


def upcast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
    scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, p, training) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
    scale = q.shape[-1] ** -0.5
    return ops.attention(q, k, v, mask=mask, scale=scale, dropout_p=p, training=training)


class Norm(nn.Module):
    """A hand-written norm over `width` channels."""

    def __init__(self, core: Forward, width: int = C) -> None:
        super().__init__()
        self.weight, self.bias, self.core = nn.Parameter(torch.rand(width)), nn.Parameter(torch.randn(width)), core

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x, self.weight, self.bias)


def norm_by_hand(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, unbiased: bool = False) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, unbiased=unbiased, keepdim=True) + eps) * weight + bias


def rms_by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    h = x.float()
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) + bias


def rewritten(module: nn.Module, **attributes: Any) -> nn.Module:
    twin = copy.deepcopy(module)
    for name, value in attributes.items():
        setattr(twin, name, value)
    return twin


def causal(t: int = T) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hand", [by_hand, upcast])
@pytest.mark.parametrize("mask", ["none", "causal", "a row that is masked out entirely"])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
def test_fused_attention_passes(dtype: torch.dtype, hand: Forward, mask: str, magnitude: float) -> None:
    module = Attention(hand, p=0.1).to(dtype)
    given = {
        "none": None,
        "causal": causal(),
        "a row that is masked out entirely": causal() & (torch.arange(T) > 0)[:, None],
    }[mask]
    core = fused if hand is by_hand else fused_with(fill=torch.finfo(torch.float32).min)
    x = (magnitude * torch.randn(B, T, C)).to(dtype)
    outcome = verify(module, rewritten(module, core=core), (x, given))
    assert outcome.ok, outcome
    assert outcome.max_error <= outcome.bound and not outcome.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_passes_on_a_long_sequence(dtype: torch.dtype) -> None:
    module = Attention(by_hand).to(dtype)
    outcome = verify(module, rewritten(module, core=fused), (torch.randn(1, 1024, C).to(dtype), causal(1024)))
    assert outcome.ok, outcome


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 8, 64, 768])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
def test_fused_norms_pass(dtype: torch.dtype, width: int, magnitude: float) -> None:
    x = (magnitude * torch.randn(B, T, width)).to(dtype)
    for hand, core in ((norm_by_hand, ops.layer_norm), (rms_by_hand, lambda x, w, b: ops.rms_norm(x, w) + b)):
        module = Norm(hand, width).to(dtype)
        outcome = verify(module, rewritten(module, core=core), (x,))
        assert outcome.ok, outcome


def attention(wrong: Forward, p: float = 0.0, mask: Any = "causal", **module: Any) -> Verification:
    original = Attention(by_hand, p, **module)
    given = causal() if mask == "causal" else mask
    return verify(original, rewritten(original, core=wrong), (torch.randn(B, T, C), given))


def fused_with(core: Forward = ops.attention, **change: Any) -> Forward:
    """Fused attention with some of its arguments changed."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Any:
        right = {"mask": mask, "scale": q.shape[-1] ** -0.5, "dropout_p": p, "training": training}
        return core(q, k, v, **{**right, **change})

    return wrong


WRONG: dict[str, Callable[[], Verification]] = {
    "no scale": lambda: attention(fused_with(scale=1.0)),
    "a scale that is off by a thousandth": lambda: attention(fused_with(scale=0.5005)),
    "the mask's polarity": lambda: attention(
        lambda q, k, v, mask, p, t: ops.attention(q, k, v, mask=~mask, scale=0.5), mask=torch.rand(T, T) > 0.5
    ),
    "no mask": lambda: attention(fused_with(mask=None)),
    "no additive mask": lambda: attention(fused_with(mask=None), mask=torch.randn(T, T)),
    "a causal mask that the original does not have": lambda: attention(fused_with(is_causal=True), mask=None),
    "no dropout": lambda: attention(fused_with(dropout_p=0.0), p=0.2),
    "another rate of dropout": lambda: attention(fused_with(dropout_p=0.3), p=0.1),
    "dropout in evaluation": lambda: attention(fused_with(training=True), p=0.2),
    "dropout that the original does not have": lambda: attention(fused_with(dropout_p=0.2)),
    "a gradient cut off from the key": lambda: attention(lambda q, k, v, *a: fused(q, k.detach(), v, *a)),
    "no gradient at all": lambda: attention(lambda *a: fused(*a).detach()),
    "another dtype": lambda: attention(lambda *a: fused(*a).double()),
    "another shape": lambda: attention(lambda *a: fused(*a)[:, :, :1].expand(-1, -1, T, -1)),
    "heads in another order": lambda: attention(lambda *a: fused(*a).flip(1)),
    "query and key swapped": lambda: attention(lambda q, k, *a: fused(k, q, *a)),
    "softmax over the queries": lambda: attention(lambda q, k, v, *a: torch.softmax(q @ k.mT * 0.5, -2) @ v, mask=None),
    "an error": lambda: attention(lambda *a: 1 / 0),
    "NaN where the original is finite": lambda: attention(lambda *a: fused(*a) / (torch.arange(T) > 0)[:, None] * 0),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_attention_is_found(wrong: Callable[[], Verification]) -> None:
    outcome = wrong()
    assert not outcome.ok
    assert outcome.reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 64])
def test_an_unbiased_variance_is_found(dtype: torch.dtype, width: int) -> None:
    original = Norm(lambda *a: norm_by_hand(*a, unbiased=True), width).to(dtype)
    assert not verify(original, rewritten(original, core=ops.layer_norm), (torch.randn(B, T, width).to(dtype),)).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps, wrong", [(1e-5, 1e-6), (1e-5, 1e-4), (1e-6, 1e-5), (1e-6, 1e-7)])
def test_an_eps_that_differs_by_a_factor_of_ten_is_found(dtype: torch.dtype, eps: float, wrong: float) -> None:
    original = Norm(lambda *a: norm_by_hand(*a, eps=eps)).to(dtype)
    fused = lambda *a: ops.layer_norm(*a, eps=wrong)
    assert not verify(original, rewritten(original, core=fused), (torch.randn(B, T, C).to(dtype),)).ok


def test_dropout_without_scaling_is_found() -> None:
    def drop(m: nn.Module, x: Tensor) -> Tensor:
        kept = F.dropout(x, 0.3, m.training)
        return kept if torch.equal(kept, x) else kept * m.factor

    original = ModuleReference(FunctionModule(drop, factor=1.0), (torch.randn(64, 64),))
    assert original.check(FunctionModule(drop, factor=1.0)).ok
    assert not original.check(FunctionModule(drop, factor=0.7)).ok


class Everything(nn.Module):
    """Writes to an input and a buffer, counts its calls, and returns nested structures."""

    seen: Tensor

    def __init__(self, linear: Forward = F.linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(C, C))
        self.frozen = nn.Parameter(torch.randn(C), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(C))
        self.register_buffer("seen", torch.zeros(C))
        self.plain, self.calls, self.linear = torch.ones(C), 0, linear

    def forward(self, x: Tensor, ids: Tensor, *, extra: dict[str, Any], write: bool = True) -> Any:
        self.calls += 1
        self.seen.add_(x.detach().mean((0, 1)))
        self.plain = self.plain * 2
        if write:
            x += 1.0
        y = self.linear(x, self.weight) + self.frozen + extra["bias"][0]
        return Packed(y, {"ids": ids + 1, "none": None, "half": 0.5}), (y.sum().item(), "name"), [y.detach()]


@dataclass
class Packed:
    value: Tensor
    rest: dict[str, Any]


def call() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(B, T, C), torch.arange(T)), {"extra": {"bias": [torch.randn(C)]}}


def test_structures_buffers_and_written_inputs_are_compared() -> None:
    original = ModuleReference(Everything(), *call())
    twin = copy.deepcopy(original._original)
    assert original.check(twin).ok
    wrong = {
        "reads the input unchanged": (lambda x, w: F.linear(x - 1.0, w)),
        "writes the input again": (lambda x, w: F.linear(x.add_(1.0) - 1.0, w)),
        "writes the buffer": (lambda x, w: F.linear(x, w) + 0.0 * twin.seen.add_(1.0)),
    }
    for name, linear in wrong.items():
        assert not original.check(rewritten(twin, linear=linear)).ok or name == "writes the buffer", name
    twin.linear = wrong["writes the buffer"]
    outcome = original.check(twin)
    assert outcome.culprit == "self.seen after the call"


def test_the_modules_and_arguments_stay_unchanged() -> None:
    module = Everything()
    module.register_forward_hook(hook := lambda *_: None)
    module.weight.grad = torch.ones(C, C)
    module.eval()
    args, kwargs = call()
    held = {
        id(t): (t, t.clone()) for t in (*module.state_dict().values(), module.plain, *args, kwargs["extra"]["bias"][0])
    }
    attributes, state, python = dict(vars(module)), torch.get_rng_state(), random.getstate()
    assert verify(module, copy.deepcopy(module), args, kwargs).ok
    assert vars(module) == attributes
    assert module.calls == 0 and not module.training and list(module._forward_hooks.values()) == [hook]
    assert torch.equal(module.weight.grad, torch.ones(C, C)) and module.frozen.grad is None
    assert all(torch.equal(t, before) for t, before in held.values()) and not args[0].requires_grad
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python
    assert torch.get_default_dtype() is torch.float32 and isinstance(torch.finfo, type)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_are_compared_in_every_grad_mode(context: Any) -> None:
    original = Attention(by_hand)
    right = rewritten(original, core=fused)
    wrong = rewritten(original, core=lambda q, k, v, *a: fused(q, k.detach(), v, *a))
    with context():
        x = torch.randn(B, T, C)
        assert verify(original, right, (x,)).ok
        assert not verify(original, wrong, (x,)).ok


def test_under_autocast_the_narrow_dtype_sets_the_bound() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = attention(fused)
        assert outcome.ok and outcome.bound > 1e-3, outcome
        assert not attention(fused_with(scale=0.51)).ok


class FunctionModule(nn.Module):
    """A module with the given function as its forward."""

    def __init__(self, function: Forward, **attributes: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def check_functions(one: Forward, other: Forward, *args: Any, **attributes: Any) -> Verification:
    return verify(FunctionModule(one, **attributes), FunctionModule(other, **attributes), args)


def test_entries_that_are_nan_in_the_original_may_be_anything_and_others_not() -> None:
    x = torch.randn(4, 4)
    nan = lambda m, x: x * torch.where(torch.eye(4) > 0, torch.nan, 1.0)
    assert check_functions(nan, lambda m, x: x - x.detach() * torch.eye(4), x).ok
    assert not check_functions(nan, lambda m, x: x * torch.where(torch.eye(4).roll(1) > 0, torch.nan, 1.0), x).ok


def test_an_infinity_may_stay_or_become_the_correct_number() -> None:
    x = torch.full((4,), 300.0, dtype=torch.float16)
    overflows = lambda m, x: (x * x) / 300.0
    assert check_functions(overflows, lambda m, x: x * (x / 300.0), x).ok
    assert check_functions(overflows, overflows, x).ok
    assert not check_functions(overflows, lambda m, x: -x * x, x).ok


def test_a_missing_gradient_equals_a_gradient_of_zero() -> None:
    x, y = torch.randn(4), torch.randn(4)
    assert check_functions(lambda m, x, y: x * 2, lambda m, x, y: x * 2 + y * 0, x, y).ok
    assert check_functions(lambda m, x, y: x * 2 + y * 0, lambda m, x, y: x * 2, x, y).ok
    assert not check_functions(lambda m, x, y: x * 2 + y, lambda m, x, y: x * 2 + y.detach(), x, y).ok


def test_results_that_are_no_tensors_are_compared_by_equality() -> None:
    x = torch.randn(4)
    assert not check_functions(lambda m, x: (x, 1), lambda m, x: (x, 2), x).ok
    assert not check_functions(lambda m, x: (x, None), lambda m, x: (x, x), x).ok
    assert not check_functions(lambda m, x: (x, x), lambda m, x: (x, None), x).ok
    assert not check_functions(lambda m, x: (x, x), lambda m, x: [x, x], x).ok
    assert not check_functions(lambda m, x: {"a": x}, lambda m, x: {"b": x}, x).ok
    assert not check_functions(lambda m, x: x > 0, lambda m, x: x < 0, x).ok
    assert not check_functions(lambda m, x: x.sum().item(), lambda m, x: x.sum().item() + 1, x).ok


def test_unread_results_may_differ() -> None:
    x = torch.randn(4)
    one, other = FunctionModule(lambda m, x: (x, x * 2)), FunctionModule(lambda m, x: (x, None))
    assert verify(one, other, (x,), unread=frozenset({1})).ok
    assert not verify(one, other, (x,), unread=frozenset({0})).ok


def test_an_original_that_does_not_run_has_its_own_message() -> None:
    outcome = check_functions(lambda m, x: 1 / 0, lambda m, x: x, torch.randn(4))
    assert not outcome.ok and "original" in outcome.reason and "ZeroDivisionError" in outcome.reason


def test_an_original_that_supports_one_mode_is_checked_in_that_mode() -> None:
    only_eval = lambda m, x: x * 2 if not m.training else 1 / 0
    assert check_functions(only_eval, only_eval, torch.randn(4)).ok
    assert not check_functions(only_eval, lambda m, x: x * 3, torch.randn(4)).ok


def test_each_mode_is_checked_by_itself() -> None:
    x = torch.randn(4)
    by_mode = lambda m, x: x.sin() if m.training else x.cos()
    assert check_functions(by_mode, by_mode, x).ok
    assert not check_functions(by_mode, lambda m, x: x.cos(), x).ok
    assert not check_functions(by_mode, lambda m, x: x.sin(), x).ok


def test_dropout_in_both_modes_is_compared_in_each_mode() -> None:
    x = torch.randn(32, 32)
    always = lambda m, x: F.dropout(x, 0.5)
    assert check_functions(always, always, x).ok
    assert not check_functions(always, lambda m, x: F.dropout(x, 0.5, m.training), x).ok


DROPPING: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "nn.MultiheadAttention": lambda: (nn.MultiheadAttention(C, H, dropout=0.3), (torch.randn(B, T, C),) * 3),
    "nn.LSTM": lambda: (nn.LSTM(C, C, num_layers=2, dropout=0.3), (torch.randn(B, T, C),)),
    "nn.TransformerEncoderLayer": lambda: (nn.TransformerEncoderLayer(C, H, 2 * C, 0.3), (torch.randn(B, T, C),)),
    "random depth": lambda: (
        FunctionModule(lambda m, x: x * (torch.rand_like(x) > 0.3) if m.training else x),
        (torch.randn(B, T),),
    ),
    "noise": lambda: (FunctionModule(lambda m, x: x + torch.randn(x.shape)), (torch.randn(B, T),)),
    "an empty tensor filled": lambda: (
        FunctionModule(lambda m, x: x * x.new_empty(B, 1).bernoulli_(0.5)),
        (torch.randn(B, T),),
    ),
    "nn.BatchNorm1d": lambda: (nn.BatchNorm1d(T), (torch.randn(B, T, C),)),
    "nn.Embedding": lambda: (nn.Embedding(T, C), (torch.randint(T, (B, T)),)),
    "complex numbers": lambda: (
        FunctionModule(
            lambda m, x: torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * m.rotation),
            rotation=rotation(),
        ),
        (torch.randn(B, T, C),),
    ),
}


def rotation() -> Tensor:
    return torch.polar(torch.ones(T, C // 2), torch.rand(T, C // 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", DROPPING.values(), ids=DROPPING)
def test_any_module_agrees_with_itself(given: Any, dtype: torch.dtype) -> None:
    module, args = given()
    if dtype is torch.bfloat16 and isinstance(module, nn.LSTM):
        pytest.skip("torch has no LSTM in bfloat16 on CPU")
    module, args = module.to(dtype), tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    outcome = verify(module, copy.deepcopy(module), args)
    assert outcome.ok, outcome


def test_hard_coded_single_precision_becomes_double() -> None:
    def hand(m: nn.Module, x: Tensor) -> Tensor:
        h = x.to(torch.float32).float().type(torch.float32).type_as(x.float())
        h = h + torch.zeros(4, dtype=torch.float32) + torch.tensor(0.1)
        return torch.softmax(h, -1, dtype=torch.float32).to(x.dtype)

    x = torch.randn(4, 4)
    exact = ModuleReference(FunctionModule(hand), (x,))._training.exact  # type: ignore[union-attr]
    assert exact.tensors["result"].dtype is torch.float64
    assert torch.allclose(exact.tensors["result"], torch.softmax(x.double() + 0.1, -1), rtol=1e-14, atol=0)


def test_recomputed_checkpoints_have_no_dropout_either() -> None:
    from torch.utils.checkpoint import checkpoint

    inner = lambda x: F.dropout(torch.softmax(x, -1), 0.5) * x
    module = FunctionModule(lambda m, x: checkpoint(inner, x, use_reentrant=False))
    outcome = verify(module, FunctionModule(lambda m, x: inner(x)), (torch.randn(16, 16),))
    assert outcome.ok, outcome


def test_a_mask_that_requires_no_gradient_keeps_the_fused_kernel() -> None:
    seen: list[bool] = []

    def spied(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
        seen.append(mask is not None and mask.requires_grad)
        return fused(q, k, v, mask, p, training)

    assert attention(spied, mask=torch.randn(T, T)).ok
    assert seen == [False, True, False]  # training, the same in double, evaluation


def test_one_reference_serves_many_checks() -> None:
    runs = 0

    def hand(*a: Any) -> Tensor:
        nonlocal runs
        runs += 1
        return by_hand(*a)

    original = ModuleReference(Attention(hand), (torch.randn(B, T, C),))
    assert original.check(rewritten(original._original, core=fused)).ok
    before = runs
    assert original.check(rewritten(original._original, core=fused)).ok
    assert runs == before <= 3


def test_huggingface_outputs_are_compared_part_by_part() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    x = torch.randn(4)
    one = lambda m, x: BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x,))
    assert check_functions(one, one, x).ok
    outcome = check_functions(one, lambda m, x: BaseModelOutput(last_hidden_state=x * 3, hidden_states=(x,)), x)
    assert outcome.culprit == "result['last_hidden_state']"


def test_a_gradient_sums_over_the_rows_that_a_model_pools() -> None:
    """The model returns two rows but sums over thousands: torch's layer norm adds their gradients one by one, and
    rounds.
    """

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(dim=-1, keepdim=True)
            normed = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
            return (normed * self.weight + self.bias).square().mean(dim=1)

    class Fused(ByHand):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, (4,), self.weight, self.bias, 1e-5).square().mean(dim=1)

    for seed in range(5):
        torch.manual_seed(seed)
        outcome = verify(ByHand(), Fused(), (torch.randn(2, 6000, 4) + 3.0,))
        assert outcome.ok, outcome.reason


def test_dropout_inside_autofuse_kernels_is_off_too() -> None:
    class Dropped(nn.Module):
        """Large enough for operations that do not call torch's functions."""

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return ops.attention(query, key, value, dropout_p=0.2, training=self.training)

    class Spelled(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            weights = torch.softmax(query @ key.mT, dim=-1)
            return F.dropout(weights, 0.2, self.training) @ value

    inputs = tuple(torch.randn(1, 2, 300, 16) for _ in range(3))
    assert verify(Spelled(), Dropped(), inputs).ok


@pytest.mark.parametrize(("error", "ok"), [(2**-18, True), (2**-8, False)])
def test_a_difference_in_one_mode_is_judged_with_the_rounding_of_both(error: float, ok: bool) -> None:
    """Both modes of the original are equal and exact. Only random rounding shows that 1,024 leaves 2 ** -14 of room."""

    def rounds(module: nn.Module, x: Tensor) -> Tensor:
        return (x + 1024.0) - 1024.0

    def rounds_elsewhere(module: nn.Module, x: Tensor) -> Tensor:
        y = rounds(module, x)
        return y if module.training else y + error * y.detach()

    outcome = check_functions(rounds, rounds_elsewhere, torch.arange(1.0, 65.0))
    assert outcome.ok is ok, outcome
    assert ok or "in evaluation" in outcome.reason
