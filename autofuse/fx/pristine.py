"""Whether a child module is a layer and nothing but: only then may a fused call read its parameters past it.

Hooks, parametrizations, sharded parameters or a forward of its own make a child more than its class says. The same
question is asked here when a site is looked for, and by generated code at each call.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as _module

from autofuse.fx.guards import Guards
from autofuse.fx.twin import plain_class
from autofuse.fx.watching import guard_path

PLAIN_TENSORS = frozenset({Tensor, nn.Parameter, nn.Buffer, FakeTensor})

_OWN = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip


def is_pristine(module: nn.Module) -> bool:
    """Whether nobody watches `module` and it holds plain local tensors."""
    parameters = module.__dict__["_parameters"].values()
    return not is_watched(module) and all(p is None or type(p) in PLAIN_TENSORS for p in parameters)


def is_watched(module: nn.Module) -> bool:
    """Whether calling `module` does more than run the forward of its class."""
    inside = module.__dict__
    own = any(inside[h] for h in _OWN) or "forward" in inside or inside.get("_compiled_call_impl") is not None
    return own or any(getattr(_module, h) for h in _GLOBAL)


def guard_unwatched(guards: Guards, paths: Collection[str]) -> None:
    """Guards that nobody sees what the children at `paths` are called with and return."""
    for path in sorted(paths):
        child = f"({guard_path(path)})"
        watched = " or ".join(f"{child}.{h}" for h in _OWN)
        guards.add(f'not ({watched} or "forward" in {child}.__dict__ or {child}._compiled_call_impl)')


def guard_pristine(guards: Guards, root: nn.Module, paths: Collection[str]) -> None:
    """Guards that each child at `paths` is still what it was when its parameters were taken."""
    for place, path in enumerate(sorted(paths)):
        child, name = root.get_submodule(path), f"_m{place}"
        kind, plain = f"type({name} := {guard_path(path)})", guards.name_of(plain_class(type(child)))
        if type(child).__module__.startswith("torch.nn."):
            guards.add(f"{kind} is {plain}")
        else:  # it may have been rewritten itself
            guards.add(f'({kind} is {plain} or vars(type({name})).get("_autofuse_base") is {plain})')
        watched = " or ".join(f"{name}.{h}" for h in _OWN)
        guards.add(f'not ({watched} or "forward" in {name}.__dict__ or {name}._compiled_call_impl)')
        for key, parameter in child._parameters.items():
            held = f'{name}._parameters["{key}"]'
            guards.add(f"{held} is None" if parameter is None else f"type({held}) in {guards.name_of(PLAIN_TENSORS)}")
        if isinstance(child, nn.Sequential):
            guards.add(f"len({name}._modules) == {len(child)}")
    if paths:
        hooks = [guards.name_of(getattr(_module, h)) for h in _GLOBAL]
        guards.add(f"not ({' or '.join(hooks)})")
