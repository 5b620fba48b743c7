"""autofuse.ops.linear_cross_entropy against its reference and against torch."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from autofuse import ops
from autofuse.kernels import packages, policy
from autofuse.kernels import row_blocks as blocks
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import reference

B, T, DIM, CLASSES = 3, 14, 16, 37
IGNORED = 3
ARITHMETIC = [{"scale": 1.7}, {"soft_cap": 0.5}, {"scale": 0.6, "soft_cap": 2.0}]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
OPERATION = OPERATIONS["linear_cross_entropy"]
Agree = Callable[..., None]
module: Any = importlib.import_module("autofuse.ops.linear_cross_entropy")  # the function bears the name of its file
needs_compiler = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several blocks of 8 rows, the last one partial, with torch's functions, for calls of any size."""
    monkeypatch.setattr(blocks, "_BLOCK", dict.fromkeys((2, 4, 8), 0))
    monkeypatch.setattr(blocks, "_LEAST_ROWS", dict.fromkeys((2, 4, 8), 8))
    monkeypatch.setattr(module, "_LEAST", 0)
    monkeypatch.setattr(blocks, "_best_kernel", lambda x: "torch")
    with policy.using(providers=["torch"]):
        yield


@pytest.fixture
def compiled() -> Iterator[Callable[[], int]]:
    """Chooses the compiled kernel. Yields a function that returns the number of its calls."""
    before = OPERATION.counts.get("compiled", 0)
    with policy.using(providers=["torch", "compiled"]):
        yield lambda: OPERATION.counts.get("compiled", 0) - before
    assert not OPERATION.failures


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight = torch.randn(B, T, DIM).to(dtype), (torch.randn(CLASSES, DIM) / DIM**0.5).to(dtype)
    target = torch.randint(0, CLASSES, (B, T))
    target[0, :4] = IGNORED
    return x, weight, torch.randn(CLASSES).to(dtype), target


def loss_of_logits(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, **options: object) -> Tensor:
    """The code of programs: logits, flattened, and torch's cross entropy."""
    loss = F.cross_entropy(F.linear(x, weight, bias).flatten(0, -2), target.flatten(), **options)  # type: ignore[arg-type]
    return loss.view(target.shape) if options.get("reduction") == "none" else loss


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_linear_cross_entropy_agrees(assert_agree: Agree, smoothing: float, reduction: str, dtype: torch.dtype) -> None:
    x, weight, bias, target = operands(dtype)
    terms = DIM + CLASSES + B * T
    for ignore_index, own in itertools.product((None, IGNORED), (None, bias)):
        options = {"ignore_index": ignore_index, "label_smoothing": smoothing, "reduction": reduction}
        run = lambda f: lambda x, w, *b: f(x, w, target, bias=b[0] if b else None, **options)  # noqa: B023
        given = (x, weight) if own is None else (x, weight, own)
        assert_agree(run(ops.linear_cross_entropy), run(reference.linear_cross_entropy), *given, terms=terms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=str)
def test_logits_are_capped_and_scaled(
    assert_agree: Agree, arithmetic: dict[str, float], reduction: str, dtype: torch.dtype
) -> None:
    x, weight, bias, target = operands(dtype)
    options: dict[str, Any] = {"ignore_index": IGNORED, "reduction": reduction, **arithmetic}
    run = lambda f: lambda x, w, b: f(x, w, target, bias=b, **options)
    terms = DIM + CLASSES + B * T
    assert_agree(run(ops.linear_cross_entropy), run(reference.linear_cross_entropy), x, weight, bias, terms=terms)


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=str)
def test_scaled_logits_work_compiled_under_autocast_and_under_transforms(arithmetic: dict[str, Any]) -> None:
    x, weight, _, target = operands()
    run = lambda w: ops.linear_cross_entropy(x, w, target, **arithmetic)
    expected = torch.func.grad(lambda w: reference.linear_cross_entropy(x, w, target, **arithmetic))(weight)
    torch.testing.assert_close(torch.func.grad(run)(weight), expected)
    weight.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(run(weight), weight)[0], expected)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(weight), weight)[0], expected)
    again = torch.autograd.grad(checkpoint(run, weight, use_reentrant=False), weight)[0]
    torch.testing.assert_close(again, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(weight).dtype is torch.float32


@needs_compiler
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_it_agrees_with_the_softmax_in_a_compiled_loop(
    assert_agree: Agree, compiled: Callable[[], int], reduction: str
) -> None:
    x, weight, bias, target = operands()
    run = lambda f: lambda x, w, b: f(x, w, target, bias=b, ignore_index=IGNORED, reduction=reduction)
    terms = DIM + CLASSES + B * T
    assert_agree(run(ops.linear_cross_entropy), run(reference.linear_cross_entropy), x, weight, bias, terms=terms)
    assert compiled() == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("way", [{}, {"label_smoothing": 0.1}, {"soft_cap": 5.0}, {"scale": 0.5}])
def test_classes_are_padded_as_on_a_gpu_without_a_trace_in_the_results(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, reduction: str, way: dict[str, Any]
) -> None:
    """An ignored row with an infinite entry has a gradient of zero for x, also with padding."""
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(s, dtype=dtype).requires_grad_() for s in ((300, 16), (801, 16), (801,)))
    target = torch.randint(801, (300,))
    target[::7] = -100

    def results(padding: int) -> list[Tensor]:
        monkeypatch.setattr(blocks, "_padding", lambda *_: padding)
        loss = ops.linear_cross_entropy(x, weight, target, bias=bias, reduction=reduction, **way)
        return [loss.detach(), *torch.autograd.grad(loss.sum(), (x, weight, bias))]

    for plain, padded in zip(results(0), results(31), strict=True):
        assert (padded.shape, padded.stride(), padded.dtype) == (plain.shape, plain.stride(), plain.dtype)
        assert not torch.equal(plain, torch.zeros_like(plain))
        most = 8 * torch.finfo(dtype).eps * float(plain.abs().max())
        torch.testing.assert_close(padded, plain, rtol=0, atol=most)


def test_an_infinite_entry_of_an_ignored_row_does_not_reach_its_gradient_through_the_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "_padding", lambda *_: 3)
    x, weight = torch.randn(300, 4), torch.randn(801, 4)
    x[0, 0] = float("inf")
    x.requires_grad_()
    target = torch.randint(801, (300,))
    target[0] = -100
    (gradient,) = torch.autograd.grad(ops.linear_cross_entropy(x, weight, target), x)
    assert bool(gradient.isfinite().all()) and not gradient[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_has_the_dtype_that_torch_gives_it(dtype: torch.dtype) -> None:
    x, weight, bias, target = operands(dtype)
    for wanted in (False, True):
        weight.requires_grad_(wanted)
        ours, torchs = ops.linear_cross_entropy(x, weight, target, bias=bias), loss_of_logits(x, weight, bias, target)
        assert ours.dtype is torchs.dtype
        wide = ops.linear_cross_entropy(x, weight, target, bias=bias, in_float32=True)
        assert wide.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_has_the_same_effect_as_on_the_original(dtype: torch.dtype, reduction: str) -> None:
    x, weight, bias, target = operands(dtype)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = ops.linear_cross_entropy(x, weight, target, bias=bias, reduction=reduction)
        plain = loss_of_logits(x, weight, bias, target, reduction=reduction)
        assert fused.dtype is plain.dtype
        found, expected = (torch.autograd.grad(loss.sum(), leaves) for loss in (fused, plain))
    # a bfloat16 has 8 bits, and each gradient is a sum of as many rounded terms as there are rows or classes
    unit = torch.finfo(torch.bfloat16 if dtype is torch.float32 else dtype).eps
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=8 * unit * float(b.abs().max()))


def test_a_loss_scale_applies_before_gradients_in_half_precision_are_rounded() -> None:
    x, weight, _, target = operands(torch.float16)
    x, target = x.flatten(0, 1).repeat(40, 1) * 1e-4, target.flatten().repeat(40)
    weight.requires_grad_()
    (made,) = torch.autograd.grad(ops.linear_cross_entropy(x, weight, target, in_float32=True) * 2.0**16, weight)
    exact = weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(loss_of_logits(x.double(), exact, None, target) * 2.0**16, exact)
    bound = 16 * torch.finfo(torch.float16).eps * float(expected.abs().max())
    torch.testing.assert_close(made.double(), expected, rtol=0, atol=bound)


def test_if_every_target_is_ignored_the_mean_is_nan_and_gradients_are_zero_as_in_torch() -> None:
    x, weight, _, target = operands()
    target.fill_(-100)
    x.requires_grad_()
    for loss in (ops.linear_cross_entropy(x, weight, target), loss_of_logits(x, weight, None, target)):
        assert loss.isnan()
        assert not torch.autograd.grad(loss, x)[0].any()


def test_without_rows_the_sum_is_zero() -> None:
    weight = torch.randn(CLASSES, DIM, requires_grad=True)
    loss = ops.linear_cross_entropy(torch.randn(0, DIM), weight, torch.zeros(0, dtype=torch.long), reduction="sum")
    assert loss == 0 and not torch.autograd.grad(loss, weight)[0].any()


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_that_require_no_gradient_get_none(frozen: str, dtype: torch.dtype) -> None:
    x, weight, bias, target = operands(dtype)
    given = {"x": x, "weight": weight, "bias": bias}
    leaves = [t.requires_grad_() for name, t in given.items() if name != frozen]
    loss = ops.linear_cross_entropy(x, weight, target, bias=bias)
    expected = torch.autograd.grad(loss_of_logits(x, weight, bias, target), leaves)
    loss.backward()
    assert given[frozen].grad is None
    for leaf, other in zip(leaves, expected, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(
            leaf.grad, other, rtol=0.02, atol=8 * torch.finfo(dtype).eps * float(other.abs().max())
        )


def test_a_second_backward_pass_is_equal_even_if_the_first_result_was_changed() -> None:
    x, weight, bias, target = operands()
    loss = ops.linear_cross_entropy(x, weight.requires_grad_(), target, bias=bias)
    first = torch.autograd.grad(3 * loss, weight, retain_graph=True)[0]
    kept = first.clone()
    first.zero_()
    weight.grad = None
    loss.backward(retain_graph=True)
    (3 * loss).backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, kept * 4 / 3)
    expected = torch.autograd.grad(3 * loss_of_logits(x, weight, bias, target), weight)[0]
    torch.testing.assert_close(kept, expected)


def test_a_weight_shared_with_an_embedding_gets_both_gradients() -> None:
    tokens, target = torch.randint(0, CLASSES, (B, T)), operands()[3]
    table = torch.randn(CLASSES, DIM, requires_grad=True)
    ours = ops.linear_cross_entropy(F.embedding(tokens, table), table, target)
    plain = loss_of_logits(F.embedding(tokens, table), table, None, target)
    torch.testing.assert_close(torch.autograd.grad(ours, table)[0], torch.autograd.grad(plain, table)[0])


def test_operands_need_not_be_contiguous() -> None:
    target = operands()[3]
    leaves = [t.requires_grad_() for t in (torch.randn(B, DIM, T), torch.randn(DIM, CLASSES))]
    given = leaves[0].transpose(1, 2), leaves[1].T
    ours = torch.autograd.grad(ops.linear_cross_entropy(*given, target.T.contiguous().T), leaves)
    plain = torch.autograd.grad(loss_of_logits(*given, None, target), leaves)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_an_error_that_says_why(reduction: str) -> None:
    x, weight, _, target = operands()
    loss = ops.linear_cross_entropy(x.requires_grad_(), weight, target, reduction=reduction)
    gradient = torch.autograd.grad(loss.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"needs all logits at once\. Compute the loss as"):
        gradient[0].sum().backward()


def test_a_target_out_of_range_is_an_error_as_in_torch() -> None:
    x, weight, _, target = operands()
    target[0, 0] = CLASSES
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        ops.linear_cross_entropy(x, weight, target)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        ops.linear_cross_entropy(x, weight.requires_grad_(), target)


def test_unsupported_operands_are_an_error_that_says_why() -> None:
    x, weight, _, target = operands()
    with pytest.raises(ValueError, match="reduction 'average'"):
        ops.linear_cross_entropy(x, weight, target, reduction="average")
    with pytest.raises(ValueError, match="14 targets for 42 rows"):
        ops.linear_cross_entropy(x, weight, target[0])
    with pytest.raises(TypeError, match="class indices"):
        ops.linear_cross_entropy(x, weight, target.float())
    with pytest.raises(RuntimeError, match="Long or Byte"):
        ops.linear_cross_entropy(x, weight, target.int())


def test_transforms_of_torch_func_apply() -> None:
    x, weight, _, target = operands()
    ours = torch.func.grad(lambda w: ops.linear_cross_entropy(x, w, target))(weight)
    torch.testing.assert_close(ours, torch.func.grad(lambda w: loss_of_logits(x, w, None, target))(weight))
    each = torch.func.vmap(lambda x, t: ops.linear_cross_entropy(x, weight, t))(x, target)
    torch.testing.assert_close(each[0], loss_of_logits(x[0], weight, None, target[0]))


class Loss(nn.Module):
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        return ops.linear_cross_entropy(x, weight, target, bias=bias, label_smoothing=0.1)


def test_compiles_into_one_graph_that_never_has_all_logits() -> None:
    x, weight, bias, target = operands()
    expected = Loss()(x, weight.requires_grad_(), bias, target)
    gradient = torch.autograd.grad(expected, weight)[0]
    compiled = torch.compile(Loss(), fullgraph=True, backend="aot_eager")(x, weight, bias, target)
    torch.testing.assert_close(torch.autograd.grad(compiled, weight)[0], gradient)


def test_exports_as_one_operator() -> None:
    x, weight, bias, target = operands()
    exported = torch.export.export(Loss(), (x, weight, bias, target))
    assert "autofuse.linear_cross_entropy" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x, weight, bias, target), Loss()(x, weight, bias, target))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_it_may_be_recomputed_in_the_backward_pass(reduction: str) -> None:
    x, weight, _, target = operands()
    run = lambda w: ops.linear_cross_entropy(x, w, target, reduction=reduction).sum()
    weight.requires_grad_()
    again = torch.autograd.grad(checkpoint(run, weight, use_reentrant=False), weight)[0]
    assert torch.equal(again, torch.autograd.grad(run(weight), weight)[0])


class Head(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.linear_cross_entropy(x, self.weight, target)


def test_a_weight_sharded_by_fsdp_gets_its_gradient() -> None:
    x, weight, _, target = operands()
    whole = Head(weight.clone())
    whole(x, target).backward()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = fully_shard(Head(weight.clone()), mesh=init_device_mesh("cpu", (1,)))
        sharded(x, target).backward()
        made: Any = sharded.weight.grad
        torch.testing.assert_close(made.full_tensor(), whole.weight.grad)
    finally:
        dist.destroy_process_group()


def test_the_operators_keep_the_contract_of_custom_operators() -> None:
    x, weight, bias, target = operands(torch.float64)
    given = (x.flatten(0, 1).requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target.flatten())
    options = (IGNORED, 0.1)
    torch.library.opcheck(torch.ops.autofuse.linear_cross_entropy.default, (*given, *options, "torch"))
    ahead = (*given, *options, True, True, True, True, "torch")
    # the gradients that come ahead have none themselves, which the test of gradients takes all results to have
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.autofuse.linear_cross_entropy_ahead.default, ahead, test_utils=utilities)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_are_those_of_finite_differences(reduction: str) -> None:
    x, weight, _, _ = operands(torch.float64)
    leaves = [t[:2].contiguous().requires_grad_() for t in (x[0], weight)]
    run = lambda x, w: ops.linear_cross_entropy(x, w, torch.tensor([1, 0]), label_smoothing=0.2, reduction=reduction)
    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize(("reduction", "products"), [("mean", 3), ("none", 4)])
def test_the_arithmetic_of_its_matrix_products_is_counted(reduction: str, products: int) -> None:
    x, weight, _, target = operands()
    with FlopCounterMode(display=False) as counted:
        loss = ops.linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), target, reduction=reduction)
        loss.sum().backward()
    assert counted.get_total_flops() == products * 2 * B * T * DIM * CLASSES


def test_all_logits_are_never_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _, target = operands()
    rows, linear = list[int](), F.linear

    def record_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows.append(x.shape[0])
        return linear(x, weight, bias)

    monkeypatch.setattr(blocks.F, "linear", record_rows)
    ops.linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), target).backward()
    assert max(rows) == 8 and sum(rows) == B * T
    ops.linear_cross_entropy(x, weight, target, reduction="none").sum().backward()
    with policy.using(policy="memory"):
        ops.linear_cross_entropy(x, weight, target).backward()
    assert max(rows) == 8 and sum(rows) == 5 * B * T  # each of these once forward, once backward
