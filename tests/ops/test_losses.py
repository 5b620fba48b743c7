"""autofuse.ops.cross_entropy, nll and linear_cross_entropy against their references and against torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse import ops
from autofuse.ops import losses, reference

B, T, DIM, CLASSES = 3, 14, 16, 37
IGNORED = 3
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
Agree = Callable[..., None]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, the last of which is not full."""
    monkeypatch.setattr(losses, "_BLOCK", {"cpu": CLASSES * 8})
    monkeypatch.setattr(losses, "_LEAST_ROWS", {"cpu": 1})


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight = torch.randn(B, T, DIM).to(dtype), (torch.randn(CLASSES, DIM) / DIM**0.5).to(dtype)
    target = torch.randint(0, CLASSES, (B, T))
    target[0, :4] = IGNORED
    return x, weight, torch.randn(CLASSES).to(dtype), target


def of_logits(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, **options: object) -> Tensor:
    """What code writes: logits, flattened, and torch's cross entropy."""
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
            assert_agree(run(ops.nll), run(reference.nll), given.log_softmax(dim), terms=CLASSES + B * T)


def test_cross_entropy_takes_one_row_without_a_dimension_for_rows(assert_agree: Agree) -> None:
    target = torch.tensor(5)
    for dim in (1, -1):
        run = lambda f: lambda x: f(x, target, dim=dim)  # noqa: B023
        assert_agree(run(ops.cross_entropy), run(reference.cross_entropy), torch.randn(CLASSES), terms=CLASSES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_has_the_dtype_that_torch_gives_it(dtype: torch.dtype) -> None:
    x, weight, bias, target = operands(dtype)
    assert ops.linear_cross_entropy(x, weight, target, bias=bias).dtype is of_logits(x, weight, bias, target).dtype
    wide = ops.linear_cross_entropy(x, weight, target, bias=bias, in_float32=True)
    assert wide.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_means_what_it_means_to_the_original(dtype: torch.dtype) -> None:
    x, weight, bias, target = operands(dtype)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = ops.linear_cross_entropy(x, weight, target, bias=bias)
        plain = of_logits(x, weight, bias, target)
    assert fused.dtype is plain.dtype
    # a bfloat16 has 8 bits, and each gradient is a sum of as many rounded terms as there are rows or classes
    unit = torch.finfo(torch.bfloat16 if dtype is torch.float32 else dtype).eps
    for a, b in zip(torch.autograd.grad(fused, leaves), torch.autograd.grad(plain, leaves), strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=8 * unit * float(b.abs().max()))


def test_where_every_target_is_ignored_the_mean_is_nan_and_gradients_are_zero_as_in_torch() -> None:
    x, weight, _, target = operands()
    target.fill_(-100)
    x.requires_grad_()
    for loss in (ops.linear_cross_entropy(x, weight, target), of_logits(x, weight, None, target)):
        assert loss.isnan()
        assert not torch.autograd.grad(loss, x)[0].any()


def test_without_rows_the_sum_is_zero() -> None:
    weight = torch.randn(CLASSES, DIM, requires_grad=True)
    loss = ops.linear_cross_entropy(torch.randn(0, DIM), weight, torch.zeros(0, dtype=torch.long), reduction="sum")
    assert loss == 0 and not torch.autograd.grad(loss, weight)[0].any()


def test_only_what_needs_a_gradient_gets_one_and_twice_is_as_good_as_once() -> None:
    x, weight, bias, target = operands()
    loss = ops.linear_cross_entropy(x, weight.requires_grad_(), target, bias=bias)
    first = torch.autograd.grad(loss, weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, weight)[0])


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    x, weight, _, target = operands()
    gradient = torch.autograd.grad(ops.linear_cross_entropy(x.requires_grad_(), weight, target), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient[0].sum().backward()


def test_a_target_out_of_range_is_an_error_as_in_torch() -> None:
    x, weight, _, target = operands()
    target[0, 0] = CLASSES
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        ops.linear_cross_entropy(x, weight, target)


def test_what_it_cannot_take_is_told_in_a_sentence() -> None:
    x, weight, _, target = operands()
    with pytest.raises(ValueError, match="reduction 'average'"):
        ops.linear_cross_entropy(x, weight, target, reduction="average")
    with pytest.raises(ValueError, match="14 targets for 42 rows"):
        ops.linear_cross_entropy(x, weight, target[0])
    with pytest.raises(TypeError, match="class indices"):
        ops.linear_cross_entropy(x, weight, target.float())


def test_compiles_into_one_graph_and_exports() -> None:
    x, weight, bias, target = operands()

    class Loss(nn.Module):
        def forward(self, x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            return ops.linear_cross_entropy(x, weight, target, bias=bias, label_smoothing=0.1)

    expected = Loss()(x, weight.requires_grad_(), bias, target)
    gradient = torch.autograd.grad(expected, weight)[0]
    compiled = torch.compile(Loss(), fullgraph=True, backend="aot_eager")(x, weight, bias, target)
    torch.testing.assert_close(torch.autograd.grad(compiled, weight)[0], gradient)
    exported = torch.export.export(Loss(), (x, weight, bias, target))
    torch.testing.assert_close(exported.module()(x, weight, bias, target), expected)


def test_the_operator_keeps_the_contract_of_custom_operators() -> None:
    x, weight, bias, target = operands(torch.float64)
    given = (x.flatten(0, 1).requires_grad_(), weight.requires_grad_(), bias, target.flatten(), IGNORED, 0.1)
    torch.library.opcheck(torch.ops.autofuse.linear_cross_entropy.default, given)


def test_gradients_are_those_of_finite_differences() -> None:
    x, weight, _, _ = operands(torch.float64)
    leaves = [t[:2].contiguous().requires_grad_() for t in (x[0], weight)]
    run = lambda x, w: ops.linear_cross_entropy(x, w, torch.tensor([1, 0]), label_smoothing=0.2)
    assert torch.autograd.gradcheck(run, leaves)


def test_the_logits_are_never_in_memory_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _, target = operands()
    rows, logits_of = list[int](), losses._logits

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows.append(x.shape[0])
        return logits_of(x, weight, bias)

    monkeypatch.setattr(losses, "_logits", watched)
    ops.linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), target).backward()
    assert max(rows) == 8 and sum(rows) == 2 * B * T  # once forward, once backward
