"""autofuse.ops.mlp against its reference, and its operator under torch's wrappers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode

from autofuse import ops
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import reference
from tests.ops.operators import assert_frozen_parts_get_no_gradient, assert_works_everywhere

B, T, IN, HIDDEN, OUT = 2, 5, 8, 12, 7
Agree = Callable[..., None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [(torch.randn(shape) / shape[-1] ** 0.5).to(dtype) for shape in shapes]


def operands(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = tensors((B, T, IN), (HIDDEN, IN), (HIDDEN,), (OUT, HIDDEN), (OUT,), dtype=dtype)
    return [t.requires_grad_() for t in made]


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


def test_it_has_the_derivatives_of_its_reference() -> None:
    given = operands(torch.float64)
    for run in (ops.mlp, reference.mlp):
        assert gradcheck(run, given, check_forward_ad=True)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The operation as for large tensors on a GPU, in Triton's interpreter."""
    pytest.importorskip("triton")
    return OPERATIONS["mlp"].provider("triton")


def by_triton(*given: Tensor | None) -> Tensor:
    return torch.ops.autofuse.linear_activation_linear(*given, "gelu", True, "triton")[0]


def by_torch(x: Tensor, up: Tensor, up_bias: Any, down: Tensor, down_bias: Any) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)


def test_the_operator_works_under_torchs_wrappers() -> None:
    pytest.importorskip("triton")
    assert_works_everywhere(by_triton, by_torch, operands())
    assert_frozen_parts_get_no_gradient(by_triton, by_torch, operands())
    torch.library.opcheck(torch.ops.autofuse.linear_activation_linear, (*operands(), "gelu", True, "triton"))


def test_its_flops_are_those_of_its_products(ours: Any) -> None:
    for learnt in product([False, True], repeat=5):
        counts = []
        for run in (ours.run, by_torch):
            given = [t.detach().requires_grad_(wants) for t, wants in zip(operands(), learnt, strict=True)]
            with FlopCounterMode(display=False) as counted:
                result = run(*given)
                if any(learnt):
                    result.sum().backward()
            counts.append(counted.get_total_flops())
        assert counts[0] == counts[1], learnt


@pytest.mark.parametrize("learns", [True, False])
def test_under_autocast_it_equals_torchs_code(ours: Any, learns: bool) -> None:
    results = []
    for run in (ours.run, by_torch):
        torch.manual_seed(0)
        given = [t.detach().requires_grad_(learns) for t in operands()]
        with torch.autocast("cpu", torch.bfloat16):
            result = run(*given)
        gradients = torch.autograd.grad(result.float().square().sum(), given) if learns else ()
        results.append((result, *gradients))
    for found, expected in zip(*results, strict=True):
        assert found.dtype is expected.dtype
        assert torch.allclose(found, expected, atol=2**-5 * expected.abs().max().item())


def test_the_hidden_layer_is_saved_once(ours: Any) -> None:
    def saved_bytes(run: Callable[..., Tensor]) -> int:
        sizes: dict[int, int] = {}
        own = operands()

        def pack(x: Tensor) -> Tensor:
            sizes[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            result = run(*own)
        assert result.requires_grad
        return sum(sizes.values()) - sum(t.numel() for t in own if t.data_ptr() in sizes)

    assert saved_bytes(ours.run) == B * T * HIDDEN
    assert saved_bytes(by_torch) == 2 * B * T * HIDDEN


def test_parameters_sharded_by_fsdp_go_through_the_operators() -> None:
    pytest.importorskip("triton")

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(IN, 2 * HIDDEN), nn.Linear(HIDDEN, IN)
            self.bias = nn.Parameter(torch.zeros(HIDDEN))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.ops.autofuse.gated_halves(self.up(x), "silu", True, "triton")
            hidden = torch.ops.autofuse.biased(hidden, self.bias, "gelu", "triton")
            return by_triton(self.down(hidden), *self.up.parameters(), self.down.weight.repeat(1, 2), None)

    plain = Layer()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded: Any = fully_shard(copy.deepcopy(plain), mesh=init_device_mesh("cpu", (1,)))
        for model in (plain, sharded):
            model(torch.ones(3, IN)).square().sum().backward()
        for own, found in zip(plain.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(found.grad.full_tensor(), own.grad)
    finally:
        dist.destroy_process_group()


LEFT_TO_TORCH: dict[str, Callable[[list[Tensor]], tuple[list[Any], dict[str, Any]]]] = {
    "a function as activation": lambda given: (given, {"activation": F.elu}),
    "dropout": lambda given: (given, {"dropout_p": 0.5, "training": True}),
    "a bias that broadcasts": lambda given: ([*given[:4], torch.ones(1)], {}),
    "two dtypes": lambda given: ([given[0].double(), *given[1:]], {}),
}


@pytest.mark.parametrize("change", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_torch_computes_calls_that_our_kernels_do_not_support(ours: Any, change: Any) -> None:
    args, kwargs = change(operands())
    assert ours.check(*args, **kwargs) != ""
    assert ours.check(*operands()) == ""
