"""Masks after `optimize`, with rows that the example did not contain: all dropped, all kept, or one key kept.

The table has the places of masks and biases, the fills, and the later masks. Models that are not fused must be equal
too.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autofuse

T, D = 6, 16
ARRANGED: dict[str, str] = {
    "filled": "s.masked_fill(~keep, fill)",
    "chosen": "torch.where(keep, s, fill)",
    "filled with a tensor": "torch.where(keep, s, torch.full_like(s, fill))",
    "added": "s + (1.0 - keep.to(s.dtype)) * fill",
    "a mask that is added": "s + torch.zeros_like(s).masked_fill(~keep, fill)",
    "biased, then filled": "(s + self.b).masked_fill(~keep, fill)",
    "filled, then biased": "s.masked_fill(~keep, fill) + self.b",
    "biased, filled, biased": "(s + self.b).masked_fill(~keep, fill) + self.c",
    "causal, then added": "s.masked_fill(self.later, fill) + (1.0 - keep.to(s.dtype)) * fill",
    "added, then causal": "(s + (1.0 - keep.to(s.dtype)) * fill).masked_fill(self.later, fill)",
    "causal by -inf, then added": "s.masked_fill(self.later, float('-inf')) + (1.0 - keep.to(s.dtype)) * fill",
    "causal by -inf, then filled": "s.masked_fill(self.later, float('-inf')).masked_fill(~keep, fill)",
    "filled, then causal by -inf": "s.masked_fill(~keep, fill).masked_fill(self.later, float('-inf'))",
    "twice by one number": "s.masked_fill(self.later, fill).masked_fill(~keep, fill)",
    "twice by two numbers": "s.masked_fill(self.later, fill).masked_fill(~keep, 0.5 * fill)",
    "scaled after": "s.masked_fill(~keep, fill) * 0.5",
    "filled, scaled, filled": "(s.masked_fill(self.later, fill) * 0.5).masked_fill(~keep, fill)",
    "filled, scaled, biased": "s.masked_fill(~keep, fill) * 0.5 + self.b",
    "a bias with a slope, then filled": "(s - 0.1 * self.distance).masked_fill(~keep, fill)",
    "causal": "s.masked_fill(self.later, fill)",
    "causal, added": "s + self.later.to(s.dtype) * fill",
    "causal, a filled triangle": "s + torch.full((6, 6), fill, dtype=s.dtype).triu(1)",
    "causal, compared": "s.masked_fill(torch.arange(6)[None, :] > torch.arange(6)[:, None], fill)",
    "a product of a boolean": "s * keep.to(s.dtype) + fill * (1 - keep.to(s.dtype))",
    "assigned": "torch.where(keep, s, self.filled.to(s.dtype))",
}
FILLS = (-1e3, -1e4, -1e9, "minimum", -math.inf)
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all kept": torch.ones_like,
    "a padded end": lambda keep: keep.index_fill(-1, torch.tensor([4, 5]), False),
    "a padded start": lambda keep: keep.index_fill(-1, torch.tensor([0, 1]), False),
    "rows dropped whole": lambda keep: keep.index_fill(-2, torch.tensor([1, 4]), False),
    "a batch dropped whole": lambda keep: keep * torch.tensor([True, False]).view(2, 1, 1, 1),
    "one kept": lambda keep: torch.zeros_like(keep).index_fill(-1, torch.tensor([3]), True),
}
BY_DAY = 4  # one cell in this many runs by day; these include each arrangement, fill, dtype and way of optimizing
CELLS = [
    pytest.param(*cell, marks=() if i % BY_DAY == i // (4 * BY_DAY) % BY_DAY else pytest.mark.night)
    for i, cell in enumerate(itertools.product(ARRANGED, FILLS, (torch.float64, torch.float32), (False, True)))
]


def model(arranged: str, fill: float | str, dtype: torch.dtype) -> nn.Module:
    amount = torch.finfo(dtype).min if fill == "minimum" else fill
    scope: dict[str, object] = {"torch": torch}
    exec(f"def masked(self, s, keep, fill):\n    return {ARRANGED[arranged]}", scope)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(D, 3 * D)
            self.b, self.c = (nn.Parameter(torch.randn(T, T)) for _ in range(2))
            self.register_buffer("later", torch.ones(T, T, dtype=torch.bool).triu(1))
            self.register_buffer("distance", (torch.arange(T)[:, None] - torch.arange(T)).abs().float())
            self.register_buffer("filled", torch.tensor(amount, dtype=dtype))

        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            q, k, v = (t.view(2, T, 2, D // 2).transpose(1, 2) for t in self.project(x).chunk(3, -1))
            s = q @ k.transpose(-2, -1) * 0.3
            found: Tensor = self.masked(s, keep, amount).softmax(-1) @ v  # type: ignore[operator]
            return found

        masked = scope["masked"]

    torch.manual_seed(0)
    return Attention().to(dtype)


def ran(module: nn.Module, x: Tensor, keep: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x, keep)
    torch.manual_seed(3)
    (y * torch.randn_like(y)).sum().backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
    return {"result": y.detach(), "x": x.grad, **grads}  # type: ignore[dict-item]


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> str:
    """The differences in rows in which the original has numbers."""
    if not all(t.isfinite().all() for t in wanted.values()):
        rows = wanted["result"].isfinite()
        return "" if torch.allclose(found["result"][rows], wanted["result"][rows], tolerance, tolerance) else "result"
    largest = max(float(t.abs().max()) for n, t in wanted.items() if n != "result")
    for name, t in wanted.items():
        size = largest if name != "result" else float(t.abs().max())
        if float((found[name] - t).abs().max()) > tolerance * size:
            return f"{name}: off by {float((found[name] - t).abs().max()):.1e} of {size:.1e}"
    return ""


@pytest.mark.parametrize(("arranged", "fill", "dtype", "lazy"), CELLS)
def test_every_later_mask_gives_what_the_program_gives(
    arranged: str, fill: float | str, dtype: torch.dtype, lazy: bool
) -> None:
    original = model(arranged, fill, dtype)
    fused = copy.deepcopy(original)
    x = torch.randn(2, T, D, dtype=dtype)
    keep = torch.ones(2, 1, T, T, dtype=torch.bool)
    autofuse.optimize(fused, None if lazy else (x, keep), tune=False)
    fused(x, keep)
    for rows, change in ROWS.items():
        for size in (1.0, 30.0):
            wanted, found = (ran(m, x * size, change(keep)) for m in (original, fused))
            differs = equal(found, wanted, 1e-9 if dtype is torch.float64 else 2e-4 * size)
            assert not differs, f"{rows}, activations times {size:g}: {differs}\n{autofuse.report(fused)}"


@pytest.mark.parametrize("arranged", sorted(ARRANGED))
def test_it_is_fused_anyway(arranged: str) -> None:
    module = model(arranged, -1e9, torch.float32)
    autofuse.optimize(module, (torch.randn(2, T, D), torch.ones(2, 1, T, T, dtype=torch.bool)), tune=False)
    assert {s.rule for s in autofuse.report(module).with_status("fused")} & {"AF101", "AF102"}, autofuse.report(module)
