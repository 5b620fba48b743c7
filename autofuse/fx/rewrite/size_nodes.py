"""Builds the fx nodes that compute a size from the arguments of a forward."""

from __future__ import annotations

from typing import Any

from torch import fx

from autofuse.fx.rewrite.graph_capture import CapturedTrace


def size_node(captured: CapturedTrace, size: int | str, example: Any) -> Any:
    """A size as a number, or as a node: its expression is evaluated on the placeholders."""
    if isinstance(size, int):
        return size
    proxies: dict[str, Any] = {
        "min": lambda *a: fx.Proxy(captured.trace.graph.call_function(min, tuple(_unwrap_proxy(x) for x in a)))
    }
    # Longer names come first, because a name may be a part of another one.
    for place, text in sorted(enumerate(captured.trace.inputs), key=lambda p: -len(p[1])):
        size = size.replace(f"{text}.shape", f"in{place}.shape")
    for node in captured.trace.graph.nodes:
        if node.op == "placeholder":
            proxies[node.name] = fx.Proxy(node)
    made = eval(size, {"__builtins__": {}}, proxies).node
    made.meta["v"] = example
    return made


def _unwrap_proxy(x: Any) -> Any:
    return x.node if isinstance(x, fx.Proxy) else x
