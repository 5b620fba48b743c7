"""Loads what is profiled from "module:factory": imports the factory, calls it, and checks what it returns."""

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
    """A factory does not exist, or returns something else. The message says what happened and what to do."""


@dataclass(frozen=True)
class BuiltModel:
    """The result of a factory.

    subject: a model, or a step that takes no arguments.
    inputs, step: None if the factory did not return them.
    """

    name: str
    subject: nn.Module | Callable[..., Any]
    inputs: Inputs | None = None
    step: Step | None = None


def load(target: str) -> BuiltModel:
    """Call the factory "package.module:function" or "file.py:function" without arguments, and return what it built.

    Modules are searched in the working folder first. Exceptions of the factory itself are not caught.

    Raises:
        NoSubject: There is no such factory, or it returns something else.
    """
    return built_model_of(find_factory(target)(), target)


def find_factory(target: str) -> Callable[[], Any]:
    """Return the factory of that name, imported but not called.

    Raises:
        NoSubject: There is no such factory.
    """
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


def built_model_of(result: Any, target: str) -> BuiltModel:
    """Return the model or the step that a factory's result describes.

    Raises:
        NoSubject: The result describes neither a model with inputs nor a step.
    """
    if isinstance(result, tuple) and result and isinstance(result[0], nn.Module) and len(result) in (2, 3):
        model, inputs, step = (*result, None)[:3]
        return _check(BuiltModel(target, model, inputs, step))
    if isinstance(result, nn.Module):
        raise NoSubject(
            f"{target} returns a {type(result).__name__} without inputs to call it with: return (model, inputs)."
        )
    if isinstance(result, Mapping) or hasattr(result, "model"):
        named = result if isinstance(result, Mapping) else _fields(result)
        if not isinstance(named.get("model"), nn.Module) or named.get("inputs") is None:
            raise NoSubject(f"The result of {target} has no model with inputs. It may return {_MAY_RETURN}.")
        return _check(BuiltModel(target, named["model"], named["inputs"], named.get("step")))
    if callable(result):
        return BuiltModel(target, result)
    raise NoSubject(f"{target} returns a {type(result).__name__}. A factory may return {_MAY_RETURN}.")


def _fields(held: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, also of one with slots, but not the methods of its class."""
    return vars(held) if hasattr(held, "__dict__") else {name: getattr(held, name, None) for name in _NAMES}


def _check(built: BuiltModel) -> BuiltModel:
    given: Any = built.inputs
    inputs: Inputs | None = tuple(given) if isinstance(given, list) else given
    if built.step is not None and not callable(built.step):
        raise NoSubject(f"The step that {built.name} returns is a {type(built.step).__name__}, which cannot be called.")
    return BuiltModel(built.name, built.subject, inputs, built.step)


def _callable_without_arguments(factory: Callable[..., Any], target: str) -> Callable[[], Any]:
    try:
        inspect.signature(factory).bind()
    except ValueError:  # a built-in without a signature
        return factory
    except TypeError as error:
        raise NoSubject(f"{target} must be callable without arguments: {error}.") from error
    return factory


def _module(where: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    name = where
    if where.endswith(".py"):
        file = Path(where)
        if not file.is_file():
            raise NoSubject(f"There is no file {where}.")
        sys.path.insert(0, str(file.resolve().parent))
        name = file.stem
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoSubject(f"No module {name!r} was found from {here}.") from error
        raise
