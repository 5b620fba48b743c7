"""Fused operations call torch's functions, also while a program has put others in their place."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from autofuse import ops
from autofuse.torch_private import functional

IN_CPP = ("gelu", "linear", "one_hot", "scaled_dot_product_attention", "softplus")


@pytest.mark.parametrize("name", [n for n in vars(functional) if callable(getattr(F, n, None))])
def test_each_name_is_that_of_torch(name: str) -> None:
    assert getattr(functional, name) is getattr(F, name)


def test_an_operation_does_not_call_what_replaces_torchs_function(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 2, 5, 8)
    expected = ops.attention(q, q, q)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kwargs: q * 0)
    torch.testing.assert_close(ops.attention(q, q, q), expected, rtol=0, atol=0)


def test_functions_in_cpp_are_torchs_if_they_were_replaced_before_the_import() -> None:
    lines = [
        "import torch.nn.functional as F",
        f"kept = {{n: getattr(F, n) for n in {IN_CPP}}}",
        f"for n in {IN_CPP}: setattr(F, n, None)",
        "from autofuse.torch_private import functional",
        "assert all(getattr(functional, n) is f for n, f in kept.items())",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
