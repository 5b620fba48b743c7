"""module:factory -> what is to be profiled. Knows how to import and to call, and what a factory may return."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from autofuse.measure.step import Inputs, Step

_MAY_RETURN = (
    "a model with its inputs (model, inputs), also with a step (model, inputs, step), a step that can be called, "
    "or a dict or object with these names"
)


_NAMES = ("model", "inputs", "step")


class NoSubject(ValueError):
    """A factory that is not there, or that returns something else; the message says what, and what to do."""


@dataclass(frozen=True)
class BuiltModel:
    """What a factory returned. subject: a model, or a step that takes nothing. inputs, step: None where not given."""

    name: str
    subject: nn.Module | Callable[..., Any]
    inputs: Inputs | None = None
    step: Step | None = None


def load(target: str) -> BuiltModel:
    """What the factory named by "package.module:function" or "file.py:function" returns, called without arguments.

    Modules are found from the working folder on. Raises NoSubject with a sentence; what the factory itself raises
    comes through.
    """
    return made(found(target)(), target)


def found(target: str) -> Callable[[], Any]:
    """The factory of that name, imported and not yet called. Raises NoSubject with a sentence."""
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        raise NoSubject(f"{target!r} names no factory: write it as package.module:function.")
    held: Any = _module(where)
    for name in attribute.split("."):
        if not hasattr(held, name):
            raise NoSubject(f"{where} has no {attribute!r}. A factory is a function of that module.")
        held = getattr(held, name)
    if isinstance(held, nn.Module) or not callable(held):
        return lambda: held
    return _callable_without_arguments(held, target)


def made(result: Any, target: str) -> BuiltModel:
    """What a factory's result means. Raises NoSubject where it means nothing."""
    if isinstance(result, tuple) and result and isinstance(result[0], nn.Module) and len(result) in (2, 3):
        model, inputs, step = (*result, None)[:3]
        return _checked(BuiltModel(target, model, inputs, step))
    if isinstance(result, nn.Module):
        raise NoSubject(
            f"{target} returns a {type(result).__name__} and no inputs to call it with: return (model, inputs)."
        )
    if isinstance(result, Mapping) or hasattr(result, "model"):
        named = result if isinstance(result, Mapping) else _fields(result)
        if not isinstance(named.get("model"), nn.Module) or named.get("inputs") is None:
            raise NoSubject(f"What {target} returns holds no model with inputs. It may return {_MAY_RETURN}.")
        return _checked(BuiltModel(target, named["model"], named["inputs"], named.get("step")))
    if callable(result):
        return BuiltModel(target, result)
    raise NoSubject(f"{target} returns a {type(result).__name__}. A factory may return {_MAY_RETURN}.")


def _fields(held: Any) -> Mapping[str, Any]:
    """Of an object, also of one with slots; a method of its class is none."""
    return vars(held) if hasattr(held, "__dict__") else {name: getattr(held, name, None) for name in _NAMES}


def _checked(made: BuiltModel) -> BuiltModel:
    given: Any = made.inputs
    inputs: Inputs | None = tuple(given) if isinstance(given, list) else given
    if made.step is not None and not callable(made.step):
        raise NoSubject(f"The step that {made.name} returns is a {type(made.step).__name__}, which cannot be called.")
    return BuiltModel(made.name, made.subject, inputs, made.step)


def _callable_without_arguments(factory: Callable[..., Any], target: str) -> Callable[[], Any]:
    try:
        inspect.signature(factory).bind()
    except ValueError:  # built in, and tells nothing
        return factory
    except TypeError as error:
        raise NoSubject(f"{target} is called without arguments, and cannot be: {error}.") from error
    return factory


def _module(where: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    name = where
    if where.endswith(".py"):
        file = Path(where)
        if not file.is_file():
            raise NoSubject(f"{where} is not a file here.")
        sys.path.insert(0, str(file.resolve().parent))
        name = file.stem
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoSubject(f"There is no module {name!r} to be found from {here}.") from error
        raise
