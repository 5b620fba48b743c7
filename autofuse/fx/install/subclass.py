"""Gives one module a new forward by swapping its class for a subclass of it.

The subclass has the same name and module, and is its base everywhere that matters: state_dict, deepcopy, hooks,
isinstance, FSDP, functional_call, checkpointing. Pickled, it is the base: a process without autofuse can load it.
"""

from __future__ import annotations

import copy
import copyreg
import itertools
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import nn

from autofuse.fx.install.codegen import Forward, Variant, asker_of, forward_of
from autofuse.fx.trace.paths import Path, tail_of
from autofuse.torch_private import assumed_constant

BASE = "_autofuse_base"
NARROW = "_autofuse_narrow"
COPIED = "_autofuse_copied"
UNCALLED = "it was called before it was compiled"  # what a compiler finds amiss where nothing was ever captured
_SERIAL = itertools.count()

Missed = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], frozenset[Path]], Any]
Told = Callable[[type, str], None]
Copied = Callable[[nn.Module, nn.Module], None]
Narrow = dict[frozenset[Path], tuple[Variant, ...]]


def install(
    module: nn.Module, variants: tuple[Variant, ...], narrow: Narrow, missed: Missed, classes: dict[Hashable, type],
    compiled: Told | None = None, copied: Copied | None = None,
) -> None:  # fmt: skip
    """Swap `module`'s class for one that runs `variants`, and `missed` where none holds.

    `narrow` are variants for callers that read only part of the result; `missed` is told what is not read. `classes`
    keeps the subclasses that exist, so that equal layers share one. A compiler takes the original where none holds, and
    `compiled(class, guard)` hears of it, once for each compilation. `copied(original, copy)` hears of copies.
    """
    outer, base = type(module), base_of(type(module))
    key = (
        base,
        tuple(v.key for v in variants),
        frozenset((k, tuple(v.key for v in vs)) for k, vs in narrow.items()),
        missed,
    )
    if key not in classes:
        classes[key] = made = _subclass(base, variants, narrow, missed, compiled)
        setattr(made, COPIED, staticmethod(copied or _nobody))
    module.__class__ = _replaced(outer, base, classes[key])


def restore(module: nn.Module) -> nn.Module:
    """Give `module` and every module below it their own classes back. Returns `module`."""
    for m in module.modules():
        if is_installed(m):
            base = base_of(type(m))
            m.__class__ = _replaced(type(m), base, base)
    return module


def is_installed(module: nn.Module) -> bool:
    """Whether `module` runs a forward of autofuse's."""
    return hasattr(type(module), BASE)


def base_of(cls: type[nn.Module]) -> type[nn.Module]:
    """The class that `cls` was before autofuse swapped it."""
    found: type[nn.Module] = getattr(cls, BASE, cls)
    return found


def _replaced(outer: type, base: type, new: type) -> Any:
    """`outer` with `new` where it has `base` or autofuse's subclass of it; torch may have derived from that."""
    if outer is base or vars(outer).get(BASE) is base:
        return new
    bases = tuple(_replaced(b, base, new) if issubclass(b, base) else b for b in outer.__bases__)
    own = {k: v for k, v in vars(outer).items() if k not in ("__dict__", "__weakref__")}
    wrapper = own.pop("forward") if _wraps_inherited(outer) else None
    made = type(outer)(outer.__name__, bases, own)
    if wrapper is not None and "forward" not in vars(made):
        made.forward = wrapper  # type: ignore[attr-defined]
    return made


def _wraps_inherited(cls: type) -> bool:
    """Whether the forward of a class is a wrapper around the one it inherits, as a base may give each subclass."""
    inherited = next((vars(c)["forward"] for c in cls.__mro__[1:] if "forward" in vars(c)), None)
    wrapped = vars(cls).get("forward")
    while wrapped is not None and wrapped is not inherited:
        wrapped = getattr(wrapped, "__wrapped__", None)
    return wrapped is not None


def _subclass(
    base: type[nn.Module], variants: tuple[Variant, ...], narrow: Narrow, missed: Missed, compiled: Told | None
) -> type[nn.Module]:
    askers = tuple(asker_of(base.forward, v) for v in variants) if compiled is not None else ()

    @assumed_constant
    def told(place: int, test: int) -> None:
        if compiled is not None:
            compiled(made, variants[place].words(test) if variants else UNCALLED)

    def full(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return missed(self, args, kwargs, frozenset())
        fewest: list[int] = []
        place = -1
        for i, ask in enumerate(askers):  # a compiler follows this, and leaves nothing of it in its graph
            failed = ask(self, *args, **kwargs)
            if place < 0 or len(failed) < len(fewest):
                fewest, place = failed, i
        if len(fewest) > 0:
            told(place, fewest[0])
        elif not askers:
            told(0, 0)
        return base.forward(self, *args, **kwargs)

    members: dict[str, Any] = {
        "__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__,
        "forward": forward_of(base.forward, variants, full),
        "__reduce_ex__": _reduce, "__deepcopy__": _deepcopy, "__copy__": _copy,
        BASE: base,
        **{narrow_name(k): forward_of(base.forward, vs, _whole(k, missed)) for k, vs in narrow.items()},
    }  # fmt: skip
    metaclass: Any = type(base)
    made: type[nn.Module] = metaclass(base.__name__, (base,), members)
    return made


def _whole(unread: frozenset[Path], missed: Missed) -> Forward:
    """What runs where no variant fits: `missed`, or the module itself, which computes what is not read, too."""
    tail = tail_of(unread)
    dropout = tail.dropout if tail is not None else ""

    def whole(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs) if torch.compiler.is_compiling() else missed(self, args, kwargs, unread)

    def undropped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call_undropped(self, dropout, args, kwargs)

    return whole if tail is None else undropped


def call_undropped(module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `module` with its dropout called `name` off: its caller drops."""
    dropout = module.get_submodule(name)
    before, dropout.training = dropout.training, False
    try:
        return module(*args, **kwargs)
    finally:
        dropout.training = before


@cache
def narrow_name(unread: frozenset[Path]) -> str:
    """The name of the forward that leaves `unread` out: Dynamo follows an attribute, and not what is in a path."""
    return f"{NARROW}_{next(_SERIAL)}"


def narrow_forward(module: nn.Module, name: str) -> Forward | None:
    """The forward with that narrow name, if `module` has one."""
    return getattr(type(module), name, None)


# Copies keep the swapped class; pickles do not.


def _reduce(self: nn.Module, protocol: Any) -> Any:
    base = base_of(type(self))
    found = base.__reduce_ex__(self, protocol)
    if not isinstance(found, tuple) or len(found) < 2:
        return found
    arguments = tuple(base if a is type(self) else a for a in found[1])
    make = base if found[0] is type(self) else found[0]
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # it insists on the object's own class
        make = base.__new__
    return (make, arguments, *found[2:])


def _deepcopy(self: nn.Module, memo: dict[int, Any]) -> Any:
    base = base_of(type(self))
    own = getattr(base, "__deepcopy__", None)
    if own is not None:
        made = own(self, memo)
    else:
        made = _rebuilt(self, memo)
    if type(made) is base:
        made.__class__ = type(self)
    return _told(self, made)


def _told(original: nn.Module, made: Any) -> Any:
    """`made`, after those who care were told that it is a copy."""
    if isinstance(made, nn.Module) and made is not original:
        getattr(type(original), COPIED)(original, made)
    return made


def _nobody(original: nn.Module, made: nn.Module) -> None:
    """Copies of copies that are made for a check are nobody's business."""


def _rebuilt(self: nn.Module, memo: dict[int, Any]) -> Any:
    """What copy.deepcopy does for a class without __deepcopy__."""
    reduced = base_of(type(self)).__reduce_ex__(self, 4)
    return copy._reconstruct(self, memo, *reduced)  # type: ignore[attr-defined]


def _copy(self: nn.Module) -> Any:
    reduced = base_of(type(self)).__reduce_ex__(self, 4)
    return _told(self, copy._reconstruct(self, None, *reduced))  # type: ignore[attr-defined]
