"""autofuse.ops.gated_mlp against its reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference

B, T, IN, HIDDEN = 2, 5, 8, 12
Agree = Callable[..., None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [(torch.randn(shape) / shape[-1] ** 0.5).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"])
def test_gated_mlp_agrees(assert_agree: Agree, activation: str, dtype: torch.dtype) -> None:
    given = tensors((B, T, IN), (HIDDEN, IN), (HIDDEN, IN), (HIDDEN,), (HIDDEN,), dtype=dtype)
    run = lambda f: lambda *a: f(*a, activation=activation)
    assert_agree(run(ops.gated_mlp), run(reference.gated_mlp), *given, terms=IN + B * T)
    assert_agree(run(ops.gated_mlp), run(reference.gated_mlp), *given[:3], terms=IN + B * T)


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_packed_projection_and_gated_activation_make_a_gated_mlp(gate_first: bool) -> None:
    x, gate, up = tensors((T, IN), (HIDDEN, IN), (HIDDEN, IN))
    packed = torch.nn.functional.linear(x, torch.cat((gate, up) if gate_first else (up, gate)))
    expected = ops.gated_mlp(x, gate, up, activation="gelu")
    assert torch.allclose(ops.gated_activation(packed, activation="gelu", gate_first=gate_first), expected, atol=1e-6)


def test_under_autocast_it_equals_torchs_code() -> None:
    x, gate, up = tensors((T, IN), (HIDDEN, IN), (HIDDEN, IN))
    with torch.autocast("cpu", torch.bfloat16):
        made, expected = ops.gated_mlp(x, gate, up), reference.gated_mlp(x, gate, up)
    assert made.dtype is expected.dtype is torch.bfloat16 and torch.allclose(made, expected, atol=2**-7)


def test_compiles_into_one_graph() -> None:
    def layers(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, ...]:
        return ops.gated_mlp(x, up, up), ops.gated_activation(x), ops.mlp(x, up, None, down, None)

    given = tensors((B, T, IN), (HIDDEN, IN), (IN, HIDDEN))
    compiled = torch.compile(layers, fullgraph=True, backend="eager")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(compiled(*given), layers(*given), strict=True))
