"""Makes the edit of a residual addition and the norm of its result, which become one call with two results."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.captured import ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.place.edits import Edit, NewText, span_of
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.statements import own_name, target_text
from autofuse.source.targets import call_of
from autofuse.source.targets.printing import unused_name
from autofuse.source.targets.speller import Unwritable, computing_places, find_call_places


def edit_sum_and_norm(function: EditedFunction, site: Site) -> Edit:
    """Replaces `x = x + f(x)` and `norm(x)` by one call with two results, at the place of the sum."""
    first = next(computing_places(function.captured, site.results[0].value), None)
    root = next(iter(find_call_places(function.captured, site)), None)
    if first is None or root is None or len(site.results) > 2 or site.results[1].permutation:
        raise Unwritable(because(writing.SUM_NOT_APART))
    statement = first.statement
    is_assignment = isinstance(statement, ast.Assign) and statement.value is first.node and len(statement.targets) == 1
    if not isinstance(statement, ast.Assign) or not is_assignment or not isinstance(statement.targets[0], ast.Name):
        raise Unwritable(because(writing.SUM_UNNAMED))
    # One call can replace both only if the norm always runs after the sum, in the same state and block.
    if (
        not function.statements.always_reaches(first, root)
        or first.attribute_writes != root.attribute_writes
        or first.region != root.region
    ):
        raise Unwritable(because(writing.NORM_ELSEWHERE))
    imports, target = Imports(function.scope, function.local_names), statement.targets[0]
    speller = function.make_speller(site, first, first, imports, {})
    call = call_of(function.target, site.rule.replacement, site.captures, speller)
    dead = function.dead.find(site, speller.used, root, first, retyped=speller.retyped)
    function.dead.keep_statements_of_read_names(dead, first, first, set())
    replacements = [(span_of(first.node), NewText(call.text(), call))]
    names = _names_bound_later(function, first, root)
    if names is not None:
        dead.update(names.statements)
        replacements.append((span_of(target), NewText(f"{names.of_sum}, {names.of_norm}")))
    else:
        name = unused_name("normed", function.used_names({}))
        replacements.append((span_of(root.node), NewText(name)))
        replacements.append((span_of(target), NewText(f"{target.id}, {name}")))
    pure_tests = function.dead.pure_tests(dead)
    return Edit(
        tuple(replacements), tuple(sorted(map(span_of, dead))), pure_tests, imports=tuple(imports.needed),
        unsafe=call.unsafe, becomes=call.function,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _LaterNames:
    """The names of the sum and of its norm after the statements that bind them, which the call makes unnecessary."""

    of_sum: str
    of_norm: str
    statements: tuple[ast.stmt, ...]


def _names_bound_later(function: EditedFunction, first: ValuePosition, root: ValuePosition) -> _LaterNames | None:
    """The names that the next statements give to the sum and the norm, if they do nothing else.

    The next statement is `y = norm(x)`, or `residual = x` before `x = norm(x)`.
    """
    name_of_sum, norm_name = target_text(first.statement), own_name(root)
    following = function.statements.following(first.statement)
    if following is root.statement:
        return _LaterNames(name_of_sum, norm_name, (root.statement,)) if norm_name not in ("", name_of_sum) else None
    match following:
        case ast.Assign(targets=[ast.Name(id=kept)], value=ast.Name(id=read)) if read == norm_name == name_of_sum:
            is_next = kept != read and function.statements.following(following) is root.statement
            return _LaterNames(kept, norm_name, (following, root.statement)) if is_next else None
    return None
