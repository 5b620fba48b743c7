"""Makes the edit that puts the call of a site at a given position."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autofuse.ir.graph import CALL, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import written_in_place
from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.captured import CapturedFunction, ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.toplevel import SYMBOL, has_import_after
from autofuse.source.place.branches import KeptName
from autofuse.source.place.edits import Edit, NewText, TextSpan, is_inside, is_within, span_of, start_of
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.layout_callers import LayoutIndex, any_caller_reads
from autofuse.source.place.layout_reads import is_returned_as_is, layout_reads, may_escape
from autofuse.source.place.metadata_reads import replace_metadata_reads, shape_reads
from autofuse.source.place.statements import own_name, target_node, target_text
from autofuse.source.targets import TargetCall, call_of
from autofuse.source.targets.printing import permuted_text
from autofuse.source.targets.speller import FoldedScale, Speller, Unwritable, layer_text


@dataclass(frozen=True, eq=False)
class NewName:
    """A name for a value that no name holds where the call stands.

    Attributes:
        value: the value.
        name: the name.
        at: the position that computes the value.
        helper_text: the text of the value, if a helper computes it: its text before the call of the helper.
    """

    value: Value
    name: str
    at: ValuePosition
    helper_text: str | None = None


@dataclass(eq=False)
class CallEdit:
    """The edit that puts the call of a site at a given position.

    Attributes:
        function: the function.
        site: the site.
        place: the expression that the call replaces.
        root: the expression that computes the result. If it is not `place`, it becomes the name that `place` is
            assigned to.
        bound: values to assign to new names first.
        kept: values to keep in branches under new names.
    """

    function: EditedFunction
    site: Site
    place: ValuePosition
    root: ValuePosition
    bound: Sequence[NewName] = ()
    kept: Sequence[KeptName] = ()
    _imports: Imports = field(init=False)
    _speller: Speller = field(init=False)
    _replacements: list[tuple[TextSpan, NewText]] = field(default_factory=list)
    _insertions: list[tuple[TextSpan, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._imports = Imports(self.function.scope, self.function.local_names)
        names = {new.value: new.name for new in self.bound}
        self._speller = self.function.make_speller(self.site, self.place, self.root, self._imports, names)
        self._speller.taken |= {k.name for k in self.kept}
        self._speller.branch_names = {k.value: (k.name, k.branch.assumed) for k in self.kept}
        self._speller.none_tests = {k.branch.test: (k.name, k.branch.truth) for k in reversed(self.kept)}

    def make(self) -> Edit:
        """Makes the edit.

        Raises:
            Unwritable: there is no such edit. The exception has the reason.
            NotInTarget: the target library has no such call.
        """
        try:
            call = call_of(self.function.target, self.site.rule.replacement, self.site.captures, self._speller)
            self._write_call(call)
        except SyntaxError as error:
            raise Unwritable(because(writing.OPERAND_OF_LINES)) from error
        _check_in_place(self.function.captured, self.root)
        dead = self._find_dead_statements()
        self._write_folded_scales(dead)
        self._check_calls_stay()
        self._bind_result(dead)
        if not self._speller.removed_statements <= dead:
            raise Unwritable(because(writing.NAME_REBOUND))
        self._insertions += [(span_of(self.place.statement), text) for text in call.before]
        for new in sorted(self.bound, key=lambda new: span_of(new.at.node)):
            self._bind_new_name(new, dead)
        return Edit(
            tuple(r for r in self._replacements if not any(is_inside(r[0], span_of(d)) for d in dead)),
            tuple(sorted(map(span_of, dead))), self.function.dead.pure_tests(dead), tuple(self._insertions),
            imports=tuple(self._imports.needed), unsafe=call.unsafe, becomes=call.function,
        )  # fmt: skip

    def _write_call(self, call: TargetCall) -> None:
        """Writes the call, the statements of kept values, and the reads of what is removed."""
        permutation = self.site.results[-1].permutation
        if self.site.results[-1].negated:
            call = _negate(call, self.place, is_last=not permutation)
        contiguous = ".contiguous()" if _needs_contiguous(self.function, call, self.site) else ""
        if contiguous and not permutation:
            call, contiguous = replace(call, tail=call.tail + contiguous), ""
        call = self._wrap_in_following_layers(call)
        text = permuted_text(call.text(), permutation) + contiguous
        self._replacements.append((span_of(self.place.node), NewText(text, call)))
        if self.place is not self.root:
            self._replacements.append((span_of(self.root.node), NewText(target_text(self.place.statement))))
        for k in self.kept:
            self._insert_kept_value(k)
        self._replacements += replace_metadata_reads(self.function, self.site, self._speller, self._imports)
        self._check_imports()

    def _insert_kept_value(self, k: KeptName) -> None:
        """Binds the name of a kept value: to None before the `if`, to the value in the branch."""
        speller = self.function.make_speller(self.site, k.branch.place, self._speller.root, self._imports, {})
        speller.used, speller.removed_statements = self._speller.used, self._speller.removed_statements
        speller.assumed = k.branch.assumed
        self._insertions.append((start_of(k.branch.statement), f"{k.name} = None"))
        self._insertions.append((span_of(k.branch.place.statement), f"{k.name} = {speller.text(k.value)}"))

    def _check_imports(self) -> None:
        """Raises Unwritable if module code needs a new import that would come after the call."""
        function, line = self.function.captured.function, self.place.statement.lineno
        if self._imports.needed and function.name == SYMBOL and has_import_after(function.body, line):
            raise Unwritable(because(writing.IMPORT_TOO_LATE))

    def _wrap_in_following_layers(self, call: TargetCall) -> TargetCall:
        """Wraps the call in the layers of an `nn.Sequential` that follow the replaced ones."""
        node = self.place.node
        chain = self.function.captured.chains.get(node)
        if chain is None or not self.place.inner:
            return call
        index = next((i for i, (_, v) in enumerate(chain.steps) if v is self.site.root), -1)
        for path, _ in chain.steps[index + 1 :]:
            layer = layer_text(self.function.text, node, path)
            call = replace(call, function=f"{layer}({call.function}", tail=call.tail + ")")
        return call

    @property
    def _used_values(self) -> set[Value]:
        """The values that the new text mentions."""
        return self._speller.used | {new.value for new in self.bound}

    def _find_dead_statements(self) -> set[ast.stmt]:
        """The statements that go. Raises Unwritable if one that stays needs what goes."""
        dead_statements, speller = self.function.dead, self._speller
        moved = [*(new.at for new in self.bound), *dead_statements.moved_to_branches(self.kept)]
        retyped = speller.retyped - {new.value for new in self.bound}
        dead = dead_statements.find(self.site, self._used_values, self.root, self.place, moved, retyped)
        reads = {*self.site.removed.metadata, *shape_reads(speller)}
        dead_statements.keep_statements_of_read_names(dead, self.root, self.place, reads)
        dead_statements.check_helper_removed(self.site, self.root, dead)
        if self.place is not self.root and dead_statements.is_read_elsewhere(self.place.statement, self.root, dead):
            raise Unwritable(because(writing.NAME_REBOUND))
        return dead

    def _write_folded_scales(self, dead: set[ast.stmt]) -> None:
        """Removes the multiplications of a query that the call does with its `scale`."""
        for scale in self._speller.folded_scales:
            if _is_self_assignment(scale):
                dead.add(scale.statement)
            else:
                self._replacements.append((span_of(scale.product), NewText(self.function.text.of(scale.operand))))

    def _check_calls_stay(self) -> None:
        """Raises Unwritable if a helper that no longer runs makes a call that the program needs."""
        if any(self.function.dead.drops_calls(p.statement, self._used_values, p.node) for p in (self.place, self.root)):
            raise Unwritable(because(writing.HELPER_CALLS))

    def _bind_result(self, dead: set[ast.stmt]) -> None:
        """Binds the result to its name directly, if the old statement would only assign it to a second name."""
        if self.place is self.root:
            return
        if (others := _other_targets(self.root, target_text(self.place.statement))) is not None:
            dead.add(self.root.statement)  # `y = x = norm(x)` would become `y = x = x`
            self._insertions.append((span_of(self.root.statement), f"{others} = {target_text(self.place.statement)}"))
            return
        name = self.function.statements.name_to_bind(self.place, self.root)
        if name is None:
            return
        dead.add(self.root.statement)
        if name != target_text(self.place.statement):
            self._replacements.append((span_of(target_node(self.place.statement)), NewText(name)))

    def _bind_new_name(self, new: NewName, dead: set[ast.stmt]) -> None:
        """Binds a new name before the statement that computes its value. The statement reads the name then."""
        at = new.at
        if new.helper_text is not None:
            if at.statement not in dead:  # the helper would compute the value a second time
                raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=new.value.op))
            self._insertions.append((span_of(at.statement), f"{new.name} = {new.helper_text}"))
            return
        if new.name == own_name(at):
            if at.statement in dead or self.function.statements.is_bound_between(new.name, at, self.root, dead):
                raise Unwritable(because(writing.NAME_REBOUND))
            return
        if at.statement not in dead and self._moves_before_effects(new):
            raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=new.value.op))
        self._insertions.append((span_of(at.statement), f"{new.name} = {self.function.text.of(at.node)}"))
        if at.statement not in dead and not isinstance(at.node, ast.Name) and not is_within(at.node, self.root.node):
            self._replacements.append((span_of(at.node), NewText(new.name)))

    def _moves_before_effects(self, new: NewName) -> bool:
        """Whether the statement binds a name or makes a call that must come before the new name is bound.

        A value with effects must stay behind the calls before it: `self.count(x) @ self.count(y).mT`.
        """
        node = new.at.node
        start = (node.lineno, node.col_offset)
        before = [
            n for n in ast.walk(new.at.statement)
            if isinstance(n, ast.expr) and (n.end_lineno or 0, n.end_col_offset or 0) <= start
        ]  # fmt: skip
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if any(isinstance(n, ast.NamedExpr) and n.target.id in read for n in before):
            return True
        positions = self.function.captured.positions.items()
        effects = {id(p.node) for v, places in positions if _has_effects(v) for p in places}
        return any(id(n) in effects for n in before) and any(id(n) in effects for n in ast.walk(node))


def _negate(call: TargetCall, place: ValuePosition, is_last: bool) -> TargetCall:
    """`-f(x)` if that needs no parentheses where the call stands, else `f(x).neg()`."""
    if is_last and id(place.node) in _operand_free(place.statement):
        return replace(call, function=f"-{call.function}")
    return replace(call, tail=f"{call.tail}.neg()")


def _operand_free(statement: ast.stmt) -> frozenset[int]:
    """The ids of the expressions that are no operands: values of statements, arguments, items of tuples and lists."""
    found: list[ast.expr | None] = []
    for n in ast.walk(statement):
        match n:
            case (
                ast.Assign(value=value)
                | ast.AnnAssign(value=value)
                | ast.Return(value=value)
                | ast.keyword(value=value)
            ):
                found.append(value)
            case ast.Call(args=items) | ast.Tuple(elts=items) | ast.List(elts=items):
                found += items
    return frozenset(map(id, found))


def _has_effects(v: Value) -> bool:
    """Whether a value is the result of a call that may have effects, or draws random numbers."""
    if v.op == CALL:
        return not (isinstance(v.data, tuple) and v.data[0] in HARMLESS)
    return v.op in OPS and OPS[v.op].effect == "random"


def _needs_contiguous(function: EditedFunction, call: TargetCall, site: Site) -> bool:
    """Whether the code relies on a contiguous result. The product that `call` replaces is contiguous."""
    if not call.function.endswith(("scaled_dot_product_attention", "ops.attention")) or ".squeeze(" in call.tail:
        return False
    captured, root = function.captured, site.root
    is_read = any(True for _ in layout_reads(captured, root))
    if not is_read and is_returned_as_is(captured, root):
        indexes = [scope.index(LayoutIndex) for scope in (function.scope, *function.importing())]
        is_read = any_caller_reads(indexes, captured.function, function.owner)
    return is_read or may_escape(captured, root) and function.scope.index(LayoutIndex).has_reads()


def _check_in_place(captured: CapturedFunction, root: ValuePosition) -> None:
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
    reads = (n for n in ast.walk(captured.function) if isinstance(n, ast.Name) and n.id == name)
    if root.region or any((n.lineno, n.col_offset) > end for n in reads):
        raise Unwritable(because(writing.NAME_WRITTEN, name=name))


def _is_self_assignment(u: FoldedScale) -> bool:
    """Whether the statement would become `q = q` without its product."""
    match u.statement, u.operand:
        case ast.Assign(targets=[ast.Name(id=bound)], value=value), ast.Name(id=name):
            return bound == name and value is u.product
    return False


def _other_targets(root: ValuePosition, name: str) -> str | None:
    """The targets `y` of `y = x = norm(x)` beside `name`; None if the statement has no other, or does not bind it."""
    match root.statement:
        case ast.Assign(targets=targets, value=value) if value is root.node and len(targets) > 1:
            names = [t.id for t in targets if isinstance(t, ast.Name)]
            others = [n for n in names if n != name]
            return " = ".join(others) if len(names) == len(targets) and name in names and others else None
    return None
