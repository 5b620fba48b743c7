"""Programs that are rewritten for a library. A stand-in for the library, written in torch, runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.source.rewriting import source

HEAD = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
NORMS = HEAD + source("""
    class LayerNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(dim))
            self.bias = nn.Parameter(torch.rand(dim))

        def forward(self, x):
            mean = x.mean(-1, keepdim=True)
            var = x.var(-1, keepdim=True, unbiased=False)
            return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias  # over the channels


    class Centred(nn.Module):
        def forward(self, x):
            mean = x.mean(-1, keepdim=True)
            return (x - mean) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


    class RmsNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(dim))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
""")
HALF_AFFINE = HEAD + source("""
    class LayerNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(dim))

        def forward(self, x):
            mean = x.mean(-1, keepdim=True)
            return (x - mean) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight
""")
LOSS = HEAD + source("""
    class Loss(nn.Module):
        def forward(self, logits):
            target = torch.arange(logits.shape[0]) % 3
            log_probs = torch.log_softmax(logits, dim=-1)
            return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()
""")
IGNORING = HEAD + source("""
    class Loss(nn.Module):
        def forward(self, logits):
            target = torch.tensor([1, -100, 0, 2])[: logits.shape[0]]
            return F.nll_loss(F.log_softmax(logits, dim=1), target)
""")
_STAND_IN = "stands_in"  # a module of this name is one


def stand_in(patch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Create a module of that name with these functions, until the end of the test."""
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        made = ModuleType(".".join(names[:depth]))
        made.__path__ = []
        made.__dict__[_STAND_IN] = True
        if not hasattr(sys.modules.get(made.__name__), _STAND_IN):
            patch.setitem(sys.modules, made.__name__, made)
    for name, function in functions.items():
        setattr(sys.modules[module], name, function)
