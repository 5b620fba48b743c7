"""Makes the edit of a site: which text is replaced by which, and which statements are removed.

The fused call normally replaces the expression that computes the result. Two cases need more:

- The name of an operand holds another value there, as after `x = x - mean`. The call then replaces the value of an
  earlier statement, one that is removed otherwise.
- No name holds an operand there. The operand is then assigned to a new name where it is computed.

This module works on syntax trees and positions. write/file_edits.py changes the file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

from autofuse.canonical import View
from autofuse.ir.graph import (
    ATTRIBUTE,
    CALL,
    CHOICE,
    CONST,
    ITEM,
    OPAQUE,
    PARAMETER,
    SINK,
    SLICE,
    TUPLE,
    Value,
    ancestors,
)
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.match.legality import is_metadata, written_in_place
from autofuse.match.site import Site
from autofuse.reasons import matches, writing
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.captured import CapturedFunction, ValuePosition, is_unconditional
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.lambdas import is_expression_function
from autofuse.source.capture.scope import ClassScope, FileScope, blocks_of
from autofuse.source.capture.symbolic_lengths import GraphSizes
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.toplevel import SYMBOL, has_import_after
from autofuse.source.place.branches import Branch, KeptName, branches_before, values_to_keep
from autofuse.source.place.edits import Edit, NewText, TextSpan, is_inside, span_of, start_of
from autofuse.source.place.helper_text import text_before_call
from autofuse.source.place.layout_callers import LayoutIndex, any_caller_reads
from autofuse.source.place.layout_reads import is_returned_as_is, layout_reads, may_escape
from autofuse.source.place.names import FunctionNames, alternatives_of
from autofuse.source.place.shape_reads import accepts_tuple, is_tuple
from autofuse.source.targets import TargetCall, call_of
from autofuse.source.targets.printing import SourceText, permuted_text, unused_name
from autofuse.source.targets.speller import (
    FoldedScale,
    Speller,
    Unwritable,
    computing_places,
    find_call_places,
    layer_text,
)


@dataclass
class Placement:
    """Makes the edits of the sites in one function.

    Attributes:
        text: the text of the file.
        captured: the function.
        view: the canonical form of its graph.
        sizes: the symbolic sizes of its tensors.
        scope: the names of the file.
        target: the library for which calls are written.
        owner: the class, if the function is a method.
        blocks: id of a statement -> its block, and its index there.
        around: id of a statement -> the `with` that directly contains it.
        importing: returns the files that import from this one and depend on layouts.
        names: how the function uses its names.
    """

    text: SourceText
    captured: CapturedFunction
    view: View
    sizes: GraphSizes
    scope: FileScope
    target: str
    owner: ClassScope | None = None
    blocks: dict[int, tuple[list[ast.stmt], int]] = field(default_factory=dict)
    around: dict[int, ast.With] = field(default_factory=dict)
    importing: Callable[[], tuple[FileScope, ...]] = tuple[FileScope, ...]
    names: FunctionNames = field(init=False)
    _helper_texts: dict[Value, str] = field(default_factory=dict)  # value -> its text before the call of its helper
    _removed_cache: dict[tuple[Value, frozenset[Value]], frozenset[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = FunctionNames(self.captured)
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
        """Makes the edit of a site.

        Raises:
            Unwritable: there is no such edit. The exception has the reason.
            NotInTarget: the target library has no such call.
        """
        if len(site.results) > 1:
            return self._edit_of_sum_and_norm(site)
        places = find_call_places(self.captured, site)
        assert places, "the search drops sites inside helpers and comprehensions"
        if len({id(p.node) for p in places}) != 1:
            raise Unwritable(because(writing.WRITTEN_TWICE))
        if (name := self._name_bound_inside(places[0].node)) is not None:
            raise Unwritable(because(writing.BINDS_NAME, name=name))
        try:
            return self._edit_at(site, places[0], places[0], {})
        except Unwritable as reason:
            for earlier in self._earlier_places(site, places[0]):
                try:
                    return self._edit_at(site, earlier, places[0], {})
                except Unwritable:
                    continue
            try:
                return self._with_new_names(site, places[0], reason)
            except Unwritable as second_reason:
                try:
                    return self._with_kept_names(site, places[0], reason)
                except Unwritable:
                    raise second_reason from None

    def _name_bound_inside(self, node: ast.expr) -> str | None:
        """A name that `node` binds, as `(y := x + 1) * y` does, and that is read outside of it."""
        bound_names = {n.target.id for n in walk(node) if isinstance(n, ast.NamedExpr)}
        inside = {id(n) for n in walk(node)} if bound_names else set()
        names = (n for n in ast.walk(self.captured.function) if isinstance(n, ast.Name))
        names_outside = (n.id for n in names if id(n) not in inside)
        return next((name for name in names_outside if name in bound_names), None) if bound_names else None

    def _edit_of_sum_and_norm(self, site: Site) -> Edit:
        """Replaces `x = x + f(x)` and `norm(x)` by one call with two results, at the place of the sum."""
        first = next(computing_places(self.captured, site.results[0].value), None)
        root = next(iter(find_call_places(self.captured, site)), None)
        if first is None or root is None or len(site.results) > 2 or site.results[1].permutation:
            raise Unwritable(because(writing.SUM_NOT_APART))
        statement = first.statement
        is_assignment = (
            isinstance(statement, ast.Assign) and statement.value is first.node and len(statement.targets) == 1
        )
        if not isinstance(statement, ast.Assign) or not is_assignment or not isinstance(statement.targets[0], ast.Name):
            raise Unwritable(because(writing.SUM_UNNAMED))
        # One call can replace both only if the norm always runs after the sum, in the same state and block.
        if (
            not self._dominates(first, root)
            or first.attribute_writes != root.attribute_writes
            or first.region != root.region
        ):
            raise Unwritable(because(writing.NORM_ELSEWHERE))
        imports, target = Imports(self.scope, self._local_names), statement.targets[0]
        speller = self.make_speller(site, first, first, imports, {})
        call = call_of(self.target, site.rule.replacement, site.captures, speller)
        dead = self._dead_statements(site, speller.used, root, first, retyped=speller.retyped)
        self._check_names(dead, first, first, set())
        replacements = [(span_of(first.node), NewText(call.text(), call))]
        name = self._name_in_next_statement(first, root)
        if name is not None:
            dead.add(root.statement)
        else:
            name = unused_name("normed", self._used_names({}))
            replacements.append((span_of(root.node), NewText(name)))
        replacements.append((span_of(target), NewText(f"{target.id}, {name}")))
        pure_tests = self._pure_tests(dead)
        return Edit(
            tuple(replacements), tuple(sorted(map(span_of, dead))), pure_tests, imports=tuple(imports.needed),
            unsafe=call.unsafe, becomes=call.function,
        )  # fmt: skip

    def _name_in_next_statement(self, first: ValuePosition, root: ValuePosition) -> str | None:
        """The name that the next statement assigns the norm to, if it does nothing else."""
        block, index = self.blocks[id(first.statement)]
        following = block[index + 1] if index + 1 < len(block) else None
        if following is not root.statement or not isinstance(following, ast.Assign) or following.value is not root.node:
            return None
        target, name_of_sum = following.targets[0], _target_text(first.statement)
        is_simple = len(following.targets) == 1 and isinstance(target, ast.Name) and target.id != name_of_sum
        return target.id if is_simple and isinstance(target, ast.Name) else None

    def _with_new_names(self, site: Site, root: ValuePosition, reason: Unwritable) -> Edit:
        """Assigns operands that have no name at the call to new names, one after the other."""
        if is_expression_function(self.captured.function):
            raise reason
        bound: dict[Value, tuple[str, ValuePosition]] = {}
        # Each attempt fails at the first operand without a name, so it shows only one of them.
        for _ in range(6):
            if reason.value is None or reason.value in bound:
                break
            equal_values = [reason.value, *self.view.originals(self.view.of(reason.value))]
            definition = next(
                (
                    (value, position)
                    for value in equal_values
                    if (position := self._find_definition(value, root, site)) is not None
                ),
                None,
            )
            if definition is None or definition[0] in bound:
                break
            bound[definition[0]] = (self._new_name(definition[0], site, bound), definition[1])
            try:
                edit = self._edit_at(site, root, root, bound)
            except Unwritable as next_reason:
                reason = next_reason
                continue
            return self._with_own_names(site, root, bound) or self._inline_new_name(edit, bound, root)
        raise reason

    def _with_own_names(
        self, site: Site, root: ValuePosition, bound: dict[Value, tuple[str, ValuePosition]]
    ) -> Edit | None:
        """The edit with the program's own names for `bound`, if only removed statements bind these names again."""
        own = {v: (_own_name(at) or name, at) for v, (name, at) in bound.items()}
        try:
            return self._edit_at(site, root, root, own) if own != bound else None
        except Unwritable:
            return None

    def _is_bound_between(self, name: str, at: ValuePosition, root: ValuePosition, dead: set[ast.stmt]) -> bool:
        """Whether a statement that stays may bind `name` after the statement of `at`, before that of `root` runs."""
        if at.region != root.region:
            return True
        for s in walk(self.captured.function):
            if isinstance(s, ast.stmt) and s not in dead and s not in (at.statement, root.statement):
                inside = at.statement.lineno <= (s.end_lineno or s.lineno) and s.lineno <= root.statement.lineno
                nodes = (n for child in ast.iter_child_nodes(s) if not isinstance(child, ast.stmt) for n in walk(child))
                if inside and any(
                    isinstance(n, ast.Name) and n.id == name and n.ctx.__class__ is not ast.Load for n in nodes
                ):
                    return True
        return False

    def _inline_new_name(self, edit: Edit, bound: dict[Value, tuple[str, ValuePosition]], root: ValuePosition) -> Edit:
        """Inserts the operand into the call directly, instead of a new name.

        This is done if the only new name would be bound in the line before the call and be its first argument.
        """
        (name, place), *other_names = bound.values()
        block, index = self.blocks[id(root.statement)]
        is_adjacent = not other_names and len(edit.insertions) == 1 and index and place.statement is block[index - 1]
        # The old statement must go too, or the operand would be computed twice.
        if not is_adjacent or span_of(place.statement) not in edit.removals:
            return edit
        operand = edit.insertions[0][1].removeprefix(f"{name} = ")
        replacements = []
        for span, new in edit.replacements:
            if re.search(rf"\b{name}\b", new.text):
                call = new.call
                if call is None or call.arguments[:1] != (name,) or new.text != call.text() or call.before:
                    return edit
                call = replace(call, arguments=(operand, *call.arguments[1:]))
                if re.search(rf"\b{name}\b", call.text()):
                    return edit
                new = NewText(call.text(), call)
            replacements.append((span, new))
        return replace(edit, replacements=tuple(replacements), insertions=())

    def _with_kept_names(self, site: Site, root: ValuePosition, reason: Unwritable) -> Edit:
        """Assigns values that only a branch can name to new names in that branch."""
        if is_expression_function(self.captured.function):
            raise reason
        branches = [
            branch
            for branch in branches_before(self.captured, self.view, site, root, self.blocks)
            if self._starts_line(branch.statement)
        ]
        kept: list[KeptName] = []
        for _ in range(4):
            new_name = self._find_kept_name(site, root, branches, reason, kept)
            if new_name is None:
                break
            kept.append(new_name)
            try:
                return self._edit_at(site, root, root, {}, kept)
            except Unwritable as next_reason:
                reason = next_reason
        raise reason

    def _find_kept_name(
        self, site: Site, root: ValuePosition, branches: list[Branch], reason: Unwritable, kept: list[KeptName]
    ) -> KeptName | None:
        """The largest part of the missing operand that a statement in one of `branches` can write."""
        known = {(k.value, k.branch.test, k.branch.truth) for k in kept}
        for branch in reversed(branches):
            for value in values_to_keep(reason, branch, site.captures.values()):
                if (value, branch.test, branch.truth) in known:
                    continue
                try:
                    speller = self.make_speller(site, branch.place, root, Imports(self.scope, self._local_names), {})
                    speller.assumed = branch.assumed
                    speller.text(value)
                except Unwritable:
                    continue
                taken = self._used_names({}) | {k.name for k in kept}
                return KeptName(value, unused_name("attn_mask", taken), branch)
        return None

    def _edit_at(
        self,
        site: Site,
        place: ValuePosition,
        root: ValuePosition,
        bound: dict[Value, tuple[str, ValuePosition]],
        kept: Sequence[KeptName] = (),
    ) -> Edit:
        """Makes the edit with the call at a given position.

        Args:
            site: the site.
            place: the expression that the call replaces.
            root: the expression that computes the result. If it is not `place`, it becomes the name that `place` is
                assigned to.
            bound: values to assign to new names first, each with its name and the position that computes it.
            kept: values to keep in branches under new names.
        """
        imports = Imports(self.scope, self._local_names)
        speller = self.make_speller(site, place, root, imports, {v: name for v, (name, _) in bound.items()})
        speller.taken |= {k.name for k in kept}
        speller.branch_names = {k.value: (k.name, k.branch.assumed) for k in kept}
        speller.none_tests = {k.branch.test: (k.name, k.branch.truth) for k in reversed(kept)}
        try:
            call = call_of(self.target, site.rule.replacement, site.captures, speller)
            becomes, permutation = call.function, site.results[-1].permutation
            if site.results[-1].negated:
                call = replace(call, tail=f"{call.tail}.neg()")
            contiguous = ".contiguous()" if self._needs_contiguous(call, site) else ""
            if contiguous and not permutation:
                call, contiguous = replace(call, tail=call.tail + contiguous), ""
            call = self._wrap_in_following_layers(call, place, site.root)
            text = permuted_text(call.text(), permutation) + contiguous
            replacements = [(span_of(place.node), NewText(text, call))]
            if place is not root:
                replacements.append((span_of(root.node), NewText(_target_text(place.statement))))
            insertions = self._insertions(site, kept, speller, imports)
            replacements += self._replace_metadata_reads(site, speller, imports)
            self._check_imports(imports, place)
        except SyntaxError as error:
            raise Unwritable(because(writing.OPERAND_OF_LINES)) from error
        self._check_in_place(root)
        moved_places = [*(at for _, at in bound.values()), *self._moved_to_branches(kept)]
        dead = self._dead_statements(
            site, speller.used | set(bound), root, place, moved_places, speller.retyped - set(bound)
        )
        self._check_names(dead, root, place, {*site.removed.metadata, *self._shape_reads(speller)})
        self._check_helper_removed(site, root, dead)
        if place is not root and self._is_read_elsewhere(place.statement, root, dead):
            raise Unwritable(because(writing.NAME_REBOUND))
        for u in speller.folded_scales:
            if _is_self_assignment(u):
                dead.add(u.statement)
            else:
                replacements.append((span_of(u.product), NewText(self.text.of(u.operand))))
        if any(self._drops_calls(p.statement, speller.used | set(bound), p.node) for p in (place, root)):
            raise Unwritable(because(writing.HELPER_CALLS))
        if place is not root and (name := self._name_to_bind(place, root)) is not None:
            dead.add(root.statement)  # it would only assign the result to a second name
            if name != _target_text(place.statement):
                replacements.append((span_of(_target_node(place.statement)), NewText(name)))
        if not speller.removed_statements <= dead:
            raise Unwritable(because(writing.NAME_REBOUND))
        insertions += [(span_of(place.statement), text) for text in call.before]
        for v, (name, at) in sorted(bound.items(), key=lambda b: span_of(b[1][1].node)):
            if (helper_text := self._helper_texts.get(v)) is not None:
                if at.statement not in dead:  # the helper would compute the value a second time
                    raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=v.op))
                insertions.append((span_of(at.statement), f"{name} = {helper_text}"))
                continue
            if name == _own_name(at):
                if at.statement in dead or self._is_bound_between(name, at, root, dead):
                    raise Unwritable(because(writing.NAME_REBOUND))
                continue
            insertions.append((span_of(at.statement), f"{name} = {self.text.of(at.node)}"))
            if at.statement not in dead and not isinstance(at.node, ast.Name) and not _is_within(at.node, root.node):
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
        """The statements that bind the names of `kept`: None before the `if`, the value in the branch."""
        insertions = []
        for k in kept:
            branch_speller = self.make_speller(site, k.branch.place, speller.root, imports, {})
            branch_speller.used, branch_speller.removed_statements, branch_speller.assumed = (
                speller.used,
                speller.removed_statements,
                k.branch.assumed,
            )
            insertions.append((start_of(k.branch.statement), f"{k.name} = None"))
            insertions.append((span_of(k.branch.place.statement), f"{k.name} = {branch_speller.text(k.value)}"))
        return insertions

    def _check_imports(self, imports: Imports, place: ValuePosition) -> None:
        """Raises Unwritable if module code needs a new import that would come after the call."""
        body = self.captured.function.body
        if imports.needed and self.captured.function.name == SYMBOL and has_import_after(body, place.statement.lineno):
            raise Unwritable(because(writing.IMPORT_TOO_LATE))

    def _needs_contiguous(self, call: TargetCall, site: Site) -> bool:
        """Whether the code relies on a contiguous result. The product that `call` replaces is contiguous."""
        if not call.function.endswith(("scaled_dot_product_attention", "ops.attention")) or ".squeeze(" in call.tail:
            return False
        is_read = any(True for _ in layout_reads(self.captured, site.root))
        if not is_read and is_returned_as_is(self.captured, site.root):
            indexes = [scope.index(LayoutIndex) for scope in (self.scope, *self.importing())]
            is_read = any_caller_reads(indexes, self.captured.function, self.owner)
        return is_read or may_escape(self.captured, site.root) and self.scope.index(LayoutIndex).has_reads()

    def _wrap_in_following_layers(self, call: TargetCall, place: ValuePosition, root: Value) -> TargetCall:
        """Wraps the call in the layers of an `nn.Sequential` that follow the replaced ones."""
        chain = self.captured.chains.get(place.node)
        index = next((i for i, (_, v) in enumerate(chain.steps) if v is root), -1) if chain and place.inner else -1
        if chain is None or not place.inner:
            return call
        for path, _ in chain.steps[index + 1 :]:
            call = replace(
                call, function=f"{layer_text(self.text, place.node, path)}({call.function}", tail=call.tail + ")"
            )
        return call

    @cached_property
    def _local_names(self) -> frozenset[str]:
        """The local names of the function. In module code, imported names do not count."""
        names = bindings(self.captured.function.body)
        return frozenset(n for n, binding in names if not isinstance(binding, (ast.Import, ast.ImportFrom)))

    def make_speller(
        self, site: Site, place: ValuePosition, root: ValuePosition, imports: Imports, bound: dict[Value, str]
    ) -> Speller:
        """A Speller that writes operands for one position."""
        removed = self._removed_values(site)
        result = Speller(self.text, self.captured, self.view, place, root, removed, imports, self.sizes, bound)
        result.result, result.owner = site.root, self.owner
        result.may_insert = self._starts_line(place.statement)
        result.taken = self._used_names(bound)
        return result

    def _removed_values(self, site: Site) -> frozenset[Value]:
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

    def _starts_line(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines to itself, so that statements can be inserted before it."""
        if is_expression_function(self.captured.function):
            return False
        line = self.text.lines[statement.lineno - 1]
        block, index = self.blocks.get(id(statement), ([], 0))
        is_shared = any(s.lineno == (statement.end_lineno or 0) for s in block[index + 1 : index + 2])
        return not line[: statement.col_offset].strip() and not is_shared

    def _used_names(self, bound: dict[Value, str]) -> set[str]:
        """The names in use in the function or around it."""
        return {*self.names.used, *self.scope.bound, *bound.values()}

    # Other positions for the call.

    def _earlier_places(self, site: Site, root: ValuePosition) -> Iterator[ValuePosition]:
        """Yields earlier statements of the block that the call can replace, the last one first."""
        block, index = self.blocks.get(id(root.statement), ([], 0))
        for statement in reversed(block[:index]):
            values = self.captured.assigned.get(statement, [])
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or len(values) != 1:
                continue
            target = statement.targets[0]
            if (
                isinstance(target, ast.Name)
                and values[0] in site.removed.values
                and root.names.get(target.id) is values[0]
            ):
                yield from (p for p in self.captured.positions[values[0]] if p.node is statement.value)

    def _find_definition(self, value: Value, root: ValuePosition, site: Site) -> ValuePosition | None:
        """A position that computes or names `value` and that always runs before the root."""
        first_serial = min((v.serial for v in site.removed.values), default=0)
        if any(v in site.removed.values for v in ancestors(value, since=first_serial)):
            return None
        places = [
            *computing_places(self.captured, value),
            *(p for p in self.captured.positions.get(value, []) if not p.inner),
        ]
        best = next((p for p in places if self._dominates(p, root) and is_unconditional(p)), None)
        if best is not None or (helper := text_before_call(self.captured, self.scope, value)) is None:
            return best
        place, self._helper_texts[value] = helper
        return place if self._dominates(place, root) and self._starts_line(place.statement) else None

    def _dominates(self, place: ValuePosition, root: ValuePosition) -> bool:
        """Whether the statement of `place` always runs before the statement of `root`, or is the same."""
        if place.inner or id(place.statement) not in self.blocks:
            return False
        # The body of a compound statement may not run.
        if isinstance(place.statement, (ast.For, ast.While, ast.AsyncFor, ast.With, ast.AsyncWith, ast.If, ast.Try)):
            return False
        statement: ast.stmt | None = place.statement
        while statement is not None:
            block, index = self.blocks[id(statement)]
            if any(s is root.statement or _contains(s, root.statement) for s in block[index:]):
                return True
            around = self.around.get(id(statement))  # leaving a `with` is fine unless it is a region of its own
            statement = around if around not in place.region else None
        return False

    def _name_to_bind(self, place: ValuePosition, root: ValuePosition) -> str | None:
        """The name that the statement of `root` binds, if the statement of `place` may bind it directly."""
        match root.statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is root.node:
                block, index = self.blocks[id(place.statement)]
                rest = block[index + 1 :]
                between = rest[: next((i for i, s in enumerate(rest) if s is root.statement), 0)]
                used_between = {n.id for s in between for n in ast.walk(s) if isinstance(n, ast.Name)}
                deleted = {n.id for s in self.captured.deleted for n in ast.walk(s) if isinstance(n, ast.Name)}
                is_free = any(s is root.statement for s in rest) and name not in used_between
                is_free = is_free and _target_text(place.statement) not in deleted  # `del` needs the old name
                return name if is_free or name == _target_text(place.statement) else None
        return None

    def _is_read_elsewhere(self, binder: ast.stmt, root: ValuePosition, dead: set[ast.stmt]) -> bool:
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

    def _new_name(self, value: Value, site: Site, bound: dict[Value, tuple[str, ValuePosition]]) -> str:
        base = next((n for n, c in site.captures.items() if value in self.view.originals(c)), "operand")
        return unused_name(base, self._used_names({v: name for v, (name, _) in bound.items()}))

    # Other changes to the function.

    def _replace_metadata_reads(self, site: Site, speller: Speller, imports: Imports) -> list[tuple[TextSpan, NewText]]:
        """The replacements of reads of the shape, dtype or device of a removed value: the operands have the same."""
        replacements = []
        for read in sorted({*site.removed.metadata, *self._shape_reads(speller)}, key=lambda v: v.serial):
            for place in self.captured.positions.get(read, []):
                if _is_within(place.node, speller.root.node):
                    continue
                value, node = self._with_index(read, place)
                speller_there = self.make_speller(site, place, speller.root, imports, {})
                speller_there.used, speller_there.removed_statements = speller.used, speller.removed_statements
                text = speller_there.text(self.view.of(value))
                if is_tuple(text) and not accepts_tuple(node, place.statement):
                    text = f"{imports.text('torch.Size', place)}({text})"
                if is_tuple(text) and text.startswith("(") and getattr(place.statement, "value", None) is node:
                    text = text[1:-1]  # `i, j = q.shape[-2], k.shape[-2]`
                replacements.append((span_of(node), NewText(text)))
        return replacements

    def _with_index(self, read: Value, place: ValuePosition) -> tuple[Value, ast.expr]:
        """The indexing expression around a read, such as `scores.shape[-1]`, or else the read itself."""
        for user in self.captured.graph.users[read]:
            is_item = user.op == ITEM and (user.inputs[1].op != SLICE or _takes_last_two(user.inputs[1]))
            for p in self.captured.positions.get(user, []) if is_item else ():
                if isinstance(p.node, ast.Subscript) and p.node.value is place.node:
                    return user, p.node
        return read, place.node

    def _shape_reads(self, speller: Speller) -> set[Value]:
        """The reads of the shape or dtype of removed values on which the call still depends."""
        reads, todo, seen = set[Value](), list(speller.used), set[Value]()
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in speller.removed_values:
                raise Unwritable(because(matches.OPERAND_FROM_REMOVED, what="the scores", which="the scores"))
            reads_removed = is_metadata(value) and any(i in speller.removed_values for i in value.inputs)
            reads |= {value} if reads_removed else set()
            spend()
            todo += [] if reads_removed else [i for i in value.inputs if i.serial >= speller.first_removed]
        return reads

    def _pure_tests(self, dead: set[ast.stmt]) -> tuple[TextSpan, ...]:
        """The `if` statements around removed statements that have no side effects. They go if they become empty."""
        tests = (s for s in self.captured.tests if s not in self.captured.effects)
        return tuple(span_of(s) for s in tests if any(is_inside(span_of(d), span_of(s)) for d in dead))

    def _dead_statements(
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
                if not self._drops_calls(statement, used):
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

    def _tuples_with_results(self, site: Site) -> Iterator[Value]:
        """Yields tuples of a result and removed values: `out` in `out = attend(x); y = out[0]`."""
        results = {r.value for r in site.results}
        for user in (u for v in results for u in self.captured.graph.users[v] if u.op == TUPLE):
            if not self.captured.graph.users[user] and all(i in results | site.removed.values for i in user.inputs):
                yield user

    def _check_helper_removed(self, site: Site, root: ValuePosition, dead: set[ast.stmt]) -> None:
        """Raises Unwritable if a call of the helper that computes the result remains: it would run in addition."""
        for user in (u for r in site.results for u in self.captured.graph.users[r.value] if u.op == TUPLE):
            for p in self.captured.positions.get(user, ()):
                if p.inlined and p.statement not in dead and not _is_within(p.node, root.node):
                    raise Unwritable(because(writing.HELPER_STAYS))

    def _drops_calls(self, statement: ast.stmt, used: set[Value], node: ast.expr | None = None) -> bool:
        """Whether a helper called in `node`, or anywhere in the statement, makes a call that the edit would drop."""
        calls = self.captured.helper_calls.get(statement, ())
        inside = {id(n) for n in walk(node)} if node is not None and calls else None
        calls_made = [v for call, v in calls if inside is None or id(call) in inside]
        kept_values = {a for v in used for a in (v, *ancestors(v))} if calls_made else set()
        return any(v not in kept_values for v in calls_made)

    def _moved_to_branches(self, kept: Sequence[KeptName]) -> Iterator[ValuePosition]:
        """Yields the expressions that assignments to the new names evaluate instead."""
        for k in kept:
            for part in (k.value, *ancestors(k.value)):
                for original in self.view.originals(part):
                    places = self.captured.positions.get(original, ())
                    yield from (p for p in places if p.statement is k.branch.place.statement)

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
        removed = set(self._removed_values(site))
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

    def _check_in_place(self, root: ValuePosition) -> None:
        """Raises Unwritable if the root changes a named tensor in place and the name is read later: `x.add_(bias)`."""
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


def _is_self_assignment(u: FoldedScale) -> bool:
    """Whether the statement would become `q = q` without its product."""
    match u.statement, u.operand:
        case ast.Assign(targets=[ast.Name(id=bound)], value=value), ast.Name(id=name):
            return bound == name and value is u.product
    return False


def _takes_last_two(index: Value) -> bool:
    """Whether an index is `[-2:]`."""
    start, end, step = index.inputs
    return start.data == -2 and end.data is step.data is None


def _own_name(at: ValuePosition) -> str:
    """The name that a statement assigns the expression to, if it does nothing else; or ""."""
    match at.statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is at.node:
            return name
    return ""


def _target_text(statement: ast.stmt) -> str:
    return ast.unparse(_target_node(statement))


def _target_node(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, ast.Assign)
    return statement.targets[0]


def _contains(statement: ast.stmt, inner: ast.stmt) -> bool:
    return any(n is inner for n in walk(statement))


def _is_within(node: ast.expr, outer: ast.expr) -> bool:
    return is_inside(span_of(node), span_of(outer))
