"""The Triton kernel of rotary embeddings, in Triton's interpreter, against the formula in double."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from autofuse.ops import reference

B, H, T, D = 2, 3, 5, 10
LAYOUTS = {
    "heads last": lambda: torch.randn(B, T, H, D).transpose(1, 2),
    "as it is": lambda: torch.randn(B, H, T, D),
    "a part of a projection": lambda: torch.randn(B, T, 3 * H * D)[..., :H * D].view(B, T, H, D).transpose(1, 2),
    "a part of a head": lambda: torch.randn(B, H, T, D + 3)[..., 3:],
    "one row": lambda: torch.randn(1, 1, T, D),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.rotary")


def rotate_in_float64(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """The rotation in float64; the inverse as the gradient of the rotation."""
    doubled = (torch.randn(x.shape, dtype=torch.float64).requires_grad_(), cos.double(), sin.double())
    if not inverse:
        return reference.rotary(x.double(), *doubled[1:], interleaved=interleaved)
    (back,) = torch.autograd.grad(reference.rotary(*doubled, interleaved=interleaved), doubled[0], x.double())
    return back


def check(kernel: ModuleType, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> None:
    found = kernel.forward(x, cos, sin, interleaved, inverse, x.dtype)
    truth = rotate_in_float64(x, cos, sin, interleaved, inverse)
    assert found.shape == x.shape and found.dtype is x.dtype
    bound = 2 * torch.finfo(x.dtype).eps * truth.abs().max()  # two products and their sum, then rounded once
    assert (found.double() - truth).abs().max() <= bound


@pytest.mark.parametrize("interleaved, inverse", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("angles", [(T, D), (B, 1, T, D // 2), (T, 1)])
def test_angles_of_every_width(
    kernel: ModuleType, angles: tuple[int, ...], dtype: torch.dtype, interleaved: bool, inverse: bool
) -> None:
    x, cos, sin = LAYOUTS["heads last"](), torch.randn(angles), torch.randn(angles)
    check(kernel, x.to(dtype), cos.to(dtype), sin.to(dtype), interleaved, inverse)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in_memory_are_kept(kernel: ModuleType, layout: str, interleaved: bool) -> None:
    x, angles = LAYOUTS[layout](), torch.randn(2, T, D)
    check(kernel, x, angles[0], angles[1], interleaved, False)
    found = kernel.forward(x, angles[0], angles[1], interleaved, False, x.dtype)
    if layout == "heads last":
        assert found.stride() == x.stride()


def test_heads_wider_than_a_program(kernel: ModuleType) -> None:
    x, angles = torch.randn(2, 3, 300), torch.randn(2, 3, 300)
    for interleaved in (False, True):
        check(kernel, x, angles[0], angles[1], interleaved, False)


def test_the_result_may_be_wider_than_x(kernel: ModuleType) -> None:
    x, angles = torch.randn(T, D).bfloat16(), torch.randn(2, T, D)
    found = kernel.forward(x, angles[0], angles[1], False, False, torch.float32)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, reference.rotary(x.float(), angles[0], angles[1]))


def test_an_empty_tensor_is_rotated(kernel: ModuleType) -> None:
    x = torch.randn(0, D)
    assert kernel.forward(x, torch.randn(1, D), torch.randn(1, D), False, False, x.dtype).shape == (0, D)


@pytest.mark.parametrize("interleaved, inverse", [(False, False), (True, True)])
@pytest.mark.parametrize("angles", [(T, D), (B, 1, T, D // 2), (T, 1)])
@pytest.mark.parametrize("heads", [(3, 3), (4, 1), (1, 7)])
def test_a_pair_is_rotated_in_one_launch_as_each_of_both_alone(
    kernel: ModuleType, heads: tuple[int, int], angles: tuple[int, ...], interleaved: bool, inverse: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    query, key = torch.randn(B, T, heads[0], D).transpose(1, 2), torch.randn(B, heads[1], T, D)
    cos, sin = torch.randn(angles), torch.randn(angles)
    alone = [kernel.forward(x, cos, sin, interleaved, inverse, x.dtype) for x in (query, key)]
    launches: list[object] = []
    launch = kernel.launch_planned
    monkeypatch.setattr(kernel, "launch_planned", lambda *given: launches.append(given) or launch(*given))
    pair = kernel.forward_pair(query, key, cos, sin, interleaved, inverse, query.dtype)
    assert len(launches) == 1
    for found, expected in zip(pair, alone, strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_a_pair_of_layouts_in_memory(kernel: ModuleType, layout: str, other: str) -> None:
    query, key, angles = LAYOUTS[layout](), LAYOUTS[other](), torch.randn(2, T, D)
    for dtype in (torch.float32, torch.bfloat16):
        given = query.to(dtype), key.to(dtype)
        pair = kernel.forward_pair(*given, angles[0].to(dtype), angles[1].to(dtype), False, False, dtype)
        for found, x in zip(pair, given, strict=True):
            expected = kernel.forward(x, angles[0].to(dtype), angles[1].to(dtype), False, False, dtype)
            assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("lengths", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_tensor_of_a_pair(kernel: ModuleType, lengths: tuple[int, int]) -> None:
    query, key = (torch.randn(n, T, D) for n in lengths)
    cos, sin = torch.randn(2, T, D)
    pair = kernel.forward_pair(query, key, cos, sin, False, False, torch.float32)
    for found, x in zip(pair, (query, key), strict=True):
        torch.testing.assert_close(found, reference.rotary(x, cos, sin))
