"""The message of a rotary embedding by halves says that the width is even."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten

TEXT = """
import torch

def f(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin
"""


def test_an_odd_width_is_named_and_matters() -> None:
    (finding,) = findings(TEXT)
    assert finding.status == "unsafe" and "the last dimension of `x` is even" in finding.message
    before, after = (module_of(text).f for text in (TEXT, rewritten(TEXT)))
    even, odd = torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 7)
    assert torch.allclose(before(even, even, even), after(even, even, even))
    assert before(odd, odd, odd).shape == (7,)
    with pytest.raises(ValueError):
        after(odd, odd, odd)
