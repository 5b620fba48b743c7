"""A site -> the edit that makes it: what is replaced by which text, and which statements go.

The call stands where the result stood. Where an operand's name no longer holds it there (`x = x - mean`), the call
stands at the statement that took the name; where nothing holds it, it is bound to a new name where it was computed.
Works on syntax trees and positions; changes no file (write/file_edits.py does).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

from autofuse.canonical import View
from autofuse.ir.graph import CALL, CHOICE, CONST, ITEM, OPAQUE, PARAMETER, SINK, SLICE, TUPLE, Value, ancestors
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.match.legality import is_metadata, written_in_place
from autofuse.match.site import Site
from autofuse.reasons import matches, writing
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.captured import CapturedFunction, ValuePosition, unconditional
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.lambdas import is_expression
from autofuse.source.capture.scope import ClassScope, FileScope, blocks_of
from autofuse.source.capture.symbolic_lengths import GraphSizes
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.toplevel import SYMBOL, imported_after
from autofuse.source.place.branches import Branch, KeptName, branches_before, wanted
from autofuse.source.place.edits import Edit, NewText, TextSpan, is_inside, span_of, start_of
from autofuse.source.place.helper_text import written_at_call
from autofuse.source.place.layout_callers import LayoutIndex, anybody_asks
from autofuse.source.place.layout_reads import escapes, layout_reads, returned_as_is
from autofuse.source.place.names import NamesOfFunction, joined
from autofuse.source.place.shape_reads import any_tuple_will_do, is_tuple
from autofuse.source.targets import TargetCall, call_of
from autofuse.source.targets.express import Speller, Unscaled, Unwritable, layer_text, places_of, root_places
from autofuse.source.targets.printing import SourceText, permuted_text, unused


@dataclass
class Placement:
    """Everything that writing one site needs to know of its function."""

    text: SourceText
    captured: CapturedFunction
    view: View
    sizes: GraphSizes
    scope: FileScope
    target: str
    owner: ClassScope | None = None  # the class whose method the function is
    blocks: dict[int, tuple[list[ast.stmt], int]] = field(
        default_factory=dict
    )  # statement -> its block and place in it
    around: dict[int, ast.With] = field(default_factory=dict)  # statement -> the `with` that it stands directly in

    importing: Callable[[], tuple[FileScope, ...]] = tuple[
        FileScope, ...
    ]  # files that rely on layouts, and import from this one
    names: NamesOfFunction = field(init=False)
    _from_helper: dict[Value, str] = field(default_factory=dict)  # what is written at the call of its helper
    _closures: dict[tuple[Value, frozenset[Value]], frozenset[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = NamesOfFunction(self.captured)
        todo = [self.captured.function.body]
        while todo:
            block = todo.pop()
            for i, statement in enumerate(block):
                self.blocks[id(statement)] = (block, i)
                if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    todo += blocks_of(statement)
                if isinstance(statement, ast.With):
                    self.around |= {id(s): statement for s in statement.body}

    def edit(self, site: Site) -> Edit:
        """The edit that makes `site`. Raises Unwritable with the reason if there is none, NotInTarget likewise."""
        if len(site.results) > 1:
            return self._edit_of_two(site)
        places = root_places(self.captured, site)
        assert places, "what is computed in a helper or a comprehension is not edited"
        if len({id(p.node) for p in places}) != 1:
            raise Unwritable(because(writing.WRITTEN_TWICE))
        if (name := self._bound_inside(places[0].node)) is not None:
            raise Unwritable(because(writing.BINDS_NAME, name=name))
        try:
            return self._edit_at(site, places[0], places[0], {})
        except Unwritable as reason:
            for earlier in self._earlier(site, places[0]):
                try:
                    return self._edit_at(site, earlier, places[0], {})
                except Unwritable:
                    continue
            try:
                return self._with_new_names(site, places[0], reason)
            except Unwritable as named:
                try:
                    return self._kept_in_branches(site, places[0], reason)
                except Unwritable:
                    raise named from None

    def _bound_inside(self, node: ast.expr) -> str | None:
        """A name that `node` binds on the way (`(y := x + 1) * y`) and that is read outside it."""
        bound = {n.target.id for n in walk(node) if isinstance(n, ast.NamedExpr)}
        inside = {id(n) for n in walk(node)} if bound else set()
        read = (n.id for n in ast.walk(self.captured.function) if isinstance(n, ast.Name) and id(n) not in inside)
        return next((name for name in read if name in bound), None) if bound else None

    def _edit_of_two(self, site: Site) -> Edit:
        """`x = x + f(x)` and `norm(x)` as one call that gives both; it stands where the sum did."""
        first = next(places_of(self.captured, site.results[0].value), None)
        root = next(iter(root_places(self.captured, site)), None)
        if first is None or root is None or len(site.results) > 2 or site.results[1].permutation:
            raise Unwritable(because(writing.SUM_NOT_APART))
        statement = first.statement
        whole = isinstance(statement, ast.Assign) and statement.value is first.node and len(statement.targets) == 1
        if not isinstance(statement, ast.Assign) or not whole or not isinstance(statement.targets[0], ast.Name):
            raise Unwritable(because(writing.SUM_UNNAMED))
        if not self._dominates(first, root) or first.forgets != root.forgets or first.region != root.region:
            raise Unwritable(because(writing.NORM_ELSEWHERE))
        imports, target = Imports(self.scope, self._local), statement.targets[0]
        speller = self.speller(site, first, first, imports, {})
        call = call_of(self.target, site.rule.replacement, site.captures, speller)
        dead = self._dead(site, speller.used, root, first)
        self._check_names(dead, first, first, set())
        replacements = [(span_of(first.node), NewText(call.text(), call))]
        name = self._follows(first, root)
        if name is not None:
            dead.add(root.statement)
        else:
            name = unused("normed", self._taken({}))
            replacements.append((span_of(root.node), NewText(name)))
        replacements.append((span_of(target), NewText(f"{target.id}, {name}")))
        pure = self._pure_tests(dead)
        return Edit(
            tuple(replacements), tuple(sorted(map(span_of, dead))), pure, imports=tuple(imports.needed),
            unsafe=call.unsafe, becomes=call.function,
        )  # fmt: skip

    def _follows(self, first: ValuePosition, root: ValuePosition) -> str | None:
        """The name that the very next statement gives the norm, if it does nothing else."""
        block, at = self.blocks[id(first.statement)]
        after = block[at + 1] if at + 1 < len(block) else None
        if after is not root.statement or not isinstance(after, ast.Assign) or after.value is not root.node:
            return None
        target, summed = after.targets[0], _target(first.statement)
        alone = len(after.targets) == 1 and isinstance(target, ast.Name) and target.id != summed
        return target.id if alone and isinstance(target, ast.Name) else None

    def _with_new_names(self, site: Site, root: ValuePosition, reason: Unwritable) -> Edit:
        """Bind what is not available at the place to new names, one after the other."""
        if is_expression(self.captured.function):
            raise reason
        bound: dict[Value, tuple[str, ValuePosition]] = {}
        for _ in range(6):
            if reason.value is None or reason.value in bound:
                break
            equal = [reason.value, *self.view.originals(self.view.of(reason.value))]
            found = next(((v, p) for v in equal if (p := self._definition(v, root, site)) is not None), None)
            if found is None or found[0] in bound:
                break
            bound[found[0]] = (self._new_name(found[0], site, bound), found[1])
            try:
                return self._without_names(self._edit_at(site, root, root, bound), bound, root)
            except Unwritable as another:
                reason = another
        raise reason

    def _without_names(self, edit: Edit, bound: dict[Value, tuple[str, ValuePosition]], root: ValuePosition) -> Edit:
        """The edit without a name that would be bound in the line before, and be the first argument of the call."""
        (name, at), *more = bound.values()
        block, here = self.blocks[id(root.statement)]
        alone = not more and len(edit.insertions) == 1 and here and at.statement is block[here - 1]
        if not alone or span_of(at.statement) not in edit.removals:
            return edit
        given = edit.insertions[0][1].removeprefix(f"{name} = ")
        changed = []
        for span, new in edit.replacements:
            if re.search(rf"\b{name}\b", new.text):
                call = new.call
                if call is None or call.arguments[:1] != (name,) or new.text != call.text() or call.before:
                    return edit
                call = replace(call, arguments=(given, *call.arguments[1:]))
                if re.search(rf"\b{name}\b", call.text()):
                    return edit
                new = NewText(call.text(), call)
            changed.append((span, new))
        return replace(edit, replacements=tuple(changed), insertions=())

    def _kept_in_branches(self, site: Site, root: ValuePosition, reason: Unwritable) -> Edit:
        """Let new names hold what only a branch can name, where it is made: each takes the place of what goes there."""
        if is_expression(self.captured.function):
            raise reason
        branches = [
            b
            for b in branches_before(self.captured, self.view, site, root, self.blocks)
            if self._begins_line(b.statement)
        ]
        kept: list[KeptName] = []
        for _ in range(4):
            found = self._kept(site, root, branches, reason, kept)
            if found is None:
                break
            kept.append(found)
            try:
                return self._edit_at(site, root, root, {}, kept)
            except Unwritable as another:
                reason = another
        raise reason

    def _kept(
        self, site: Site, root: ValuePosition, branches: list[Branch], reason: Unwritable, kept: list[KeptName]
    ) -> KeptName | None:
        """The largest part of what could not be written that the statement of one of `branches` can write."""
        held = {(k.value, k.branch.test, k.branch.truth) for k in kept}
        for branch in reversed(branches):
            for v in wanted(reason, branch, site.captures.values()):
                if (v, branch.test, branch.truth) in held:
                    continue
                try:
                    there = self.speller(site, branch.place, root, Imports(self.scope, self._local), {})
                    there.assumed = branch.assumed
                    there.text(v)
                except Unwritable:
                    continue
                taken = self._taken({}) | {k.name for k in kept}
                return KeptName(v, unused("attn_mask", taken), branch)
        return None

    def _edit_at(
        self,
        site: Site,
        place: ValuePosition,
        root: ValuePosition,
        bound: dict[Value, tuple[str, ValuePosition]],
        kept: Sequence[KeptName] = (),
    ) -> Edit:
        imports = Imports(self.scope, self._local)
        speller = self.speller(site, place, root, imports, {v: name for v, (name, _) in bound.items()})
        speller.taken |= {k.name for k in kept}
        speller.kept = {k.value: (k.name, k.branch.assumed) for k in kept}
        speller.told = {k.branch.test: (k.name, k.branch.truth) for k in reversed(kept)}
        try:
            call = call_of(self.target, site.rule.replacement, site.captures, speller)
            becomes, permutation = call.function, site.results[-1].permutation
            contiguous = ".contiguous()" if self._is_laid_out_anew(call, site) else ""
            if contiguous and not permutation:
                call, contiguous = replace(call, tail=call.tail + contiguous), ""
            call = self._followed(call, place, site.root)
            text = permuted_text(call.text(), permutation) + contiguous
            replacements = [(span_of(place.node), NewText(text, call))]
            if place is not root:
                replacements.append((span_of(root.node), NewText(_target(place.statement))))
            insertions = self._insertions(site, kept, speller, imports)
            replacements += self._metadata(site, speller, imports)
            self._check_imports(imports, place)
        except SyntaxError as error:
            raise Unwritable(because(writing.OPERAND_OF_LINES)) from error
        self._check_in_place(root)
        moved = [*(at for _, at in bound.values()), *self._moved_to_branches(kept)]
        dead = self._dead(site, speller.used | set(bound), root, place, moved)
        self._check_names(dead, root, place, {*site.doomed.metadata, *self._shape_reads(speller)})
        self._check_helpers_go(site, root, dead)
        for u in speller.unscaled:
            if _binds_anew(u):
                dead.add(u.statement)
            else:
                replacements.append((span_of(u.product), NewText(self.text.of(u.operand))))
        if any(self._drops_calls(p.statement, speller.used | set(bound), p.node) for p in (place, root)):
            raise Unwritable(because(writing.HELPER_CALLS))
        if place is not root and (name := self._name_given(place, root)) is not None:
            dead.add(root.statement)  # it would give what has a name another one
            if name != _target(place.statement):
                replacements.append((span_of(_target_node(place.statement)), NewText(name)))
        if not speller.removed <= dead:
            raise Unwritable(because(writing.NAME_REBOUND))
        insertions += [(span_of(place.statement), text) for text in call.before]
        for v, (name, at) in sorted(bound.items(), key=lambda b: span_of(b[1][1].node)):
            if (of_helper := self._from_helper.get(v)) is not None:
                if at.statement not in dead:  # the helper would compute it a second time
                    raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=v.op))
                insertions.append((span_of(at.statement), f"{name} = {of_helper}"))
                continue
            insertions.append((span_of(at.statement), f"{name} = {self.text.of(at.node)}"))
            if at.statement not in dead and not isinstance(at.node, ast.Name) and not _within(at.node, root.node):
                replacements.append((span_of(at.node), NewText(name)))
        return Edit(
            tuple(r for r in replacements if not any(is_inside(r[0], span_of(d)) for d in dead)),
            tuple(sorted(map(span_of, dead))),
            self._pure_tests(dead),
            tuple(insertions), imports=tuple(imports.needed), unsafe=call.unsafe, becomes=becomes,
        )  # fmt: skip

    def _insertions(
        self, site: Site, kept: Sequence[KeptName], speller: Speller, imports: Imports
    ) -> list[tuple[TextSpan, str]]:
        """What binds the names of `kept`: None before the branch, and the value in it."""
        found = []
        for k in kept:
            there = self.speller(site, k.branch.place, speller.root, imports, {})
            there.used, there.removed, there.assumed = speller.used, speller.removed, k.branch.assumed
            found.append((start_of(k.branch.statement), f"{k.name} = None"))
            found.append((span_of(k.branch.place.statement), f"{k.name} = {there.text(k.value)}"))
        return found

    def _check_imports(self, imports: Imports, place: ValuePosition) -> None:
        """An import that is added stands after those that are there, which at the top level may be too late."""
        body = self.captured.function.body
        if imports.needed and self.captured.function.name == SYMBOL and imported_after(body, place.statement.lineno):
            raise Unwritable(because(writing.IMPORT_TOO_LATE))

    def _is_laid_out_anew(self, call: TargetCall, site: Site) -> bool:
        """Whether the code relies on a contiguous result, as the product is that `call` stands for."""
        if not call.function.endswith(("scaled_dot_product_attention", "ops.attention")) or ".squeeze(" in call.tail:
            return False
        read = any(True for _ in layout_reads(self.captured, site.root))
        if not read and returned_as_is(self.captured, site.root):
            indexes = [scope.index(LayoutIndex) for scope in (self.scope, *self.importing())]
            read = anybody_asks(indexes, self.captured.function, self.owner)
        return read or escapes(self.captured, site.root) and self.scope.index(LayoutIndex).asked_anywhere()

    def _followed(self, call: TargetCall, place: ValuePosition, root: Value) -> TargetCall:
        """`call`, and around it the layers of the Sequential that come after what it stands for."""
        chain = self.captured.chains.get(place.node)
        at = next((i for i, (_, v) in enumerate(chain.steps) if v is root), -1) if chain and place.inner else -1
        if chain is None or not place.inner:
            return call
        for path, _ in chain.steps[at + 1 :]:
            call = replace(
                call, function=f"{layer_text(self.text, place.node, path)}({call.function}", tail=call.tail + ")"
            )
        return call

    @cached_property
    def _local(self) -> frozenset[str]:
        """The names that the function binds itself; at the top level those of its imports are the file's own."""
        found = bindings(self.captured.function.body)
        return frozenset(n for n, at in found if not isinstance(at, (ast.Import, ast.ImportFrom)))

    def speller(
        self, site: Site, place: ValuePosition, root: ValuePosition, imports: Imports, bound: dict[Value, str]
    ) -> Speller:
        gone = self._gone(site)
        made = Speller(self.text, self.captured, self.view, place, root, gone, imports, self.sizes, bound)
        made.result, made.owner = site.root, self.owner
        made.may_insert = self._begins_line(place.statement)
        made.taken = self._taken(bound)
        return made

    def _gone(self, site: Site) -> frozenset[Value]:
        """What goes, and what is computed from its contents: neither can be mentioned any more."""
        key = (site.root, site.doomed.values)
        if key not in self._closures:
            gone, results = set(site.doomed.values), {r.value for r in site.results}
            first = min((v.serial for v in gone), default=site.root.serial)
            for v in sorted(ancestors(site.root, since=first), key=lambda v: v.serial):
                if v not in results and not is_metadata(v) and any(i in gone for i in v.inputs):
                    gone.add(v)
            self._closures[key] = frozenset(gone)
        return self._closures[key]

    def _begins_line(self, statement: ast.stmt) -> bool:
        """Whether the statement has its line to itself, so that others can be put before it."""
        if is_expression(self.captured.function):
            return False
        line = self.text.lines[statement.lineno - 1]
        block, at = self.blocks.get(id(statement), ([], 0))
        shared = any(s.lineno == (statement.end_lineno or 0) for s in block[at + 1 : at + 2])
        return not line[: statement.col_offset].strip() and not shared

    def _taken(self, bound: dict[Value, str]) -> set[str]:
        """Names that mean something in or around the function."""
        return {*self.names.used, *self.scope.bound, *bound.values()}

    # Where else the call may stand.

    def _earlier(self, site: Site, root: ValuePosition) -> Iterator[ValuePosition]:
        """Statements of the block that bind a value that goes to a name which holds it until the root, last first."""
        block, at = self.blocks.get(id(root.statement), ([], 0))
        for statement in reversed(block[:at]):
            values = self.captured.assigned.get(statement, [])
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or len(values) != 1:
                continue
            target = statement.targets[0]
            if (
                isinstance(target, ast.Name)
                and values[0] in site.doomed.values
                and root.names.get(target.id) is values[0]
            ):
                yield from (p for p in self.captured.places[values[0]] if p.node is statement.value)

    def _definition(self, value: Value, root: ValuePosition, site: Site) -> ValuePosition | None:
        """A place that computes or names `value` and that always runs before the root."""
        first = min((v.serial for v in site.doomed.values), default=0)
        if any(v in site.doomed.values for v in ancestors(value, since=first)):
            return None
        places = [*places_of(self.captured, value), *(p for p in self.captured.places.get(value, []) if not p.inner)]
        found = next((p for p in places if self._dominates(p, root) and unconditional(p)), None)
        if found is not None or (helper := written_at_call(self.captured, self.scope, value)) is None:
            return found
        place, self._from_helper[value] = helper
        return place if self._dominates(place, root) and self._begins_line(place.statement) else None

    def _dominates(self, place: ValuePosition, root: ValuePosition) -> bool:
        """Whether the statement of `place` always runs before, or is, that of `root`."""
        if place.inner or id(place.statement) not in self.blocks:
            return False
        if isinstance(place.statement, (ast.For, ast.While, ast.AsyncFor, ast.With, ast.AsyncWith, ast.If, ast.Try)):
            return False
        statement: ast.stmt | None = place.statement
        while statement is not None:
            block, at = self.blocks[id(statement)]
            if any(s is root.statement or _holds(s, root.statement) for s in block[at:]):
                return True
            around = self.around.get(id(statement))  # a `with` that changes nothing
            statement = around if around not in place.region else None
        return False

    def _name_given(self, place: ValuePosition, root: ValuePosition) -> str | None:
        """The name that the statement of `root` gives its value, if that of `place`, before it, may give it at once."""
        match root.statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is root.node:
                block, at = self.blocks[id(place.statement)]
                rest = block[at + 1 :]
                between = rest[: next((i for i, s in enumerate(rest) if s is root.statement), 0)]
                used = {n.id for s in between for n in ast.walk(s) if isinstance(n, ast.Name)}
                deleted = {n.id for s in self.captured.deleted for n in ast.walk(s) if isinstance(n, ast.Name)}
                together = any(s is root.statement for s in rest) and name not in used
                together = together and _target(place.statement) not in deleted  # `del` needs the name
                return name if together or name == _target(place.statement) else None
        return None

    def _new_name(self, value: Value, site: Site, bound: dict[Value, tuple[str, ValuePosition]]) -> str:
        wanted = next((n for n, c in site.captures.items() if value in self.view.originals(c)), "operand")
        return unused(wanted, self._taken({v: name for v, (name, _) in bound.items()}))

    # What else changes.

    def _metadata(self, site: Site, speller: Speller, imports: Imports) -> list[tuple[TextSpan, NewText]]:
        """A live read of the shape, dtype or device of a value that goes is read off the operands instead."""
        found = []
        for read in sorted({*site.doomed.metadata, *self._shape_reads(speller)}, key=lambda v: v.serial):
            for place in self.captured.places.get(read, []):
                if _within(place.node, speller.root.node):
                    continue
                value, node = self._indexed(read, place)
                there = self.speller(site, place, speller.root, imports, {})
                there.used, there.removed = speller.used, speller.removed
                text = there.text(self.view.of(value))
                if is_tuple(text) and value is read and not any_tuple_will_do(node, place.statement):
                    text = f"{imports.text('torch.Size', place)}({text})"
                found.append((span_of(node), NewText(text)))
        return found

    def _indexed(self, read: Value, place: ValuePosition) -> tuple[Value, ast.expr]:
        """`scores.shape[-1]` rather than `scores.shape`, where it is followed by an index."""
        for user in self.captured.graph.users[read]:
            whole = user.op == ITEM and user.inputs[1].op != SLICE
            for p in self.captured.places.get(user, []) if whole else ():
                if isinstance(p.node, ast.Subscript) and p.node.value is place.node:
                    return user, p.node
        return read, place.node

    def _shape_reads(self, speller: Speller) -> set[Value]:
        """Reads of the shape or dtype of what goes, among what the call still needs."""
        reads, todo, seen = set[Value](), list(speller.used), set[Value]()
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in speller.gone:
                raise Unwritable(because(matches.OPERAND_FROM_REMOVED, what="the scores", which="the scores"))
            touched = is_metadata(v) and any(i in speller.gone for i in v.inputs)
            reads |= {v} if touched else set()
            spend()
            todo += [] if touched else [i for i in v.inputs if i.serial >= speller.first_gone]
        return reads

    def _pure_tests(self, dead: set[ast.stmt]) -> tuple[TextSpan, ...]:
        """The branches around statements that go, whose tests only ask: one that is left empty goes too."""
        around = (s for s in self.captured.tests if s not in self.captured.effects)
        return tuple(span_of(s) for s in around if any(is_inside(span_of(d), span_of(s)) for d in dead))

    def _dead(
        self,
        site: Site,
        used: set[Value],
        root: ValuePosition,
        place: ValuePosition,
        moved: Sequence[ValuePosition] = (),
    ) -> set[ast.stmt]:
        """Statements that bind only values that nothing needs any more; `moved` are bound by statements before them."""
        gone = self._unneeded(site, used) | set(self._tuples_with(site))
        found = set()
        for statement in self.names.binders(gone | site.doomed.values):
            values = self.captured.assigned[statement]
            effect = statement in self.captured.effects and not self._moved_out(statement, moved)
            effect = effect or statement in (root.statement, place.statement)
            if hasattr(statement, "body"):  # its head binds something: `if (w := f(x)) is not None:`
                if any(v in site.doomed.values for v in values):
                    raise Unwritable(because(writing.HEAD_STAYS))
            elif values and not effect and all(v in gone for v in values):
                if not self._drops_calls(statement, used):
                    found.add(statement)
                elif any(v in site.doomed.values for v in values):
                    raise Unwritable(because(writing.HELPER_CALLS))
        bound = {v for s in found for v in self.captured.assigned[s]}
        for statement, held in self.captured.deleted.items():
            values = [part for v in held for part in joined(v, (CHOICE,))]
            if values and all(v in bound for v in values):
                found.add(statement)
            elif any(v in bound for v in values):
                raise Unwritable(because(writing.DELETED_TOGETHER))
        return found

    def _tuples_with(self, site: Site) -> Iterator[Value]:
        """The tuples that hold a result and what goes: `out` of `out = attend(x); y = out[0]`."""
        results = {r.value for r in site.results}
        for user in (u for v in results for u in self.captured.graph.users[v] if u.op == TUPLE):
            if not self.captured.graph.users[user] and all(i in results | site.doomed.values for i in user.inputs):
                yield user

    def _check_helpers_go(self, site: Site, root: ValuePosition, dead: set[ast.stmt]) -> None:
        """Raises where the call of a helper that computes the result stays: all would be computed twice."""
        for user in (u for r in site.results for u in self.captured.graph.users[r.value] if u.op == TUPLE):
            for p in self.captured.places.get(user, ()):
                if p.inlined and p.statement not in dead and not _within(p.node, root.node):
                    raise Unwritable(because(writing.HELPER_STAYS))

    def _drops_calls(self, statement: ast.stmt, used: set[Value], node: ast.expr | None = None) -> bool:
        """Whether a helper that is called in `node`, or anywhere in the statement, makes a call that would go."""
        called = self.captured.called_inside.get(statement, ())
        inside = {id(n) for n in walk(node)} if node is not None and called else None
        made = [v for call, v in called if inside is None or id(call) in inside]
        written = {a for v in used for a in (v, *ancestors(v))} if made else set()
        return any(v not in written for v in made)

    def _moved_to_branches(self, kept: Sequence[KeptName]) -> Iterator[ValuePosition]:
        """The expressions that new names take over, in the statements that they stood in."""
        for k in kept:
            for part in (k.value, *ancestors(k.value)):
                for original in self.view.originals(part):
                    places = self.captured.places.get(original, ())
                    yield from (p for p in places if p.statement is k.branch.place.statement)

    def _moved_out(self, statement: ast.stmt, moved: Sequence[ValuePosition]) -> bool:
        """Whether all that a statement does but bind names is done by expressions that move to one before it."""
        nodes = [p.node for p in moved if p.statement is statement]
        done = {id(n) for node in nodes for n in ast.walk(node)}
        values = {id(p.node): v for v, places in self.captured.places.items() for p in places} if nodes else {}
        rest = [n for n in ast.walk(statement) if isinstance(n, _ACTS) and id(n) not in done]
        return bool(nodes) and all(id(n) in values and _harmless(values[id(n)]) for n in rest)

    def _unneeded(self, site: Site, used: set[Value]) -> set[Value]:
        """What goes with a site: what only that, or a join that nobody reads, was computed for."""
        gone = set(self._gone(site))
        unused, needed = set(gone), used - gone
        by_serial = {v.serial: v for v in (site.root, *gone, *needed)}
        todo = [-serial for serial in by_serial]
        heapify(todo)
        waiting = {site.root, *gone}
        while waiting:  # from the last to the first, no further back than something may go
            v = by_serial.pop(-heappop(todo))
            spend()
            candidate, kept = v in waiting, v in needed
            waiting.discard(v)
            if candidate and not kept and v not in unused and _removable(v):
                if not any(v is r.value for r in site.results):
                    if all(self._idle(u, unused, site) for u in self.captured.graph.users[v]):
                        unused.add(v)
            passes = candidate and (v is site.root or v in unused or v.op in (CHOICE, OPAQUE))
            for i in v.inputs:
                if kept and i not in gone:
                    needed.add(i)
                elif passes and i not in needed and i.inputs:
                    waiting.add(i)
                if (i in needed or i in waiting) and i.serial not in by_serial:
                    by_serial[i.serial] = i
                    heappush(todo, -i.serial)
        return unused

    def _idle(self, user: Value, gone: set[Value], site: Site) -> bool:
        """Whether a use goes too: by what goes, by the root, or by a join that nobody reads."""
        seen, todo = set[Value](), [user]
        while todo:
            v = todo.pop()
            if v in gone or v in seen or any(v is r.value for r in site.results):
                continue
            if v.op not in (CHOICE, OPAQUE):
                return False
            seen.add(v)
            todo += self.captured.graph.users[v]
        return True

    def _check_in_place(self, root: ValuePosition) -> None:
        """Raises Unwritable where a name is written by the root itself, and read afterwards: `x.add_(bias)`."""
        match root.node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if written_in_place(method):
                pass
            case _:
                return
        own = root.statement.targets if isinstance(root.statement, ast.Assign) else ()
        if any(isinstance(t, ast.Name) and t.id == name for t in own):
            return
        end = (root.node.end_lineno or 0, root.node.end_col_offset or 0)
        reads = (n for n in ast.walk(self.captured.function) if isinstance(n, ast.Name) and n.id == name)
        if root.region or any((n.lineno, n.col_offset) > end for n in reads):
            raise Unwritable(because(writing.NAME_WRITTEN, name=name))

    def _check_names(self, dead: set[ast.stmt], root: ValuePosition, place: ValuePosition, reads: set[Value]) -> None:
        """Keep a statement whose name is still read by text that stays; `reads` are read off the operands instead."""
        reread = {n for r in reads for p in self.captured.places.get(r, []) for n in walk(p.node)}
        changed = {id(n) for p in (root, place) for n in walk(p.node)}
        bound = {s: {name for name, _ in bindings([s])} for s in dead}  # two names may be bound to what is one value
        left = -1
        while left != len(dead):
            left = len(dead)
            for binder in tuple(dead):
                for read in (r for v in self.captured.assigned.get(binder, []) for r in self.names.reads(v)):
                    own = read.statement in dead or id(read.name) in changed and not read.of_target
                    if not own and read.name not in reread and (not bound[binder] or read.name.id in bound[binder]):
                        dead.discard(binder)


_ACTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp)


def _harmless(v: Value) -> bool:
    """Whether computing `v` does nothing else."""
    known = v.op in OPS and OPS[v.op].effect != "random"
    return known or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in {*HARMLESS, *MODULES}


def _removable(v: Value) -> bool:
    if v.op == CALL:
        return isinstance(v.data, tuple) and v.data[0] in HARMLESS
    return v.op not in (PARAMETER, CONST, SINK, OPAQUE) and not (v.op in OPS and OPS[v.op].effect == "random")


def _binds_anew(u: Unscaled) -> bool:
    """Whether the statement would say `q = q` without its product."""
    match u.statement, u.operand:
        case ast.Assign(targets=[ast.Name(id=bound)], value=value), ast.Name(id=name):
            return bound == name and value is u.product
    return False


def _target(statement: ast.stmt) -> str:
    return ast.unparse(_target_node(statement))


def _target_node(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, ast.Assign)
    return statement.targets[0]


def _holds(statement: ast.stmt, inner: ast.stmt) -> bool:
    return any(n is inner for n in walk(statement))


def _within(node: ast.expr, outer: ast.expr) -> bool:
    return is_inside(span_of(node), span_of(outer))
