"""Which functions of the user's run, and on which lines; and a stop to what they call before that has an effect.

Python tells of each call and each line while a watch lasts. What torch does inside of its own functions is not followed
(`unfollowed`), which keeps that cheap. Knows code, not values: read_set.py and external_state.py ask what it saw.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.overrides import TorchFunctionMode

from autofuse.fx.trace import effects, grouped_products
from autofuse.fx.trace.code_facts import Load, facts_of
from autofuse.fx.trace.idle_hooks import is_idle_collector
from autofuse.torch_private import COMPILER_MODULES

_USERS, _LIBRARYS, _STANDARD, _CLOSED = 1, 2, 3, 4
# Code that calls nothing of the user's: a compiler at work, and kernels. What it calls elsewhere is its own affair.
_CLOSED_MODULES = ("autofuse.ops", "autofuse.kernels", *COMPILER_MODULES)
_WRITES_ENVIRONMENT = frozenset(
    {"__setitem__", "__delitem__", "setdefault", "update", "pop", "popitem", "clear", "__ior__"}
)
_GENERATORS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_KINDS: dict[int, tuple[types.CodeType, int]] = {}  # the code is kept, so its id stays its own


@dataclass
class Ran:
    """A function of the user's that ran: its code, its globals, what it closed over, and the lines that ran."""

    code: types.CodeType
    namespace: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)
    lines: set[int] | None = None  # None where that is not known
    aside: bool = False  # whether it ran while the watcher looked aside: in a child, say

    def loads(self) -> Iterator[Load]:
        """What it may have loaded."""
        return facts_of(self.code).loaded(self.lines)


class Watcher:
    """Hears what runs. Any of its methods may raise, which stops the run there."""

    aside = False  # whether what runs now is to be told apart from the rest

    def entered(self, ran: Ran) -> None:
        """A function of the user's is about to run for the first time."""

    def on_line(self, ran: Ran, line: int) -> None:
        """A line of it is about to run for the first time; all of it, where line is 0."""

    def effect(self, what: str) -> None:
        """The user's code is about to call something that has an effect."""

    def asks(self, function: Callable[[], Any]) -> None:
        """The user's code asks torch for its state."""

    def environment(self, key: object) -> None:
        """The user's code reads a variable of the environment; None: more than one."""

    def variable(self, variable: Any) -> None:
        """The user's code reads a context variable."""

    def idle(self, variable: Any) -> None:
        """The user's code reads or sets one by which a library asks for nothing."""


class _Watching(threading.local):
    def __init__(self) -> None:
        self.watchers: list[_Active] = []
        self.off = 0
        self.closed: types.FrameType | None = None  # of an import, or of code that calls nothing of the user's


_now = _Watching()


class _Active:
    """One watcher and what it has heard already."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.ran: dict[tuple[int, ...], Ran] = {}
        self.generators: set[int] = set()


def can_watch() -> bool:
    """Whether this thread can be watched: not where a profiler is at work that Python cannot put back."""
    profiler = sys.getprofile()
    return profiler is None or profiler is _profiled or isinstance(profiler, (types.FunctionType, types.MethodType))


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` what runs in this block, and every watcher of a block around it.

    Python collects no garbage meanwhile: finalizers and `gc.callbacks` are no part of the code that is watched.
    """
    collects = gc.isenabled()
    gc.disable()
    before = sys.getprofile(), sys.gettrace()
    off, _now.off = _now.off, 0
    closed, _now.closed = _now.closed, None
    _now.watchers.append(_Active(watcher))
    try:
        _start(before[1])
        yield
    finally:
        _stop(*before)
        _now.watchers.pop()
        _now.off, _now.closed = off, closed
        if collects:
            gc.enable()


def _start(tracer: Any) -> None:
    if tracer is None or tracer is _traced:
        sys.settrace(_traced)
    sys.setprofile(_profiled)


def _stop(profiler: Any, tracer: Any) -> None:
    sys.setprofile(profiler)
    if sys.gettrace() is _traced and tracer is not _traced:
        sys.settrace(tracer)


@contextmanager
def unfollowed() -> Iterator[None]:
    """What runs in this block is none of the user's code."""
    if not _now.watchers or _now.off:
        yield
        return
    profiler, tracer = sys.getprofile(), sys.gettrace()
    sys.setprofile(None)
    if tracer is _traced:
        sys.settrace(None)
    _now.off += 1
    try:
        yield
    finally:
        _now.off -= 1
        if tracer is _traced:
            sys.settrace(tracer)
        sys.setprofile(profiler)


class Unfollowed(TorchFunctionMode):
    """What torch does inside of its own functions is none of the user's code."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with unfollowed():
            return grouped_products.run(function, args, kwargs or {})


def _kind(frame: types.FrameType) -> int:
    code = frame.f_code
    known = _KINDS.get(id(code))
    if known is None:
        known = _KINDS[id(code)] = code, _judged(code, frame.f_globals)
    return known[1]


def _judged(code: types.CodeType, namespace: dict[str, Any]) -> int:
    name = namespace.get("__name__")
    if str(name).startswith(_CLOSED_MODULES):
        return _CLOSED
    if effects.is_library(name) or code.co_filename.startswith(("<autofuse", "<eval_with_key", "<frozen")):
        return _LIBRARYS if not effects.is_standard(name) else _STANDARD
    tuples = str(name).startswith("namedtuple_") and code.co_filename == "<string>"  # which Python writes
    return _STANDARD if tuples or effects.is_standard(name) else _USERS


def is_users_code(frame: types.FrameType) -> bool:
    """Whether a frame runs the user's code."""
    return _kind(frame) == _USERS


def _traced(frame: types.FrameType, event: str, _: Any) -> Any:
    return _lines if event == "call" and _kind(frame) == _USERS else None


def _lines(frame: types.FrameType, event: str, _: Any) -> Any:
    if event == "line":
        for active in _now.watchers:
            ran = active.ran.get((active.watcher.aside, *_key(frame)))
            if ran is not None and ran.lines is not None and frame.f_lineno not in ran.lines:
                ran.lines.add(frame.f_lineno)
                active.watcher.on_line(ran, frame.f_lineno)
    return _lines


def _profiled(frame: types.FrameType, event: str, argument: Any) -> None:
    if _now.closed is not None:
        if event == "return" and frame is _now.closed:
            _now.closed = None
        return
    if event == "call":
        kind = _kind(frame)
        if kind == _CLOSED or frame.f_code.co_name == "_find_and_load" and kind == _STANDARD:
            _now.closed = frame
            return
        if kind == _USERS:
            _enter(frame)
        elif frame.f_back is not None and _kind(frame.f_back) == _USERS:
            _called(frame)
        elif kind == _STANDARD and effects.emits_log_record(frame.f_globals, frame.f_code.co_name):
            _effect("logging")
    elif event == "c_call" and _kind(frame) == _USERS:
        _called_builtin(argument)


def _key(frame: types.FrameType) -> tuple[int, ...]:
    code = frame.f_code
    if not code.co_freevars:
        return (id(code),)
    local = frame.f_locals
    return (id(code), *(id(local.get(name)) for name in code.co_freevars))


def _enter(frame: types.FrameType) -> None:
    key = _key(frame)
    code = frame.f_code
    resumed = bool(code.co_flags & _GENERATORS) and frame.f_lasti > _first(code)
    for active in _now.watchers:
        if resumed and id(code) not in active.generators:
            active.watcher.effect(f"the generator {code.co_name}")
        active.generators.add(id(code))
        told = (active.watcher.aside, *key)
        if told not in active.ran:
            active.ran[told] = ran = _ran(frame)
            ran.aside = active.watcher.aside
            active.watcher.entered(ran)
            if ran.lines is None:
                active.watcher.on_line(ran, 0)


@functools.cache
def _first(code: types.CodeType) -> int:
    """Where a generator stands when it starts to run."""
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "RESUME"), 0)


def _ran(frame: types.FrameType) -> Ran:
    code, local = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    arguments = {name: local[name] for name in code.co_varnames[:count] if name in local}
    free = {name: local[name] for name in code.co_freevars if name in local}
    return Ran(code, frame.f_globals, arguments, free, set() if sys.gettrace() is _traced else None)


def _called(frame: types.FrameType) -> None:
    """The user's code calls a function of Python's own or of a library."""
    name, namespace = frame.f_code.co_name, frame.f_globals
    if namespace.get("__name__") in ("os", "collections.abc") and _environment(frame):
        return
    own = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    what = effects.effect_of_function(namespace, own if own.startswith("finalize.") else name)
    if what:
        _effect(what)
    elif effects.top_package(namespace.get("__name__")) == "torch" and effects.is_state_query(name):
        _question(frame)


def _environment(frame: types.FrameType) -> bool:
    """Whether the environment is read or written; every watcher hears by which key, or that it is written."""
    local, environ, name = frame.f_locals, sys.modules["os"].environ, frame.f_code.co_name
    if name != "getenv" and local.get("self") is not environ:
        return False
    if name in _WRITES_ENVIRONMENT:
        _effect(f"os.environ.{name}")
        return True
    for active in list(_now.watchers):
        active.watcher.environment(local.get("key"))
    return True


def _question(frame: types.FrameType) -> None:
    code = frame.f_code
    if code.co_argcount or code.co_kwonlyargcount:
        return
    function = frame.f_globals.get(code.co_name)
    if getattr(function, "__code__", None) is code:
        for active in list(_now.watchers):
            active.watcher.asks(function)  # type: ignore[arg-type]


def _called_builtin(function: Any) -> None:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, contextvars.ContextVar) and is_idle_collector(owner):
        for active in list(_now.watchers):
            active.watcher.idle(owner)
        return
    what = effects.effect_of_builtin(function)
    if what:
        _effect(what)
        return
    name = getattr(function, "__name__", "")
    if name == "get" and type(function.__self__).__name__ == "ContextVar":
        for active in list(_now.watchers):
            active.watcher.variable(function.__self__)
    elif effects.is_state_query(name) and effects.top_package(getattr(function, "__module__", "")) == "torch":
        for active in list(_now.watchers):
            active.watcher.asks(function)


def _effect(what: str) -> None:
    for active in list(_now.watchers):
        active.watcher.effect(what)
