"""What every registered operator has to stand: torch's own checks, compilers, export, checkpoints, second derivatives.

`run` calls an operator by kernels that need no compiler and no GPU: the Triton ones, interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Run = Callable[..., Tensor]


def gradients(run: Run, operands: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    result = run(*operands)
    given = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    return torch.autograd.grad(result, [t for t in operands if t.requires_grad], given, **options)


def assert_works_everywhere(run: Run, formula: Run, operands: list[Tensor], bound: float = 1e-5) -> None:
    """Asserts equal gradients however the operator is called; `bound` limits their absolute difference."""
    expected = gradients(formula, operands)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    checkpointed = lambda *given: checkpoint(run, *given, use_reentrant=False)
    for way in (run, compiled, checkpointed):
        _assert_close(gradients(way, operands), expected, bound)
    _assert_close(_penalty_gradients(run, operands), _penalty_gradients(formula, operands), 10 * bound)
    _assert_exports(run, operands, bound)


def assert_frozen_parts_get_no_gradient(run: Run, formula: Run, operands: list[Tensor], bound: float = 1e-5) -> None:
    for learnt in range(len(operands)):
        own = [t.detach().requires_grad_(i == learnt) for i, t in enumerate(operands)]
        _assert_close(gradients(run, own), gradients(formula, own), bound)


def _penalty_gradients(run: Run, operands: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a gradient penalty."""
    total = sum((g.square().sum() for g in gradients(run, operands, create_graph=True)), torch.zeros(()))
    return torch.autograd.grad(total, operands, materialize_grads=True)  # the last bias adds to no gradient


def _assert_exports(run: Run, operands: list[Tensor], bound: float) -> None:
    class Model(torch.nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return run(*given)

    own = tuple(t.detach() for t in operands)
    exported = torch.export.export(Model(), own)
    assert any("autofuse" in str(node.target) for node in exported.graph.nodes)
    _assert_close((exported.module()(*own),), (run(*own),), bound)


def _assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], bound: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype is theirs.dtype and (ours - theirs).abs().max() <= bound
