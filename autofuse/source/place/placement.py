"""Makes the edit of a site: which text is replaced by which, and which statements are removed.

The fused call normally replaces the expression that computes the result. Two cases need more:

- The name of an operand holds another value there, as after `x = x - mean`. The call then replaces the value of an
  earlier statement, one that is removed otherwise.
- No name holds an operand there. The operand is then assigned to a new name where it is computed.

The folder works on syntax trees and positions. write/file_edits.py changes the file.

    placement.py        where the call goes
    call_edit.py        the edit with the call at that position
    new_names.py        edits in which operands get new names
    sum_and_norm.py     a residual addition and a norm, which become one call
    dead_statements.py  the statements that are no longer needed
    metadata_reads.py   reads of the shape of a tensor that is removed
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.captured import CapturedFunction, ValuePosition
from autofuse.source.capture.syntax import walk
from autofuse.source.place.call_edit import CallEdit
from autofuse.source.place.edits import Edit
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.new_names import EditWithNewNames
from autofuse.source.place.sum_and_norm import edit_sum_and_norm
from autofuse.source.targets.speller import Unwritable, find_call_places


@dataclass(frozen=True, eq=False)
class Placement:
    """Makes the edits of the sites in one function.

    Attributes:
        function: the function.
    """

    function: EditedFunction

    @property
    def captured(self) -> CapturedFunction:
        """The function as a graph."""
        return self.function.captured

    def edit(self, site: Site) -> Edit:
        """Makes the edit of a site.

        Raises:
            Unwritable: there is no such edit. The exception has the reason.
            NotInTarget: the target library has no such call.
        """
        if len(site.results) > 1:
            return edit_sum_and_norm(self.function, site)
        root = self._find_root(site)
        try:
            return CallEdit(self.function, site, root, root).make()
        except Unwritable as reason:
            return self._edit_elsewhere(site, root) or self._edit_with_new_names(site, root, reason)

    def _find_root(self, site: Site) -> ValuePosition:
        """The expression that computes the result. Raises Unwritable if a call cannot replace it."""
        places = find_call_places(self.captured, site)
        assert places, "the search drops sites inside helpers and comprehensions"
        if len({id(p.node) for p in places}) != 1:
            raise Unwritable(because(writing.WRITTEN_TWICE))
        if (name := self._name_bound_inside(places[0].node)) is not None:
            raise Unwritable(because(writing.BINDS_NAME, name=name))
        return places[0]

    def _name_bound_inside(self, node: ast.expr) -> str | None:
        """A name that `node` binds, as `(y := x + 1) * y` does, and that is read outside of it."""
        bound_names = {n.target.id for n in walk(node) if isinstance(n, ast.NamedExpr)}
        inside = {id(n) for n in walk(node)} if bound_names else set()
        names = (n for n in ast.walk(self.captured.function) if isinstance(n, ast.Name))
        names_outside = (n.id for n in names if id(n) not in inside)
        return next((name for name in names_outside if name in bound_names), None) if bound_names else None

    def _edit_elsewhere(self, site: Site, root: ValuePosition) -> Edit | None:
        """The edit with the call in an earlier statement."""
        for place in self._earlier_places(site, root):
            try:
                return CallEdit(self.function, site, place, root).make()
            except Unwritable:
                continue
        return None

    def _edit_with_new_names(self, site: Site, root: ValuePosition, reason: Unwritable) -> Edit:
        """The edit with new names for operands. Raises Unwritable."""
        names = EditWithNewNames(self.function, site, root)
        try:
            return names.before_call(reason)
        except Unwritable as second_reason:
            try:
                return names.in_branches(reason)
            except Unwritable:
                raise second_reason from None

    def _earlier_places(self, site: Site, root: ValuePosition) -> Iterator[ValuePosition]:
        """Yields earlier statements of the block that the call can replace, the last one first."""
        for statement in self.function.statements.preceding(root.statement):
            values = self.captured.assigned.get(statement, [])
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=node) if len(values) == 1:
                    if values[0] in site.removed.values and root.names.get(name) is values[0]:
                        yield from (p for p in self.captured.positions[values[0]] if p.node is node)
