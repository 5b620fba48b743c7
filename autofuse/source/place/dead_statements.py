"""Finds the statements that an edit makes unnecessary, and refuses edits that would drop or repeat side effects."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from autofuse.canonical import View
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, OPAQUE, PARAMETER, SINK, TUPLE, Value, ancestors
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.match.legality import is_metadata
from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.captured import CapturedFunction, ValuePosition
from autofuse.source.capture.syntax import walk
from autofuse.source.place.branches import KeptName
from autofuse.source.place.edits import TextSpan, is_inside, is_within, span_of
from autofuse.source.place.names import FunctionNames, alternatives_of
from autofuse.source.targets.speller import Unwritable


@dataclass(eq=False)
class DeadStatements:
    """Finds the statements of one function that an edit makes unnecessary.

    Attributes:
        captured: the function.
        view: the canonical form of its graph.
        names: how the function uses its names.
    """

    captured: CapturedFunction
    view: View
    names: FunctionNames
    _removed_cache: dict[tuple[Value, frozenset[Value]], frozenset[Value]] = field(default_factory=dict)

    def removed_values(self, site: Site) -> frozenset[Value]:
        """The removed values, and values computed from them. The new text can mention neither."""
        key = (site.root, site.removed.values)
        if key not in self._removed_cache:
            removed, results = set(site.removed.values), {r.value for r in site.results}
            first_serial = min((v.serial for v in removed), default=site.root.serial)
            for v in sorted(ancestors(site.root, since=first_serial), key=lambda v: v.serial):
                if v not in results and not is_metadata(v) and any(i in removed for i in v.inputs):
                    removed.add(v)
            self._removed_cache[key] = frozenset(removed)
        return self._removed_cache[key]

    def find(
        self,
        site: Site,
        used: set[Value],
        root: ValuePosition,
        place: ValuePosition,
        moved: Sequence[ValuePosition] = (),
        retyped: Collection[Value] = (),
    ) -> set[ast.stmt]:
        """The statements that bind only values that are no longer needed.

        `moved` are expressions that new statements before their own statements evaluate. `retyped` are the used values
        that the new text computes again.
        """
        unneeded = self._unneeded_values(site, used, retyped) | set(self._tuples_with_results(site))
        dead = set()
        for statement in self.names.binders(unneeded | site.removed.values):
            values = self.captured.assigned[statement]
            must_stay = statement in self.captured.effects and not self._is_moved(statement, moved)
            must_stay = must_stay or statement in (root.statement, place.statement)
            if hasattr(statement, "body"):  # such as `if (w := f(x)) is not None:`, which binds a name
                if any(v in site.removed.values for v in values):
                    raise Unwritable(because(writing.HEAD_STAYS))
            elif values and not must_stay and all(v in unneeded for v in values):
                if not self.drops_calls(statement, used):
                    dead.add(statement)
                elif any(v in site.removed.values for v in values):
                    raise Unwritable(because(writing.HELPER_CALLS))
        bound = {v for s in dead for v in self.captured.assigned[s]}
        for statement, deleted in self.captured.deleted.items():
            values = [part for v in deleted for part in alternatives_of(v, (CHOICE,))]
            if values and all(v in bound for v in values):
                dead.add(statement)
            elif any(v in bound for v in values):
                raise Unwritable(because(writing.DELETED_TOGETHER))
        return dead

    def keep_statements_of_read_names(
        self, dead: set[ast.stmt], root: ValuePosition, place: ValuePosition, reads: set[Value]
    ) -> None:
        """Removes from `dead` each statement with a name that remaining text still reads.

        `reads` are the metadata reads that the edit replaces; they do not count.
        """
        reread = {n for r in reads for p in self.captured.positions.get(r, []) for n in walk(p.node)}
        replaced = {id(n) for p in (root, place) for n in walk(p.node)}
        bound = {s: {name for name, _ in bindings([s])} for s in dead}  # one value may have two names
        closed_over = self._names_of_closures(dead)
        dead -= {s for s in dead if closed_over & bound[s]}
        size = -1
        # A statement that stays may read names of other statements, so these stay as well.
        while size != len(dead):
            size = len(dead)
            for binder in tuple(dead):
                for read in (r for v in self.captured.assigned.get(binder, []) for r in self.names.reads(v)):
                    is_gone = read.statement in dead or id(read.name) in replaced and not read.of_target
                    if not is_gone and read.name not in reread and (not bound[binder] or read.name.id in bound[binder]):
                        dead.discard(binder)

    def is_read_elsewhere(self, binder: ast.stmt, root: ValuePosition, dead: set[ast.stmt]) -> bool:
        """Whether a statement that stays reads what `binder` binds, which holds the result of the call then."""
        replaced = {id(n) for n in walk(root.node)}
        reads = (r for v in self.captured.assigned.get(binder, ()) for r in self.names.reads(v))
        if self._names_of_closures(dead) & {name for name, _ in bindings([binder])}:
            return True
        return any(r.statement not in dead and id(r.name) not in replaced for r in reads)

    def _names_of_closures(self, dead: set[ast.stmt]) -> set[str]:
        """The names that nested functions and lambdas read that stay."""
        gone = {id(n) for s in dead for n in walk(s)} if self.names.closures else set()
        return {name for f, names in self.names.closures for name in names if id(f) not in gone}

    def pure_tests(self, dead: set[ast.stmt]) -> tuple[TextSpan, ...]:
        """The `if` statements around removed statements that have no side effects. They go if they become empty."""
        tests = (s for s in self.captured.tests if s not in self.captured.effects)
        return tuple(span_of(s) for s in tests if any(is_inside(span_of(d), span_of(s)) for d in dead))

    def drops_calls(self, statement: ast.stmt, used: set[Value], node: ast.expr | None = None) -> bool:
        """Whether a helper called in `node`, or anywhere in the statement, makes a call that the edit would drop."""
        calls = self.captured.helper_calls.get(statement, ())
        inside = {id(n) for n in walk(node)} if node is not None and calls else None
        calls_made = [v for call, v in calls if inside is None or id(call) in inside]
        kept_values = {a for v in used for a in (v, *ancestors(v))} if calls_made else set()
        return any(v not in kept_values for v in calls_made)

    def check_helper_removed(self, site: Site, root: ValuePosition, dead: set[ast.stmt]) -> None:
        """Raises Unwritable if a call of the helper that computes the result remains: it would run in addition."""
        for user in (u for r in site.results for u in self.captured.graph.users[r.value] if u.op == TUPLE):
            for p in self.captured.positions.get(user, ()):
                if p.inlined and p.statement not in dead and not is_within(p.node, root.node):
                    raise Unwritable(because(writing.HELPER_STAYS))

    def moved_to_branches(self, kept: Sequence[KeptName]) -> Iterator[ValuePosition]:
        """Yields the expressions that assignments to the new names evaluate instead."""
        for k in kept:
            for part in (k.value, *ancestors(k.value)):
                for original in self.view.originals(part):
                    places = self.captured.positions.get(original, ())
                    yield from (p for p in places if p.statement is k.branch.place.statement)

    def _tuples_with_results(self, site: Site) -> Iterator[Value]:
        """Yields tuples of a result and removed values: `out` in `out = attend(x); y = out[0]`."""
        results = {r.value for r in site.results}
        for user in (u for v in results for u in self.captured.graph.users[v] if u.op == TUPLE):
            if not self.captured.graph.users[user] and all(i in results | site.removed.values for i in user.inputs):
                yield user

    def _is_moved(self, statement: ast.stmt, moved: Sequence[ValuePosition]) -> bool:
        """Whether new statements before a statement have all its effects, except for binding names."""
        nodes = [p.node for p in moved if p.statement is statement]
        moved_nodes = {id(n) for node in nodes for n in ast.walk(node)}
        values = {id(p.node): v for v, places in self.captured.positions.items() for p in places} if nodes else {}
        rest = [n for n in ast.walk(statement) if isinstance(n, _MAY_HAVE_EFFECTS) and id(n) not in moved_nodes]
        return bool(nodes) and all(id(n) in values and _is_harmless(values[id(n)]) for n in rest)

    def _unneeded_values(self, site: Site, used: set[Value], retyped: Collection[Value] = ()) -> set[Value]:
        """The values that are no longer needed after the edit.

        They are used only by removed values, or by joins of branches that nothing reads.
        """
        removed = set(self.removed_values(site))
        unneeded, needed = set(removed), used - removed
        by_serial = {v.serial: v for v in (site.root, *removed, *needed)}
        todo = [-serial for serial in by_serial]
        heapify(todo)
        waiting = {site.root, *removed}
        while waiting:  # from the last value back to the first that may be removed
            v = by_serial.pop(-heappop(todo))
            spend()
            candidate, kept = v in waiting, v in needed
            is_named = kept and v not in retyped
            waiting.discard(v)
            if candidate and not is_named and v not in unneeded and _is_removable(v):
                if not any(v is r.value for r in site.results):
                    if all(self._is_unneeded_use(u, unneeded, site) for u in self.captured.graph.users[v]):
                        unneeded.add(v)
            passes = candidate and (v is site.root or v in unneeded or v.op in (CHOICE, OPAQUE))
            for i in v.inputs:
                if kept and i not in removed:
                    needed.add(i)
                if passes and i.inputs and (i not in needed or i in retyped):
                    waiting.add(i)
                if (i in needed or i in waiting) and i.serial not in by_serial:
                    by_serial[i.serial] = i
                    heappush(todo, -i.serial)
        return unneeded

    def _is_unneeded_use(self, user: Value, unneeded: set[Value], site: Site) -> bool:
        """Whether a use does not count: it is removed, the result, or a join or an attribute that nothing reads."""
        seen, todo = set[Value](), [user]
        while todo:
            v = todo.pop()
            if v in unneeded or v in seen or any(v is r.value for r in site.results):
                continue
            is_lookup = v.op == ATTRIBUTE and not self.captured.graph.users[v]  # of a method, as in `x.float()`
            if v.op not in (CHOICE, OPAQUE) and not is_lookup:
                return False
            seen.add(v)
            todo += self.captured.graph.users[v]
        return True


_MAY_HAVE_EFFECTS = (
    ast.Call,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.NamedExpr,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
)


def _is_harmless(v: Value) -> bool:
    """Whether computing `v` has no side effects."""
    known = v.op in OPS and OPS[v.op].effect != "random"
    return known or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in {*HARMLESS, *MODULES}


def _is_removable(v: Value) -> bool:
    if v.op == CALL:
        return isinstance(v.data, tuple) and v.data[0] in HARMLESS
    return v.op not in (PARAMETER, CONST, SINK, OPAQUE) and not (v.op in OPS and OPS[v.op].effect == "random")
