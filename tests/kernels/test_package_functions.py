"""Functions of other packages are called only if they exist with the expected parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autofuse.kernels import apex, flash_attn, flash_attn_3, flash_attn_cute, flash_attn_parts, liger, quack
from autofuse.kernels.package_functions import PackageFunction, once_differentiable, with_contiguous_gradient
from autofuse.kernels.packages import Unavailable
from tests.kernels.operands import tensor
from tests.kernels.standin_bodies import BODIES
from tests.kernels.standins import RECORDED

ADAPTERS: tuple[ModuleType, ...] = (apex, flash_attn, flash_attn_3, flash_attn_cute, flash_attn_parts, liger, quack)
CALLED = {value.path: value for m in ADAPTERS for value in vars(m).values() if isinstance(value, PackageFunction)}
FUNCTIONS = {path: facts for recorded in RECORDED.values() for path, facts in recorded["functions"].items()}


def _parameters(takes: str) -> list[inspect.Parameter]:
    scope: dict[str, object] = {}
    exec(f"def function({takes}): ...", scope)
    return list(inspect.signature(scope["function"]).parameters.values())  # type: ignore[arg-type]


@pytest.mark.parametrize("path", CALLED)
def test_every_called_function_was_recorded_and_accepts_its_arguments(path: str) -> None:
    assert FUNCTIONS[path] is not None, "python -m tools.signatures did not find it"
    assert CALLED[path].refusal(_parameters(FUNCTIONS[path]["takes"])) == ""


def test_every_recorded_function_is_called_and_has_a_stand_in() -> None:
    assert set(FUNCTIONS) == set(CALLED) == set(BODIES)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__.rpartition(".")[2])
def test_each_call_in_an_adapter_passes_the_declared_arguments(adapter: ModuleType) -> None:
    """Parsed, so that a call that no test makes is seen as well."""
    names = {name: value for name, value in vars(adapter).items() if isinstance(value, PackageFunction)}
    calls = 0
    for node in ast.walk(ast.parse(Path(str(adapter.__file__)).read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names):
            continue
        calls += 1
        borrowed = names[node.func.id]
        assert {keyword.arg for keyword in node.keywords} <= set(borrowed.named)
        starred = any(isinstance(a, ast.Starred) for a in node.args)
        assert starred or len(node.args) == len(borrowed.positional), ast.unparse(node)
    assert calls


def test_the_modules_that_identify_packages_are_in_their_distributions() -> None:
    for recorded in RECORDED.values():
        absent = [name for name, is_there in recorded["modules"].items() if not is_there]
        assert absent == (["flash_attn"] if recorded["distribution"] == "flash-attn-4" else [])


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        ("x, weight, eps=1e-6", ""),
        ("x, weight, eps=1e-6, *, more=None", ""),
        ("x, gain, eps=1e-6", "takes (x, gain, eps), but (x, weight) is expected"),
        ("weight, x, eps=1e-6", "is expected"),
        ("x", "is expected"),
        ("x, weight", "has no parameter eps"),
        ("x, weight, eps, residual", "also requires residual"),
        ("*args, **kwargs", "takes arbitrary arguments"),
    ],
)
def test_a_function_of_another_signature_is_not_called(takes: str, said: str) -> None:
    refusal = PackageFunction("module", "function", ("x", "weight"), ("eps",)).refusal(_parameters(takes))
    assert (said in refusal) if said else refusal == ""


def test_a_missing_function_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="math has no rms_norm"):
        PackageFunction("math", "rms_norm", ())(1)
    with pytest.raises(Unavailable, match="no_such_module cannot be imported: ModuleNotFoundError"):
        PackageFunction("no_such_module", "rms_norm", ())(1)
    with pytest.raises(Unavailable, match="takes"):
        PackageFunction("math", "isclose", ("x", "y"))(1, 2)


def test_a_first_derivative_works_and_a_second_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    made = once_differentiable("somebody", torch.square)(x)
    assert torch.equal(torch.autograd.grad(made.sum(), x, retain_graph=True)[0], torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="AUTOFUSE_PROVIDERS"):
        torch.autograd.grad(made.sum(), x, create_graph=True)


class _Kernel(torch.autograd.Function):
    """Reads its gradient as contiguous, and writes into it."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        assert gradient.is_contiguous()
        return gradient.fill_(5.0)


def test_a_kernel_that_writes_into_its_gradient_gets_a_copy() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    made = with_contiguous_gradient(_Kernel.apply(x))
    upstream = torch.ones(2, 3).T
    (gradient,) = torch.autograd.grad(made, x, upstream)
    assert torch.equal(gradient, torch.full((3, 2), 5.0))
    assert torch.equal(upstream, torch.ones(3, 2))
    assert with_contiguous_gradient(torch.ones(2)).requires_grad is False


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_and_hooks_on_saved_tensors_see_the_same_gradients(reentrant: bool) -> None:
    provider = next(p for p in liger.PROVIDERS if p.operation == "gated_product")
    gate, up = tensor(5, 6), tensor(5, 6, seed=1)
    expected = torch.autograd.grad(provider.run(gate, up).square().sum(), (gate, up))
    made = checkpoint(provider.run, gate, up, use_reentrant=reentrant)
    gate.grad = up.grad = None
    made.square().sum().backward()
    assert torch.equal(gate.grad, expected[0]) and torch.equal(up.grad, expected[1])  # type: ignore[arg-type]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        made = provider.run(gate, up)
    assert all(map(torch.equal, torch.autograd.grad(made.square().sum(), (gate, up)), expected))
