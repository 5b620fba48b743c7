"""Python source of a graph, and its execution."""

from __future__ import annotations

import itertools
import linecache
import re
from typing import Any

import torch
from torch import fx

_SERIAL = itertools.count()
_TORCHS_FUNCTION = re.compile(r"\btorch(?:\.\w+)+(?=\()")


def python_source(graph: fx.Graph) -> tuple[str, dict[str, Any]]:
    """The source of a function `forward(self, in0, ...)` that computes a graph, and the objects that it names.

    It calls torch's functions by names of its own, because a program may replace `torch.nn.functional.silu` by a kernel
    of its own, and the original does not call that function.
    """
    for node in graph.nodes:
        if node.name == "self":
            node._rename("self_1")  # a submodule named `self` would shadow the argument
    code = graph.python_code("self", verbose=False)
    called = {n.target for n in graph.nodes if n.op == "call_function"}
    names = dict(code.globals)

    def rename(found: re.Match[str]) -> str:
        function: Any = torch
        for name in found[0].split(".")[1:]:
            function = getattr(function, name, None)
        if not callable(function) or function not in called:
            return found[0]
        own = found[0].replace(".", "_")
        names[own] = function
        return own

    return _TORCHS_FUNCTION.sub(rename, code.src), names


def execute(source: str, namespace: dict[str, Any]) -> None:
    """Execute generated source and register it with linecache, so that tracebacks show it."""
    name = f"<autofuse {next(_SERIAL)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, "exec"), namespace)
