"""The attributes of torch's objects that autofuse reads exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofuse.torch_private import missing
from autofuse.torch_private.attributes import ATTRIBUTES


def node() -> Any:
    return (torch.ones(2, requires_grad=True) * 2).grad_fn


def sdpa_node() -> Any:
    q = torch.ones(1, 1, 4, 8, requires_grad=True)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q).grad_fn


def fx_node() -> Any:
    return next(iter(torch.fx.symbolic_trace(nn.Identity()).graph.nodes))


def loader() -> Any:
    return iter(torch.utils.data.DataLoader([1, 2]))  # type: ignore[arg-type]


OWNERS: Mapping[str, tuple[Callable[[], Any], str]] = {
    "a module": (
        nn.Identity,
        "_parameters _buffers _modules _forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks "
        "_compiled_call_impl",
    ),
    "a compiled module": (lambda: torch.compile(nn.Identity()), "_orig_mod"),
    "a compiled function": (lambda: torch.compile(lambda x: x), "_torchdynamo_orig_callable"),
    "a tensor": (lambda: torch.ones(1), "_version _base _is_view _make_wrapper_subclass _typed_storage"),
    "operators": (lambda: torch.ops.aten, "_to_copy _log_softmax _unsafe_view"),
    "a sparse tensor": (lambda: torch.eye(2).to_sparse(), "_indices _values"),
    "a storage": (lambda: torch.ones(1).untyped_storage(), "_cdata"),
    "forward mode": (lambda: torch.autograd.forward_ad, "_current_level"),
    "an overload": (lambda: torch.ops.aten.add.Tensor, "_schema _opname _overloadpacket"),
    "a packet": (lambda: torch.ops.aten.add, "_qualified_op_name"),
    "a node": (node, "_sequence_nr"),
    "a node of attention": (
        sdpa_node,
        "_saved_query _saved_key _saved_value _saved_is_causal _saved_scale _saved_attn_mask _saved_dropout_p",
    ),
    "a node of a graph": (fx_node, "_erased _rename"),
    "a loader's iterator": (loader, "_num_workers _auto_collation"),
}
# Those of objects that take a GPU or several processes to make: the class says so in its code.
IN_CODE = {
    "_fsdp_wrapped_module": "torch.distributed.fsdp.fully_sharded_data_parallel",
    "_handle": "torch.distributed.fsdp.fully_sharded_data_parallel",
    "_checkpoint_wrapped_module": "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "_get_fsdp_state": "torch.distributed.fsdp._fully_shard._fully_shard",
    "_fsdp_param_groups": "torch.distributed.fsdp._fully_shard._fsdp_state",
    "_fsdp_param_group": "torch.distributed.fsdp._fully_shard._fsdp_state",
    "_module_info": "torch.distributed.fsdp._fully_shard._fsdp_param",
    "_orig_size": "torch.distributed.fsdp._fully_shard._fsdp_param",
    "_fwd_bwd_param_dtype": "torch.distributed.fsdp._flat_param",
    "_param_infos": "torch.distributed.fsdp._flat_param",
    "_shapes": "torch.distributed.fsdp._flat_param",
    "_saved_attn_bias": "",  # kernels for CUDA save it
}


SINCE = {"_fsdp_param_groups": (2, 12)}  # the first version of torch that has it
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def test_every_attribute_has_an_owner_here() -> None:
    assert sorted([*IN_CODE, *(a for _, names in OWNERS.values() for a in names.split())]) == sorted(ATTRIBUTES)


@pytest.mark.parametrize("owner", OWNERS)
def test_torchs_objects_have_the_listed_attributes(owner: str) -> None:
    made, names = OWNERS[owner]
    thing = made()
    assert [name for name in names.split() if not hasattr(thing, name)] == []


@pytest.mark.parametrize("name", [n for n, module in IN_CODE.items() if module and SINCE.get(n, (0, 0)) <= VERSION])
def test_torchs_distributed_code_has_the_listed_attributes(name: str) -> None:
    spec = missing.resolve_name(IN_CODE[name])
    assert re.search(rf"\b{name}\b", Path(spec.__file__).read_text())
