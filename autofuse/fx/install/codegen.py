"""Generates the Python source of a rewritten forward, with the original's exact signature.

The source runs the first variant whose guards hold (conditions.py). If none holds, it calls `missed`.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from autofuse.fx.install.checkpointed import group_checkpointed
from autofuse.fx.install.conditions import FOUND, SEEN, Dispatch, VariantTests, write_dispatch, write_guard_checker
from autofuse.fx.install.failed_calls import may_run_again
from autofuse.fx.install.generated_source import execute, python_source
from autofuse.fx.install.guard_code import EAGER, UNRECORDED, identity
from autofuse.fx.install.guarded_reads import reads_as_inputs
from autofuse.fx.install.lowering import Settled, lower
from autofuse.fx.install.seen_calls import QUIET
from autofuse.fx.trace.ambient_state import AmbientState
from autofuse.fx.trace.guards import in_words
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.fx.trace.twin import signature_of

Forward = Callable[..., Any]
_OF_A_REPETITION = re.compile(r"dtype|autocast|requires_grad|_unwatched|_unhooked|_plain|_holds_")
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class Variant:
    """A rewritten forward for one kind of call.

    source: Python source of the forward.
    tests: its guards, in the guards' language (trace/guards.py). The forward may run if all hold.
    inputs: its arguments after self, in the same language.
    """

    source: str
    tests: tuple[str, ...]
    inputs: tuple[str, ...]
    names: tuple[tuple[str, Any], ...]  # objects that the tests name
    globals: tuple[tuple[str, Any], ...]  # objects that the source names
    training: bool
    may_run_again: bool = False  # whether the original may run after this forward has raised
    settled: Settled = field(default_factory=Settled)

    @property
    def for_the_traced_call(self) -> Variant:
        """The same forward, guarded only by the mode: for repeating the traced call in any dtype."""
        return replace(self, tests=(f"self.training is {self.training}",))

    @property
    def for_similar_calls(self) -> Variant:
        """The same forward without guards on dtypes, autocast, gradients and hooks: for repeating a call in a check."""
        return replace(self, tests=tuple(t for t in self.tests if not _OF_A_REPETITION.search(t)))

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal for variants that can replace each other."""
        return self.source, self.tests, self.inputs, tuple((n, identity(v)) for n, v in (*self.names, *self.globals))

    @cached_property
    def run(self) -> Forward:
        """The compiled forward, run(self, in0, ...). All modules with this variant share it."""
        namespace: dict[str, Any] = dict(self.globals)
        execute(self.source, namespace)
        return namespace["forward"]  # type: ignore[no-any-return]

    @cached_property
    def run_seen(self) -> Forward:
        """`run` without checks for compilers, tracers and modes, for calls that none of them observes."""
        found = {name: value.seen for name, value in self.globals if hasattr(value, "seen")}
        run: Any = self.run
        return types.FunctionType(run.__code__, {**run.__globals__, **found}, run.__name__) if found else self.run

    @cached_property
    def run_quiet(self) -> Forward:
        """`run_seen` for quiet calls (`Settled`): few elements, and no tensor requires grad."""
        found = {name: value.quiet for name, value in self.globals if hasattr(value, "quiet")}
        run: Any = self.run_seen
        return types.FunctionType(run.__code__, {**run.__globals__, **found}, run.__name__) if found else run

    def describe_test(self, test: int) -> str:
        """One of the tests in words, for messages."""
        return in_words(self.tests[test], dict(self.names))


def build_variant(trace: ForwardTrace) -> Variant:
    """The variant for a rewritten trace."""
    _guard_ambient_state(trace.guards.add, trace.around)
    settled = lower(trace)
    again = may_run_again(trace.graph)
    given = (*trace.inputs, "self") if group_checkpointed(trace) else trace.inputs
    inputs = (*given, *reads_as_inputs(trace, len(given)))
    names = tuple(trace.guards.names.items())
    source, functions = python_source(trace.graph)
    return Variant(
        source, tuple(trace.guards.tests), inputs, names, tuple(functions.items()), trace.twin.training, again, settled,
    )  # fmt: skip


def _guard_ambient_state(add: Callable[[str], None], around: AmbientState) -> None:
    add("_unmoded()")
    for state in around.autocast:
        if state.enabled:
            add(f'_autocast("{state.device}")')
            add(f'_autocast_dtype("{state.device}") is _torch.{str(state.dtype)[6:]}')
        elif state.device == "cpu" or torch.cuda.is_available():
            add(f'not _autocast("{state.device}")')


def build_forward(
    base: Forward, variants: tuple[Variant, ...], missed: Forward, raised: Forward | None = None,
    closed: frozenset[bool] = frozenset(),
) -> Forward:  # fmt: skip
    """A function with the signature of `base` that runs the first variant whose tests hold.

    Args:
        base: the original forward.
        variants: the rewritten forwards, in order.
        missed: called with the arguments of `base` if no variant holds.
        raised: called as `raised(error, self, ...)` if an operation of a variant raises an error that the original
            might not raise.
        closed: modes (True is training) in which `base` runs without any check.
    """
    signature = signature_of(base)
    receiver = next(iter(signature.parameters))
    variants = merge_modes(variants)
    asked = [VariantTests(v.tests, v.inputs, dict(v.names)) for v in variants]
    below = min((v.settled.below for v in variants if v.settled.below), default=0)
    body = write_dispatch(asked, receiver, below) if asked else Dispatch()
    scope: dict[str, Any] = {**body.scope, "_missed": missed, "_raised": raised, "_base": base}
    lines = [f"def forward({_parameters(signature, scope)}):"]
    for mode in sorted(closed):
        lines += [f"    if {receiver}.training is {mode}:", f"        return _base({_call_arguments(signature)})"]
    lines += ["    " + line for line in body.lines]
    for i, variant in enumerate(variants):
        scope[f"_run{i}"] = variant.run
        call = f"_run{i}({', '.join([receiver, *body.inputs[i]])})"
        seen_call = call
        if variant.run_seen is not variant.run:
            scope[f"_run_seen{i}"] = variant.run_seen
            chosen = f"_run_seen{i} if {SEEN} else _run{i}"
            if variant.run_quiet is not variant.run_seen and all(variant.settled.texts <= c for c in body.compared):
                scope[f"_run_quiet{i}"] = variant.run_quiet
                chosen = f"_run_quiet{i} if {SEEN} == {QUIET} and {UNRECORDED} else {chosen}"
            seen_call = f"({chosen})({', '.join([receiver, *body.inputs[i]])})"
        lines.append(f"    if {FOUND} == {i}:")
        if raised is None or not variant.may_run_again:
            lines.append(f"        return {seen_call}")
            continue
        lines += [
            f"        if not {EAGER}:",  # a compiler cannot break a graph inside `try`
            f"            return {call}",
            "        try:",
            f"            return {seen_call}",
            "        except _Error as _error:",
            f"            if not _is_of_an_operation(_error, _run{i}):",
            "                raise",
            "            _problem = _error",
            f"        return _raised(_problem, {_call_arguments(signature)})",
        ]
    lines.append(f"    return _missed({_call_arguments(signature)})")
    execute("\n".join(lines) + "\n", scope)
    forward: types.FunctionType = scope["forward"]
    forward.__qualname__, forward.__module__, forward.__doc__ = base.__qualname__, base.__module__, base.__doc__
    forward.__wrapped__ = base  # type: ignore[attr-defined]
    return forward


_MODES = ("self.training is False", "self.training is True")


def merge_modes(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """The variants. Two that differ only in the mode become one without a test of the mode."""
    found: dict[Hashable, Variant] = {}
    for variant in variants:
        either = replace(variant, tests=tuple(t for t in variant.tests if t not in _MODES))
        known = found.get(either.key)
        if known is not None and {*known.tests, *variant.tests} >= {*_MODES}:
            del found[either.key]
            found[variant.key] = either
        else:
            found[variant.key if known is not None else either.key] = variant
    return tuple(found.values())


def build_guard_checker(base: Forward, variant: Variant, only_first: bool = False) -> Callable[..., list[int]]:
    """A function with the signature of `base` that returns the indices of the tests of `variant` that fail.

    With `only_first` it returns the first of them, and evaluates no later test.
    """
    signature = signature_of(base)
    body, scope = write_guard_checker(
        VariantTests(variant.tests, variant.inputs, dict(variant.names)), next(iter(signature.parameters)), only_first
    )
    lines = [f"def ask({_parameters(signature, scope)}):", *("    " + line for line in body)]
    execute("\n".join(lines) + "\n", scope)
    return scope["ask"]  # type: ignore[no-any-return]


def _parameters(signature: inspect.Signature, scope: dict[str, Any]) -> str:
    """The parameter list, without annotations, with defaults as names in `scope`."""
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


def _call_arguments(signature: inspect.Signature) -> str:
    named = inspect.Parameter.KEYWORD_ONLY
    texts = (
        f"{p.name}={p.name}" if p.kind is named else _STARS.get(p.kind, "") + p.name
        for p in signature.parameters.values()
    )
    return ", ".join(texts)
