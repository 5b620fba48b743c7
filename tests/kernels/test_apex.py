"""apex's kernels as providers: which calls they support, on stand-ins with the real kernels' pitfalls."""

from __future__ import annotations

import importlib

import pytest
import torch

from autofuse import ops
from autofuse.kernels.apex import PROVIDERS
from autofuse.kernels.packages import TORCH
from autofuse.ops.adamw import update_of
from tests.kernels.agreement import assert_agrees, assert_has_second_derivatives, assert_refuses_second_derivatives
from tests.kernels.operands import classes, scattered_tensor, tensor

adamw_module = importlib.import_module("autofuse.ops.adamw")  # the function bears the name of its file
BY_NAME = {provider.operation: provider for provider in PROVIDERS}
pytestmark = pytest.mark.usefixtures("others")
_MLP = (tensor(16, 8), tensor(16, seed=2), tensor(24, 16), tensor(24, seed=3))


@pytest.mark.parametrize("x", [tensor(5, 24), scattered_tensor(3, 4, 24)], ids=["rows", "strides"])
def test_norms_agree(x: torch.Tensor) -> None:
    for weight in (tensor(24), None):
        assert_agrees(BY_NAME["rms_norm"], x, weight, 1e-3)
        assert_agrees(BY_NAME["layer_norm"], x, weight, None, 1e-3)
    assert_agrees(BY_NAME["layer_norm"], x, tensor(24), tensor(24, seed=3), 1e-3)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 0, 3], ids=["default", "class 0", "class 3"])
def test_cross_entropy_agrees_whatever_is_ignored(reduction: str, ignored: int) -> None:
    target = classes(6, count=9, ignored=ignored)
    options = {"reduction": reduction, "ignore_index": None if ignored == -100 else ignored}
    assert (target == 0).any() or ignored
    assert_agrees(BY_NAME["cross_entropy"], scattered_tensor(6, 9), target, label_smoothing=0.1, **options)


def test_class_0_counts_unless_ignored() -> None:
    assert_agrees(BY_NAME["cross_entropy"], tensor(4, 9), torch.zeros(4, dtype=torch.int64))


def test_cross_entropy_of_float16_has_its_losses_and_their_gradient_in_float32() -> None:
    logits = tensor(6, 9, grad=False).half().requires_grad_()
    loss = BY_NAME["cross_entropy"].run(logits, classes(6, count=9))
    assert loss.dtype is torch.float16
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.dtype is torch.float16
    assert torch.bfloat16 not in BY_NAME["cross_entropy"].dtypes  # its backward pass fails for it


def test_two_projections_agree() -> None:
    weights = tuple(scattered_tensor(*w.shape) if w.ndim > 1 else w for w in _MLP)
    assert_agrees(BY_NAME["mlp"], scattered_tensor(2, 4, 8), *weights, activation="gelu_tanh")


def test_second_derivatives_are_those_of_the_formula_or_an_error() -> None:
    assert_has_second_derivatives(BY_NAME["layer_norm"], tensor(5, 24), tensor(24), tensor(24, seed=1), 1e-3)
    assert_has_second_derivatives(BY_NAME["mlp"], tensor(8, 8), *_MLP, activation="gelu_tanh")
    assert_refuses_second_derivatives(BY_NAME["cross_entropy"], tensor(6, 9), classes(6, count=9))


@pytest.mark.parametrize(
    ("operation", "args", "kwargs", "said"),
    [
        ("layer_norm", (tensor(2, 8), None, tensor(8)), {}, "It needs a weight."),
        ("rms_norm", (tensor(2, 8), tensor(1)), {}, "of shape (C,)"),
        ("cross_entropy", (tensor(2, 8), classes(2, count=8).int()), {}, "int64"),
        ("mlp", (tensor(8, 8), *_MLP), {"activation": "gelu"}, "gelu_tanh only"),
        ("mlp", (tensor(8, 8), _MLP[0], None, *_MLP[2:]), {"activation": "gelu_tanh"}, "both biases"),
        ("mlp", (tensor(3, 8), *_MLP), {"activation": "gelu_tanh"}, "multiples of 8"),
    ],
)
def test_unsupported_calls_are_refused_beforehand(operation, args, kwargs, said) -> None:  # type: ignore[no-untyped-def]
    assert said in BY_NAME[operation].check(*args, **kwargs)


def test_autocast_does_not_cast_operations_that_torch_computes_in_float32() -> None:
    x, weight = tensor(2, 8, grad=False), tensor(8, grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert BY_NAME["layer_norm"].check(x, weight) == ""
        assert BY_NAME["layer_norm"].run(x, weight).dtype is torch.float32
        assert "casts" in BY_NAME["mlp"].check(tensor(8, 8), *_MLP, activation="gelu_tanh")


@pytest.fixture
def its_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes FusedAdam available: the cached result from before the stand-ins says that it is missing."""
    monkeypatch.setattr(adamw_module, "APEX_ADAM", TORCH)


@pytest.mark.usefixtures("its_adam")
def test_its_adam_decouples_the_weight_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_module, "_apex_refusal", lambda *_: "")  # there are no parameters on CUDA here
    given = [torch.nn.Parameter(tensor(3, 4)) for _ in range(2)]
    for x, provider in zip(given, ("apex", "torch"), strict=True):
        x.grad = torch.ones_like(x)
        optimizer = ops.adamw([x], lr=0.1, weight_decay=0.5, provider=provider)
        assert ("apex" in update_of(optimizer)) == (provider == "apex")
        optimizer.step()
    torch.testing.assert_close(*given)


@pytest.mark.usefixtures("its_adam")
def test_its_adam_refuses_options_that_it_does_not_have() -> None:
    given = [torch.nn.Parameter(tensor(3, 4))]
    with pytest.raises(RuntimeError, match="no parameter amsgrad"):
        ops.adamw(given, amsgrad=True, provider="apex")
    with pytest.raises(RuntimeError, match=r"one is torch\.float32 on cpu"):
        ops.adamw([{"params": given}], provider="apex")
