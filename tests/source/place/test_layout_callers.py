"""The result of attention is made contiguous if a module around it reads its memory layout."""

from __future__ import annotations

import pytest
import torch

from tests.source.evidence.mixed_dtypes import module_of
from tests.source.rewriting import rewritten, source

# How the outer module stores the inner one, and how it reads it.
HOLDS = {
    "an attribute": ("self.inner = Inner()", "self.inner"),
    "two at once": ("self.inner, self.rest = Inner(), nn.Identity()", "self.inner"),
    "a name first": ("inner = Inner()\n        self.inner = inner", "self.inner"),
    "a wrapper": ("self.inner = Wrap(Inner())", "self.inner"),
    "a wrapper, by keyword": ("self.inner = Wrap(fn=Inner())", "self.inner"),
    "a list": ("self.layers = nn.ModuleList([Inner()])", "self.layers[0]"),
    "a list that grows": ("self.layers = nn.ModuleList()\n        self.layers.append(Inner())", "self.layers[0]"),
    "add_module": ("self.add_module('inner', Inner())", "self.inner"),
}
READS = {
    "stride": "o.stride()",
    "view, tried": "tried(lambda: o.view(-1).shape)",
    "a function of the file": "looked(o)",
    "turned": "o.transpose(1, 2).is_contiguous()",
    "like it": "torch.empty_like(o).stride()",
}


def program(hold: str, use: str, read: str) -> str:
    return source(
        """
        import torch
        from torch import nn

        class Inner(nn.Module):
            def forward(self, x):
                q, k, v = (y.view(2, 5, 2, 4).transpose(1, 2) for y in x.chunk(3, -1))
                return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v

        class Wrap(nn.Module):
            def __init__(self, fn):
                super().__init__()
                self.fn = fn

            def forward(self, x):
                return self.fn(x)

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                HOLD

            def forward(self, x):
                m = USE
                o = m(x)
                return READ

        def tried(call):
            try:
                return call()
            except RuntimeError:
                return "not in one piece"

        def looked(t):
            return t.stride()
    """.replace("HOLD", hold.replace("\n", "\n        "))
        .replace("USE", use)
        .replace("READ", read)
    )


def result_of(text: str) -> object:
    return vars(module_of(text))["Outer"]()(torch.linspace(-1, 1, 240).view(2, 5, 24))


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("hold", HOLDS)
def test_a_layout_that_the_outer_module_reads_is_preserved(hold: str, read: str) -> None:
    before = program(*HOLDS[hold], READS[read])
    after = rewritten(before, unsafe=False)
    assert "scaled_dot_product_attention" in after
    assert result_of(before) == result_of(after)


@pytest.mark.parametrize("hold", HOLDS)
def test_without_a_layout_read_no_contiguous_call_is_added(hold: str) -> None:
    after = rewritten(program(*HOLDS[hold], "o.transpose(1, 2).reshape(2, 5, 8)").split("def tried")[0], unsafe=False)
    assert "scaled_dot_product_attention" in after and ".contiguous()" not in after
