"""Gives one module a new forward without changing its class.

The class that defines `forward` gets a dispatcher (dispatcher.py). A module that runs another forward has an entry in
its `__dict__`; a module without an entry runs the original. When no entry for a function is left, `restore` puts the
original function back into its classes. A copy gets its own entry. A pickle contains an empty entry, which loads
without autofuse.
"""

from __future__ import annotations

import collections
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import nn

from autofuse.fx.install.codegen import Forward, Variant, build_forward, build_guard_checker
from autofuse.fx.install.compiled_code import forget_compiled
from autofuse.fx.install.dispatcher import dispatcher_of, refer_to, transfer_assignments
from autofuse.fx.lazy.head import restore_lazy
from autofuse.fx.lazy.padded_linear import restore_products
from autofuse.fx.trace.own_forward import ENTRY, definer_of, has_other_code, original_of, own_function
from autofuse.fx.trace.paths import Path, tail_of
from autofuse.torch_private import assumed_constant

UNCALLED = "it was called before it was compiled"  # the guard that fails in a compiler if nothing was ever captured
_SERIAL = count()

OnError = Callable[[Exception, Forward, nn.Module, tuple[Any, ...], dict[str, Any]], Any]
OnMiss = Callable[[Forward, nn.Module, tuple[Any, ...], dict[str, Any], frozenset[Path]], Any]
OnCompile = Callable[[Forward, str], None]
OnCopy = Callable[[nn.Module, nn.Module], None]
Narrow = dict[frozenset[Path], tuple[Variant, ...]]


@dataclass(frozen=True)
class RewrittenForward:
    """The forward that equal layers run, and forwards for callers that read only part of the result.

    of: the original function that both replace.
    """

    of: types.FunctionType
    forward: Forward
    narrow: Mapping[str, Forward]


class Entry:
    """The forward that one module runs. A dispatcher reads `of` and `forward`.

    A copy of the module gets its own entry, and `on_copy(original, copy)` is called.
    """

    __slots__ = ("__weakref__", "_copied", "_owner", "dispatcher", "forward", "narrow", "of")
    of: Any  # the original
    forward: Any
    narrow: Mapping[str, Forward]

    def __init__(self, runs: RewrittenForward | Entry, dispatcher: Forward, owner: nn.Module, copied: OnCopy) -> None:
        self.of, self.forward, self.narrow, self.dispatcher = runs.of, runs.forward, runs.narrow, dispatcher
        self._owner, self._copied = weakref.ref(owner), copied

    def for_copy(self, module: nn.Module) -> Entry:
        """The entry for `module`, a copy of this entry's owner."""
        owner = self._owner()
        if owner is module or owner is None:
            return self
        try:
            self._copied(owner, module)
        except Exception:  # the user's __hash__ may need attributes that are not copied yet; the first call tries again
            return self
        return _DISPATCHERS.register(Entry(self, self.dispatcher, module, self._copied))

    def __deepcopy__(self, memo: dict[int, Any]) -> Entry:
        made = memo.get(id(self._owner()))  # deepcopy creates the module before it copies its attributes
        return self.for_copy(made) if isinstance(made, nn.Module) else self

    def __copy__(self) -> Entry:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return collections.OrderedDict, ()  # falsy, and loads with weights_only=True


def install(
    module: nn.Module, variants: tuple[Variant, ...], narrow: Narrow, missed: OnMiss,
    known: dict[Hashable, RewrittenForward], compiled: OnCompile | None = None, copied: OnCopy | None = None,
    raised: OnError | None = None, closed: frozenset[bool] = frozenset(),
) -> None:  # fmt: skip
    """Make `module` run the first of `variants` whose guards hold.

    The class must allow another forward (own_forward.why_not_replaceable).

    Args:
        module: the module that gets the entry.
        variants: rewritten forwards.
        narrow: variants for callers that read only part of the result, by the parts that they do not read.
        missed: called as `missed(original, module, args, kwargs, unread)` if no guard holds.
        known: rewritten forwards that exist already, so that equal layers share one.
        compiled: called as `compiled(forward, guard)` once for each compilation in which no guard holds. The compiler
            then uses the original.
        copied: called as `copied(original, copy)` when the module is copied.
        raised: called as `raised(error, original, module, args, kwargs)` if an operation of a variant raises.
        closed: modes (True is training) in which the original runs without a check.
    """
    before = module.__dict__.get(ENTRY) or None
    of: Any = before.of if before is not None and is_installed(module) else _original(module)
    keys = frozenset((k, tuple(v.key for v in vs)) for k, vs in narrow.items())
    key = (of, tuple(v.key for v in variants), keys, missed, closed)
    if key not in known:
        known[key] = _build_rewritten(of, variants, narrow, missed, compiled, raised, closed)
    module.__dict__[ENTRY] = _DISPATCHERS.entry(module, known[key], copied or _ignore_copy)


def install_forward(module: nn.Module, made: Callable[[Forward], Forward | None], copied: OnCopy | None = None) -> bool:
    """Make `module` run `made(original)`, a function of its original forward. Returns False if that is None."""
    before = module.__dict__.get(ENTRY) or None
    of: Any = before.of if before is not None and is_installed(module) else _original(module)
    forward = made(of)
    if forward is not None:
        runs = RewrittenForward(of, forward, {})
        module.__dict__[ENTRY] = _DISPATCHERS.entry(module, runs, copied or _ignore_copy)
    return forward is not None


def install_same(module: nn.Module, double: nn.Module) -> None:
    """Give `double`, a module of the same class, the forward that `module` runs. Copies of `double` notify no
    session.
    """
    if is_installed(module):
        entry = module.__dict__[ENTRY]
        double.__dict__[ENTRY] = Entry(entry, entry.dispatcher, double, _ignore_copy)


def restore(module: nn.Module) -> nn.Module:
    """Remove the entries of `module` and all its submodules. Returns `module`."""
    for m in module.modules():
        restore_module(m)
    remove_unused_dispatchers()
    return module


def restore_module(module: nn.Module) -> None:
    """Remove the entry of `module` only."""
    module.__dict__.pop(ENTRY, None)
    restore_lazy(module)
    restore_products(module)


def entry_of(module: nn.Module) -> Entry | None:
    """The entry of `module`. If a copy still has the entry of its original, it gets its own."""
    entry = module.__dict__.get(ENTRY) or None
    if entry is not None and "_is_replica" not in module.__dict__:
        module.__dict__[ENTRY] = entry = entry.for_copy(module)
    return entry


def is_installed(module: nn.Module) -> bool:
    """Whether `module` runs a rewritten forward. It does not if its class got another forward since."""
    entry = module.__dict__.get(ENTRY) or None
    function = getattr(type(module), "forward", None)
    while entry is not None and isinstance(function, types.FunctionType):
        if original_of(function) is entry.of and not has_other_code(function):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def uninstall(model: nn.Module) -> dict[nn.Module, Entry]:
    """Restore `model`. Returns the entries for `reinstall`."""
    entries = {m: m.__dict__[ENTRY] for m in model.modules() if is_installed(m)}
    restore(model)
    return entries


def reinstall(entries: Mapping[nn.Module, Entry]) -> None:
    """Put back the entries that `uninstall` returned."""
    for module, entry in entries.items():
        module.__dict__[ENTRY] = entry


class _DispatcherRegistry:
    """The classes that have a dispatcher. A class keeps it while any entry for its original function exists."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[Forward, WeakSet[Entry]] = {}  # by dispatcher
        self._classes: dict[Forward, set[type]] = {}
        self._dispatchers: WeakValueDictionary[Forward, types.FunctionType] = WeakValueDictionary()  # by original

    def entry(self, module: nn.Module, runs: RewrittenForward, copied: OnCopy) -> Entry:
        """A new entry for `module`. Its class gets a dispatcher if it has none."""
        with self._lock:
            dispatcher = self._dispatchers.get(runs.of) or dispatcher_of(runs.of)
            self._dispatchers[runs.of] = dispatcher
            made = self.register(Entry(runs, dispatcher, module, copied))
            definer = definer_of(type(module))
            if definer is not None and vars(definer)["forward"] in (runs.of, dispatcher):
                if definer not in self._classes[dispatcher]:
                    self._classes[dispatcher].add(definer)
                    forget_compiled(definer)
                setattr(
                    definer, ENTRY, None
                )  # a compiler guards this attribute, so it notices an entry that a module gets later
                definer.forward = dispatcher  # type: ignore[attr-defined]
                refer_to(runs.of, dispatcher)
            return made

    def register(self, entry: Entry) -> Entry:
        """Register `entry` and return it. Its classes keep their dispatcher while it exists."""
        with self._lock:
            self._classes.setdefault(entry.dispatcher, set())
            self._entries.setdefault(entry.dispatcher, WeakSet()).add(entry)
        return entry

    def remove_unused_dispatchers(self) -> None:
        """Put the original forward back into classes without any entry.

        This does not happen when the last entry is deleted, because a compiler may be reading the class then.
        """
        with self._lock:
            for dispatcher in [d for d, entries in self._entries.items() if not entries]:
                self._remove_dispatcher(dispatcher)

    def _remove_dispatcher(self, dispatcher: Any) -> None:
        original = original_of(dispatcher)
        assert original is not None, "only dispatchers are registered"
        transfer_assignments(dispatcher, original)
        del self._entries[dispatcher]
        for cls in self._classes.pop(dispatcher):
            if vars(cls).get("forward") is dispatcher:
                cls.forward = original  # type: ignore[attr-defined]
                refer_to(original, original)
            if ENTRY in vars(cls) and not any(cls in others for others in self._classes.values()):
                delattr(cls, ENTRY)


_DISPATCHERS = _DispatcherRegistry()
remove_unused_dispatchers = _DISPATCHERS.remove_unused_dispatchers


def _original(module: nn.Module) -> Forward:
    definer = definer_of(type(module))
    assert definer is not None, "the class must allow another forward"
    return own_function(vars(definer)["forward"])


def _build_rewritten(
    of: Any, variants: tuple[Variant, ...], narrow: Narrow, missed: OnMiss, compiled: OnCompile | None,
    raised: OnError | None, closed: frozenset[bool],
) -> RewrittenForward:  # fmt: skip
    # A compiler traces these, too, and may fail at a guard that a forward never reaches.
    askers = tuple(build_guard_checker(of, v, only_first=True) for v in variants) if compiled is not None else ()

    @assumed_constant
    def report_guard(place: int, test: int) -> None:
        if compiled is not None:
            compiled(made, variants[place].describe_test(test) if variants else UNCALLED)

    def full(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return missed(of, self, args, kwargs, frozenset())
        latest, place = -1, -1
        for i, ask in enumerate(askers):  # a compiler evaluates this while it traces; nothing of it is in the graph
            failed = ask(self, *args, **kwargs)
            if len(failed) > 0 and failed[0] > latest:
                latest, place = failed[0], i
        if place >= 0:
            report_guard(place, latest)
        elif not askers:
            report_guard(0, 0)
        return of(self, *args, **kwargs)

    def failed(error: Exception, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        assert raised is not None
        return raised(error, of, self, args, kwargs)

    made = build_forward(of, variants, full, failed if raised is not None else None, closed)
    parts = {narrow_name(k): build_forward(of, vs, _build_full_forward(of, k, missed)) for k, vs in narrow.items()}
    return RewrittenForward(of, made, parts)


def _build_full_forward(of: Forward, unread: frozenset[Path], missed: OnMiss) -> Forward:
    """The function that runs if no variant of a narrow forward fits: `missed`, or the whole forward of the module."""
    tail = tail_of(unread)
    dropout = tail.dropout if tail is not None else ""

    def run_module(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs) if torch.compiler.is_compiling() else missed(of, self, args, kwargs, unread)

    def run_without_dropout(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call_without_dropout(self, dropout, args, kwargs)

    return run_module if tail is None else run_without_dropout


def call_without_dropout(module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `module` with its dropout `name` switched off, because the caller applies that dropout."""
    dropout = module.get_submodule(name)
    before, dropout.training = dropout.training, False
    try:
        return module(*args, **kwargs)
    finally:
        dropout.training = before


@cache
def narrow_name(unread: frozenset[Path]) -> str:
    """The name of the forward that does not compute `unread`. Dynamo can guard a string, but not a set of paths."""
    return f"narrow_{next(_SERIAL)}"


def narrow_forward(module: nn.Module, name: str) -> Forward | None:
    """The narrow forward called `name`, if `module` has it and its class still has the dispatcher."""
    entry = getattr(module, ENTRY, None)
    if not entry or type(module).forward is not entry.dispatcher:
        return None
    found: Forward | None = entry.narrow.get(name)
    return found


def _ignore_copy(original: nn.Module, made: nn.Module) -> None:
    """Does nothing, because copies that are made for a check belong to no session."""
