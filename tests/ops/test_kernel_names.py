"""autofuse.ops.kernel_of, and that each operation has its reference."""

from __future__ import annotations

import inspect

import pytest

from autofuse import ops
from autofuse.kernels import operation as kernels
from autofuse.ops import reference

OPERATIONS = [name for name in ops.__all__ if name != "kernel_of"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_names_its_kernel_and_has_a_reference_of_the_same_signature(name: str) -> None:
    assert ops.kernel_of(name).startswith("torch ")
    mine, plain = (inspect.signature(getattr(m, name), eval_str=True) for m in (ops, reference))
    assert mine == plain


def test_attention_runs_the_fused_kernel_by_name() -> None:
    assert ops.kernel_of("attention") == "torch scaled_dot_product_attention"


def test_an_unknown_operation_has_no_kernel() -> None:
    with pytest.raises(ValueError, match="no operation called 'conv'"):
        ops.kernel_of("conv")


@pytest.mark.parametrize(
    "named", [f"{name}, {provider.name}" for name, o in kernels.OPERATIONS.items() for provider in o.providers]
)
def test_a_provider_accepts_a_call_with_the_required_arguments_only(named: str) -> None:
    """Reports and tuning call it with the public function's arguments, without defaults."""
    operation = kernels.OPERATIONS[named.partition(", ")[0]]
    public = getattr(ops, operation.name, None)
    provider = operation.provider(named.partition(", ")[2])
    if public is None:
        return
    required = [p for p in inspect.signature(public).parameters.values() if p.default is p.empty]
    by_name = {p.name: None for p in required if p.kind is p.KEYWORD_ONLY}
    for function in (provider.run, provider.check):
        try:
            signature = inspect.signature(function)
        except ValueError:  # one of torch's own
            continue
        signature.bind(*[None] * (len(required) - len(by_name)), **by_name)
