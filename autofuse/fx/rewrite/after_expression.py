"""An `after` that calls functions of other modules, as nodes: each name is resolved to the object it stands for.

Knows the steps of an `after`, and how to import what they name; decides nothing about what may be rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autofuse import ops
from autofuse.fx.rewrite.node_builder import Builder
from autofuse.loading.named_object import resolve_name
from autofuse.match.pattern import LoadedRule
from autofuse.rule import Applied, Constant, Imported, Part, RuleError


def require_importable(rules: Iterable[LoadedRule]) -> None:
    """Raise RuleError, naming rule and function, unless everything that an `after` names can be imported here."""
    for loaded in rules:
        for needed in loaded.replacement.needs:
            try:
                resolve_name(needed.name)
            except (ImportError, AttributeError) as error:
                raise RuleError(
                    f"{loaded.rule.__name__}.after uses {needed.name}, which cannot be had here: {error}. Live models "
                    "need it where they run: install its package, or put its folder on PYTHONPATH; or leave the rule "
                    f'out with `ignore=["{loaded.rule.code}"]`.'
                ) from error


def kernel_name(operation: str) -> str:
    """What runs an operation of autofuse.ops by default, or a function with a full name, for reports."""
    package, _, rest = operation.partition(".")
    if not rest:
        return ops.kernel_of(operation)
    return f"torch {rest.rpartition('.')[2]}" if package == "torch" else operation


def applied(builder: Builder, part: Applied, captures: Mapping[str, Any]) -> Any:
    """The node, or the Python value, that a step of an `after` is. Raises CannotBuild where torch refuses it."""
    inner = [_built(builder, p, captures) for p in part.parts]
    if part.kind == "slice":
        return slice(*inner)
    if part.kind == "tuple":
        return tuple(inner)
    if part.kind == "item":
        return builder.item(*inner)
    if part.kind == "operator":
        return builder.spelled(part.name, inner)
    if part.kind == "attribute":
        return builder.spelled("{0}." + part.name, inner)
    named = {n: _built(builder, p, captures) for n, p in part.named if not isinstance(p, str) or p in captures}
    if part.kind == "method":
        return builder.note(builder.graph.call_method(part.name, tuple(inner), named))
    return builder.call(inner[0], tuple(inner[1:]), named)


def _built(builder: Builder, part: Part, captures: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        return captures[part]
    if isinstance(part, Constant):
        return part.value
    if isinstance(part, Imported):
        return resolve_name(part.name)
    return applied(builder, part, captures)
