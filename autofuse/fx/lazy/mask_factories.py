"""Copies of forwards that pass lazy masks to their layers, for models whose masks come from functions of transformers.

A model calls `create_causal_mask` and passes the mask to each of its layers. Fused attention needs the form of the mask
and none of its numbers. So the copied forward calls a wrapper of transformers' function. For each size and
configuration the wrapper calls that function once and compares each entry of the mask. If the mask is causal, or keeps
everything, later calls with equal arguments get a lazy mask of that form. The original forward does not change.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from autofuse.fx.lazy.linear import is_unobserved
from autofuse.ops.lazy_masks import LazyMask, MaskForm, form_of, least_entries

Forward = Callable[..., Any]
_MODULE = "transformers.masking_utils"
_CACHES = "transformers.cache_utils"
FACTORIES = (
    "create_causal_mask",
    "create_sliding_window_causal_mask",
    "create_chunked_causal_mask",
    "create_bidirectional_mask",
)
# Arguments of transformers' functions that are compared by their content. All others are compared by value.
_BY_CONTENT = frozenset({"config", "inputs_embeds", "attention_mask", "past_key_values", "position_ids"})
# Code that reads its frame, or warns at a line of its caller, would see the copy.
_READS_FRAMES = frozenset(
    {"globals", "locals", "vars", "eval", "exec", "warn", "warnings", "_getframe", "currentframe"}
)
_MOST = 32  # kinds of calls that are remembered for each function
_UNKNOWN = object()


def forward_with_lazy_masks(of: Forward) -> Forward | None:
    """A forward that computes the same as `of` with lazy masks; None if `of` calls no function that builds masks."""
    if of not in _forwards:
        _forwards[of] = _forward(of)
    return _forwards[of]


def factories_of(of: Forward) -> tuple[str, ...]:
    """The global names under which a forward calls functions that build masks."""
    inner = inspect.unwrap(of)
    if not isinstance(inner, types.FunctionType):
        return ()
    return tuple(n for n in inner.__code__.co_names if _is_factory(inner.__globals__.get(n)))


def _forward(of: Forward) -> Forward | None:
    names = factories_of(of)
    chain = list(_chain(of)) if names else []
    if not chain or _reads_frames(chain[-1].__code__):
        return None
    inner = chain[-1]
    namespace = _Namespace(inner.__globals__, {n: _with_lazy_results(inner.__globals__[n]) for n in names})
    changed = _copy(inner, namespace, inner.__closure__)
    # A decorator holds the function that it wraps in a cell. Its copy gets a new cell with the copied function.
    for outer, wrapped in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
        cells = tuple(types.CellType(changed) if c.cell_contents is wrapped else c for c in outer.__closure__ or ())
        changed = _copy(outer, outer.__globals__, cells)
    state = [_state(f) for f in chain]

    @functools.wraps(of)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or [_state(f) for f in chain] != state or _has_compiled(self):
            return of(self, *args, **kwargs)
        return changed(self, *args, **kwargs)

    return forward


_forwards: WeakKeyDictionary[Forward, Forward | None] = WeakKeyDictionary()


def _is_factory(value: object) -> bool:
    """Whether `value` is one of these functions, and transformers still has it under that name."""
    if not isinstance(value, types.FunctionType) or value.__name__ not in FACTORIES or _MODULE not in sys.modules:
        return False
    return vars(sys.modules[_MODULE]).get(value.__name__) is value


def _chain(of: Any) -> Iterator[types.FunctionType]:
    """A function, the function that it wraps, and so on. Empty if a wrapper does not hold its function in one cell."""
    found = []
    while isinstance(of, types.FunctionType):
        found.append(of)
        wrapped = getattr(of, "__wrapped__", None)
        if wrapped is None:
            yield from found
            return
        cells = [c for c in of.__closure__ or () if _holds(c, wrapped)]
        if len(cells) != 1:
            return
        of = wrapped


def _holds(cell: types.CellType, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # an empty cell
        return False


def _reads_frames(code: types.CodeType) -> bool:
    """Whether code reads its namespace other than by names, or writes to it."""
    if not _READS_FRAMES.isdisjoint(code.co_names):
        return True
    if any(step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for step in dis.get_instructions(code)):
        return True
    return any(_reads_frames(c) for c in code.co_consts if isinstance(c, types.CodeType))


def _copy(
    function: types.FunctionType, namespace: dict[str, Any], cells: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    made = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells or None)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update({k: v for k, v in function.__dict__.items() if k != "__wrapped__"})
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


def _state(function: types.FunctionType) -> tuple[object, ...]:
    """The attributes of a function that determine what it does. A program may assign them."""
    return function.__code__, function.__defaults__, function.__kwdefaults__, function.__dict__.get("__wrapped__")


def _has_compiled(module: nn.Module) -> bool:
    """Whether a part of the module is compiled. A compiler does not accept unknown tensor classes."""
    return any(m._compiled_call_impl is not None or type(m).__name__ == "OptimizedModule" for m in module.modules())


class _Namespace(dict[str, Any]):
    """The current globals of a function, with replacements for a few names.

    A replacement is used while its name still has the value that was replaced.
    """

    def __init__(self, of: dict[str, Any], instead: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__({n: of[n] for n in ("__name__", "__package__", "__spec__", "__builtins__") if n in of})
        self._of, self._instead = of, {n: (of[n], made) for n, made in instead.items()}

    def __getitem__(self, name: str) -> Any:
        value = self._of[name]
        before, made = self._instead.get(name, (_UNKNOWN, None))
        return made if value is before else value


class _Learned(NamedTuple):
    """The form of the mask for one kind of call, and the state that it depends on besides the arguments.

    Attributes:
        config: the attributes of the model's configuration.
        module: the globals of transformers' module.
        form: None if the mask has another form.
    """

    config: dict[str, Any]
    module: dict[str, Any]
    form: MaskForm | None


def _with_lazy_results(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `factory`, and returns a lazy mask if an earlier call of the same kind had such a mask."""
    learned: dict[Hashable, _Learned] = {}
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        key, config = _kind(signature, args, kwargs)
        if key is None:
            return factory(*args, **kwargs)
        found = learned.get(key)
        if found is not None and _is_valid(found, config):
            return factory(*args, **kwargs) if found.form is None else LazyMask.of(found.form)
        before = _state_of(config)  # before the call, which may change the configuration
        made = factory(*args, **kwargs)
        if before is not None and (len(learned) < _MOST or key in learned):
            learned[key] = _Learned(*before, form_of(made))
        return made

    return make


def _state_of(config: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    try:
        return copy.deepcopy(vars(config)), dict(vars(sys.modules[_MODULE]))
    except Exception:  # a user's configuration may hold objects that cannot be copied
        return None


def _is_valid(found: _Learned, config: Any) -> bool:
    try:
        return bool(found.module == vars(sys.modules[_MODULE]) and found.config == vars(config))
    except Exception:  # a user's configuration may hold objects that cannot be compared
        return False


def _kind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable | None, Any]:
    """A key that calls with equal masks have in common, and the configuration; (None, None) if it is unknown."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None, None
    x, config = given.get("inputs_embeds"), given.get("config")
    if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[0] * x.shape[1] ** 2 < least_entries() or config is None:
        return None, None
    if not is_unobserved() or torch.is_inference_mode_enabled():
        return None, None
    others = {n: v for n, v in given.items() if n not in _BY_CONTENT}
    parts = (
        _kind_of_padding(given.get("attention_mask")),
        _kind_of_cache(given.get("past_key_values")),
        _kind_of_positions(given.get("position_ids")),
    )
    if any(p is _UNKNOWN for p in parts) or not all(type(v) in (bool, int, str, type(None)) for v in others.values()):
        return None, None
    interface = getattr(sys.modules[_MODULE], "ALL_MASK_ATTENTION_FUNCTIONS", {})
    made_by = interface.get(getattr(config, "_attn_implementation", None), None)
    key = type(config), made_by, x.shape[:2], x.dtype, x.device, parts, tuple(sorted(others.items()))
    return key, config


def _kind_of_padding(mask: Any) -> Hashable:
    """A key for a padding mask that keeps everything."""
    if mask is None:
        return None
    if type(mask) is not Tensor or mask.ndim != 2 or mask.requires_grad or mask.dtype.is_complex or not mask.numel():
        return _UNKNOWN
    return (mask.shape, mask.dtype, mask.device) if bool((mask == 1).all()) else _UNKNOWN


def _kind_of_positions(positions: Any) -> Hashable:
    """A key for positions that count from 0 in each row."""
    if positions is None:
        return None
    if type(positions) is not Tensor or positions.ndim != 2 or positions.dtype is not torch.int64:
        return _UNKNOWN
    counted = torch.arange(positions.shape[-1], device=positions.device)
    return (positions.shape, positions.device) if bool((positions == counted).all()) else _UNKNOWN


def _kind_of_cache(cache: Any) -> Hashable:
    """A key for an empty cache."""
    if cache is None:
        return None
    if type(cache).__module__ != _CACHES or type(cache).__name__ != "DynamicCache":
        return _UNKNOWN
    layers = []
    for layer in cache.layers:
        if type(layer).__module__ != _CACHES or getattr(layer, "keys", None) is not None:
            return _UNKNOWN
        layers.append((type(layer), _numbers(layer)))
    return _numbers(cache), tuple(layers)


def _numbers(x: Any) -> Hashable:
    return tuple((n, v) for n, v in vars(x).items() if type(v) in (bool, int, float, str, type(None), type))
