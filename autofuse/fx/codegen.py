"""An fx graph and its guards -> Python source for a forward with the original's exact signature.

The source tests the guards of each variant in turn and runs the first that holds; else it asks for a new one.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import re
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from autofuse.fx.ambient import Ambient
from autofuse.fx.constants import holds_form, holds_number
from autofuse.fx.trace import Trace

Forward = Callable[..., Any]
_SERIAL = itertools.count()
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class Variant:
    """A rewritten forward for one kind of call: `source` defines it, `test` says when it may stand in."""

    source: str
    test: str
    inputs: tuple[str, ...]
    names: tuple[tuple[str, Any], ...]  # what the test names
    globals: tuple[tuple[str, Any], ...]  # what the source names
    training: bool

    @property
    def relaxed(self) -> Variant:
        """The same forward for the very call it was traced for, whatever dtype that is repeated in."""
        return replace(self, test=f"self.training is {self.training}", names=())

    @cached_property
    def key(self) -> Hashable:
        """Equal for variants that are interchangeable."""
        return self.source, self.test, self.inputs, tuple((n, _identity(v)) for n, v in (*self.names, *self.globals))

    @cached_property
    def run(self) -> Forward:
        """run(self, in0, ...), compiled once for all modules with this variant."""
        namespace: dict[str, Any] = dict(self.globals)
        _execute(self.source, namespace)
        return namespace["forward"]  # type: ignore[no-any-return]


def variant_of(trace: Trace) -> Variant:
    """The variant that a rewritten trace is."""
    _add_ambient(trace.guards.add, trace.around)
    for node in trace.graph.nodes:
        if node.name == "self":
            node._rename("self_1")  # a child named `self` would shadow the argument
    code = trace.graph.python_code("self", verbose=False)
    names, inputs = tuple(trace.guards.names.items()), tuple(trace.inputs)
    return Variant(code.src, trace.guards.text, inputs, names, tuple(code.globals.items()), trace.twin.training)


def _add_ambient(add: Callable[[str], None], around: Ambient) -> None:
    for state in around.autocast:
        if state.enabled:
            add(f'_autocast("{state.device}") and _autocast_dtype("{state.device}") is _torch.{str(state.dtype)[6:]}')
        elif state.device == "cpu" or torch.cuda.is_available():
            add(f'not _autocast("{state.device}")')


def forward_of(base: Forward, variants: tuple[Variant, ...], missed: Forward) -> Forward:
    """A function with the signature of `base` that runs the first variant whose test holds, else `missed`.

    `missed(self, ...)` gets the arguments as `base` would.
    """
    signature = inspect.signature(base, follow_wrapped=False)
    scope: dict[str, Any] = {
        "_missed": missed, "_Tensor": Tensor, "_EMPTY": set(), "_holds_form": holds_form,
        "_holds_number": holds_number, "_torch": torch,
        "_autocast": torch.is_autocast_enabled, "_autocast_dtype": torch.get_autocast_dtype,
    }  # fmt: skip
    lines = [f"def forward({_parameters(signature, scope)}):"]
    receiver = next(iter(signature.parameters))
    for i, variant in enumerate(variants):
        scope[f"_run{i}"] = variant.run
        test = _renamed(variant, i, receiver, scope)
        lines += [f"    if {test}:", f"        return _run{i}({', '.join([receiver, *variant.inputs])})"]
    lines.append(f"    return _missed({_passed(signature)})")
    _execute("\n".join(lines) + "\n", scope)
    forward: types.FunctionType = scope["forward"]
    forward.__qualname__, forward.__module__, forward.__doc__ = base.__qualname__, base.__module__, base.__doc__
    forward.__wrapped__ = base  # type: ignore[attr-defined]
    return forward


def _renamed(variant: Variant, place: int, receiver: str, scope: dict[str, Any]) -> str:
    """A variant's test with names that are its own, and with what the user calls `self`."""
    for name, value in variant.names:
        scope[f"_v{place}{name}"] = value
    test = re.sub(r"\b_c\d+\b", lambda m: f"_v{place}{m[0]}", variant.test)
    return test if receiver == "self" else re.sub(r"\bself\.", f"{receiver}.", test)


def _parameters(signature: inspect.Signature, scope: dict[str, Any]) -> str:
    """The parameter list, annotations left out, defaults by name."""
    parts: list[str] = []
    starred = False
    parameters = list(signature.parameters.values())
    for place, p in enumerate(parameters):
        if p.kind is p.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or p.kind is p.VAR_POSITIONAL
        text = _STARS.get(p.kind, "") + p.name
        if p.default is not p.empty:
            scope[f"_default_{p.name}"] = p.default
            text += f"=_default_{p.name}"
        parts.append(text)
        following = parameters[place + 1 : place + 2]
        if p.kind is p.POSITIONAL_ONLY and not (following and following[0].kind is p.POSITIONAL_ONLY):
            parts.append("/")
    return ", ".join(parts)


def _passed(signature: inspect.Signature) -> str:
    named = inspect.Parameter.KEYWORD_ONLY
    texts = (
        f"{p.name}={p.name}" if p.kind is named else _STARS.get(p.kind, "") + p.name
        for p in signature.parameters.values()
    )
    return ", ".join(texts)


def _execute(source: str, namespace: dict[str, Any]) -> None:
    """Run generated source, which tracebacks can show."""
    name = f"<autofuse {next(_SERIAL)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, "exec"), namespace)


def _identity(value: Any) -> Hashable:
    """A hashable that is equal for the same object, and for equal small constants."""
    return (type(value), value) if isinstance(value, (torch.dtype, torch.device, float, frozenset)) else id(value)
