"""autofuse.ops.linear: padded products equal F.linear in results, gradients, layout and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from autofuse import ops
from autofuse.kernels import row_blocks as blocks
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import reference
from tests.ops.operators import assert_frozen_parts_get_no_gradient, assert_works_everywhere

IN, OUT = 16, 601
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
PADDED = OPERATIONS["linear"].provider("padded")


@pytest.fixture(params=["one block", "blocks of 8 rows"])
def blocks_of_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "one block":
        monkeypatch.setattr(blocks, "_BLOCK", {2: 1, 4: 1, 8: 1})
        monkeypatch.setattr(blocks, "_LEAST_ROWS", {2: 8, 4: 8, 8: 8})


@pytest.fixture
def on_this_device() -> Iterator[None]:
    """Padding is a candidate on CPUs too, and for tensors of any size."""
    operation = OPERATIONS["linear"]
    before = operation.providers, operation.least
    operation.providers, operation.least = (replace(PADDED, devices=("cpu",), default=True), operation.torch), 0
    operation.forget()
    yield
    operation.providers, operation.least = before
    operation.forget()


def operands(*shape: int, dtype: torch.dtype = torch.float32, features: int = OUT) -> list[Tensor]:
    shapes = (shape or (3, 7, IN), (features, IN), (features,))
    return [(torch.randn(s) / s[-1] ** 0.5).to(dtype).requires_grad_() for s in shapes]


@pytest.mark.usefixtures("blocks_of_rows")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(IN,), (3, 7, IN), (0, IN), (21, IN)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_padded_products_agree(
    assert_agree: Callable[..., None], shape: tuple[int, ...], dtype: torch.dtype, has_bias: bool
) -> None:
    given = operands(*shape, dtype=dtype)[: 2 + has_bias]
    assert_agree(PADDED.run, reference.linear, *given, terms=IN + 21 + OUT)


@pytest.mark.usefixtures("blocks_of_rows")
@pytest.mark.parametrize("features", [599, 600, 601, 640])
def test_results_have_the_layout_of_torchs(features: int) -> None:
    x, weight, bias = operands(3, 7, IN, features=features)
    for given in (x, x.detach().transpose(0, 1), x.detach()[:, ::2], x.detach().expand(3, 7, IN)[:1].expand(4, 7, IN)):
        padded, plain = PADDED.run(given, weight, bias), F.linear(given.contiguous(), weight, bias)
        assert (padded.shape, padded.stride(), padded.dtype) == (plain.shape, plain.stride(), plain.dtype)


def test_results_may_be_written_in_place() -> None:
    x, weight, bias = operands()
    padded, plain = ((f(x, weight, bias) / 1).detach() for f in (PADDED.run, F.linear))
    result = PADDED.run(x, weight, bias)
    result /= 2.0
    result.view(-1, OUT)[0] = 0.0
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(padded, plain)
    assert not gradient[0, 0].any() and gradient[0, 1].any()


@pytest.mark.usefixtures("blocks_of_rows")
def test_a_row_with_an_infinite_entry_does_not_reach_other_rows() -> None:
    x, weight, bias = operands(21, IN)
    with torch.no_grad():
        x[3, 5] = float("inf")
    weights = torch.randn(21, OUT)
    weights[3] = 0.0
    for given in (x, x.detach().requires_grad_()):
        padded, plain = PADDED.run(given, weight, bias), F.linear(given, weight, bias)
        torch.testing.assert_close(padded, plain, equal_nan=True)
        grads = [torch.autograd.grad((r * weights).nan_to_num().sum(), (given, weight, bias)) for r in (padded, plain)]
        for found, expected in zip(*grads, strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-4, rtol=1e-4)


def test_the_operator_works_under_torchs_wrappers() -> None:
    run: Callable[..., Tensor] = torch.ops.autofuse.padded_linear
    assert_works_everywhere(run, F.linear, operands())
    assert_frozen_parts_get_no_gradient(run, F.linear, operands())
    torch.library.opcheck(torch.ops.autofuse.padded_linear, tuple(operands()))


def test_its_flops_are_those_of_its_products() -> None:
    for learnt in product([False, True], repeat=3):
        counts = []
        for run in (PADDED.run, F.linear):
            given = [t.detach().requires_grad_(wants) for t, wants in zip(operands(), learnt, strict=True)]
            with FlopCounterMode(display=False) as counted:
                result = run(*given)
                if any(learnt):
                    result.sum().backward()
            counts.append(counted.get_total_flops())
        assert counts[0] == counts[1], learnt


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_it_equals_torchs_code(dtype: torch.dtype) -> None:
    x, weight, bias = operands()
    given = (x.detach().to(dtype).requires_grad_(), weight, bias)
    results = []
    for run in (PADDED.run, F.linear):
        with torch.autocast("cpu", torch.bfloat16):
            assert PADDED.check(*given) == ""
            result = run(*given)
        results.append((result, *torch.autograd.grad(result.float().square().sum(), given)))
    for found, expected in zip(*results, strict=True):
        assert found.dtype is expected.dtype
        assert torch.allclose(found, expected, atol=2**-5 * expected.abs().max().item())


@pytest.mark.parametrize(("features", "dtype", "words"), [
    (601, torch.float32, ""), (601, torch.bfloat16, ""), (604, torch.bfloat16, ""),
    (604, torch.float32, "a multiple of 16 bytes already"), (608, torch.bfloat16, "a multiple of 16 bytes already"),
])  # fmt: skip
def test_only_sizes_without_fast_products_are_padded(features: int, dtype: torch.dtype, words: str) -> None:
    why = PADDED.check(*operands(dtype=dtype, features=features))
    assert (words in why) if words else not why


def test_calls_that_torch_refuses_reach_torch() -> None:
    x, weight, bias = operands()
    assert PADDED.check(x[..., :3], weight, bias) and PADDED.check(x, weight[0], None)
    assert PADDED.check(x, weight, bias[:5]) and PADDED.check(x.bfloat16(), weight, bias)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ops.linear(x[..., :3], weight, bias)


def test_without_a_measurement_torch_computes_it() -> None:
    assert not PADDED.default and PADDED.devices == ("cuda",)
    x, weight, bias = operands(4096, IN)
    assert OPERATIONS["linear"].taker(x, weight, bias).name == "torch"


@pytest.mark.usefixtures("on_this_device")
def test_calls_of_many_rows_are_of_one_kind_and_others_are_not() -> None:
    operation, (_, weight, bias) = OPERATIONS["linear"], operands()
    kinds = {n: operation.kind(torch.empty(n, IN), weight, bias) for n in (1, 300, 2048, 5000, 70000)}
    assert kinds[2048] == kinds[5000] == kinds[70000] != kinds[300] != kinds[1]
    given = operands()
    torch.testing.assert_close(ops.linear(*given), F.linear(*given))
    assert operation.counts["padded"]
