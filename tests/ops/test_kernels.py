"""autofuse.ops.kernel_of, and that each operation has its reference."""

from __future__ import annotations

import inspect

import pytest

from autofuse import ops
from autofuse.ops import reference

OPERATIONS = [name for name in ops.__all__ if name != "kernel_of"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_names_its_kernel_and_has_a_reference_of_the_same_signature(name: str) -> None:
    assert ops.kernel_of(name).startswith("torch ")
    mine, plain = (inspect.signature(getattr(m, name), eval_str=True) for m in (ops, reference))
    assert mine == plain


def test_attention_runs_the_fused_kernel_by_name() -> None:
    assert ops.kernel_of("attention") == "torch scaled_dot_product_attention"


def test_what_is_no_operation_has_no_kernel() -> None:
    with pytest.raises(ValueError, match="no operation called 'conv'"):
        ops.kernel_of("conv")
