"""A captured graph becomes a trace: attributes are attributes again, writes are known as writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.integrations.dynamo_trace import DynamoTrace, adopted
from tests.fx.conftest import Gpt


def adopted_from(function: Callable[..., Tensor] | nn.Module, *inputs: Tensor) -> list[DynamoTrace]:
    found: list[DynamoTrace] = []

    def backend(gm: torch.fx.GraphModule, given: list[Tensor]) -> object:
        found.extend(adopted(gm, given))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found


def test_parameters_and_buffers_have_the_names_and_the_contents_that_they_have_in_the_model() -> None:
    model = Gpt()
    (graph,) = adopted_from(model, torch.randint(0, 20, (2, 8)))
    read = {str(n.target) for n in graph.trace.graph.nodes if n.op == "get_attr"}
    assert {"blocks.0.attn.qkv.weight", "blocks.1.attn.bias", "head.bias"} <= read
    held = graph.trace.module.get_submodule("blocks.1.attn")
    assert held.bias is model.blocks[1].attn.bias
    assert [n.name for n in graph.trace.graph.nodes if n.op == "placeholder"] == ["l_tokens_"]


def _method(x: Tensor) -> Tensor:
    return (x + 1).mul_(2)


def _operator(x: Tensor) -> Tensor:
    y = x + 1
    y *= 2
    return y


def _item(x: Tensor) -> Tensor:
    y = x + 1
    y[0] = 2
    return y


def _flag(x: Tensor) -> Tensor:
    return F.relu(x + 1, inplace=True)


def _position(x: Tensor) -> Tensor:
    return F.dropout(x + 1, 0.5, True, True)


def _out(x: Tensor) -> Tensor:
    y = x + 1
    torch.mul(x, 2, out=y)
    return y


@pytest.mark.parametrize("function", [_method, _operator, _item, _flag, _position, _out], ids=lambda f: f.__name__)
def test_what_overwrites_a_tensor_is_known_to(function: Callable[[Tensor], Tensor]) -> None:
    (graph,) = adopted_from(function, torch.randn(3, 3))
    (written,) = (n.meta["writes"] for n in graph.trace.graph.nodes if n.meta.get("writes"))
    assert [n.target.__name__ for n in written] == ["add"]


def test_what_only_computes_overwrites_nothing() -> None:
    (graph,) = adopted_from(lambda x: F.dropout(F.relu(x + 1), 0.5, True, False), torch.randn(3, 3))
    assert not [n for n in graph.trace.graph.nodes if n.meta.get("writes")]
