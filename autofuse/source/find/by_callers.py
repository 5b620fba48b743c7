"""What the callers of a function show: attention that returns `(output, weights)`, and whose weights nobody reads.

A function is read again as if it returned None in place of an element that no caller reads, and with the dropout
layers that its callers hand it. The edit that comes out writes the None too. It is unsafe, for callers that were not
given may do otherwise; it names those that were found. Where a caller reads the element, the finding says which.
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
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.evidence.given_files import ProjectFiles
from autofuse.source.find.given_layers import GivenLayer, calls_parameters, given_layers, has_dropout, with_layers
from autofuse.source.find.proposal import Proposal
from autofuse.source.find.result_uses import ResultUse, Returned, Users, lengths_returned, returns, uses_of
from autofuse.source.place.edits import NewText, TextSpan, is_inside, span_of

_TOLD = 4  # callers that one message names
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_WITH_BODIES = (ast.stmt, ast.ExceptHandler, ast.match_case)  # an expression's body is none: `a if b else c`


@dataclass(frozen=True)
class _Element:
    """One element of the tuples that a function returns, and what its callers do with it."""

    at: int
    texts: tuple[str, ...]
    spans: tuple[TextSpan, ...]
    uses: tuple[ResultUse, ...]

    @property
    def is_read(self) -> bool:
        return any(u.reads for u in self.uses)


def read_by_callers(
    found: list[Proposal], d: Defined, files: ProjectFiles | None, read: Callable[[Defined], list[Proposal]]
) -> list[Proposal]:
    """The proposals for a function, with those that there are by what its callers give it and what they read.

    `found` is what `read` finds in the function as it stands.
    """
    users = files.using if files is not None else _nobody
    layered, assumed = d, tuple[str, ...]()
    if given := tuple(given_layers(d, users)) if calls_parameters(d) and _dropout_is_given(d.scope, files) else ():
        layered, assumed = with_layers(d, given), tuple(_assumed_of_layer(g, d) for g in given)
        others = [p for p in read(layered) if not _among(p, found)]
        if any(p.edit is not None for p in others):
            return _with(found, others, assumed)
        found = _in_order([*found, *filter(_is_returned, others)])
    if not any(map(_is_returned, found)):
        return found
    elements = [*_elements(d, users)]
    for e in elements if any(e.is_read for e in elements) else ():
        if e.uses and not e.is_read and set(e.texts) != {"None"}:
            others = [p for p in read(replace(layered, function=_without(d.function, e.at))) if not _among(p, found)]
            if any(p.edit is not None for p in others):
                return _with(found, others, (*assumed, _assumed_of_element(e, d)), e.spans)
    return [_told_callers(p, elements, d) if _is_returned(p) else p for p in found]


def _in_order(found: list[Proposal]) -> list[Proposal]:
    return sorted(found, key=lambda p: (p.finding.line, p.finding.column))


def _is_returned(p: Proposal) -> bool:
    """Whether a value is returned that the fused call would not compute."""
    return p.finding.reason_code == matches.VALUE_RETURNED.name


def _nobody(scope: FileScope) -> tuple[FileScope, ...]:
    return ()


def _with(
    found: list[Proposal], others: Sequence[Proposal], assumed: tuple[str, ...], spans: Sequence[TextSpan] = ()
) -> list[Proposal]:
    """The proposals of before, and the edits among `others`, which assume something and write None at `spans`."""
    new = [_assuming(p, "; ".join(assumed), spans) for p in others if p.edit is not None]
    return _in_order([*_beside(found, new), *new])


def _assumed_of_layer(layer: GivenLayer, d: Defined) -> str:
    where = _places(layer.callers, d)
    return f"assumes that `{layer.parameter}` is an nn.Dropout or None, as at {where}"


def _assumed_of_element(e: _Element, d: Defined) -> str:
    where = _places([(u.file, u.line) for u in e.uses], d)
    return f"`{d.function.name}` returns None for `{e.texts[-1]}`: assumes that no caller reads it, as at {where}"


def _elements(d: Defined, users: Users) -> Iterator[_Element]:
    """The elements that every `return` of a function has, if it is called by its name."""
    lengths = lengths_returned(d.function)
    if len(lengths) != 1 or None in lengths or _yields(d.function):
        return
    owner = d.owner.node.name if d.owner is not None else ""
    tuples = [r.value for r in returns(d.function) if isinstance(r.value, ast.Tuple)]
    for at in range(len(tuples[0].elts)):
        parts = [t.elts[at] for t in tuples]
        uses = uses_of(Returned(d.function, owner, d.scope, at), users)
        yield _Element(at, tuple(ast.unparse(p) for p in parts), tuple(map(span_of, parts)), tuple(uses))


def _yields(function: Function) -> bool:
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(function))


def _without(function: Function, at: int) -> Function:
    """A function that returns None as that element; every other node is that of the original."""

    def changed(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            new, whole = copy.copy(node), copy.copy(node.value)
            whole.elts = list(whole.elts)
            whole.elts[at] = ast.copy_location(ast.Constant(None), whole.elts[at])
            new.value = whole
            return new
        if not isinstance(node, _WITH_BODIES) or id(node) not in around:
            return node
        new_node = copy.copy(node)
        for field in _BODIES:
            if isinstance(inner := getattr(node, field, None), list):
                setattr(new_node, field, [changed(n) for n in inner])
        return new_node

    around = {id(function), *_holding_returns(function)}
    made = changed(function)
    assert isinstance(made, Function)
    return made


def _dropout_is_given(scope: FileScope, files: ProjectFiles | None) -> bool:
    """Whether the file, or one that may import from it, has dropout layers at all."""
    return scope.index(has_dropout) or files is not None and files.may_give_dropout(scope)


def _holding_returns(function: Function) -> Iterator[int]:
    """The statements of a function that its `return` statements stand in."""
    own = {id(r) for r in returns(function)}
    for node in ast.walk(function):
        if isinstance(node, _WITH_BODIES) and any(
            _holds(n, own) for field in _BODIES for n in getattr(node, field, ())
        ):
            yield id(node)


def _holds(node: ast.AST, own: set[int]) -> bool:
    return any(id(n) in own for n in ast.walk(node))


def _among(p: Proposal, found: Sequence[Proposal]) -> bool:
    """Whether the function as it stands has the same edit, or the same finding."""
    edits = [q.edit.replacements for q in found if q.edit is not None]
    return p.edit.replacements in edits if p.edit is not None else p.finding in [q.finding for q in found]


def _assuming(p: Proposal, assumed: str, spans: Sequence[TextSpan]) -> Proposal:
    """The proposal with what is assumed, and with None written at `spans`."""
    assert p.edit is not None
    removed = (*p.edit.removals, *(span for span, _ in p.edit.replacements))
    new = tuple((s, NewText("None")) for s in spans if not any(is_inside(s, r) for r in removed))
    unsafe = "; ".join(filter(None, (p.edit.unsafe, assumed)))
    reason = "; ".join(filter(None, (p.finding.reason, assumed)))
    message = _with_clause(p.finding.message, p.finding.reason, assumed)
    told = replace(p.finding, status="unsafe", reason=reason, message=message)
    return replace(p, finding=told, edit=replace(p.edit, replacements=(*p.edit.replacements, *new), unsafe=unsafe))


def _with_clause(message: str, reason: str, clause: str) -> str:
    """A message with a further clause in its parentheses, behind the reason if it says that."""
    if reason and reason in message:
        return message.replace(reason, f"{reason}; {clause}", 1)
    return f"{message[:-1]}; {clause})" if message.endswith(")") else f"{message} ({clause})"


def _beside(found: list[Proposal], new: list[Proposal]) -> list[Proposal]:
    """The proposals of before. One that is refused where a new one stands goes; one that lies in it waits for it."""
    out = []
    for p in found:
        over = [n.finding for n in new if n.finding.line <= p.finding.line and p.finding.end_line <= n.finding.end_line]
        if p.edit is None and any(f.code == p.finding.code for f in over):
            continue
        if over and p.finding.status == "unsafe":
            continue  # a part of it, which assumes something too
        out.append(replace(p, within=(*p.within, *over)) if p.edit is not None and over else p)
    return out


def _told_callers(p: Proposal, elements: Sequence[_Element], d: Defined) -> Proposal:
    """A refusal for what is returned, with the callers that read it."""
    element = next((e for e in elements if p.finding.value in e.texts), None)
    if element is None or not element.is_read:
        return p
    readers = _places([(u.file, u.line) for u in element.uses if u.reads], d)
    kept = sorted({u.kept for u in element.uses if u.kept})
    where = f"{readers} ({', '.join(kept)} holds it)" if kept else readers
    advice = (
        f"see the callers: `{p.finding.value}` is read at {where}; where they can do without it, return None in its "
        f"place, then {p.finding.code} applies"
    )
    return replace(p, finding=replace(p.finding, advice=advice))


def _places(uses: Iterable[tuple[str, int]], d: Defined) -> str:
    """Where uses stand, file by file: "line 12, model.py:30, 41"."""
    told = []
    for file, group in groupby(sorted(uses), key=lambda use: use[0]):
        lines = list(dict.fromkeys(str(line) for _, line in group))
        shown = ", ".join(lines[:_TOLD]) + (f" and {len(lines) - _TOLD} more" if len(lines) > _TOLD else "")
        told.append(f"line {shown}" if file == str(d.scope.file or "") else f"{_shown(file, d)}:{shown}")
    return ", ".join(told[:_TOLD]) + (f" and in {len(told) - _TOLD} more files" if len(told) > _TOLD else "")


def _shown(file: str, d: Defined) -> str:
    """A file by its way from the folder of the function's file."""
    here = os.path.dirname(str(d.scope.file or ""))
    return os.path.relpath(file, here) if here else file
