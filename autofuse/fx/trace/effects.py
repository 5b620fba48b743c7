"""Decides what else a call by the user's code does: nothing, a query of torch's state, or a side effect.

The called function decides. A call is allowed only if it is known to have no side effect. A print, a lock, a clock or a
file is refused before it runs. This file also recognises values with a state of their own: files, locks, iterators and
random generators.
"""

from __future__ import annotations

import collections.abc
import contextvars
import ctypes
import functools
import io
import itertools
import logging
import mmap
import queue
import random
import socket
import sys
import threading
import types
from typing import Any

import torch

# Modules of Python whose functions only compute. Any other module is refused.
_PURE = frozenset({
    "_abc", "_bisect", "_collections", "_collections_abc", "_functools", "_heapq", "_operator", "_sre", "_statistics",
    "_string", "_struct", "_warnings", "_weakref", "_weakrefset", "abc", "bisect", "cmath", "collections",
    "collections.abc", "colorsys", "contextlib", "copy", "copyreg", "dataclasses", "decimal", "_decimal", "difflib",
    "enum", "fnmatch", "fractions", "functools", "heapq", "inspect", "ipaddress", "itertools", "keyword", "math",
    "numbers", "operator", "posixpath", "pprint", "re", "re._compiler", "re._parser", "reprlib", "statistics", "string",
    "struct", "textwrap", "types", "typing", "warnings", "weakref", "array", "importlib._bootstrap", "ast", "dis",
    "_frozen_importlib", "importlib", "json", "json.encoder", "json.decoder", "zlib", "hashlib",
})  # fmt: skip
_BUILTINS_WITH_EFFECTS = frozenset({
    "print", "open", "input", "exec", "eval", "compile", "breakpoint", "exit", "quit", "globals",
    "__import__",
})  # fmt: skip
_REFLECTIVE = frozenset({  # what they read cannot be guarded
    ("importlib", "import_module"), ("importlib", "reload"), ("inspect", "currentframe"), ("inspect", "stack"),
    ("inspect", "trace"), ("inspect", "getouterframes"), ("inspect", "getframeinfo"), ("inspect", "getclosurevars"),
    ("inspect", "getattr_static"), ("inspect", "getmodule"), ("inspect", "getmembers"),
    ("inspect", "getmembers_static"), ("inspect", "classify_class_attrs"), ("inspect", "get_annotations"),
    ("inspect", "getdoc"), ("inspect", "getcomments"), ("inspect", "getsource"), ("inspect", "getsourcelines"),
    ("inspect", "getsourcefile"), ("inspect", "getfile"), ("inspect", "findsource"), ("inspect", "unwrap"),
    ("typing", "get_type_hints"), ("weakref", "getweakrefcount"), ("weakref", "getweakrefs"),
    ("_weakref", "getweakrefcount"), ("_weakref", "getweakrefs"),
})  # fmt: skip
_IMPURE = frozenset({  # functions of the modules above that warn, store something, or set a state of Python
    ("warnings", "warn"), ("warnings", "warn_explicit"), ("warnings", "simplefilter"), ("warnings", "filterwarnings"),
    ("warnings", "resetwarnings"), ("warnings", "showwarning"), ("_warnings", "warn"), ("_warnings", "warn_explicit"),
    ("weakref", "finalize.__init__"), ("decimal", "setcontext"), ("decimal", "getcontext"), ("decimal", "localcontext"),
})  # fmt: skip
# Modules of Python with classes, written in C, whose methods change nothing but containers. A trace compares these.
_KNOWN_CLASSES = frozenset({
    "builtins", "_collections", "collections", "re", "_sre", "decimal", "datetime", "functools", "types", "_struct",
    "weakref", "_weakref", "operator", "array", "enum", "contextvars", "_contextvars", "typing", "itertools", "uuid",
    "_functools", "_operator", "_abc", "fractions", "pathlib", "inspect", "string",
})  # fmt: skip
_DIGESTS = frozenset({"digest", "hexdigest", "copy"})
_WITHOUT_LASTING_EFFECT = (
    "random.", "logging.", "ContextVar.", "time.time", "time.sleep", "time.perf_counter", "time.monotonic",
    "time.process_time", "datetime.", "uuid.", "importlib.", "platform.", "sys.", "inspect.", "gc.", "exec", "eval",
    "compile", "globals", "__import__", "typing.", "_weakref.", "weakref.getweakref",
)  # fmt: skip
_QUERIES = ("is_", "are_", "get_", "_is_", "_get_", "has_")
# Modules of torch whose functions and methods change an object, start something or write a file.
_TORCH_WITH_EFFECTS = (
    "torch.futures", "torch.monitor", "torch.optim", "torch.hub", "torch.package", "torch.multiprocessing",
    "torch.utils.tensorboard", "torch.amp.grad_scaler", "torch.distributed.rpc", "torch.utils.cpp_extension",
)  # fmt: skip
_CALL_BACK = frozenset({"apply_", "map_", "map2_"})  # they read memory, which a stand-in for a tensor does not have
_OF_GENERATOR = ("get_", "initial_seed", "clone_state")  # methods that only read
_SETTERS = ("set_", "_set_", "manual_seed", "seed", "fork_rng", "save", "empty_cache", "synchronize", "register_")
_LIBRARIES = frozenset({"numpy", "einops", "einx", "opt_einsum", "triton", "sympy", "typing_extensions"})
_STATEFUL: tuple[type, ...] = (
    io.IOBase, socket.socket, queue.Queue, queue.SimpleQueue, threading.Thread, threading.Condition, threading.Event,
    threading.Semaphore, threading.Barrier, type(threading.Lock()), type(threading.RLock()), types.GeneratorType,
    types.CoroutineType, types.AsyncGeneratorType, itertools.count, itertools.cycle, itertools.repeat, itertools.chain,
)  # fmt: skip
_RAW_MEMORY = (memoryview, mmap.mmap, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)


def top_package(module: object) -> str:
    """The first part of a module's name."""
    return str(module).partition(".")[0]


def is_library(name: object) -> bool:
    """Whether a namespace belongs to torch, or to a library that only computes on tensors and arrays."""
    return (
        top_package(name) in _LIBRARIES
        or top_package(name) == "torch"
        or top_package(name) == "autofuse"
        and ".demo" not in str(name)
    )


def is_standard(name: object) -> bool:
    """Whether a namespace belongs to Python's standard library."""
    return top_package(name) in sys.stdlib_module_names and name != "__main__"


def is_pure_module(name: object) -> bool:
    """Whether a module of Python's only computes, so that its functions and methods may run in a trace."""
    return str(name) in _PURE


def belongs_to_user(cls: type) -> bool:
    """Whether a class belongs neither to Python nor to a library that only computes."""
    return not is_library(cls.__module__) and not is_standard(cls.__module__)


def effect_of_function(namespace: dict[str, Any], name: str) -> str:
    """The side effect of a function that is written in Python and belongs to Python or torch.

    Args:
        namespace: the globals of the function.
        name: the name of the function; for a method, with the name of its class.

    Returns:
        The name of the side effect; "" if there is none.
    """
    module = str(namespace.get("__name__"))
    if is_standard(module):
        pure = module in _PURE and (module, name) not in _REFLECTIVE | _IMPURE
        return "" if pure else f"{module}.{name}"
    if top_package(module) != "torch":
        return ""
    if module.startswith("torch.distributed.distributed_c10d") and not name.startswith(_QUERIES):
        return f"torch.distributed.{name}"
    if module.startswith(_TORCH_WITH_EFFECTS) and not name.startswith(("__", *_QUERIES)):
        return f"{module}.{name}"
    return f"{module}.{name}" if module.startswith(("torch.random", "torch.serialization")) else ""


def effect_of_builtin(function: Any) -> str:
    """The name of the side effect of a function that is written in C; "" if it has none."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    module = str(getattr(function, "__module__", None) or getattr(type(owner), "__module__", ""))
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    elif owner is not None and not isinstance(owner, type):
        return _effect_of_method(owner, name)
    if module == "builtins":
        return name if name in _BUILTINS_WITH_EFFECTS else ""
    if module == "datetime" and name in ("now", "today", "utcnow"):
        return f"datetime.{name}"
    if top_package(module) == "torch":
        return f"torch.{name}" if name.startswith(_SETTERS) and not name.startswith("_set_grad") else ""
    if is_standard(module):
        pure = (module in _PURE or module == "datetime") and (module, name) not in _REFLECTIVE | _IMPURE
        return "" if pure else f"{module}.{name}"
    return ""


def _effect_of_method(owner: Any, name: str) -> str:
    if isinstance(owner, torch.Tensor):
        return name if name in _CALL_BACK else ""
    if isinstance(owner, contextvars.ContextVar):
        return "" if name == "get" else f"ContextVar.{name}"
    if isinstance(owner, random.Random) or isinstance(owner, torch.Generator) and not name.startswith(_OF_GENERATOR):
        return f"random.{name}"
    if type(owner).__module__.startswith("pybind11"):  # a method of a class of torch in C++, such as a Future
        return "" if name.startswith(_QUERIES) else name
    if name in ("__exit__", "release") and hasattr(owner, "acquire"):
        return ""  # a refusal here would leave the lock locked; a read of the lock was refused before
    if isinstance(owner, _STATEFUL) or type(owner).__module__ in ("_random", "_io", "_thread", "_socket", "_queue"):
        return f"{type(owner).__qualname__}.{name}"
    module = type(owner).__module__
    if is_standard(module) and module not in _KNOWN_CLASSES and name not in _DIGESTS:
        return f"{type(owner).__qualname__}.{name}"  # for example a hash, a compressor or a cursor
    return ""


def has_lasting_effect(what: str) -> bool:
    """Whether an effect of that name remains after the run.

    Reading a clock changes nothing, generators are restored, and context variables are set in a copied context. A log
    line
    is reported under another name, at the call that passes the record to the handlers.
    """
    return not what.startswith(_WITHOUT_LASTING_EFFECT)


def is_lock(value: Any) -> bool:
    """Whether a value is a lock, a semaphore or a condition."""
    return isinstance(value, _STATEFUL) and hasattr(value, "acquire") and hasattr(value, "release")


def changes_when_read(value: Any) -> bool:
    """Whether code that names a value may change it without a call: an iterator, memory, a partial of `print`."""
    return isinstance(value, (collections.abc.Iterator, functools.partial, *_RAW_MEMORY))


def is_state_query(name: str) -> bool:
    """Whether a function of torch with that name returns a state of torch."""
    return name.startswith(_QUERIES) or name.endswith("_enabled") or name == "initial_seed"


def kind_of_state(value: Any) -> str:
    """The kind of a value whose state cannot be compared or restored: a file, a lock, an iterator; "" for any other."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return ""
    if not isinstance(value, type) and has_finalizer(type(value)):
        return f"{type(value).__qualname__} with a finalizer"
    if isinstance(value, (*_STATEFUL, *_RAW_MEMORY)):
        return type(value).__qualname__
    if prints_unseen(value):
        return f"partial of {effect_of_builtin(value.func)}"
    if isinstance(value, collections.abc.Iterator):
        return "iterator"
    if type(value).__module__.startswith("multiprocessing") and not isinstance(value, type):
        return type(value).__qualname__
    return ""


def has_finalizer(cls: type) -> bool:
    """Whether objects of a class run code when they are freed. A copy would run it too: it may close a file."""
    return hasattr(cls, "__del__")


def has_finalizers(model: torch.nn.Module) -> str:
    """The class of the first module below `model`, itself included, that has a finalizer; "" if there is none."""
    return next((type(m).__qualname__ for m in model.modules() if has_finalizer(type(m))), "")


def prints_unseen(value: Any) -> bool:
    """Whether a value is a partial of a function with a side effect that is written in C. No event shows its call."""
    return isinstance(value, functools.partial) and bool(effect_of_builtin(value.func))


def random_state(value: Any) -> Any:
    """The state of a random generator, in a form that can be compared; None for any other value."""
    if isinstance(value, random.Random):
        return value.getstate() if type(value) is not random.SystemRandom else None
    if isinstance(value, torch.Generator):
        return value.get_state()
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    return repr(value.get_state(legacy=False)) if isinstance(value, numpy.random.RandomState) else None


def is_logger(value: Any) -> bool:
    """Whether a value writes a log."""
    return isinstance(value, (logging.Logger, logging.LoggerAdapter))


def emits_log_record(namespace: dict[str, Any], name: str) -> bool:
    """Whether a function of `logging` is the one that passes a record to the handlers."""
    return namespace.get("__name__") == "logging" and name in ("callHandlers", "lastResort")


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
