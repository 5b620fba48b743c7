"""Gives one module a new forward. Its class stays its class.

The class that defines `forward` gets a dispatcher for it (dispatcher.py), and a module that runs another forward has
an entry in its `__dict__`. Without one it runs what it always ran. When no entry for a function is left, `restore`
gives its classes the very function back. A copy has an entry of its own; a pickle has an empty one, which needs no
autofuse.
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

from autofuse.fx.install.codegen import Forward, Variant, asker_of, forward_of
from autofuse.fx.install.compiled_code import forget_compiled
from autofuse.fx.install.dispatcher import dispatcher_of, end_of
from autofuse.fx.lazy.head import restore_lazy
from autofuse.fx.trace.own_forward import ENTRY, definer_of, is_replaced, original_of, own_function
from autofuse.fx.trace.paths import Path, tail_of
from autofuse.torch_private import assumed_constant

UNCALLED = "it was called before it was compiled"  # what a compiler finds amiss where nothing was ever captured
_SERIAL = count()

Raised = Callable[[Exception, Forward, nn.Module, tuple[Any, ...], dict[str, Any]], Any]
Missed = Callable[[Forward, nn.Module, tuple[Any, ...], dict[str, Any], frozenset[Path]], Any]
Told = Callable[[Forward, str], None]
Copied = Callable[[nn.Module, nn.Module], None]
Narrow = dict[frozenset[Path], tuple[Variant, ...]]


@dataclass(frozen=True)
class RewrittenForward:
    """What equal layers run: the forward of one original function, and those for callers that read less of it."""

    of: types.FunctionType
    forward: Forward
    narrow: Mapping[str, Forward]


class Entry:
    """What one module runs. A dispatcher asks for `of` and `forward`.

    Where a module is copied, its copy's entry knows the copy, and who asked to be told is told.
    """

    __slots__ = ("__weakref__", "_copied", "_owner", "dispatcher", "forward", "narrow", "of")
    of: Any  # the original
    forward: Any
    narrow: Mapping[str, Forward]

    def __init__(self, runs: RewrittenForward | Entry, dispatcher: Forward, owner: nn.Module, copied: Copied) -> None:
        self.of, self.forward, self.narrow, self.dispatcher = runs.of, runs.forward, runs.narrow, dispatcher
        self._owner, self._copied = weakref.ref(owner), copied

    def given_to(self, module: nn.Module) -> Entry:
        """This entry, as that of `module`, which is a copy of its owner."""
        owner = self._owner()
        if owner is module or owner is None:
            return self
        try:
            self._copied(owner, module)
        except Exception:  # a hash of the user's may ask for what is not copied yet: there will be a first call
            return self
        return _DISPATCHED.kept(Entry(self, self.dispatcher, module, self._copied))

    def __deepcopy__(self, memo: dict[int, Any]) -> Entry:
        made = memo.get(id(self._owner()))  # a module is there before what it holds is copied
        return self.given_to(made) if isinstance(made, nn.Module) else self

    def __copy__(self) -> Entry:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return collections.OrderedDict, ()  # false, and loads with weights_only, too


def install(
    module: nn.Module, variants: tuple[Variant, ...], narrow: Narrow, missed: Missed,
    known: dict[Hashable, RewrittenForward], compiled: Told | None = None, copied: Copied | None = None,
    raised: Raised | None = None, closed: frozenset[bool] = frozenset(),
) -> None:  # fmt: skip
    """Have `module` run `variants`, and `missed` where none holds.

    `narrow` are variants for callers that read only part of the result; `missed(original, module, ...)` is told what is
    not read. `known` keeps what exists, so that equal layers share one. A compiler takes the original where none holds,
    and `compiled(forward, guard)` hears of it, once for each compilation. `copied(original, copy)` hears of copies.
    `raised(error, original, module, ...)` runs what an operation of a variant has raised in.
    `closed` are the modes (True is training) in which the original runs and `missed` hears nothing.
    The class must take another forward (own_forward.why_kept).
    """
    before = module.__dict__.get(ENTRY) or None
    of: Any = before.of if before is not None and is_installed(module) else _original(module)
    keys = frozenset((k, tuple(v.key for v in vs)) for k, vs in narrow.items())
    key = (of, tuple(v.key for v in variants), keys, missed, closed)
    if key not in known:
        known[key] = _rewritten(of, variants, narrow, missed, compiled, raised, closed)
    module.__dict__[ENTRY] = _DISPATCHED.entry(module, known[key], copied or _nobody)


def install_alike(module: nn.Module, double: nn.Module) -> None:
    """Give `double`, a module of the same class, the forward that `module` runs now. Copies of it are not reported."""
    if is_installed(module):
        entry = module.__dict__[ENTRY]
        double.__dict__[ENTRY] = Entry(entry, entry.dispatcher, double, _nobody)


def restore(module: nn.Module) -> nn.Module:
    """Give `module` and every module below it their own forwards back. Returns `module`."""
    for m in module.modules():
        restore_one(m)
    sweep()
    return module


def restore_one(module: nn.Module) -> None:
    """Give `module` alone its own forward back."""
    module.__dict__.pop(ENTRY, None)
    restore_lazy(module)


def entry_of(module: nn.Module) -> Entry | None:
    """The entry of `module`, which is its own from here on if it is a copy's that nobody heard of."""
    entry = module.__dict__.get(ENTRY) or None
    if entry is not None and "_is_replica" not in module.__dict__:
        module.__dict__[ENTRY] = entry = entry.given_to(module)
    return entry


def is_installed(module: nn.Module) -> bool:
    """Whether `module` runs a forward of autofuse's: its class may have got yet another one since."""
    entry = module.__dict__.get(ENTRY) or None
    function = getattr(type(module), "forward", None)
    while entry is not None and isinstance(function, types.FunctionType):
        if original_of(function) is entry.of and not is_replaced(function):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def taken_off(model: nn.Module) -> dict[nn.Module, Entry]:
    """Restore `model`. Returns what `put_on` puts back."""
    entries = {m: m.__dict__[ENTRY] for m in model.modules() if is_installed(m)}
    restore(model)
    return entries


def put_on(entries: Mapping[nn.Module, Entry]) -> None:
    """Have these modules run what they ran before."""
    for module, entry in entries.items():
        module.__dict__[ENTRY] = entry


class _Dispatched:
    """Which classes have a dispatcher. They have it for as long as there is an entry for the function it stands for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[Forward, WeakSet[Entry]] = {}  # by dispatcher
        self._classes: dict[Forward, set[type]] = {}
        self._dispatchers: WeakValueDictionary[Forward, types.FunctionType] = WeakValueDictionary()  # by original

    def entry(self, module: nn.Module, runs: RewrittenForward, copied: Copied) -> Entry:
        """An entry for `module`, whose class dispatches from here on."""
        with self._lock:
            dispatcher = self._dispatchers.get(runs.of) or dispatcher_of(runs.of)
            self._dispatchers[runs.of] = dispatcher
            made = self.kept(Entry(runs, dispatcher, module, copied))
            definer = definer_of(type(module))
            if definer is not None and vars(definer)["forward"] in (runs.of, dispatcher):
                if definer not in self._classes[dispatcher]:
                    self._classes[dispatcher].add(definer)
                    forget_compiled(definer)
                setattr(definer, ENTRY, None)  # what a compiler guards: a module may get an entry later
                definer.forward = dispatcher  # type: ignore[attr-defined]
            return made

    def kept(self, entry: Entry) -> Entry:
        """The entry; classes dispatch for as long as it is there."""
        with self._lock:
            self._classes.setdefault(entry.dispatcher, set())
            self._entries.setdefault(entry.dispatcher, WeakSet()).add(entry)
        return entry

    def sweep(self) -> None:
        """Give the classes of which no module has an entry any more their own forwards back.

        Not at the moment in which the last entry goes: that may be while a compiler reads the class.
        """
        with self._lock:
            for dispatcher in [d for d, entries in self._entries.items() if not entries]:
                self._end(dispatcher)

    def _end(self, dispatcher: Any) -> None:
        original = original_of(dispatcher)
        assert original is not None, "classes dispatch by dispatchers alone"
        end_of(dispatcher, original)
        del self._entries[dispatcher]
        for cls in self._classes.pop(dispatcher):
            if vars(cls).get("forward") is dispatcher:
                cls.forward = original  # type: ignore[attr-defined]
            if ENTRY in vars(cls) and not any(cls in others for others in self._classes.values()):
                delattr(cls, ENTRY)


_DISPATCHED = _Dispatched()
sweep = _DISPATCHED.sweep


def _original(module: nn.Module) -> Forward:
    definer = definer_of(type(module))
    assert definer is not None, "its class must take another forward"
    return own_function(vars(definer)["forward"])


def _rewritten(
    of: Any, variants: tuple[Variant, ...], narrow: Narrow, missed: Missed, compiled: Told | None,
    raised: Raised | None, closed: frozenset[bool],
) -> RewrittenForward:  # fmt: skip
    askers = tuple(asker_of(of, v) for v in variants) if compiled is not None else ()

    @assumed_constant
    def told(place: int, test: int) -> None:
        if compiled is not None:
            compiled(made, variants[place].words(test) if variants else UNCALLED)

    def full(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return missed(of, self, args, kwargs, frozenset())
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
        return of(self, *args, **kwargs)

    def failed(error: Exception, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        assert raised is not None
        return raised(error, of, self, args, kwargs)

    made = forward_of(of, variants, full, failed if raised is not None else None, closed)
    parts = {narrow_name(k): forward_of(of, vs, _whole(of, k, missed)) for k, vs in narrow.items()}
    return RewrittenForward(of, made, parts)


def _whole(of: Forward, unread: frozenset[Path], missed: Missed) -> Forward:
    """What runs where no variant fits: `missed`, or the module itself, which computes what is not read, too."""
    tail = tail_of(unread)
    dropout = tail.dropout if tail is not None else ""

    def whole(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs) if torch.compiler.is_compiling() else missed(of, self, args, kwargs, unread)

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
    """The name of the forward that leaves `unread` out: Dynamo follows a text, and not what is in a path."""
    return f"narrow_{next(_SERIAL)}"


def narrow_forward(module: nn.Module, name: str) -> Forward | None:
    """The forward with that narrow name, if `module` has one and its class still has the forward that it is for."""
    entry = getattr(module, ENTRY, None)
    if not entry or type(module).forward is not entry.dispatcher:
        return None
    found: Forward | None = entry.narrow.get(name)
    return found


def _nobody(original: nn.Module, made: nn.Module) -> None:
    """Copies of copies that are made for a check are nobody's business."""
