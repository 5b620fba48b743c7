"""Decides whether a child module does only what its class says. Otherwise a fused call must not read its parameters.

Hooks, parametrizations, sharded parameters or a forward of its own add to what the class says. This is checked when a
site is searched for, and again by generated code at each call.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.idle_hooks import has_active_hook
from autofuse.fx.trace.own_forward import calls_plainly
from autofuse.fx.trace.twin import plain_class
from autofuse.fx.trace.unreplaced import combined_test, unreplaced_forwards
from autofuse.torch_private import GLOBAL_MODULE_HOOKS, FakeTensor

PLAIN_TENSORS = frozenset({Tensor, nn.Parameter, nn.Buffer, FakeTensor})

OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_pristine(module: nn.Module) -> bool:
    """Returns whether nothing observes `module` and all its parameters are plain local tensors."""
    parameters = module.__dict__["_parameters"].values()
    return not is_watched(module) and all(p is None or type(p) in PLAIN_TENSORS for p in parameters)


def is_watched(module: nn.Module) -> bool:
    """Returns whether calling `module` does more than run the forward of its class."""
    inside = module.__dict__
    hooked = any(inside.get(h) and has_active_hook(inside[h].values()) for h in OWN_HOOKS)
    own = hooked or "forward" in inside or inside.get("_compiled_call_impl") is not None
    return own or any(GLOBAL_MODULE_HOOKS) or not calls_plainly(type(module).__call__)


def guard_unwatched(guards: Guards, paths: Collection[str]) -> None:
    """Guards that nothing observes the arguments and results of the children at `paths`."""
    for path in sorted(paths):
        guards.add(f"_unwatched({guard_path(path)})")


def guard_pristine(guards: Guards, root: nn.Module, paths: Collection[str]) -> None:
    """Guards that each child at `paths` is still as it was when its parameters were read."""
    for path in sorted(paths):
        child, reach = root.get_submodule(path), guard_path(path)
        plain = guards.name_of(plain_class(type(child)))
        guards.add(f"type({reach}) is {plain}")
        guards.add(f"_unwatched({reach})")
        for key, parameter in child._parameters.items():
            held = f'_held({reach}, "_parameters", "{key}")'
            guards.add(f"{held} is None" if parameter is None else f"_plain({held})")
        if isinstance(child, nn.Sequential):
            guards.add(f"len({reach}._modules) == {len(child)}")
    if paths:
        guards.add("_unhooked()")
        classes = [plain_class(type(root.get_submodule(path))) for path in sorted(paths)]
        guards.add(f"{guards.constant(combined_test([unreplaced_forwards(classes)]))}()")
