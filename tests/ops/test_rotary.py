"""autofuse.ops.rotary against its reference: both layouts, every width of the angles, and what surrounds autograd."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference

B, H, T, D = 2, 3, 5, 8
ANGLES = [(T, D), (B, 1, T, D), (T, D // 2), (B, 1, T, D // 2), (T, 1), (1,), ()]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
Agree = Callable[..., None]


@pytest.fixture(params=[0, 2**16], ids=["in few passes", "small"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors take the formula; with a threshold of 0 they stand for large ones."""
    monkeypatch.setattr(sys.modules["autofuse.ops.rotary"], "_SMALL", request.param)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["autofuse.ops.rotary"], "_SMALL", 0)


def operands(angles: tuple[int, ...] = (T, D), dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, T, D).to(dtype), torch.randn(angles).to(dtype), torch.randn(angles).to(dtype)


def angles_of_pairs(interleaved: bool) -> tuple[Tensor, Tensor]:
    """cos and sin as models make them: the same angle for both entries of a pair."""
    half = torch.randn(T, D // 2)
    angles = half.repeat_interleave(2, -1) if interleaved else torch.cat((half, half), -1)
    return angles.cos(), angles.sin()


def rotate(f: Callable[..., Tensor], interleaved: bool) -> Callable[..., Tensor]:
    return lambda *a: f(*a, interleaved=interleaved)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("angles", ANGLES)
def test_agrees_for_angles_of_every_shape(
    assert_agree: Agree, angles: tuple[int, ...], dtype: torch.dtype, interleaved: bool
) -> None:
    given = operands(angles, dtype)
    assert_agree(rotate(ops.rotary, interleaved), rotate(reference.rotary, interleaved), *given, terms=B * H * T * D)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["heads last", "every second", "a part from an odd place", "transposed"])
def test_agrees_in_every_layout_in_memory(assert_agree: Agree, layout: str, interleaved: bool) -> None:
    x = {
        "heads last": lambda: torch.randn(B, T, H, D).transpose(1, 2),
        "every second": lambda: torch.randn(B, H, T, 2 * D)[..., ::2],
        "a part from an odd place": lambda: torch.randn(B, H, T, D + 3)[..., 3:],
        "transposed": lambda: torch.randn(B, H, D, T).mT,
    }[layout]()
    cos, sin = angles_of_pairs(interleaved)
    # autograd makes leaves of what it is given, which keep their strides
    assert_agree(rotate(ops.rotary, interleaved), rotate(reference.rotary, interleaved), x, cos, sin, terms=B * H * T)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtypes", [(0, 1, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0)])
def test_the_result_has_the_dtype_to_which_the_operands_promote(dtypes: tuple[int, ...], interleaved: bool) -> None:
    of = (torch.bfloat16, torch.float32)
    given = [t.to(of[d]).requires_grad_() for t, d in zip(operands(), dtypes, strict=True)]
    result, expected = (rotate(f, interleaved)(*given) for f in (ops.rotary, reference.rotary))
    assert result.dtype is expected.dtype is torch.float32
    gradients = torch.autograd.grad(result.sum(), given)
    assert [g.dtype for g in gradients] == [t.dtype for t in given]


@pytest.mark.usefixtures("threshold")
def test_angles_may_be_of_a_larger_shape_than_x(assert_agree: Agree) -> None:
    x, cos, sin = torch.randn(1, T, D), torch.randn(H, 1, D), torch.randn(B, H, T, D)
    assert_agree(ops.rotary, reference.rotary, x, cos, sin, terms=B * H * T)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("interleaved", [False, True])
def test_has_gradients_of_gradients(interleaved: bool) -> None:
    given = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 4), (3, 4), (3, 4)))
    assert torch.autograd.gradgradcheck(rotate(ops.rotary, interleaved), given)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("interleaved", [False, True])
def test_keeps_x_for_backward_only_where_angles_are_learned(interleaved: bool) -> None:
    x, cos, sin = operands()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ops.rotary(x.requires_grad_(), cos, sin, interleaved=interleaved)
        assert all(t.numel() < x.numel() for t in saved)
        ops.rotary(x, cos.requires_grad_(), sin, interleaved=interleaved)
    assert any(t.numel() == x.numel() for t in saved)


@pytest.mark.usefixtures("threshold")
def test_works_under_function_transforms_and_in_one_compiled_graph() -> None:
    x, cos, sin = operands()
    expected = reference.rotary(x, cos, sin)
    torch.testing.assert_close(torch.vmap(ops.rotary, (0, None, None))(x, cos, sin), expected)
    torch.testing.assert_close(
        torch.func.grad(lambda x: ops.rotary(x, cos, sin).square().sum())(x),
        torch.func.grad(lambda x: reference.rotary(x, cos, sin).square().sum())(x),
    )
    compiled = torch.compile(ops.rotary, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, cos, sin), expected)


class _Rotated(torch.nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ops.rotary(x, cos, sin, interleaved=True)


def test_can_be_exported() -> None:
    given = operands((T, D // 2))
    exported = torch.export.export(_Rotated(), given)
    torch.testing.assert_close(exported.module()(*given), reference.rotary(*given, interleaved=True))


@pytest.mark.usefixtures("large")
def test_can_be_traced_and_saved() -> None:
    given = operands()
    traced = torch.jit.trace(_Rotated(), given)
    torch.jit.save(traced, io.BytesIO())
    torch.testing.assert_close(traced(*given), reference.rotary(*given, interleaved=True))


def test_can_be_called_by_a_scripted_function() -> None:
    scripted = torch.jit.script(_Rotated())
    for angles in ((T, D), (T, D // 2)):
        given = operands(angles)
        torch.testing.assert_close(scripted(*given), reference.rotary(*given, interleaved=True))


def test_what_does_not_divide_into_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide into pairs"):
        ops.rotary(torch.randn(T, 7), torch.randn(T, 7), torch.randn(T, 7))
    with pytest.raises(ValueError, match="a factor a pair"):
        ops.rotary(torch.randn(T, D), torch.randn(T, 3), torch.randn(T, D))
