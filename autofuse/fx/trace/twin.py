"""A stand-in for a module that can be run without anyone noticing.

A twin has the module's own code, fake parameters and buffers, and no hooks: running it computes shapes and dtypes,
fires nothing, draws nothing, writes nothing that is the user's. While a recorder listens, a twin also tells which of
its attributes are read and which of its children are called. Knows nothing of graphs.
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
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.contents import empty_like, is_sentinel, keeps_in_slots, state_of, store_attributes
from autofuse.fx.trace.derived_class import TWIN, derived_class
from autofuse.fx.trace.own_forward import ENTRY
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.user_code import is_users_code
from autofuse.fx.trace.wrappers import PassThrough, held

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
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial)

_HOOKS = frozenset(k for k in vars(nn.Module()) if "hook" in k and isinstance(vars(nn.Module())[k], dict))
_STATE = frozenset(vars(nn.Module()))
_TABLES = _HOOKS | {"_parameters", "_buffers", "_modules"}  # what loops over children and parameters go through
_ORIGINAL = "__autofuse_original"  # under which a twin keeps a weak reference to its module
_NOT_COPIED = (ENTRY, _ORIGINAL, "_compiled_call_impl")  # what Module.compile makes runs the module that it is made of
_COMPOSED = "__composable_api"  # how torch.distributed calls what it keeps on a user's module
MACHINERY = (_STATE | {*dir(nn.Module), ENTRY}) - {"training"}  # names that are torch's own business, or autofuse's


class Listener(Protocol):
    """A recorder, as far as twins know it. It hears nothing while it is paused."""

    paused: bool

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def read(self, owner: Any, name: str, value: Any) -> Any: ...
    def read_dict(self, owner: Any, inside: dict[str, Any], code: types.CodeType) -> None: ...
    def read_table(self, owner: nn.Module, name: str) -> None: ...
    def missing(self, owner: Any, name: str) -> None: ...
    def stored(self, owner: Any, name: str, value: Any) -> None: ...


class _Active(threading.local):
    listener: Listener | None = None


active = _Active()


class Twins:
    """Twins of everything that one capture touches: shared things stay shared among them.

    `tensor` makes the twin of a tensor. `watched` twins report to the active listener. What objects hold is copied too
    where they are `deep`; else only they are.
    """

    def __init__(self, tensor: Callable[[Tensor], Tensor], watched: bool = True, deep: bool = False) -> None:
        self._tensor, self._watched, self._deep = tensor, watched, deep
        self._memo: dict[int, tuple[Any, Any]] = {}  # id -> (original, kept alive; twin)
        self.originals: dict[int, nn.Module] = {}  # id of a twin module -> the module
        self.functions: dict[int, types.FunctionType] = {}  # id of a function that was made anew -> the user's

    def of(self, value: Any) -> Any:
        """The twin of anything."""
        if isinstance(value, SCALARS) or value is ...:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)][1]
        made = self._made(value)
        self._memo[id(value)] = (value, made)
        return made

    def twins(self) -> list[Any]:
        """Every twin that was made."""
        return [made for _, made in self._memo.values()]

    def _made(self, value: Any) -> Any:
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
        """A function that closes over modules or tensors, `lambda x: self.proj(x)`, made to close over their twins."""
        cells = function.__closure__ or ()
        if not any(map(_holds_state, cells)):
            return function
        closure = tuple(types.CellType() for _ in cells)
        code, defaults = function.__code__, function.__defaults__
        made = types.FunctionType(code, function.__globals__, function.__name__, defaults, closure)
        made.__kwdefaults__ = function.__kwdefaults__
        self._memo[id(function)] = (function, made)  # first: it may close over what holds it
        self.functions[id(made)] = function
        for new, cell in zip(closure, cells, strict=True):
            new.cell_contents = self.of(cell.cell_contents) if _holds_state(cell) else cell.cell_contents
        return made

    def _module(self, module: nn.Module) -> nn.Module:
        wraps = held(module)
        cls = PassThrough if wraps else plain_class(type(module))
        twin: nn.Module = object.__new__(watched_module(cls) if self._watched else cls)
        self._memo[id(module)] = (module, twin)  # first: children may refer to their parent
        self.originals[id(twin)] = module
        if self._watched:
            twin.__dict__[_ORIGINAL] = weakref.ref(module)
        for name, value in vars(module).items():
            if wraps and name not in _STATE or name.startswith(_COMPOSED) or name in _NOT_COPIED:
                continue  # what a wrapper keeps for its own work, and fully_shard, which cannot be copied
            twin.__dict__[name] = self._attribute(name, value)
        return twin

    def _attribute(self, name: str, value: Any) -> Any:
        if name in _HOOKS:
            return collections.OrderedDict()
        if name in ("_parameters", "_buffers", "_modules"):
            return type(value)((k, self.of(v)) for k, v in value.items())
        if self._watched and not isinstance(
            value,
            (*SCALARS, *CONTAINERS, Tensor, nn.Module, types.MethodType, types.FunctionType, functools.partial),
        ):
            return value  # copied when it is read: it may reach half of the program
        return self.of(value)

    def _container(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict or kind is collections.OrderedDict:
            return kind((k, self.of(v)) for k, v in value.items())
        if kind is tuple and value or kind in (list, set, frozenset):
            return kind(map(self.of, value))
        if isinstance(value, tuple):
            return kind(*map(self.of, value)) if hasattr(value, "_fields") else value
        made = copy.copy(value)
        if isinstance(made, dict):
            for k, v in made.items():
                dict.__setitem__(made, k, self.of(v))
        if hasattr(made, "__dict__") and made is not value:
            made.__dict__.update(self._values(vars(value)))
        return made

    def _values(self, values: dict[str, Any]) -> dict[str, Any]:
        return {k: self.of(v) for k, v in values.items()}

    def _object(self, value: Any) -> Any:
        """A copy of a configuration, a cache, ...; the thing itself where it has no attributes to copy."""
        if is_sentinel(value):
            return value
        if self._deep and keeps_in_slots(value):
            return self._copy(value)
        kept = slots(value)
        if not (hasattr(value, "__dict__") or kept) or type(value).__module__.startswith("torch.distributed."):
            return value  # process groups, what FSDP keeps of a module
        cls = original_class(type(value))
        cls = watched_object(cls) if self._watched else cls
        try:  # not by the class's own __new__, which may count, register or open something
            make = types.SimpleNamespace if issubclass(cls, types.SimpleNamespace) else object
            made: Any = make.__new__(cls)
        except TypeError:  # made in C, as a file is
            return value
        if not (hasattr(made, "__dict__") or kept):
            return value
        self._memo[id(value)] = (value, made)
        for name in (n for n in kept if hasattr(value, n)):
            object.__setattr__(made, name, self.of(getattr(value, name)))
        inside = getattr(value, "__dict__", {})
        if self._deep:
            inside = self._values(inside)
        elif self._watched:
            inside = {k: self._attribute(k, v) for k, v in inside.items()}
        if inside:
            made.__dict__.update(inside)
        return made

    def _copy(self, value: Any) -> Any:
        made = empty_like(value)
        self._memo[id(value)] = (value, made)
        attributes = state_of(value).attributes
        store_attributes(made, list(attributes), [self.of(v) for v in attributes.values()])
        return made


def set_mode(twin: nn.Module, training: bool) -> None:
    """Train or eval, for the twin and what follows its mode; what is frozen apart stays so."""
    before = twin.training
    for m in twin.modules():
        m.__dict__["training"] = training if m.training == before else m.training


def copied_object(value: Any) -> Any:
    """A copy of an argument that is neither a tensor nor a container: of a key-value cache, say, with all it holds."""
    if is_sentinel(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # it holds results of a run, which deepcopy refuses
        return Twins(_detached, watched=False, deep=True).of(value)


def _detached(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _holds_state(cell: types.CellType) -> bool:
    """Whether what a function closes over is a module, a tensor, or a function or method that may hold one."""
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
    """The user's own class of a module that torch sharded."""
    while cls.__name__.startswith("FSDP") and len(cls.__bases__) == 2 and cls.__module__.startswith("torch."):
        cls = cls.__bases__[1]
    return cls


def signature_of(forward: Callable[..., Any]) -> inspect.Signature:
    """What a forward of a class takes, `self` first, also where a decorator takes `*args` for everything."""
    signature = inspect.signature(forward, follow_wrapped=False)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        return signature
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[receiver, *parameters])


def is_twin(value: Any) -> bool:
    """Whether a value was made for a run that is watched."""
    return "_autofuse_twin" in vars(type(value))


def original_class(cls: type) -> type:
    """The class whose twin `cls` is; `cls` itself where it is none."""
    found: type = vars(cls).get(TWIN, cls)
    return found


_WATCHED: WeakKeyDictionary[type, type] = WeakKeyDictionary()


def watched_module(cls: type[nn.Module]) -> type[nn.Module]:
    """A subclass of `cls` whose instances tell what happens to them."""
    if cls not in _WATCHED:
        equal = {} if cls.__eq__ is not object.__eq__ else {"__eq__": _equal, "__hash__": _hash}
        _WATCHED[cls] = _subclass(cls, {"__call__": _call, "__getattr__": _missing(cls), **equal})
    return _WATCHED[cls]


def watched_object(cls: type) -> type:
    """The same for a class that is no module; `cls` itself where it cannot be derived from."""
    if cls not in _WATCHED:
        try:
            _WATCHED[cls] = _subclass(cls, {"__getattr__": _missing(cls)} if hasattr(cls, "__getattr__") else {})
        except Exception:  # it, or its metaclass, says no in a way of its own
            return cls
    return _WATCHED[cls]


def forget_classes() -> None:
    """Let the classes of twins go: `Attention.__subclasses__()` tells of them for as long as there are any."""
    _WATCHED.clear()


def _subclass(cls: type, methods: dict[str, Any]) -> Any:
    return derived_class(cls, {"__getattribute__": _read(cls), "__setattr__": _store(cls), **methods})


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    listener = active.listener
    if listener is None or listener.paused:
        return self.forward(*args, **kwargs)
    return listener.called(self, args, kwargs)


def _itself(module: object) -> object:
    found = object.__getattribute__(module, "__dict__").get(_ORIGINAL) if is_twin(module) else None
    return module if found is None else found()


def _equal(self: nn.Module, other: object) -> bool:
    """A twin is found where its module is: `self in MODULES`."""
    return self is other or _itself(self) is _itself(other)


def _hash(self: nn.Module) -> int:
    return object.__hash__(_itself(self))


def _read(cls: type) -> Callable[[Any, str], Any]:
    plain: Any = cls.__getattribute__

    def __getattribute__(self: Any, name: str) -> Any:
        value = plain(self, name)
        if name == "__class__" and isinstance(value, type):
            return original_class(value)  # as the user's code will see it; type(self) tells the truth
        listener = active.listener
        if name == "__dict__" and listener is not None and not listener.paused and is_users_code(sys._getframe(1)):
            listener.read_dict(self, value, sys._getframe(1).f_code)
        if listener is None or name[:2] == "__":
            return value
        if name in _TABLES and not listener.paused and isinstance(self, nn.Module):
            listener.read_table(self, name)
        if name in MACHINERY and not _is_own(self, name):
            return value
        return listener.read(self, name, value)

    return __getattribute__


def _is_own(owner: Any, name: str) -> bool:
    """Whether an attribute of the user's has the name of one of torch's methods: `self.half = 0.5`."""
    return name not in _STATE and name in object.__getattribute__(owner, "__dict__")


def _missing(cls: type) -> Callable[[Any, str], Any]:
    plain: Any = getattr(cls, "__getattr__", None)

    def __getattr__(self: Any, name: str) -> Any:
        listener = active.listener
        try:
            value = plain(self, name)
        except AttributeError:
            if listener is not None and not listener.paused:
                listener.missing(self, name)
            raise
        return value if listener is None else listener.read(self, name, value)

    return __getattr__


def _store(cls: type) -> Callable[[Any, str, Any], None]:
    plain: Any = cls.__setattr__

    def __setattr__(self: Any, name: str, value: Any) -> None:
        listener = active.listener
        if listener is not None and not listener.paused:
            listener.stored(self, name, value)
        plain(self, name, value)

    return __setattr__
