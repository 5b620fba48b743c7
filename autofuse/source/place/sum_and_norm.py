"""Makes the edit of a residual addition and the norm of its result, which become one call with two results."""

from __future__ import annotations

import ast

from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.captured import ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.place.edits import Edit, NewText, span_of
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.statements import target_text
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
        not function.statements.dominates(first, root)
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
    name = _name_in_next_statement(function, first, root)
    if name is not None:
        dead.add(root.statement)
    else:
        name = unused_name("normed", function.used_names({}))
        replacements.append((span_of(root.node), NewText(name)))
    replacements.append((span_of(target), NewText(f"{target.id}, {name}")))
    pure_tests = function.dead.pure_tests(dead)
    return Edit(
        tuple(replacements), tuple(sorted(map(span_of, dead))), pure_tests, imports=tuple(imports.needed),
        unsafe=call.unsafe, becomes=call.function,
    )  # fmt: skip


def _name_in_next_statement(function: EditedFunction, first: ValuePosition, root: ValuePosition) -> str | None:
    """The name that the next statement assigns the norm to, if it does nothing else."""
    following = function.statements.following(first.statement)
    if following is not root.statement or not isinstance(following, ast.Assign) or following.value is not root.node:
        return None
    target, name_of_sum = following.targets[0], target_text(first.statement)
    is_simple = len(following.targets) == 1 and isinstance(target, ast.Name) and target.id != name_of_sum
    return target.id if is_simple and isinstance(target, ast.Name) else None
