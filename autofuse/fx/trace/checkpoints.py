"""Records `torch.utils.checkpoint.checkpoint` in a trace: the nodes of the function lie between two marks.

The rewritten forward calls `checkpoint` again (install/checkpointed.py), so that the function is computed again in the
backward pass as before. Reentrant checkpoints and context functions are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import fx

from autofuse.fx.trace.contents import STORES
from autofuse.fx.trace.source_lines import user_place
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private import checkpoints

_DEFAULTS = {
    "preserve_rng_state": True, "determinism_check": "default", "early_stop": True, "respect_saved_tensors_hooks": None,
}  # fmt: skip


def begin(**options: Any) -> None:
    """Marks the first node of a checkpointed function. `options` are those of checkpoint that are not its defaults."""


def end() -> None:
    """Marks the end of a checkpointed function."""


class RecordsCheckpoints(Protocol):
    """The part of the recorder that this file needs."""

    graph: fx.Graph
    paused: bool

    def record_changes(self) -> None: ...

    def refuse(self, reason: Reason) -> Any: ...


@contextmanager
def record_checkpoints(recorder: RecordsCheckpoints) -> Iterator[None]:
    """Inside the block, checkpointed functions that this thread's forward calls are recorded between two marks."""
    marks, thread = _Marks(recorder), threading.get_ident()

    def recording(original: Callable[..., checkpoints.Steps]) -> Callable[..., checkpoints.Steps]:
        def generator(*args: Any, **kwargs: Any) -> checkpoints.Steps:
            if threading.get_ident() != thread or recorder.paused:
                yield from original(*args, **kwargs)
            elif not torch.is_grad_enabled():
                yield  # torch checkpoints nothing either
            else:
                marks.begin(checkpoints.options_of(original, args, kwargs))
                yield
                marks.end()

        return generator

    with checkpoints.replaced(recording):
        yield
    marks.close()


class _Marks:
    """Adds the marks to the graph, and refuses functions that do more than compute values."""

    def __init__(self, recorder: RecordsCheckpoints) -> None:
        self._recorder = recorder
        self._begin: fx.Node | None = None

    def begin(self, options: dict[str, Any]) -> None:
        if self._begin is not None or not checkpoints.is_plain(options):
            self._recorder.refuse(because(forwards.UNDER_CONTEXT))
        self._recorder.record_changes()
        changed = {k: options[k] for k, usual in _DEFAULTS.items() if options.get(k, usual) != usual}
        self._begin = self._mark(begin, changed)

    def end(self) -> None:
        assert self._begin is not None
        self._recorder.record_changes()
        inside = [self._begin]
        while (following := inside[-1].next).op != "root":
            inside.append(following)
        # Recomputation stops as soon as it has all tensors, so a write may happen once or twice.
        if any(_outlives(node, set(inside)) for node in inside):
            self._recorder.refuse(because(forwards.UNDER_CONTEXT))
        self._mark(end, {})
        self._begin = None

    def close(self) -> None:
        """Refuses a forward that caught the error of a checkpointed function, so that its end is not in the graph."""
        if self._begin is not None:
            self._recorder.refuse(because(forwards.UNDER_CONTEXT))

    def _mark(self, target: Callable[..., None], options: dict[str, Any]) -> fx.Node:
        node = self._recorder.graph.call_function(target, (), options)
        node.meta["place"] = user_place()
        return node


def _outlives(node: fx.Node, inside: set[fx.Node]) -> bool:
    """Whether a node changes, or may change, something that exists outside of these nodes."""
    if node.meta.get("foreign") or node.meta.get("call"):
        return True  # a method of the user's object, or a child that gets one
    written = [*node.meta.get("writes", ()), *(node.all_input_nodes[:1] if node.target in STORES else ())]
    return any(n not in inside or n.op in ("placeholder", "get_attr") for n in written)
