"""Decides whether a fused call can omit a causal mask. Guards ensure that the mask is square.

The causal masking of a kernel aligns the first query with the first key. So the numbers of queries and keys must be
equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from autofuse.canonical import View
from autofuse.fx.install.mask_contents import describe_form
from autofuse.fx.rewrite.graph_capture import CapturedTrace
from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.symbolic_sizes import Size
from autofuse.ir.graph import Value, ancestors
from autofuse.ops.finite_fills import vanishes


def ensure_square(captured: CapturedTrace, built: dict[str, Any]) -> bool:
    """Whether the call can pass is_causal and omit the mask. If so, adds guards that the mask is square.

    If the sizes are unknown, the operation inspects the mask at each call.

    Args:
        captured: The trace, whose guards are extended.
        built: The nodes of query, key and mask, by name.
    """
    query, key, mask = (_last_two(captured, built.get(name)) for name in ("query", "key", "mask"))
    if query is None or key is None or mask is None or query[0] is None or None in (key[0], *mask):
        return False
    # The example itself must be square, otherwise the guards fail at once.
    if built["query"].meta["v"].shape[-2] != built["key"].meta["v"].shape[-2]:
        return False
    others = [s for s in (key[0], *mask) if s != query[0]]
    # Two different constants are never equal.
    if any(isinstance(s, int) and isinstance(query[0], int) for s in others):
        return False
    for size in others:
        captured.trace.guards.add(f"{query[0]} == {size}")
    return True


def unneeded_arguments(built: dict[str, Any]) -> frozenset[str]:
    """The arguments that a call with is_causal can omit for all possible scores: the mask and its fill.

    If a score can be near the fill, the operation needs the fill, and an additive mask unchanged.
    """
    argument = built.get("fill")
    fill = argument.meta.get("v") if isinstance(argument, fx.Node) else argument
    query, mask = built["query"].meta["v"], built["mask"].meta["v"]
    if fill is None or isinstance(fill, (int, float)) and vanishes(fill, query.dtype):
        return frozenset({"mask", "fill"})
    return frozenset({"mask"}) if mask.dtype is torch.bool else frozenset()


def guard_buffers(captured: CapturedTrace, view: View, mask: Value) -> None:
    """Guard the contents of the buffers from which the mask is proved to be causal."""
    for path, form in _buffers(captured, view, mask):
        owner, _, name = path.rpartition(".")
        buffer = captured.trace.twin.get_submodule(owner)._buffers[name]
        assert buffer is not None, "only a tensor has a proved form"
        captured.trace.guards.add(
            f'_holds_form({guard_path(owner)}._buffers["{name}"], "{describe_form(buffer, form)}")'
        )


def _last_two(captured: CapturedTrace, node: Any) -> tuple[Size, Size] | None:
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("v"), Tensor):
        return None
    sizes = captured.trace.sizes.get(node)
    return (sizes[-2], sizes[-1]) if sizes is not None and len(sizes) > 1 else None


def _buffers(captured: CapturedTrace, view: View, mask: Value) -> list[tuple[str, str]]:
    """The buffers from which `mask` is computed, each with its proved form."""
    found = []
    for v in ancestors(mask):
        for original in (v, *view.originals(v), *([v.data] if isinstance(v.data, Value) else ())):
            known = captured.known.get(original)
            if original in captured.paths and known is not None and known.form is not None:
                found.append((captured.paths[original], known.form))
    return list(dict.fromkeys(found))
