"""Finds the tensors of a module from which a size was computed, so that a guard fixes their shapes.

The sizes of a module's own tensors, and of what its children return, are numbers in a trace. They change if the program
replaces a tensor or a child: a larger embedding, a wider layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import torch.fx
from torch import Tensor, nn

from autofuse.fx.trace.attribute_reads import guard_tensor


def own_tensors_behind(origin: object, root: nn.Module) -> Iterator[str]:
    """Yields the names of the tensors below `root` that a node depends on, directly or through a called child."""
    todo, seen = [origin], set[torch.fx.Node]()
    while todo:
        node = todo.pop()
        if not isinstance(node, torch.fx.Node) or node in seen:
            continue
        seen.add(node)
        todo += node.all_input_nodes
        if node.op not in ("get_attr", "call_module"):
            continue
        found = attrgetter(str(node.target))(root)  # a child that is called under no_grad is read as an attribute
        if not isinstance(found, nn.Module):
            yield str(node.target)
        else:
            yield from (f"{node.target}.{n}" for n, _ in found.named_parameters())
            yield from (f"{node.target}.{n}" for n, _ in found.named_buffers())


def size_guard(root: nn.Module, original: nn.Module, name: str) -> str:
    """A test that the tensor `name` has the shape that it has now; "" if the name leads to a container of tensors.

    Args:
        root: the module on fakes, whose tensors have the shapes of the call.
        original: the module itself.
        name: the path of the tensor.
    """
    path, _, attribute = name.rpartition(".")
    real = getattr(original.get_submodule(path), attribute, None)
    # The trace holds the local part of a DTensor, and the guard sees the DTensor, which has the global shape.
    found = real if hasattr(real, "placements") else getattr(root.get_submodule(path), attribute, None)
    shape = tuple(int(n) for n in found.shape) if isinstance(found, Tensor) else None
    return "" if shape is None else f"{guard_tensor(root, name)}.shape == {shape}"
