"""Converts the arguments of optimize to one comparable value, and checks them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, Literal

from torch import Tensor, nn

from autofuse.fx.rewrite.after_expression import require_importable
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import SCALARS
from autofuse.kernels.policy import Policy, settings
from autofuse.loading.selection import select_rules
from autofuse.match.pattern import LoadedRule
from autofuse.torch_private import pytree

ModuleFilter = Callable[[str, nn.Module], bool]
Compile = bool | Literal["auto"]


@dataclass(frozen=True)
class Options:
    """The arguments of one call of optimize. Equal options give equal results.

    Attributes:
        codes: The codes of the selected rules.
        modules: Name patterns or a function that selects modules; None for all.
        verify: Whether sites are verified.
        tune: Whether sites are timed.
        policy: How to choose between kernels.
        compile: Whether blocks are compiled.
        inputs: Types, shapes and dtypes of the example inputs, without the contents of tensors.
        rules: The selected rules.
        call: The example inputs.
        loss_fn: The user's loss function, or None.
        modes: The modes in which forwards are planned at once: training or not. Others are planned at their first call.
    """

    codes: tuple[str, ...]
    modules: tuple[str, ...] | ModuleFilter | None
    verify: bool
    tune: bool
    policy: Policy
    compile: Compile
    inputs: Hashable
    rules: tuple[LoadedRule, ...] = field(compare=False, repr=False)
    call: ForwardArguments | None = field(compare=False, repr=False)
    loss_fn: Callable[..., Any] | None = None
    modes: frozenset[bool] = frozenset((False, True))

    def wants(self, name: str, module: nn.Module) -> bool:
        """Whether the module with this name may be rewritten."""
        if self.modules is None:
            return True
        if callable(self.modules):
            return bool(self.modules(name, module))
        return any(_matches_module(pattern, name) for pattern in self.modules)


def options_of(
    named: Sequence[tuple[str, nn.Module]], example_inputs: object, select: object, ignore: object, modules: object,
    verify: bool, tune: bool | None, policy: str | None, compile: object = False,
    loss_fn: object = None,
) -> Options:  # fmt: skip
    """Check and convert the arguments of optimize.

    Args:
        named: The modules of the model with their names; the model itself is first.
        example_inputs: As in `optimize`.
        select: As in `optimize`.
        ignore: As in `optimize`.
        modules: As in `optimize`.
        verify: As in `optimize`.
        tune: As in `optimize`.
        policy: As in `optimize`.
        compile: As in `optimize`.
        loss_fn: As in `optimize`.

    Raises:
        TypeError: An argument has an unsupported type.
        ValueError: A code, a name or a policy is unknown.
        RuleError: A rule calls a function that cannot be imported.
    """
    rules = select_rules(_load_rules(), _parse_codes(select, "select"), _parse_codes(ignore, "ignore"))
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn takes a function of the model's result; got a {type(loss_fn).__name__}.")
    call, wanted = _parse_inputs(example_inputs), _parse_modules(modules)
    if isinstance(wanted, tuple):
        _require_modules(named, wanted)
    require_importable(rules)
    preferences = settings() if policy is None else replace(settings(), policy=policy)  # type: ignore[arg-type]
    measured = preferences.measured if tune is None else tune
    codes = tuple(r.rule.code for r in rules)
    return Options(codes, wanted, verify, measured, preferences.policy, _parse_compile(compile), call_key(call), rules,
                   call, loss_fn)  # fmt: skip


def _load_rules() -> tuple[LoadedRule, ...]:
    """Load the rules. The codemod, which reads them, is imported only at the first call of optimize."""
    found: tuple[LoadedRule, ...] = import_module("autofuse.project.project_rules").load_project_rules()
    return found


def _parse_inputs(example_inputs: Any) -> ForwardArguments | None:
    if example_inputs is None:
        return None
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    raise TypeError(
        f"example_inputs is a {type(example_inputs).__name__}. Pass a tensor, a tuple of positional arguments, "
        "or a dict of keyword arguments."
    )


def call_key(call: ForwardArguments | None) -> Hashable:
    """A key. It is equal for calls that differ only in the contents of tensors."""
    leaves, spec = pytree.tree_flatten(call)
    return repr(spec), tuple(map(_leaf_key, leaves))


def _leaf_key(x: object) -> Hashable:
    if isinstance(x, Tensor):
        shape = None if x.is_nested else tuple(x.shape)  # a nested tensor has one shape for each part
        return type(x), shape, x.dtype, str(x.device), x.requires_grad
    # The type distinguishes True from 1. Other objects may change, so only the same object is equal.
    return (type(x), x) if isinstance(x, SCALARS) else id(x)


def _parse_compile(value: object) -> Compile:
    # `is` rejects 0 and 1, which are equal to False and True.
    if value is True or value is False:
        return value
    if value == "auto":
        return "auto"
    raise ValueError(f'compile takes True, False or "auto"; got {value!r}.')


def _parse_codes(value: object, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    codes = _split_texts(value)
    if codes is None:
        raise TypeError(f'{name} takes codes of rules, such as ["AF1", "AF203"] or "AF1,AF203".')
    return codes


def _parse_modules(value: object) -> tuple[str, ...] | ModuleFilter | None:
    if value is None or callable(value):
        return value
    names = _split_texts(value)
    if names is None:
        raise TypeError(
            'modules takes names in the model, such as "encoder" or ["layers.*.attention"], '
            "or a function of a name and a module."
        )
    return names


def _split_texts(value: object) -> tuple[str, ...] | None:
    """Strings from a list, or from one string with commas; None for anything else."""
    parts: list[Any] = (
        value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    )
    if not all(isinstance(p, str) for p in parts):
        return None
    return tuple(filter(None, (p.strip() for p in parts)))


def _matches_module(pattern: str, name: str) -> bool:
    """Whether `pattern` matches the name of a module or of a module that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def _require_modules(named: Sequence[tuple[str, nn.Module]], patterns: tuple[str, ...]) -> None:
    names, model = [name for name, _ in named[1:]], named[0][1]  # the model itself has the name ""
    for pattern in patterns:
        if any(fnmatchcase(n, pattern) for n in names):
            continue
        close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.6)
        hint = f"Did you mean {close[0]!r}?" if close else "`model.named_modules()` lists the names."
        raise ValueError(f"No module of the {type(model).__name__} is called {pattern!r}. {hint}")
