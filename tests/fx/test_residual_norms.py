"""A residual in the parent and a norm in a user-defined child are one operation, while the child is unchanged."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import autofuse

HALF, SINGLE = torch.bfloat16, torch.float32
DIM = 32


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(DIM) + 0.5)
        self.eps = 1e-6


class Llama(Norm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Olmo(Norm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * x).to(dtype)


class Gemma(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class Lit(Norm):
    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


class Cohere(Norm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        x = (x - mean) * torch.rsqrt(variance + self.eps)
        return (self.weight.to(torch.float32) * x).to(dtype)


class Single(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float()).type_as(x)


class Subclass(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class Plain(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Normalize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.g = DIM**0.5, nn.Parameter(torch.rand(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.scale * (self.g + 1)


FOUND = (Llama, Olmo, Gemma, Lit, Cohere, Single, Subclass, Plain)


class Block(nn.Module):
    """A decoder block as in transformers, without attention."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.before, self.mix = norm(), nn.Linear(DIM, DIM)
        self.after, self.mlp = norm(), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.mix(self.before(x))
        x = residual + x
        residual = x
        x = self.mlp(self.after(x))
        return residual + x


class PostNorm(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.before(self.mix(x) + x)
        return self.after(x + self.mlp(x))


def codes(model: nn.Module) -> set[tuple[str, str]]:
    return {(s.rule, s.module) for s in autofuse.report(model).sites if s.status == "fused"}


def step(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    """The output, the input's gradient and those of all parameters."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    out.float().square().mean().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters())]


def assert_equal_steps(original: nn.Module, fused: nn.Module, x: Tensor) -> None:
    """Equal dtypes, and numbers that are equal except for rounding to 8 or 24 bits."""
    for a, b in zip(step(original, x), step(fused, x), strict=True):
        if a is None or b is None:
            assert a is b
            continue
        assert a.dtype is b.dtype
        coarse = 0.03 if HALF in (x.dtype, a.dtype) else 2e-5
        assert (a.double() - b.double()).abs().max() <= coarse * a.double().abs().max() + 1e-12


def optimized(block: nn.Module, x: Tensor) -> nn.Module:
    return autofuse.optimize(copy.deepcopy(block), (x,), tune=False)


@pytest.mark.parametrize(
    "norm", [n if n in (Llama, Gemma) else pytest.param(n, marks=pytest.mark.night) for n in FOUND]
)
@pytest.mark.parametrize("kind", [Block, PostNorm])
def test_the_add_and_the_norm_of_a_child_become_one(kind: type[Block], norm: type[nn.Module]) -> None:
    torch.manual_seed(0)
    block, x = kind(norm), torch.randn(2, 6, DIM)
    fused = optimized(block, x)
    assert ("AF203", "") in codes(fused)
    for training in (True, False):
        assert_equal_steps(block.train(training), fused.train(training), x)


@pytest.mark.night
@pytest.mark.parametrize("norm", [n for n in FOUND if n is not Subclass])  # that takes no other dtype on a CPU
def test_dtypes_stay_those_of_the_original(norm: type[nn.Module]) -> None:
    for given, dtype in itertools.product((HALF, SINGLE), repeat=2):
        torch.manual_seed(0)
        block = Block(norm)
        block.after.to(dtype)
        block.before.to(dtype)
        x = torch.randn(2, 6, DIM, dtype=given)
        block.mix, block.mlp = _Cast(given), _Cast(SINGLE)  # type: ignore[assignment]
        assert_equal_steps(block, optimized(block, x), x)


class _Cast(nn.Module):
    """A layer that accepts any dtype and returns one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x.sin().to(self.dtype)
        return made


class Wide(nn.Module):
    """A residual stream in fp32 between layers in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(DIM, DIM, dtype=HALF), Llama().to(HALF)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.float() + self.mix(x).float()
        return total, self.norm(total)


def test_a_sum_in_float32_keeps_its_digits() -> None:
    torch.manual_seed(0)
    wide, x = Wide(), torch.randn(4, 6, DIM, dtype=HALF)
    fused = optimized(wide, x)
    for a, b in zip(wide(x), fused(x), strict=True):
        assert a.dtype is b.dtype is SINGLE
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


class Unrestored(Norm):
    """The result stays in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def test_a_norm_that_stays_in_float32_keeps_its_digits() -> None:
    torch.manual_seed(0)
    block, x = Block(Unrestored).to(HALF), torch.randn(2, 6, DIM, dtype=HALF)
    block.mix, block.mlp = _Cast(HALF), _Cast(SINGLE)  # type: ignore[assignment]
    fused = optimized(block, x)
    torch.testing.assert_close(block(x), fused(x), atol=2e-6, rtol=2e-6)


class Other(Llama):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def _hooked(block: Block) -> None:
    block.after.register_forward_hook(lambda module, given, out: out * 3)


def _hooked_before(block: Block) -> None:
    block.after.register_forward_pre_hook(lambda module, given: (given[0] * 3,))


def _hooked_backward(block: Block) -> None:
    block.after.register_full_backward_hook(lambda module, given, out: (given[0] * 3,))


def _another_eps(block: Block) -> None:
    block.after.eps = 0.5  # type: ignore[assignment]


def _another_child(block: Block) -> None:
    torch.manual_seed(1)
    block.after = Other()


def _another_class(block: Block) -> None:
    block.after.__class__ = Other


def _another_weight(block: Block) -> None:
    block.after.weight = nn.Parameter(torch.linspace(1, 2, DIM))


def _another_forward(block: Block) -> None:
    block.after.forward = lambda x: x * 2


def _parametrized(block: Block) -> None:
    parametrize.register_parametrization(block.after, "weight", nn.Softplus())


def _frozen(block: Block) -> None:
    block.after.weight.requires_grad_(False)


CHANGES = (
    _hooked, _hooked_before, _hooked_backward, _another_eps, _another_child, _another_class, _another_weight,
    _another_forward, _parametrized,
)  # fmt: skip


@pytest.mark.parametrize(
    "change", [c if c in (_hooked, _parametrized) else pytest.param(c, marks=pytest.mark.night) for c in CHANGES]
)
def test_later_changes_of_the_child_are_noticed(change: Callable[[Block], None]) -> None:
    torch.manual_seed(0)
    block, x = Block(Llama), torch.randn(2, 6, DIM)
    fused = optimized(block, x)
    assert ("AF203", "") in codes(fused)
    for model in (block, fused):
        change(model)  # type: ignore[arg-type]
    assert_equal_steps(block, fused, x)


def test_a_frozen_weight_has_no_gradient() -> None:
    block, x = Block(Llama), torch.randn(2, 6, DIM)
    fused = optimized(block, x)
    for model in (block, fused):
        _frozen(model)  # type: ignore[arg-type]
        model(x).sum().backward()
        assert model.after.weight.grad is None  # type: ignore[union-attr]


def test_calls_with_other_sizes_and_dtypes_are_right() -> None:
    block, x = Block(Gemma), torch.randn(2, 6, DIM)
    fused = optimized(block, x)
    for other in (torch.randn(3, 1, DIM), torch.randn(7, DIM), torch.randn(2, 6, DIM).to(HALF)):
        one, two = block.to(other.dtype), fused.to(other.dtype)
        assert_equal_steps(one, two, other)


@pytest.mark.parametrize("norm", [Normalize])
def test_another_formula_is_unchanged(norm: type[nn.Module]) -> None:
    """F.normalize divides by at least 1e-12, unlike any RMS norm."""
    block, x = Block(norm), torch.randn(2, 6, DIM)
    fused = optimized(block, x)
    assert_equal_steps(block, fused, x)
    assert_equal_steps(block, fused, torch.zeros(2, 6, DIM))


def test_the_report_names_the_childs_norm_as_part_of_the_parents_place() -> None:
    fused = optimized(Block(Llama), torch.randn(2, 6, DIM))
    (told,) = [s for s in autofuse.report(fused).sites if s.module == "after"]
    assert told.rule == "AF202"
    assert "as part of AF203" in told.reason
