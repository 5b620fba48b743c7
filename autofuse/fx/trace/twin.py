"""Makes twins: copies of modules that run without any effect on the user's modules.

A twin has the module's own code, fake parameters and buffers, and no hooks. Running it computes shapes and dtypes. It
runs no hook, draws no random number and writes to nothing of the user's. While a recorder listens, a twin also reports
which of its attributes are read and which of its children are called. This file does not use graphs.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.contents import empty_like, is_sentinel, keeps_in_slots, state_of, store_attributes
from autofuse.fx.trace.derived_class import TWIN, derived_class, update_names
from autofuse.fx.trace.own_forward import ENTRY
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.special_names import is_special
from autofuse.fx.trace.user_code import is_user_code
from autofuse.fx.trace.wrappers import PassThrough, wrapped_name

SCALARS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
)
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_CALLABLES = (types.MethodType, types.FunctionType, types.BuiltinFunctionType, functools.partial)
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial)

_HOOKS = frozenset(k for k in vars(nn.Module()) if "hook" in k and isinstance(vars(nn.Module())[k], dict))
_STATE = frozenset(vars(nn.Module()))
_TABLES = _HOOKS | {"_parameters", "_buffers", "_modules"}  # loops over children and parameters read these
_ORIGINAL = "__autofuse_original"  # the attribute in which a twin keeps a weak reference to its module
_NOT_COPIED = (ENTRY, _ORIGINAL, "_compiled_call_impl")  # a copy of the compiled call would run the user's module
_ABSENT = object()
_COMPOSED = "__composable_api"  # prefix of the attributes that torch.distributed sets on a user's module
MACHINERY = (_STATE | {*dir(nn.Module), ENTRY}) - {"training"}  # attributes of nn.Module's or autofuse's own code


_COPIES: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()  # copies of modules that report to no listener


class Listener(Protocol):
    """The part of a recorder that twins know. While it is paused, only reads and stores are reported."""

    paused: bool

    def on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def on_read(self, owner: Any, name: str, value: Any) -> Any: ...
    def on_read_dict(self, owner: Any, inside: dict[str, Any], code: types.CodeType) -> None: ...
    def on_read_table(self, owner: nn.Module, name: str) -> None: ...
    def on_missing(self, owner: Any, name: str) -> None: ...
    def on_machinery(self, owner: Any, name: str) -> None: ...
    def on_store(self, owner: Any, name: str, value: Any) -> None: ...
    def on_unrecorded_store(self, owner: Any, name: str, value: Any) -> None: ...  # while it is paused


IntegersRead = set[tuple[int, str]]  # id of a twin, name of its attribute
EVERY_NAME = (0, "*")  # stands for all integers of all modules


class _Active(threading.local):
    listener: Listener | None = None
    integers: IntegersRead | None = None  # the integers of twins that traces read; None notes nothing


active = _Active()


@contextmanager
def integers_noted(integers: IntegersRead) -> Iterator[None]:
    """In the block, `integers` grows with each integer on which a trace may depend.

    It does not grow with those that a recorder attributes to the call of a child.
    """
    before, active.integers = active.integers, integers
    try:
        yield
    finally:
        active.integers = before


def note_integers(integers: Iterable[tuple[int, str]]) -> None:
    """Note integers on which the current trace depends."""
    if active.integers is not None:
        active.integers.update(integers)


class Twins:
    """Makes and keeps the twins of one capture. An object that is shared has one twin, which is shared too.

    Args:
        tensor: Makes the twin of a tensor.
        watched: Whether the twins report to the active listener.
        deep: Whether objects in attributes of objects are copied too.
    """

    def __init__(self, tensor: Callable[[Tensor], Tensor], watched: bool = True, deep: bool = False) -> None:
        self._tensor, self._watched, self._deep = tensor, watched, deep
        self._memo: dict[int, tuple[Any, Any]] = {}  # id -> the original, so that the id stays its own, and the twin
        self.originals: dict[int, nn.Module] = {}  # id of a twin module -> the module
        self._objects: dict[int, tuple[Any, Any]] = {}  # id of the twin of an object -> the object and the twin
        self.functions: dict[int, types.FunctionType] = {}  # id of a copied function -> the user's function

    def of(self, value: Any) -> Any:
        """Returns the twin of any value."""
        if isinstance(value, SCALARS) or value is ...:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)][1]
        twin = self._make(value)
        self._memo[id(value)] = (value, twin)
        return twin

    def twins(self) -> list[Any]:
        """Returns all twins made so far."""
        return [twin for _, twin in self._memo.values()]

    def objects(self) -> list[Any]:
        """Returns the twins of objects that are neither tensors, nor modules, nor containers."""
        return [twin for _, twin in self._objects.values()]

    def changed_attributes(self, twin: Any) -> Iterator[tuple[str, Any, Any]]:
        """Yields the name, the value and the expected value of each attribute of a twin that its original lacks.

        Attributes that are not the twins of the original's are among them.
        """
        original = self.originals[id(twin)] if id(twin) in self.originals else self._objects[id(twin)][0]
        before = _attributes(original)
        for name, value in _attributes(twin).items():
            held = before.get(name, _ABSENT)
            if not self._stands_for(value, held):
                yield name, value, self._memo[id(held)][1] if id(held) in self._memo else held

    def attributes_of_original(self, value: Any) -> dict[str, Any] | None:
        """Returns the attributes of the original of a twin, or None for any other value."""
        if id(value) in self.originals:
            return _attributes(self.originals[id(value)])
        return _attributes(self._source(value)) if id(value) in self._objects else None

    def holds_same(self, value: Any, held: Any) -> bool:
        """Returns whether a value of a twin has the content of the original's value."""
        if type(value) is not type(held) or type(value) not in (list, tuple, dict, set, collections.deque):
            return self._stands_for(value, held)
        if isinstance(value, set):
            return len(value) == len(held) and all(any(self._stands_for(v, h) for h in held) for v in value)
        if isinstance(value, dict):
            return list(value) == list(held) and all(map(self.holds_same, value.values(), held.values()))
        return len(value) == len(held) and all(map(self.holds_same, value, held))

    def _stands_for(self, value: Any, held: Any) -> bool:
        """Returns whether a value of a twin is the original's, or its twin, made here or in an earlier run."""
        if value is held or id(held) in self._memo and value is self._memo[id(held)][1]:
            return True
        if isinstance(value, SCALARS):
            return type(value) is type(held) and bool(value == held)
        value, held = self._source(value), self._source(held)
        # A twin of an earlier run has no known source.
        both = (is_twin(value) or is_twin(held)) and original_class(type(value)) is original_class(type(held))
        return value is held or both

    def _source(self, value: Any) -> Any:
        """Returns the object from which a twin was made, also if that was the twin of a twin."""
        while id(value) in self._objects:
            value = self._objects[id(value)][0]
        return value

    def _make(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, nn.Module):
            return copy.deepcopy(value) if isinstance(value, torch.jit.ScriptModule) else self._module(value)
        if isinstance(value, CONTAINERS):
            return self._container(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__))
        if type(value) is functools.partial:
            return functools.partial(self.of(value.func), *map(self.of, value.args), **self._values(value.keywords))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (*CONTAINERS, Tensor)):
            return getattr(self.of(value.__self__), value.__name__)  # `seen.append` would fill the user's list
        if isinstance(value, CODE) or effects.kind_of_state(value):
            return value
        if effects.is_array(value):
            return value.copy()
        if effects.random_state(value) is not None:
            return value.clone_state() if isinstance(value, torch.Generator) else copy.deepcopy(value)
        return self._weak(value) if type(value) is weakref.ref else self._object(value)

    def _weak(self, reference: weakref.ref[Any]) -> Any:
        referent = reference()
        return reference if referent is None else weakref.ref(self.of(referent))

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Copies a function that closes over modules or tensors, so that the copy closes over their twins."""
        cells = function.__closure__ or ()
        if not any(map(_holds_state, cells)):
            return function
        closure = tuple(types.CellType() for _ in cells)
        code, defaults = function.__code__, function.__defaults__
        twin = types.FunctionType(code, function.__globals__, function.__name__, defaults, closure)
        twin.__kwdefaults__ = function.__kwdefaults__
        self._memo[id(function)] = (function, twin)  # before its cells, which may refer back to it
        self.functions[id(twin)] = function
        for new, cell in zip(closure, cells, strict=True):
            new.cell_contents = self.of(cell.cell_contents) if _holds_state(cell) else cell.cell_contents
        return twin

    def _module(self, module: nn.Module) -> nn.Module:
        wraps = wrapped_name(module)
        cls = PassThrough if wraps else plain_class(type(module))
        twin: nn.Module = object.__new__(watched_module(cls) if self._watched else cls)
        self._memo[id(module)] = (module, twin)  # before its children, which may refer to their parent
        self.originals[id(twin)] = module
        if self._watched:
            twin.__dict__[_ORIGINAL] = weakref.ref(module)
        elif not self._deep:
            _COPIES[id(twin)] = twin
        for name, value in vars(module).items():
            if wraps and name not in _STATE or name.startswith(_COMPOSED) or name in _NOT_COPIED:
                continue  # the state of wrappers and of fully_shard cannot be copied
            twin.__dict__[name] = self._attribute(name, value)
        return twin

    def _attribute(self, name: str, value: Any) -> Any:
        if name in _HOOKS:
            return collections.OrderedDict()
        if name in ("_parameters", "_buffers", "_modules"):
            return type(value)((k, self.of(v)) for k, v in value.items())
        if self._watched and not isinstance(
            value,
            (*SCALARS, *CONTAINERS, *_CALLABLES, Tensor, nn.Module),
        ):
            return value  # copied when it is read, because it may refer to half of the program
        return self.of(value)

    def _container(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict or kind is collections.OrderedDict:
            return kind((k, self.of(v)) for k, v in value.items())
        if kind is tuple and value or kind in (list, set, frozenset):
            return kind(map(self.of, value))
        if isinstance(value, tuple):
            return kind(*map(self.of, value)) if hasattr(value, "_fields") else value
        twin = copy.copy(value)
        if isinstance(twin, dict):
            for k, v in twin.items():
                dict.__setitem__(twin, k, self.of(v))
        if hasattr(twin, "__dict__") and twin is not value:
            twin.__dict__.update(self._values(vars(value)))
        return twin

    def _values(self, values: dict[str, Any]) -> dict[str, Any]:
        return {k: self.of(v) for k, v in values.items()}

    def _object(self, value: Any) -> Any:
        """Returns a copy of an object such as a configuration, or the object itself if it has no attributes."""
        if is_sentinel(value):
            return value
        if self._deep and keeps_in_slots(value):
            return self._copy(value)
        slot_names = slots(value)
        if not (hasattr(value, "__dict__") or slot_names) or type(value).__module__.startswith("torch.distributed."):
            return value  # a process group, FSDP's state of a module, or an object without attributes
        cls = original_class(type(value))
        cls = watched_object(cls) if self._watched else cls
        try:  # the class's own __new__ may count, register or open something, so it is not called
            make = types.SimpleNamespace if issubclass(cls, types.SimpleNamespace) else object
            twin: Any = make.__new__(cls)
        except TypeError:  # the class is written in C, such as a file
            return value
        if not (hasattr(twin, "__dict__") or slot_names):
            return value
        self._memo[id(value)] = self._objects[id(twin)] = (value, twin)
        for name in (n for n in slot_names if hasattr(value, n)):
            object.__setattr__(twin, name, self.of(getattr(value, name)))
        inside = getattr(value, "__dict__", {})
        if self._deep:
            inside = self._values(inside)
        elif self._watched:
            inside = {k: self._attribute(k, v) for k, v in inside.items()}
        if inside:
            twin.__dict__.update(inside)
        return twin

    def _copy(self, value: Any) -> Any:
        twin = empty_like(value)
        self._memo[id(value)] = (value, twin)
        attributes = state_of(value).attributes
        store_attributes(twin, list(attributes), [self.of(v) for v in attributes.values()])
        return twin


def _attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes of a module or an object, without those that torch or autofuse keeps in it."""
    inside = object.__getattribute__(value, "__dict__") if hasattr(value, "__dict__") else {}
    hidden = {*_NOT_COPIED, *(_STATE if isinstance(value, nn.Module) else ())}
    return {n: v for n, v in inside.items() if n not in hidden} | {
        n: object.__getattribute__(value, n) for n in slots(value) if hasattr(value, n)
    }


def set_mode(twin: nn.Module, training: bool) -> None:
    """Sets training or evaluation mode on a twin and on the modules in the same mode. A frozen part keeps its mode."""
    before = twin.training
    for m in twin.modules():
        m.__dict__["training"] = training if m.training == before else m.training


def copied_object(value: Any) -> Any:
    """Returns a copy of an argument such as a key-value cache, with everything that it holds."""
    if is_sentinel(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # deepcopy refuses tensors that are not leaves of the autograd graph
        return Twins(_detached, watched=False, deep=True).of(value)


def _detached(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _holds_state(cell: types.CellType) -> bool:
    """Returns whether a closure's cell holds a module, a tensor, or a function or method that may refer to one."""
    try:
        content = cell.cell_contents
    except ValueError:  # not bound yet
        return False
    if isinstance(content, types.FunctionType):
        return content.__closure__ is not None and any(map(_holds_state, content.__closure__))
    if isinstance(content, types.MethodType):
        content = content.__self__
    return isinstance(content, (nn.Module, Tensor))


def plain_class(cls: type[nn.Module]) -> type[nn.Module]:
    """Returns the user's class of a module. torch's sharding puts a subclass in its place."""
    while cls.__name__.startswith("FSDP") and len(cls.__bases__) == 2 and cls.__module__.startswith("torch."):
        cls = cls.__bases__[1]
    return cls


def signature_of(forward: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a class's forward with `self` first, even if a decorator takes only `*args`."""
    signature = inspect.signature(forward, follow_wrapped=False)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        return signature
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[receiver, *parameters])


def is_twin(value: Any) -> bool:
    """Returns whether a value is a twin that reports to a listener."""
    return "_autofuse_twin" in vars(type(value))


def attributes_of_copies(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes that a copy of a module, and all copies of its class, may share with the user's modules.

    For other values it yields nothing. All copies count, because a watcher observes each function once.
    """
    if not isinstance(value, nn.Module) or _COPIES.get(id(value)) is not value:
        return
    for twin in [c for c in list(_COPIES.values()) if type(c) is type(value)]:
        for name, held in list(vars(twin).items()):
            if name not in _STATE and not isinstance(held, (*SCALARS, Tensor)):
                yield name, held


def original_class(cls: type) -> type:
    """Returns the class from which the twin's class `cls` was derived, or `cls` itself for any other class."""
    found: type = vars(cls).get(TWIN, cls)
    return found


_WATCHED: WeakKeyDictionary[type, type] = WeakKeyDictionary()


def watched_module(cls: type[nn.Module]) -> type[nn.Module]:
    """Returns a subclass of `cls` whose instances report reads, writes and calls to the listener."""
    if cls not in _WATCHED:
        equal = {} if cls.__eq__ is not object.__eq__ else {"__eq__": _equal, "__hash__": _hash}
        _WATCHED[cls] = _subclass(cls, {"__call__": _call, "__getattr__": _getattr_of(cls), **equal})
    update_names(_WATCHED[cls], cls)
    return _WATCHED[cls]


def watched_object(cls: type) -> type:
    """Does the same for a class that is not a module. Returns `cls` itself if it cannot be subclassed."""
    if cls not in _WATCHED:
        try:
            _WATCHED[cls] = _subclass(cls, {"__getattr__": _getattr_of(cls)} if hasattr(cls, "__getattr__") else {})
        except Exception:  # the class or its metaclass may raise anything
            return cls
    update_names(_WATCHED[cls], cls)
    return _WATCHED[cls]


def forget_classes() -> None:
    """Drops the classes of twins. `Attention.__subclasses__()` lists them while they exist."""
    _WATCHED.clear()


def _subclass(cls: type, methods: dict[str, Any]) -> Any:
    return derived_class(cls, {"__getattribute__": _getattribute_of(cls), "__setattr__": _setattr_of(cls), **methods})


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    listener = active.listener
    if listener is None or listener.paused:
        return self.forward(*args, **kwargs)
    return listener.on_call(self, args, kwargs)


def _module_of(module: object) -> object:
    found = object.__getattribute__(module, "__dict__").get(_ORIGINAL) if is_twin(module) else None
    return module if found is None else found()


def _equal(self: nn.Module, other: object) -> bool:
    """Makes a twin equal to its module, so that `self in MODULES` works."""
    return self is other or _module_of(self) is _module_of(other)


def _hash(self: nn.Module) -> int:
    return object.__hash__(_module_of(self))


def _getattribute_of(cls: type) -> Callable[[Any, str], Any]:
    plain: Any = cls.__getattribute__

    custom = hasattr(cls, "__getattr__")  # it reports what is missing

    def __getattribute__(self: Any, name: str) -> Any:
        try:
            value = plain(self, name)
        except AttributeError:
            if not custom and active.listener is not None and not active.listener.paused:
                active.listener.on_missing(self, name)
            raise
        if name == "__class__" and isinstance(value, type):
            return original_class(value)  # user code sees its own class here; type(self) returns the twin's
        listener = active.listener
        if name == "__dict__" and active.integers is not None and is_user_code(sys._getframe(1)):
            note_integers([EVERY_NAME])
        if name == "__dict__" and listener is not None and not listener.paused and is_user_code(sys._getframe(1)):
            listener.on_read_dict(self, value, sys._getframe(1).f_code)
        if listener is None or is_special(name):
            return value
        if name in _TABLES and not listener.paused and isinstance(self, nn.Module):
            listener.on_read_table(self, name)
        if name in MACHINERY and not _is_own(self, name):
            if name not in _STATE and not listener.paused:
                listener.on_machinery(self, name)
            return value
        return listener.on_read(self, name, value)

    return __getattribute__


def _is_own(owner: Any, name: str) -> bool:
    """Returns whether the user's attribute has the name of a torch method: `self.half = 0.5`."""
    return name not in _STATE and name in object.__getattribute__(owner, "__dict__")


def _getattr_of(cls: type) -> Callable[[Any, str], Any]:
    plain: Any = getattr(cls, "__getattr__", None)

    def __getattr__(self: Any, name: str) -> Any:
        listener = active.listener
        try:
            value = plain(self, name)
        except AttributeError:
            if listener is not None and not listener.paused:
                listener.on_missing(self, name)
            raise
        return value if listener is None else listener.on_read(self, name, value)

    return __getattr__


def _setattr_of(cls: type) -> Callable[[Any, str, Any], None]:
    plain: Any = cls.__setattr__

    def __setattr__(self: Any, name: str, value: Any) -> None:
        listener = active.listener
        if listener is not None:
            (listener.on_store if not listener.paused else listener.on_unrecorded_store)(self, name, value)
        plain(self, name, value)

    return __setattr__
