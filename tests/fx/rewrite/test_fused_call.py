"""A fused call replaces a part of a forward, and no unused code stays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autofuse
from tests.fx.conftest import assert_same, fused_rules


class Attention(nn.Module):
    """Softmax and dropout are layers, and only the sizes of the result are read."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.attend, self.drop, self.to_out = nn.Softmax(dim=-1), nn.Dropout(p), nn.Linear(8, 8)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.matmul(self.drop(self.attend(q @ k.transpose(-1, -2) * 0.5)), v)
        b, h, n, d = out.shape
        width = h * d
        return self.to_out(out.transpose(1, 2).reshape(b, n, width))  # type: ignore[no-any-return]


class Called(TorchDispatchMode):
    """The names of the operators that run."""

    __module__ = "autofuse.observer"  # under a user's own mode the original would run

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_layers_whose_sizes_are_read_are_not_computed_next_to_the_fused_call() -> None:
    given = tuple(torch.randn(2, 2, 5, 4) for _ in range(3))
    others = torch.randn(3, 2, 4, 4), torch.randn(3, 2, 6, 4), torch.randn(3, 2, 6, 4)
    for p, training in ((0.0, False), (0.0, True), (0.1, False)):
        model = autofuse.optimize(Attention(p), given).train(training)
        assert fused_rules(model) == {"AF101"}
        plain = Attention(p).train(training)
        plain.load_state_dict(model.state_dict())
        assert_same(plain, model, *others)
        with Called() as called:
            model(*others)
        assert sum("attention" in n for n in called.names) == 1
        assert not {"aten::_softmax", "aten::bmm"} & set(called.names)
