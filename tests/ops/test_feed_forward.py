"""autofuse.ops.gated_mlp, gated_activation and mlp against their references."""

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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"])
@pytest.mark.parametrize("gate_first", [True, False])
def test_gated_activation_agrees(assert_agree: Agree, gate_first: bool, activation: str, dtype: torch.dtype) -> None:
    run = lambda f: lambda *a: f(*a, activation=activation, gate_first=gate_first)
    assert_agree(run(ops.gated_activation), run(reference.gated_activation), *tensors((B, T, 2 * HIDDEN), dtype=dtype))


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_packed_projection_and_gated_activation_make_a_gated_mlp(gate_first: bool) -> None:
    x, gate, up = tensors((T, IN), (HIDDEN, IN), (HIDDEN, IN))
    packed = torch.nn.functional.linear(x, torch.cat((gate, up) if gate_first else (up, gate)))
    expected = ops.gated_mlp(x, gate, up, activation="gelu")
    assert torch.allclose(ops.gated_activation(packed, activation="gelu", gate_first=gate_first), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(IN,), (B, T, IN), (0, IN)])
def test_mlp_agrees(assert_agree: Agree, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = tensors(shape, (HIDDEN, IN), (HIDDEN,), (IN, HIDDEN), (IN,), dtype=dtype)
    assert_agree(ops.mlp, reference.mlp, *given, terms=IN + HIDDEN + B * T, dropout_p=0.5)


def test_mlp_drops_out_in_training_only() -> None:
    x, up, down = torch.ones(64, IN), torch.eye(IN), torch.eye(IN)
    dropped = ops.mlp(x, up, None, down, None, activation="relu", dropout_p=0.5, training=True)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(ops.mlp(x, up, None, down, None, activation="relu", dropout_p=0.5), x)


def test_compiles_into_one_graph() -> None:
    def layers(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, ...]:
        return ops.gated_mlp(x, up, up), ops.gated_activation(x), ops.mlp(x, up, None, down, None)

    given = tensors((B, T, IN), (HIDDEN, IN), (IN, HIDDEN))
    compiled = torch.compile(layers, fullgraph=True, backend="eager")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(compiled(*given), layers(*given), strict=True))
