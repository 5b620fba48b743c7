"""Builds the nodes of an `after` that calls functions of other modules, and imports these functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autofuse import ops
from autofuse.fx.rewrite.node_builder import Builder
from autofuse.loading.named_object import resolve_name
from autofuse.match.pattern import LoadedRule
from autofuse.rule import Applied, Constant, Imported, Part, RuleError


def require_importable(rules: Iterable[LoadedRule]) -> None:
    """Check that every name in an `after` can be imported.

    Raises:
        RuleError: an import failed. The message names the rule and the function.
    """
    for loaded in rules:
        for needed in loaded.replacement.needs:
            try:
                resolve_name(needed.name)
            except (ImportError, AttributeError) as error:
                raise RuleError(
                    f"{loaded.rule.__name__}.after uses {needed.name}, which cannot be imported here: {error}. "
                    "autofuse.optimize needs it in the process that runs the model. Install its package, or add its "
                    f'folder to PYTHONPATH, or leave out the rule with `ignore=["{loaded.rule.code}"]`.'
                ) from error


def kernel_name(operation: str) -> str:
    """The name in reports: the default kernel of an operation of autofuse.ops, or the full name of a function."""
    package, _, rest = operation.partition(".")
    if not rest:
        return ops.kernel_of(operation)
    return f"torch {rest.rpartition('.')[2]}" if package == "torch" else operation


def build_step(builder: Builder, part: Applied, captures: Mapping[str, Any]) -> Any:
    """The node or the Python value for one step of an `after`.

    Raises:
        CannotBuild: torch raised an error for these operands.
    """
    operands = [_build_part(builder, p, captures) for p in part.parts]
    if part.kind == "slice":
        return slice(*operands)
    if part.kind == "tuple":
        return tuple(operands)
    if part.kind == "item":
        return builder.get_item(*operands)
    if part.kind == "operator":
        return builder.build_from_template(part.name, operands)
    if part.kind == "attribute":
        return builder.build_from_template("{0}." + part.name, operands)
    named = {n: _build_part(builder, p, captures) for n, p in part.named if not isinstance(p, str) or p in captures}
    if part.kind == "method":
        return builder.evaluate_new(builder.graph.call_method(part.name, tuple(operands), named))
    return builder.call_function(operands[0], tuple(operands[1:]), named)


def _build_part(builder: Builder, part: Part, captures: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        return captures[part]
    if isinstance(part, Constant):
        return part.value
    if isinstance(part, Imported):
        return resolve_name(part.name)
    return build_step(builder, part, captures)
