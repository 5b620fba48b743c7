"""autofuse.ops.cross_entropy and nll against their references and against torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autofuse import ops
from autofuse.kernels import packages
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import reference

B, T, CLASSES = 3, 14, 37
IGNORED = 3
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
OPERATION = OPERATIONS["cross_entropy"]
Agree = Callable[..., None]
module: Any = importlib.import_module("autofuse.ops.cross_entropy")  # the function bears the name of its file
needs_compiler = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Uses the compiled kernel for small calls, too. Yields a function that returns the number of its calls."""
    monkeypatch.setattr(OPERATION, "least", 0)
    before = OPERATION.counts.get("compiled", 0)
    yield lambda: OPERATION.counts.get("compiled", 0) - before
    assert not OPERATION.failures


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_agrees_with_classes_in_any_dimension(
    assert_agree: Agree, reduction: str, dtype: torch.dtype
) -> None:
    target, weight = torch.randint(0, CLASSES, (B, T)), torch.rand(CLASSES).to(dtype) + 0.5
    for dim, shape in ((-1, (B, T, CLASSES)), (1, (B, CLASSES, T)), (-2, (B, CLASSES, T))):
        for smoothing, ignore_index in ((0.0, IGNORED), (0.1, None)):
            options = {"ignore_index": ignore_index, "label_smoothing": smoothing, "reduction": reduction, "dim": dim}
            run = lambda f: lambda x: f(x, target, weight=weight.to(x.dtype), **options)  # noqa: B023
            given = torch.randn(shape).to(dtype)
            assert_agree(run(ops.cross_entropy), run(reference.cross_entropy), given, terms=CLASSES + B * T)
            of_logits = lambda f: lambda x: run(f)(x.log_softmax(dim))  # noqa: B023
            assert_agree(of_logits(ops.nll), of_logits(reference.nll), given, terms=CLASSES + B * T)


@needs_compiler
def test_our_kernel_agrees_for_every_reduction_dimension_and_layout(
    assert_agree: Agree, compiled: Callable[[], int]
) -> None:
    target = torch.randint(0, CLASSES, (B, T))
    target[0, :4] = IGNORED
    layouts: list[tuple[int, Callable[[Tensor], Tensor], Tensor]] = [
        (1, lambda x: x.flatten(0, 1), target.flatten()),
        (-1, lambda x: x, target),
        (1, lambda x: x.transpose(1, 2), target),
    ]
    for reduction in ("mean", "sum", "none"):
        for dim, arranged, wanted in layouts:
            options = {"dim": dim, "reduction": reduction, "ignore_index": IGNORED}
            run = lambda f: lambda x: f(arranged(x), wanted, **options)  # noqa: B023
            given = torch.randn(B, T, CLASSES)
            assert_agree(run(ops.cross_entropy), run(reference.cross_entropy), given, terms=CLASSES + B * T)
    assert compiled() == 9


@needs_compiler
def test_weights_and_smoothing_in_our_kernel(assert_agree: Agree, compiled: Callable[[], int]) -> None:
    target, weight = torch.randint(0, CLASSES, (B * T,)), torch.rand(CLASSES)
    target[:5] = IGNORED
    for reduction in ("mean", "sum"):
        options = {"label_smoothing": 0.1, "reduction": reduction, "ignore_index": IGNORED}
        run = lambda f: lambda x: f(x, target, weight=weight.to(x.dtype), **options)  # noqa: B023
        given = torch.randn(B * T, CLASSES)
        assert_agree(run(ops.cross_entropy), run(reference.cross_entropy), given, terms=CLASSES + B * T)
    assert compiled() == 2


def test_torch_computes_calls_that_our_kernel_does_not_support(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(B, CLASSES, T), torch.randint(0, CLASSES, (B, T))
    flat = logits.movedim(1, -1).reshape(-1, CLASSES)
    shares, weight = torch.rand(B, CLASSES, T), torch.rand(CLASSES)
    calls: list[tuple[tuple[Tensor, Tensor], dict[str, Any]]] = [
        ((logits, target), {}),  # the classes lie apart
        ((logits, shares), {}),  # probabilities
        ((flat, target.flatten().byte()), {}),
        ((flat.double(), target.flatten()), {}),
        ((flat[:, ::2], target.flatten() % 9), {"weight": weight[::2]}),
    ]
    for args, options in calls:
        assert torch.equal(ops.cross_entropy(*args, **options), F.cross_entropy(*args, **options))
    assert compiled() == 0


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_target_out_of_range_is_an_error_as_in_torch(compiled: Callable[[], int], wrong: int) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        ops.cross_entropy(torch.randn(4, CLASSES), torch.tensor([1, 2, wrong, 3]))
    assert compiled() == 0


def test_torchs_other_errors_are_passed_on(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(4, CLASSES), torch.tensor([1, 2, 3, 4])
    with pytest.raises(RuntimeError, match="to be Long or Byte"):
        ops.cross_entropy(logits, target.int())
    with pytest.raises(ValueError, match="batch_size"):
        ops.cross_entropy(logits, target[:3])
    with pytest.raises(RuntimeError, match="not differentiable"):
        ops.cross_entropy(logits, target, weight=torch.rand(CLASSES, requires_grad=True))
    with pytest.raises(RuntimeError, match="label_smoothing"):
        ops.cross_entropy(logits, target, label_smoothing=1.5)
    with pytest.raises(ValueError, match="reduction 'average'"):
        ops.cross_entropy(logits, target, reduction="average")
    assert compiled() == 0


@needs_compiler
def test_if_every_target_is_ignored_the_mean_is_nan_and_gradients_are_zero_as_in_torch(
    compiled: Callable[[], int],
) -> None:
    logits, target = torch.randn(B * T, CLASSES, requires_grad=True), torch.full((B * T,), -100)
    for loss in (ops.cross_entropy(logits, target), F.cross_entropy(logits, target)):
        assert loss.isnan()
        assert not torch.autograd.grad(loss, logits)[0].any()
    assert compiled() == 1


def test_cross_entropy_takes_one_row_without_a_dimension_for_rows(assert_agree: Agree) -> None:
    target = torch.tensor(5)
    for dim in (1, -1):
        run = lambda f: lambda x: f(x, target, dim=dim)  # noqa: B023
        assert_agree(run(ops.cross_entropy), run(reference.cross_entropy), torch.randn(CLASSES), terms=CLASSES)


def test_without_rows_the_result_equals_torchs(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(0, CLASSES), torch.zeros(0, dtype=torch.long)
    assert ops.cross_entropy(logits, target).isnan()
    assert ops.cross_entropy(logits, target, reduction="sum") == 0


@needs_compiler
def test_autocast_has_the_same_effect_as_in_torch(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(B * T, CLASSES, dtype=torch.bfloat16, requires_grad=True), torch.arange(B * T) % 9
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, torchs = ops.cross_entropy(logits, target), F.cross_entropy(logits, target)
    assert ours.dtype is torchs.dtype is torch.float32
    torch.testing.assert_close(ours, torchs)
    made, expected = (torch.autograd.grad(loss, logits)[0] for loss in (ours, torchs))
    assert made.dtype is expected.dtype
    torch.testing.assert_close(made, expected)
    assert compiled() == 1


@needs_compiler
def test_it_has_torchs_second_derivative(compiled: Callable[[], int]) -> None:
    target, found = torch.randint(0, CLASSES, (B * T,)), []
    logits = torch.randn(B * T, CLASSES)
    for loss_of in (ops.cross_entropy, F.cross_entropy):
        x = logits.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(x, target).square(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
    torch.testing.assert_close(*found)
    assert compiled() == 1


@needs_compiler
def test_logits_and_the_incoming_gradient_stay_unchanged(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(B * T, CLASSES, requires_grad=True), torch.randint(0, CLASSES, (B * T,))
    gradient, before = torch.rand(B * T), logits.detach().clone()
    kept = gradient.clone()
    loss = ops.cross_entropy(logits, target, reduction="none")
    first = torch.autograd.grad(loss, logits, gradient, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logits, gradient)[0])
    assert torch.equal(logits, before) and torch.equal(gradient, kept)


@needs_compiler
def test_it_may_be_recomputed_in_the_backward_pass(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(B * T, CLASSES, requires_grad=True), torch.randint(0, CLASSES, (B * T,))
    expected = torch.autograd.grad(ops.cross_entropy(logits, target), logits)[0]
    again = checkpoint(ops.cross_entropy, logits, target, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, logits)[0], expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_operator_keeps_the_contract_of_custom_operators(reduction: str) -> None:
    logits, target = torch.randn(6, CLASSES, requires_grad=True), torch.randint(0, CLASSES, (6,))
    given = (logits, target, torch.rand(CLASSES), IGNORED, 0.1, reduction, torch.float32, "torch")
    torch.library.opcheck(torch.ops.autofuse.cross_entropy.default, given)


def test_gradients_are_those_of_finite_differences_twice() -> None:
    logits, target = torch.randn(3, 7, dtype=torch.float64, requires_grad=True), torch.tensor([1, 0, IGNORED])
    run = lambda x: torch.ops.autofuse.cross_entropy(x, target, None, IGNORED, 0.2, "mean", torch.float64, "torch")[0]
    assert torch.autograd.gradcheck(run, logits)
    assert torch.autograd.gradgradcheck(run, logits)


def test_a_compiler_sees_torchs_own_functions() -> None:
    logits, target = torch.randn(B * T, CLASSES), torch.randint(0, CLASSES, (B * T,))
    compiled = torch.compile(ops.cross_entropy, fullgraph=True, backend="aot_eager")(logits, target)
    torch.testing.assert_close(compiled, ops.cross_entropy(logits, target))


def test_transforms_of_torch_func_apply(compiled: Callable[[], int]) -> None:
    logits, target = torch.randn(B * T, CLASSES), torch.randint(0, CLASSES, (B * T,))
    for f in (torch.func.grad, torch.func.hessian):
        x = logits[:2] if f is torch.func.hessian else logits
        made, expected = (f(g)(x, target[: len(x)]) for g in (ops.cross_entropy, F.cross_entropy))
        torch.testing.assert_close(made, expected)
    assert compiled() == 0
