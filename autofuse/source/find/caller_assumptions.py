"""Proposals that depend on the callers of a function.

Two facts about callers allow an edit that the function alone does not show to be right:

- No caller reads one element of a returned tuple, such as `weights` in `(output, weights)`.
  The function is read again as if it returned None in place of that element. The edit also writes this None.
- Every caller passes a dropout layer (or None) for a parameter that the function calls.
  The function is read again as if that layer were written there.

Such an edit is unsafe, because callers outside the given files may behave differently. The finding names the callers
that were found. If a caller reads the element, the advice names the line.
"""

from __future__ import annotations

import ast
import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autofuse.reasons import matches
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.passed_dropout import (
    PassedDropout,
    assume_dropout,
    called_parameters,
    find_passed_dropout,
    has_dropout,
)
from autofuse.source.find.proposal import Proposal
from autofuse.source.find.result_uses import (
    FindImporters,
    ResultUse,
    ReturnedElement,
    find_uses,
    return_statements,
    returned_lengths,
)
from autofuse.source.place.edits import NewText, TextSpan, is_inside, span_of

_MAX_NAMED = 4  # callers, and files, that one message names
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_WITH_BODIES = (ast.stmt, ast.ExceptHandler, ast.match_case)  # excludes `a if b else c`: its `body` is not a list


@dataclass(frozen=True)
class _Element:
    """One element of the tuples that a function returns, and what its callers do with it."""

    index: int
    texts: tuple[str, ...]
    spans: tuple[TextSpan, ...]
    uses: tuple[ResultUse, ...]

    @property
    def is_read(self) -> bool:
        return any(u.reads for u in self.uses)


def add_caller_assumptions(
    proposals: list[Proposal],
    defined: DefinedFunction,
    files: ProjectFiles | None,
    read: Callable[[DefinedFunction], list[Proposal]],
) -> list[Proposal]:
    """Adds the proposals that depend on the callers of a function.

    Args:
        proposals: the proposals for the function alone, without its callers.
        defined: the function.
        files: the files of the project, in which callers are searched; None searches the function's own file only.
        read: finds the proposals for a (changed) function.
    """
    importers = files.importing_files if files is not None else _no_importers
    with_layers, assumptions = defined, tuple[str, ...]()
    may_pass_layers = called_parameters(defined) and _may_pass_dropout(defined.scope, files)
    if may_pass_layers and (layers := tuple(find_passed_dropout(defined, importers))):
        with_layers, assumptions = assume_dropout(defined, layers), tuple(_layer_assumption(g, defined) for g in layers)
        reread = [p for p in read(with_layers) if not _is_known(p, proposals)]
        if any(p.edit is not None for p in reread):
            return _merge_edits(proposals, reread, assumptions)
        proposals = _sorted_by_place([*proposals, *filter(_refuses_returned_value, reread)])
    if not any(map(_refuses_returned_value, proposals)):
        return proposals
    elements = [*_collect_elements(defined, importers)]
    for element in elements if any(element.is_read for element in elements) else ():
        if element.uses and not element.is_read and set(element.texts) != {"None"}:
            with_none = replace(with_layers, function=_return_none(defined.function, element.index))
            reread = [p for p in read(with_none) if not _is_known(p, proposals)]
            if any(p.edit is not None for p in reread):
                all_assumptions = (*assumptions, _element_assumption(element, defined))
                return _merge_edits(proposals, reread, all_assumptions, element.spans)
    return [_name_readers(p, elements, defined) if _refuses_returned_value(p) else p for p in proposals]


def _sorted_by_place(proposals: list[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda p: (p.finding.line, p.finding.column))


def _refuses_returned_value(p: Proposal) -> bool:
    """Whether a proposal is refused because the function returns a value that the fused call does not compute."""
    return p.finding.reason_code == matches.VALUE_RETURNED.name


def _no_importers(scope: FileScope, name: str) -> tuple[FileScope, ...]:
    return ()


def _merge_edits(
    proposals: list[Proposal], others: Sequence[Proposal], assumptions: tuple[str, ...], spans: Sequence[TextSpan] = ()
) -> list[Proposal]:
    """Merges the edits among `others` into `proposals`.

    These edits become unsafe, with `assumptions` as their reason. Each edit also writes None at `spans`.
    """
    edits = [_make_unsafe(p, "; ".join(assumptions), spans) for p in others if p.edit is not None]
    return _sorted_by_place([*_remaining_proposals(proposals, edits), *edits])


def _layer_assumption(layer: PassedDropout, defined: DefinedFunction) -> str:
    where = _format_places(layer.callers, defined)
    return f"assumes that `{layer.parameter}` is an nn.Dropout or None, as at {where}"


def _element_assumption(element: _Element, defined: DefinedFunction) -> str:
    where = _format_places([(u.file, u.line) for u in element.uses], defined)
    name, value = defined.function.name, element.texts[-1]
    return f"`{name}` returns None for `{value}`: assumes that no caller reads it, as at {where}"


def _collect_elements(defined: DefinedFunction, importers: FindImporters) -> Iterator[_Element]:
    """Yields the elements that all `return` statements have in common, if all return tuples of one length."""
    lengths = returned_lengths(defined.function)
    if len(lengths) != 1 or None in lengths or _is_generator(defined.function):
        return
    owner = defined.owner.node.name if defined.owner is not None else ""
    tuples = [r.value for r in return_statements(defined.function) if isinstance(r.value, ast.Tuple)]
    for index in range(len(tuples[0].elts)):
        values = [t.elts[index] for t in tuples]
        uses = find_uses(ReturnedElement(defined.function, owner, defined.scope, index), importers)
        yield _Element(index, tuple(ast.unparse(p) for p in values), tuple(map(span_of, values)), tuple(uses))


def _is_generator(function: Function) -> bool:
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(function))


def _return_none(function: Function, index: int) -> Function:
    """A copy of a function that returns None as the element at `index`. Nodes that do not change are shared."""

    def with_none(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            copied_return, elements = copy.copy(node), copy.copy(node.value)
            elements.elts = list(elements.elts)
            elements.elts[index] = ast.copy_location(ast.Constant(None), elements.elts[index])
            copied_return.value = elements
            return copied_return
        if not isinstance(node, _WITH_BODIES) or id(node) not in on_the_way:
            return node
        copied_node = copy.copy(node)
        for field in _BODIES:
            if isinstance(block := getattr(node, field, None), list):
                setattr(copied_node, field, [with_none(n) for n in block])
        return copied_node

    on_the_way = {id(function), *_statements_with_returns(function)}  # only these are copied
    copied = with_none(function)
    assert isinstance(copied, Function)
    return copied


def _may_pass_dropout(scope: FileScope, files: ProjectFiles | None) -> bool:
    """Whether the file, or a file that may import from it, mentions dropout layers at all."""
    return scope.index(has_dropout) or files is not None and files.may_use_dropout(scope)


def _statements_with_returns(function: Function) -> Iterator[int]:
    """The ids of the statements in a function that contain one of its `return` statements."""
    returns = {id(r) for r in return_statements(function)}
    for node in ast.walk(function):
        if isinstance(node, _WITH_BODIES) and any(
            _contains_any(n, returns) for field in _BODIES for n in getattr(node, field, ())
        ):
            yield id(node)


def _contains_any(node: ast.AST, ids: set[int]) -> bool:
    return any(id(n) in ids for n in ast.walk(node))


def _is_known(p: Proposal, proposals: Sequence[Proposal]) -> bool:
    """Whether `proposals` has the same edit already, or the same finding if there is no edit."""
    edits = [q.edit.replacements for q in proposals if q.edit is not None]
    return p.edit.replacements in edits if p.edit is not None else p.finding in [q.finding for q in proposals]


def _make_unsafe(p: Proposal, assumption: str, spans: Sequence[TextSpan]) -> Proposal:
    """A copy of the proposal that is unsafe, states what it assumes, and writes None at `spans`."""
    assert p.edit is not None
    replaced = (*p.edit.removals, *(span for span, _ in p.edit.replacements))
    none_writes = tuple((s, NewText("None")) for s in spans if not any(is_inside(s, r) for r in replaced))
    unsafe = "; ".join(filter(None, (p.edit.unsafe, assumption)))
    reason = "; ".join(filter(None, (p.finding.reason, assumption)))
    message = _add_clause(p.finding.message, p.finding.reason, assumption)
    finding = replace(p.finding, status="unsafe", reason=reason, message=message)
    return replace(
        p, finding=finding, edit=replace(p.edit, replacements=(*p.edit.replacements, *none_writes), unsafe=unsafe)
    )


def _add_clause(message: str, reason: str, clause: str) -> str:
    """Adds a clause to a message: after the reason if the message contains it, else in parentheses at its end."""
    if reason and reason in message:
        return message.replace(reason, f"{reason}; {clause}", 1)
    return f"{message[:-1]}; {clause})" if message.endswith(")") else f"{message} ({clause})"


def _remaining_proposals(proposals: list[Proposal], new_proposals: list[Proposal]) -> list[Proposal]:
    """The proposals that remain next to the new ones.

    - A refusal or a report is dropped if a new proposal of the same rule covers its lines.
    - An unsafe proposal is dropped if a new one covers it: the new one makes its edit too.
    - Any other edit that a new one covers waits for it.
    """
    kept = []
    for p in proposals:
        covering = [
            n.finding
            for n in new_proposals
            if n.finding.line <= p.finding.line and p.finding.end_line <= n.finding.end_line
        ]
        if p.edit is None and any(f.code == p.finding.code for f in covering):
            continue
        if covering and p.finding.status == "unsafe":
            continue
        kept.append(replace(p, waits_for=(*p.waits_for, *covering)) if p.edit is not None and covering else p)
    return kept


def _name_readers(p: Proposal, elements: Sequence[_Element], defined: DefinedFunction) -> Proposal:
    """Adds the callers that read the returned value to the advice of a refusal."""
    element = next((e for e in elements if p.finding.value in e.texts), None)
    if element is None or not element.is_read:
        return p
    readers = _format_places([(u.file, u.line) for u in element.uses if u.reads], defined)
    targets = sorted({u.target for u in element.uses if u.target})
    where = f"{readers} (assigned to {', '.join(targets)})" if targets else readers
    advice = (
        f"callers read `{p.finding.value}` at {where}; if they do not need it, return None in its place: then "
        f"{p.finding.code} applies"
    )
    return replace(p, finding=replace(p.finding, advice=advice))


def _format_places(uses: Iterable[tuple[str, int]], defined: DefinedFunction) -> str:
    """Formats the places of uses, file by file: "line 12, model.py:30, 41"."""
    parts = []
    for file, group in groupby(sorted(uses), key=lambda use: use[0]):
        lines = list(dict.fromkeys(str(line) for _, line in group))
        text = ", ".join(lines[:_MAX_NAMED]) + (
            f" and {len(lines) - _MAX_NAMED} more" if len(lines) > _MAX_NAMED else ""
        )
        parts.append(
            f"line {text}" if file == str(defined.scope.file or "") else f"{_relative_path(file, defined)}:{text}"
        )
    return ", ".join(parts[:_MAX_NAMED]) + (
        f" and in {len(parts) - _MAX_NAMED} more files" if len(parts) > _MAX_NAMED else ""
    )


def _relative_path(file: str, defined: DefinedFunction) -> str:
    """The path of a file, relative to the folder of the function's file."""
    here = os.path.dirname(str(defined.scope.file or ""))
    return os.path.relpath(file, here) if here else file
