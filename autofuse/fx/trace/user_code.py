"""Watches which of the user's functions and lines run, and stops calls that have an effect before they happen.

Python's profile and trace hooks report calls and lines during a watch. What torch does inside its own functions is not
watched (`pause_watching`), which keeps the overhead low. This file knows code, not values: read_set.py and
external_state.py use what it saw.
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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch.overrides import TorchFunctionMode

from autofuse.fx.trace import effects, grouped_products
from autofuse.fx.trace.code_facts import Load, facts_of
from autofuse.fx.trace.idle_hooks import is_idle_collector
from autofuse.torch_private import COMPILER_MODULES

_USER, _LIBRARY, _STANDARD, _CLOSED = 1, 2, 3, 4
# Code that does not call user code: compilers and kernels. The functions that it calls are not watched.
_CLOSED_MODULES = ("autofuse.ops", "autofuse.kernels", *COMPILER_MODULES)
# Modules whose decorators wrap functions of torch, such as `torch.manual_seed`.
_DECORATORS = ("torch._compile", "torch._dynamo.", "torch.utils._contextlib")
_WRITES_ENVIRONMENT = frozenset(
    {"__setitem__", "__delitem__", "setdefault", "update", "pop", "popitem", "clear", "__ior__"}
)
_GENERATORS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_KIND_BY_CODE: dict[int, tuple[types.CodeType, int]] = {}  # holds the code, so that its id stays unique


@dataclass
class Execution:
    """A user's function that ran.

    Attributes:
        code: Its code.
        namespace: Its globals.
        arguments: Its arguments by name.
        free: The values of its free variables.
        lines: The lines that ran, or None if they are unknown.
        paused: Whether the watcher was paused, for example in a child.
    """

    code: types.CodeType
    namespace: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)
    lines: set[int] | None = None
    paused: bool = False

    def loads(self) -> Iterator[Load]:
        """Yields the names that it may have loaded."""
        return facts_of(self.code).loaded(self.lines)


class Watcher:
    """The base class of watchers. Each method may raise, which stops the run."""

    paused = False  # whether what runs now is recorded as paused

    def on_function(self, ran: Execution) -> None:
        """Called before a function of the user's runs for the first time."""

    def on_line(self, ran: Execution, line: int) -> None:
        """Called before a line of a function runs for the first time. Line 0 means the whole function."""

    def on_effect(self, what: str) -> None:
        """Called before the user's code calls a function that has an effect."""

    def on_torch_query(self, function: Callable[[], Any]) -> None:
        """Called when the user's code reads torch's state."""

    def on_environment_read(self, key: object) -> None:
        """Called when the user's code reads an environment variable. If `key` is None, it reads more than one."""

    def on_context_variable(self, variable: Any) -> None:
        """Called when the user's code reads a context variable."""

    def on_idle_variable(self, variable: Any) -> None:
        """Called when the user's code reads or sets a context variable that collects outputs for a library.

        No outputs were requested at that time.
        """


class _Watching(threading.local):
    def __init__(self) -> None:
        self.watchers: list[_Active] = []
        self.off = 0
        self.closed: types.FrameType | None = None  # the frame of an import or of closed code


_state = _Watching()


class _Active:
    """A watcher, and the executions and generators that it was already called for."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.ran: dict[tuple[int, ...], Execution] = {}
        self.generators: set[int] = set()


def can_watch() -> bool:
    """Returns whether this thread can be watched. It cannot if a profiler is active that Python could not restore."""
    profiler = sys.getprofile()
    return profiler is None or profiler is _profile or isinstance(profiler, (types.FunctionType, types.MethodType))


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Calls `watcher`, and the watchers of enclosing blocks, for the code that runs in this block.

    Garbage collection is off in the block, because finalizers and `gc.callbacks` are not part of the watched code.
    """
    collects = gc.isenabled()
    gc.disable()
    before = sys.getprofile(), sys.gettrace()
    off, _state.off = _state.off, 0
    closed, _state.closed = _state.closed, None
    _state.watchers.append(_Active(watcher))
    try:
        _start(before[1])
        yield
    finally:
        _stop(*before)
        _state.watchers.pop()
        _state.off, _state.closed = off, closed
        if collects:
            gc.enable()


def _start(tracer: Any) -> None:
    if tracer is None or tracer is _trace_calls:
        sys.settrace(_trace_calls)
    sys.setprofile(_profile)


def _stop(profiler: Any, tracer: Any) -> None:
    sys.setprofile(profiler)
    if sys.gettrace() is _trace_calls and tracer is not _trace_calls:
        sys.settrace(tracer)


@contextmanager
def pause_watching() -> Iterator[None]:
    """Does not watch the code that runs in this block."""
    if not _state.watchers or _state.off:
        yield
        return
    profiler, tracer = sys.getprofile(), sys.gettrace()
    sys.setprofile(None)
    if tracer is _trace_calls:
        sys.settrace(None)
    _state.off += 1
    try:
        yield
    finally:
        _state.off -= 1
        if tracer is _trace_calls:
            sys.settrace(tracer)
        sys.setprofile(profiler)


class NoWatchInTorch(TorchFunctionMode):
    """Does not watch the code that runs inside torch's own functions."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        calls_user = any(map(effects.belongs_to_user, types))
        with nullcontext() if calls_user else pause_watching():
            return grouped_products.run(function, args, kwargs or {})


def _kind(frame: types.FrameType) -> int:
    code = frame.f_code
    known = _KIND_BY_CODE.get(id(code))
    if known is None:
        known = _KIND_BY_CODE[id(code)] = code, _classify(code, frame.f_globals)
    return known[1]


def _classify(code: types.CodeType, namespace: dict[str, Any]) -> int:
    name = namespace.get("__name__")
    if str(name).startswith(_CLOSED_MODULES):
        return _CLOSED
    if effects.is_library(name) or code.co_filename.startswith(("<autofuse", "<eval_with_key", "<frozen")):
        return _LIBRARY if not effects.is_standard(name) else _STANDARD
    tuples = str(name).startswith("namedtuple_") and code.co_filename == "<string>"  # generated by Python
    return _STANDARD if tuples or effects.is_standard(name) else _USER


def is_user_code(frame: types.FrameType) -> bool:
    """Returns whether a frame runs the user's code."""
    return _kind(frame) == _USER


def _trace_calls(frame: types.FrameType, event: str, _: Any) -> Any:
    return _trace_lines if event == "call" and _kind(frame) == _USER else None


def _trace_lines(frame: types.FrameType, event: str, _: Any) -> Any:
    if event == "line":
        for active in _state.watchers:
            ran = active.ran.get((active.watcher.paused, *_key(frame)))
            if ran is not None and ran.lines is not None and frame.f_lineno not in ran.lines:
                ran.lines.add(frame.f_lineno)
                active.watcher.on_line(ran, frame.f_lineno)
    return _trace_lines


def _profile(frame: types.FrameType, event: str, argument: Any) -> None:
    if _state.closed is not None:
        if event == "return" and frame is _state.closed:
            _state.closed = None
        return
    if event == "call":
        kind = _kind(frame)
        if kind == _CLOSED or frame.f_code.co_name == "_find_and_load" and kind == _STANDARD:
            _state.closed = frame
            return
        if kind == _USER:
            _enter(frame)
        elif _is_called_by_user(frame):
            _handle_library_call(frame)
        elif kind == _STANDARD and effects.emits_log_record(frame.f_globals, frame.f_code.co_name):
            _report_effect("logging")
    elif event == "c_call" and _kind(frame) == _USER:
        _handle_builtin_call(argument)


def _is_called_by_user(frame: types.FrameType) -> bool:
    """Returns whether the user's code calls this function, also through a decorator of torch's own functions."""
    caller = frame.f_back
    while caller is not None and str(caller.f_globals.get("__name__")).startswith(_DECORATORS):
        caller = caller.f_back
    return caller is not None and _kind(caller) == _USER


def _key(frame: types.FrameType) -> tuple[int, ...]:
    code = frame.f_code
    if not code.co_freevars:
        return (id(code),)
    local = frame.f_locals
    return (id(code), *(id(local.get(name)) for name in code.co_freevars))


def _enter(frame: types.FrameType) -> None:
    key = _key(frame)
    code = frame.f_code
    resumed = bool(code.co_flags & _GENERATORS) and frame.f_lasti > _start_offset(code)
    for active in _state.watchers:
        if resumed and id(code) not in active.generators:
            active.watcher.on_effect(f"the generator {code.co_name}")
        active.generators.add(id(code))
        run_key = (active.watcher.paused, *key)
        if run_key not in active.ran:
            active.ran[run_key] = ran = _execution_of(frame)
            ran.paused = active.watcher.paused
            active.watcher.on_function(ran)
            if ran.lines is None:
                active.watcher.on_line(ran, 0)


@functools.cache
def _start_offset(code: types.CodeType) -> int:
    """Returns the offset at which a generator starts to run."""
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "RESUME"), 0)


def _execution_of(frame: types.FrameType) -> Execution:
    code, local = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    arguments = {name: local[name] for name in code.co_varnames[:count] if name in local}
    free = {name: local[name] for name in code.co_freevars if name in local}
    return Execution(code, frame.f_globals, arguments, free, set() if sys.gettrace() is _trace_calls else None)


def _handle_library_call(frame: types.FrameType) -> None:
    """Handles a call from the user's code to a function of Python or of a library."""
    name, namespace = frame.f_code.co_name, frame.f_globals
    if namespace.get("__name__") in ("os", "collections.abc") and _handle_environment_call(frame):
        return
    own = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    what = effects.effect_of_function(namespace, own if own.startswith("finalize.") else name)
    if what:
        _report_effect(what)
    elif effects.top_package(namespace.get("__name__")) == "torch" and effects.is_state_query(name):
        _handle_torch_query(frame)


def _handle_environment_call(frame: types.FrameType) -> bool:
    """Returns whether the call reads or writes the environment, and calls the watchers if so."""
    local, environ, name = frame.f_locals, sys.modules["os"].environ, frame.f_code.co_name
    if name != "getenv" and local.get("self") is not environ:
        return False
    if name in _WRITES_ENVIRONMENT:
        _report_effect(f"os.environ.{name}")
        return True
    for active in list(_state.watchers):
        active.watcher.on_environment_read(local.get("key"))
    return True


def _handle_torch_query(frame: types.FrameType) -> None:
    code = frame.f_code
    if code.co_argcount or code.co_kwonlyargcount:
        return
    function = frame.f_globals.get(code.co_name)
    if getattr(function, "__code__", None) is code:
        for active in list(_state.watchers):
            active.watcher.on_torch_query(function)  # type: ignore[arg-type]


def _handle_builtin_call(function: Any) -> None:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, contextvars.ContextVar) and is_idle_collector(owner):
        for active in list(_state.watchers):
            active.watcher.on_idle_variable(owner)
        return
    what = effects.effect_of_builtin(function)
    if what:
        _report_effect(what)
        return
    name = getattr(function, "__name__", "")
    if name == "get" and type(function.__self__).__name__ == "ContextVar":
        for active in list(_state.watchers):
            active.watcher.on_context_variable(function.__self__)
    elif effects.is_state_query(name) and effects.top_package(getattr(function, "__module__", "")) == "torch":
        for active in list(_state.watchers):
            active.watcher.on_torch_query(function)


def _report_effect(what: str) -> None:
    for active in list(_state.watchers):
        active.watcher.on_effect(what)
