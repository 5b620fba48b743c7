"""What a caller asked of optimize: arguments in, one comparable value out. Knows names and codes, and no forward."""

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

Wanted = Callable[[str, nn.Module], bool]
Compile = bool | Literal["auto"]


@dataclass(frozen=True)
class Options:
    """One question: which rules, on which modules, with what inputs. Equal questions have equal answers."""

    codes: tuple[str, ...]
    modules: tuple[str, ...] | Wanted | None
    verify: bool
    tune: bool
    policy: Policy
    compile: Compile
    inputs: Hashable  # what the example inputs are like, not what they hold
    rules: tuple[LoadedRule, ...] = field(compare=False, repr=False)
    call: ForwardArguments | None = field(compare=False, repr=False)
    loss_fn: Callable[..., Any] | None = None

    def wants(self, name: str, module: nn.Module) -> bool:
        """Whether the module called `name` may be rewritten."""
        if self.modules is None:
            return True
        if callable(self.modules):
            return bool(self.modules(name, module))
        return any(_covers(pattern, name) for pattern in self.modules)


def options_of(
    named: Sequence[tuple[str, nn.Module]], example_inputs: object, select: object, ignore: object, modules: object,
    verify: bool, tune: bool | None, policy: str | None, compile: object = False,
    loss_fn: object = None,
) -> Options:  # fmt: skip
    """What optimize's arguments mean for a model whose modules are `named`, the model itself first.

    Raises TypeError and ValueError as optimize says.
    """
    rules = select_rules(_rules_here(), _codes(select, "select"), _codes(ignore, "ignore"))
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn takes a function of the model's result; got a {type(loss_fn).__name__}.")
    call, wanted = _call_of(example_inputs), _modules(modules)
    if isinstance(wanted, tuple):
        _require_modules(named, wanted)
    require_importable(rules)
    wishes = settings() if policy is None else replace(settings(), policy=policy)  # type: ignore[arg-type]
    measured = wishes.measured if tune is None else tune
    codes = tuple(r.rule.code for r in rules)
    return Options(codes, wanted, verify, measured, wishes.policy, _compile(compile), likeness(call), rules, call,
                   loss_fn)  # fmt: skip


def _rules_here() -> tuple[LoadedRule, ...]:
    """Rules are read by the door for files, which is imported when the first model comes, and not with this one."""
    found: tuple[LoadedRule, ...] = import_module("autofuse.project.project_rules").load_project_rules()
    return found


def _call_of(example_inputs: Any) -> ForwardArguments | None:
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


def likeness(call: ForwardArguments | None) -> Hashable:
    """Equal for calls that a forward cannot tell apart before it looks into a tensor."""
    leaves, spec = pytree.tree_flatten(call)
    return repr(spec), tuple(map(_leaf, leaves))


def _leaf(x: object) -> Hashable:
    if isinstance(x, Tensor):
        return type(x), tuple(x.shape), x.dtype, str(x.device), x.requires_grad
    return (type(x), x) if isinstance(x, SCALARS) else id(x)


def _compile(given: object) -> Compile:
    if given is True or given is False:
        return given
    if given == "auto":
        return "auto"
    raise ValueError(f'compile takes True, False or "auto"; got {given!r}.')


def _codes(given: object, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    codes = _texts(given)
    if codes is None:
        raise TypeError(f'{name} takes codes of rules, such as ["AF1", "AF203"] or "AF1,AF203".')
    return codes


def _modules(given: object) -> tuple[str, ...] | Wanted | None:
    if given is None or callable(given):
        return given
    names = _texts(given)
    if names is None:
        raise TypeError(
            'modules takes names in the model, such as "encoder" or ["layers.*.attention"], '
            "or a function of a name and a module."
        )
    return names


def _texts(given: object) -> tuple[str, ...] | None:
    """Texts from a list, or from one text with commas; None for anything else."""
    parts: list[Any] = (
        given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    )
    if not all(isinstance(p, str) for p in parts):
        return None
    return tuple(filter(None, (p.strip() for p in parts)))


def _covers(pattern: str, name: str) -> bool:
    """Whether `pattern` fits a module's name, or that of a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def _require_modules(named: Sequence[tuple[str, nn.Module]], patterns: tuple[str, ...]) -> None:
    names, model = [name for name, _ in named[1:]], named[0][1]
    for pattern in patterns:
        if any(fnmatchcase(n, pattern) for n in names):
            continue
        close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.6)
        hint = f"Did you mean {close[0]!r}?" if close else "`model.named_modules()` lists the names."
        raise ValueError(f"No module of the {type(model).__name__} is called {pattern!r}. {hint}")
