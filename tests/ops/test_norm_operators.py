"""torch.ops.autofuse.norm under all that calls operators: opcheck, compilers, export, checkpoints, sharding, counting.

Its kernels are Triton's, interpreted, on tensors that are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from autofuse.kernels.dropout_bits import draw_seed, keep_mask
from autofuse.ops.norm_operators import norm_dtype, norm_refusal, run_norm

pytest.importorskip("triton")
ROWS, C, P = 6, 20, 0.25
OPERATOR = torch.ops.autofuse.norm.default


def operands(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (2, ROWS // 2, C), (2, ROWS // 2, C), (C,), (C,)
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def block(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The step of a prenorm block with dropout, with the operator."""
    seed = draw_seed(x.device)
    return run_norm("triton", x, residual, weight, bias, seed, P, 1e-5, True, x.dtype, x.dtype)


def step(run: Callable[..., tuple[Tensor, Tensor]], *given: Tensor) -> list[Tensor]:
    """Results and gradients, always with the same dropout."""
    torch.manual_seed(7)
    normed, total = run(*given)
    gradients = torch.autograd.grad(normed.sin().sum() + total.cos().sum(), given)
    return [normed.detach(), total.detach(), *gradients]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("residual, seeded, affine, centred", [(True, True, True, True), (False, False, False, False)])
def test_opcheck(residual: bool, seeded: bool, affine: bool, centred: bool) -> None:
    x, r, weight, bias = operands()
    seed = torch.tensor([3]) if seeded else None
    given = (
        x,
        r if residual else None,
        weight if affine else None,
        bias if affine else None,
        seed,
        P if seeded else 0.0,
    )
    arguments = (*given, 1e-5, centred, torch.float32, torch.float32, "triton")
    torch.library.opcheck(OPERATOR, arguments)
    _, total, mean, rstd = (t.detach() for t in OPERATOR(*arguments))
    kind = torch.float32 if residual else None
    backward = (x.detach(), None, total if residual else x.detach(), arguments[2], mean, rstd, seed, P)
    wants = (torch.float32, kind, affine, affine, "triton")
    torch.library.opcheck(torch.ops.autofuse.norm_backward.default, tuple(_plain(a) for a in (*backward, *wants)))


def _plain(a: Any) -> Any:
    return a.detach() if isinstance(a, Tensor) else a


def test_it_equals_the_formula_with_the_dropout_of_its_seed() -> None:
    given = operands()
    seed = torch.tensor([99])

    def by_hand(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        keep = keep_mask(seed, torch.arange(ROWS).view(2, -1), C, P)
        total = residual + torch.where(keep, x / (1 - P), 0.0)
        return torch.nn.functional.layer_norm(total, (C,), weight, bias), total

    ours = lambda *a: run_norm("triton", *a, seed, P, 1e-5, True, torch.float32, torch.float32)
    assert_same(step(ours, *given), step(by_hand, *given))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_into_one_graph(dynamic: bool) -> None:
    torch.compiler.reset()
    seed = torch.tensor([5])
    run = lambda *a: run_norm("triton", *a, seed, P, 1e-5, False, torch.float32, torch.float32)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert_same(step(compiled, *operands()), step(run, *operands()))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(C, C)
        self.weight, self.bias = nn.Parameter(torch.rand(C)), nn.Parameter(torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        normed, total = block(self.linear(x), x, self.weight, self.bias)
        return normed + total


def test_is_exported_with_any_number_of_rows() -> None:
    model, x = Block().eval(), torch.randn(4, C)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},), strict=False)
    assert any(node.target is OPERATOR for node in program.graph.nodes)
    other = torch.randn(9, C)
    found = program.run_decompositions().module()
    torch.manual_seed(1)
    expected = model(other)
    torch.manual_seed(1)
    torch.testing.assert_close(found(other), expected)


@pytest.mark.parametrize("policy", [None, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE])
def test_checkpoints_repeat_the_dropout(policy: CheckpointPolicy | None) -> None:
    seen: list[object] = []

    def chosen(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append(operator)
        return policy if policy and operator is OPERATOR else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = {} if policy is None else {"context_fn": partial(create_selective_checkpoint_contexts, chosen)}
    wrapped = lambda *a: checkpoint(block, *a, use_reentrant=False, **contexts)
    assert_same(step(wrapped, *operands()), step(block, *operands()))
    assert policy is None or OPERATOR in seen


@pytest.fixture
def process_group(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_it_works_in_a_sharded_model(process_group: None) -> None:
    torch.manual_seed(2)
    model, x = Block(), torch.randn(4, C)
    torch.manual_seed(3)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    torch.manual_seed(3)
    model(x).sum().backward()
    found: list[Any] = [p.grad for p in model.parameters()]
    assert_same([g.full_tensor() for g in found], expected)


def test_its_second_derivative_is_that_of_the_formula() -> None:
    seed = torch.tensor([11])

    def by_hand(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        keep = keep_mask(seed, torch.arange(ROWS).view(2, -1), C, P)
        total = residual + torch.where(keep, x / (1 - P), 0.0)
        return torch.nn.functional.layer_norm(total, (C,), weight, bias), total

    ours = lambda *a: run_norm("triton", *a, seed, P, 1e-5, True, torch.float32, torch.float32)

    def second(run: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        given = operands()
        normed, total = run(*given)
        first = torch.autograd.grad(normed.sin().sum() + total.cos().sum(), given, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), given))

    for a, b in zip(second(ours), second(by_hand), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_one_of_two_results_may_be_unused() -> None:
    given, seed = operands(), torch.tensor([1])
    run = lambda: run_norm("triton", *given, seed, P, 1e-5, True, torch.float32, torch.float32)
    of_total = torch.autograd.grad(run()[1].sum(), given, allow_unused=True)
    assert torch.equal(of_total[1], torch.ones_like(given[1])) and not of_total[2].any()
    assert torch.equal(of_total[0] == 0, ~keep_mask(seed, torch.arange(ROWS).view(2, -1), C, P))
    assert all(g is not None for g in torch.autograd.grad(run()[0].sum(), given))


def test_results_may_be_written_into() -> None:
    """Results of torch's operators may be written too: by an activation in place, or by an addition to a stream."""
    given, seed = operands(), torch.tensor([1])
    run = lambda: run_norm("triton", *given, seed, P, 1e-5, True, torch.float32, torch.float32)
    expected = torch.autograd.grad(run()[0].relu().sum(), given[0])
    assert_same(list(torch.autograd.grad(run()[0].relu_().sum(), given[0])), list(expected))
    normed, total = run()
    total.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        normed.sum().backward()


def test_norms_count_no_products() -> None:
    with FlopCounterMode(display=False) as counter:
        step(block, *operands())
    assert counter.get_total_flops() == 0


def test_halves_give_halves_and_fp32_statistics() -> None:
    x, residual, weight, bias = operands(torch.bfloat16)
    given = (x, residual, weight, bias, None, 0.0, 1e-5, True, torch.bfloat16, torch.float32, "triton")
    normed, total, mean, rstd = OPERATOR(*given)
    assert normed.dtype is torch.bfloat16 and total.dtype is mean.dtype is rstd.dtype is torch.float32
    gradients = torch.autograd.grad(normed.sum() + total.sum(), (x, residual, weight, bias))
    assert {g.dtype for g in gradients} == {torch.bfloat16}


def test_calls_that_kernels_do_not_support_are_refused_with_a_reason() -> None:
    x, _, weight, _ = operands()
    assert norm_refusal(x, weight, None, 1e-5) == ""
    assert "eps" in norm_refusal(x, weight, None, torch.tensor(1e-5))
    assert "weight with one entry" in norm_refusal(x, 2.0, None, 1e-5)
    assert "weight with one entry" in norm_refusal(x, torch.rand(3, 1), None, 1e-5)
    assert "bias in fp32" in norm_refusal(x, weight, weight.double(), 1e-5)
    assert "dense, non-empty" in norm_refusal(x.double(), weight, None, 1e-5)
    assert "non-empty" in norm_refusal(x[:0], weight, None, 1e-5)
    assert "dense" in norm_refusal(x.detach()[0].to_sparse(), weight, None, 1e-5)


def test_under_autocast_the_dtype_is_that_of_torchs_norm() -> None:
    x, weight = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4)
    assert norm_dtype("layer_norm", x, None) is torch.bfloat16 and norm_dtype("layer_norm", x, weight) is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm_dtype("layer_norm", x, None) is torch.layer_norm(x, (4,)).dtype
        assert norm_dtype("rms_norm", x, None) is torch.rms_norm(x, (4,)).dtype
