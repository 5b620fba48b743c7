"""Whether a mask that is proved causal where it is square may be left out: guards make it square.

The kernel's own causal masking aligns the first query with the first key, so queries and keys must be equally many.
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


def is_square(captured: CapturedTrace, built: dict[str, Any]) -> bool:
    """Whether the call may say is_causal and leave the mask out; if so, the guards that make it square are in place.

    `built` are the nodes of query, key and mask. Where this is not known, the operation looks at each call.
    """
    query, key, mask = (_last_two(captured, built.get(name)) for name in ("query", "key", "mask"))
    if query is None or key is None or mask is None or query[0] is None or None in (key[0], *mask):
        return False
    if built["query"].meta["v"].shape[-2] != built["key"].meta["v"].shape[-2]:
        return False
    others = [s for s in (key[0], *mask) if s != query[0]]
    if any(isinstance(s, int) and isinstance(query[0], int) for s in others):
        return False
    for size in others:
        captured.trace.guards.add(f"{query[0]} == {size}")
    return True


def needless(built: dict[str, Any]) -> frozenset[str]:
    """What a call that says is_causal can do without, whatever the scores are: the mask, and what it filled with.

    Where a score may come near the fill, the operation has to know the fill, and what was added as it stands.
    """
    given = built.get("fill")
    fill = given.meta.get("v") if isinstance(given, fx.Node) else given
    query, mask = built["query"].meta["v"], built["mask"].meta["v"]
    if fill is None or isinstance(fill, (int, float)) and vanishes(fill, query.dtype):
        return frozenset({"mask", "fill"})
    return frozenset({"mask"}) if mask.dtype is torch.bool else frozenset()


def guard_buffers(captured: CapturedTrace, view: View, mask: Value) -> None:
    """Guard what the proof rests on: the content of buffers."""
    for path, form in _buffers(captured, view, mask):
        owner, _, name = path.rpartition(".")
        buffer = captured.trace.twin.get_submodule(owner)._buffers[name]
        assert buffer is not None, "a form is proved of a tensor"
        captured.trace.guards.add(
            f'_holds_form({guard_path(owner)}._buffers["{name}"], "{describe_form(buffer, form)}")'
        )


def _last_two(captured: CapturedTrace, node: Any) -> tuple[Size, Size] | None:
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("v"), Tensor):
        return None
    sizes = captured.trace.sizes.get(node)
    return (sizes[-2], sizes[-1]) if sizes is not None and len(sizes) > 1 else None


def _buffers(captured: CapturedTrace, view: View, mask: Value) -> list[tuple[str, str]]:
    """The buffers that the proof rests on, and the form each was proved to have."""
    found = []
    for v in ancestors(mask):
        for original in (v, *view.originals(v), *([v.data] if isinstance(v.data, Value) else ())):
            known = captured.known.get(original)
            if original in captured.paths and known is not None and known.form is not None:
                found.append((captured.paths[original], known.form))
    return list(dict.fromkeys(found))
