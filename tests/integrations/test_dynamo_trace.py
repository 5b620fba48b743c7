"""A captured graph becomes a trace: its attributes are attributes again, and its writes are recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.integrations.dynamo_trace import DynamoTrace, traces_of
from tests.fx.conftest import Gpt


def traces_from(function: Callable[..., Tensor] | nn.Module, *inputs: Tensor) -> list[DynamoTrace]:
    traces: list[DynamoTrace] = []

    def backend(gm: torch.fx.GraphModule, given: list[Tensor]) -> object:
        traces.extend(traces_of(gm, given))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*inputs)
    return traces


def test_parameters_and_buffers_keep_their_names_and_contents() -> None:
    model = Gpt()
    (graph,) = traces_from(model, torch.randint(0, 20, (2, 8)))
    read = {str(n.target) for n in graph.trace.graph.nodes if n.op == "get_attr"}
    assert {"blocks.0.attn.qkv.weight", "blocks.1.attn.bias", "head.bias"} <= read
    attention = graph.trace.module.get_submodule("blocks.1.attn")
    assert attention.bias is model.blocks[1].attn.bias
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
def test_a_call_that_overwrites_a_tensor_is_recorded_as_a_write(function: Callable[[Tensor], Tensor]) -> None:
    (graph,) = traces_from(function, torch.randn(3, 3))
    (written,) = (n.meta["writes"] for n in graph.trace.graph.nodes if n.meta.get("writes"))
    assert [n.target.__name__ for n in written] == ["add"]


def test_a_pure_call_is_not_recorded_as_a_write() -> None:
    (graph,) = traces_from(lambda x: F.dropout(F.relu(x + 1), 0.5, True, False), torch.randn(3, 3))
    assert not [n for n in graph.trace.graph.nodes if n.meta.get("writes")]
