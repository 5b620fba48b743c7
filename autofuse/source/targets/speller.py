"""Turns canonical values into Python text that is valid at one place of a function.

A value is written in the first of these ways that is possible:

- as a name that holds it there
- as its own source text, if every name in that text still has the same value
- from its parts, by the shared table of spellings

Parentheses are added only where Python needs them. capture/captured.py records the values that names held. This file
edits nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from autofuse.canonical import LEAF, PERMUTE, View
from autofuse.canonical.view import order_of
from autofuse.ir.graph import (
    ATTRIBUTE,
    CALL,
    CHOICE,
    CONST,
    GLOBAL,
    IS_NONE,
    ITEM,
    MODULE,
    NOT,
    PARAMETER,
    SLICE,
    SYNTAX,
    TUPLE,
    Value,
    ancestors,
)
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.layout import SWAP, Tail, compose, inverse
from autofuse.ir.spelling import SPELLINGS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import is_metadata
from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import Reason, because
from autofuse.source.capture.captured import CapturedFunction, Chain, ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.symbolic_lengths import GraphSizes
from autofuse.source.capture.syntax import walk
from autofuse.source.targets.printing import (
    SourceText,
    fill,
    is_simple_operand,
    literal_text,
    permuted_text,
    without_views,
)

_STRUCTURE = frozenset({CONST, PARAMETER, ATTRIBUTE, ITEM, TUPLE, IS_NONE, CHOICE, NOT, SLICE, MODULE, GLOBAL, SYNTAX})
_SAME_SHAPE = frozenset({"mul", "add", "keep", "softmax", "dropout", "cast", CHOICE})
_COMMON_NUMBERS = (0.0, 1.0, -1.0)  # a name that holds one of these may mean something else

Assumed = tuple[tuple[Value, bool], ...]  # canonical tests, each with its assumed outcome


class Unwritable(Exception):
    """A value cannot be written at the place where it is needed.

    Attributes:
        reason: why not.
        value: the program's value, if there is one.
        within: the values that contain it, the innermost first, each with the assumptions of its branch.
    """

    def __init__(self, reason: Reason, value: Value | None = None) -> None:
        super().__init__(str(reason))
        self.reason, self.value = reason, value
        self.within: list[tuple[Value, Assumed]] = []


@dataclass(frozen=True)
class FoldedScale:
    """A product in a statement of its own that the new call computes itself.

    In that statement, `operand` replaces `product`.
    """

    product: ast.expr
    operand: ast.expr
    statement: ast.stmt


@dataclass
class Speller:
    """Writes values as they are just before `place`.

    Attributes:
        text_of: the source text of the file.
        captured: the captured function.
        view: the canonical view of its graph.
        place: the position of the new text.
        root: the position of the new call.
        removed_values: values that the edit removes; the text must not use them.
        imports: writes the names of modules and functions.
        sizes: the symbolic sizes of the graph.
        bound: new names for some of the program's values.
        used: the program's values that the text uses.
        retyped: the values among these that the text computes again, so that it needs no name of theirs.
        removed_statements: statements that the text assumes to be removed.
        assumed: the tests that are assumed, each with its outcome.
        branch_names: new names that hold a value under some tests.
        none_tests: tests that are true exactly when a new name is None, or is not None (True).
        result: the program's value that the call returns.
        may_insert: whether statements can be inserted before the statement with the call.
        taken: names that are in use.
        query: the query of an attention; masks that are added get its dtype.
        owner: the class of the method.
        may_fold_scale: whether a product may move into the `scale` argument.
        folded_scales: the products that moved into it.
    """

    text_of: SourceText
    captured: CapturedFunction
    view: View
    place: ValuePosition
    root: ValuePosition
    removed_values: frozenset[Value]
    imports: Imports
    sizes: GraphSizes
    bound: dict[Value, str] = field(default_factory=dict)
    used: set[Value] = field(default_factory=set)
    retyped: set[Value] = field(default_factory=set)
    removed_statements: set[ast.stmt] = field(default_factory=set)
    assumed: Assumed = ()
    branch_names: dict[Value, tuple[str, Assumed]] = field(default_factory=dict)
    none_tests: dict[Value, tuple[str, bool]] = field(default_factory=dict)
    result: Value | None = None
    may_insert: bool = False
    taken: set[str] = field(default_factory=set)
    query: Value | None = None
    owner: ClassScope | None = None
    may_fold_scale: bool = True
    folded_scales: list[FoldedScale] = field(default_factory=list)
    _moved_values: set[Value] = field(default_factory=set)
    _repeatable_values: dict[Value, bool] = field(default_factory=dict)
    _removed_by_name: dict[str, set[ast.stmt]] = field(default_factory=dict)

    @cached_property
    def first_removed(self) -> int:
        """The smallest serial number of a removed value; every earlier value stays."""
        return min((v.serial for v in self.removed_values), default=0)

    def text(self, v: Value) -> str:
        """Return `v` as an expression. Raises Unwritable if it is not available at the place."""
        while v.op == CHOICE and (side := self._assumed_outcome(v.inputs[0])) is not None:
            v = v.inputs[1] if side else v.inputs[2]
        spend(5)
        if (name := self._branch_name_text(v)) is not None:
            return name
        try:
            return self._available_text(v)
        except Unwritable as reason:
            reason.within.append((v, self.assumed))
            raise

    def _branch_name_text(self, v: Value) -> str | None:
        """The new name that holds `v` in a branch, or the test `v` as a comparison of such a name with None."""
        if v in self.branch_names and all(
            self._assumed_outcome(test) is truth for test, truth in self.branch_names[v][1]
        ):
            return self.branch_names[v][0]
        if v in self.none_tests:
            name, is_not_none = self.none_tests[v]
            return f"{name} is not None" if is_not_none else f"{name} is None"
        return None

    def _available_text(self, v: Value) -> str:
        if v.op == CONST:
            return self.literal(v)
        for original in self._program_values(v):
            if (text := self.current_text(original)) is not None:
                self.used.add(original)
                if not text.isidentifier():
                    self.retyped.add(original)
                return text
        if v.op == PARAMETER and self._holds_its_argument(str(v.data)):
            self.removed_statements |= self._removed_by_name.get(str(v.data), set())
            return str(v.data)
        try:
            return self.text_from_parts(v)
        except Unwritable as reason:
            if v.op not in (PERMUTE, CHOICE) and (text := self.reordered_name_text(v, ())) is not None:
                return text
            originals = self._program_values(v)
            if originals and not reason.value:
                reason.value = originals[0]
            raise

    def _holds_its_argument(self, name: str) -> bool:
        """Whether an argument's name still holds the argument, and not another one: not after `k = v`."""
        value = self.held_value(name)
        return value is not None and value.op == PARAMETER and value.data == name

    def literal(self, v: Value) -> str:
        """Return a constant: the name that holds it, or the program's own notation if its source has the constant."""
        originals = self.view.originals(v) if isinstance(v.data, float) else []
        if v.data not in _COMMON_NUMBERS:
            for original in originals:
                if (name := self.find_name(original)) is not None:
                    self.used.add(original)
                    return name
        for original in originals:
            for place in self.captured.positions.get(original, []):
                if isinstance(place.node, (ast.Constant, ast.UnaryOp)):
                    return self.text_of.of(place.node)
        return literal_text(v.data)

    def _program_values(self, v: Value) -> list[Value]:
        return [v.data] if v.op == LEAF and isinstance(v.data, Value) else self.view.originals(v)

    # The program's own names and text.

    def current_text(self, original: Value) -> str | None:
        """Return a name that holds `original`, or its source text if that still has the same meaning; else None."""
        if original in self.bound:
            return self.bound[original]
        if original in self.removed_values:
            return None
        if (name := self.find_name(original)) is not None:
            return name
        if original.op == MODULE or original.op == ATTRIBUTE and self._is_imported(original):
            return self.imports.text(_dotted_name(original), self.place)
        if any(v in self.removed_values for v in ancestors(original, since=self.first_removed)):
            return None
        for place in self.captured.positions.get(original, []):
            if place.inner and place.node is self.root.node and original not in self._moved_values:
                self._moved_values.add(original)
                return self.layers_text(place.node, original)
            if place.inner or not self.has_same_names(place, original):
                continue
            if self.is_repeatable(original) and not place.inlined:
                return self.text_of.of(place.node)
            if place.statement is self.place.statement and original not in self._moved_values:
                if any(n is place.node for n in ast.walk(self.place.node)):
                    self._moved_values.add(original)  # the text is inside the replaced expression, and moves with it
                    return self.text_of.of(place.node)
        return None

    def layers_text(self, node: ast.expr, original: Value) -> str:
        """Return calls of the layers of the Sequential that `node` calls, up to the one that returns `original`."""
        chain = self.captured.chains[node]
        text = self.text(self.view.of(chain.argument))
        last = next((i for i, (_, v) in enumerate(chain.steps) if v is original), len(chain.steps) - 1)
        paths = [path for path, _ in chain.steps[: last + 1]]
        if last and self._can_be_sliced(chain) and paths == [(i,) for i in range(len(paths))]:
            return f"{layer_text(self.text_of, node, ())}[:{len(paths)}]({text})"
        for path in paths:
            text = f"{layer_text(self.text_of, node, path)}({text})"
        return text

    def _can_be_sliced(self, chain: Chain) -> bool:
        """Whether a Sequential is of torch's own class. A subclass may have another constructor."""
        function = chain.constructor.func if isinstance(chain.constructor, ast.Call) else None
        return function is not None and self.imports.scope.name_of(function) == "torch.nn.Sequential"

    def find_name(self, original: Value) -> str | None:
        """Return a name that holds `original` at the place."""
        names = [n for n in self.place.names if self.held_value(n) is self._taken_side(original)]
        if not names:
            return None
        if len(names) > 1:  # the name that the author used here
            names = [*(n for n in names if n in self._replaced_names), *names]
        name = names[0]
        self.removed_statements |= self._removed_by_name.get(name, set())
        return name

    @cached_property
    def _replaced_names(self) -> frozenset[str]:
        """The names in the replaced expression and in the removed ones."""
        positions = (p for v in self.removed_values for p in self.captured.positions.get(v, ()))
        nodes = {self.place.node, self.root.node, *(p.node for p in positions)}
        return frozenset(n.id for node in nodes for n in walk(node) if isinstance(n, ast.Name))

    def is_name_of(self, text: str, original: Value) -> bool:
        """Whether a text is a name that holds `original` at the place, and not an equal value from elsewhere."""
        new = self.bound.get(original) == text
        return new or text.isidentifier() and self.held_value(text) is self._taken_side(original)

    def _is_imported(self, v: Value) -> bool:
        while v.op == ATTRIBUTE:
            v = v.inputs[0]
        return v.op == MODULE

    def is_repeatable(self, v: Value) -> bool:
        """Whether computing `v` again gives the same value at low cost; a name that holds `v` is always repeatable."""
        if v not in self._repeatable_values:
            self._repeatable_values[v] = self._is_repeatable(v)
        return self._repeatable_values[v]

    def _is_repeatable(self, v: Value) -> bool:
        if self.find_name(v) is not None:
            return True
        op = OPS.get(v.op)
        if v in self.captured.graph.overwritten or op and (op.heavy or op.effect == "random"):
            return False
        if any(w.result is v for w in self.captured.graph.writes):  # the text would write a second time
            return False
        harmless = v.op == CALL and isinstance(v.data, tuple) and v.data[0] in HARMLESS
        return bool(op or v.op in _STRUCTURE or harmless) and all(map(self.is_repeatable, v.inputs))

    def held_value(self, name: str) -> Value | None:
        """Return the value that `name` holds at the place.

        The assumed tests hold there, and the removed statements are gone.
        """
        v = self.place.names.get(name)
        while v is not None:
            if v.op == CHOICE and (side := self._outcome_of_program_test(v.inputs[0])) is not None:
                v = v.inputs[1] if side else v.inputs[2]
            elif v.op == CHOICE and (either := self._held_on_both_sides(v, name)) is not None:
                v = either
            elif v in self.removed_values and (binder := self._only_binder(v, name)) is not None:
                self._removed_by_name[name] = {*self._removed_by_name.get(name, ()), binder}
                v = self.captured.before[binder].get(name)
            else:
                break
        return None if v is not None and v.op == GLOBAL and v.data == "<unbound>" else v

    def _held_on_both_sides(self, choice: Value, name: str) -> Value | None:
        """The value that `name` holds after a branch that bound it to a removed value.

        None if the value still depends on the branch.
        """
        remaining, binders = list[Value | None](), set[ast.stmt]()
        for side in choice.inputs[1:]:
            before: Value | None = side
            while (
                before is not None
                and before in self.removed_values
                and (binder := self._only_binder(before, name)) is not None
            ):
                binders.add(binder)
                before = self.captured.before[binder].get(name)
            remaining.append(before)
        if not binders or remaining[0] is None or any(name_value is not remaining[0] for name_value in remaining):
            return None
        self._removed_by_name[name] = {*self._removed_by_name.get(name, ()), *binders}
        return remaining[0]

    def _only_binder(self, v: Value, name: str) -> ast.stmt | None:
        """The only statement that binds `name` to a removed value. Other names in it must hold removed values too."""
        binders = list(dict.fromkeys(self.captured.binding_statements(v)))
        if len(binders) != 1 or binders[0] in self.captured.effects:
            return None
        statement = binders[0]
        if any(other not in self.removed_values for other in self.captured.assigned[statement]):
            return None
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        bound = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names = [t.id if isinstance(t, ast.Name) else "" for t in bound]
        return statement if name in names and all(names) else None

    def _taken_side(self, v: Value) -> Value:
        """The side of a conditional value that is taken under the assumed tests."""
        while v.op == CHOICE and (side := self._outcome_of_program_test(v.inputs[0])) is not None:
            v = v.inputs[1] if side else v.inputs[2]
        return v

    def _outcome_of_program_test(self, test: Value) -> bool | None:
        """The assumed outcome of a test of the program; None if nothing is assumed about it."""
        return self._assumed_outcome(self.view.of(test)) if self.assumed else None

    def _assumed_outcome(self, canonical: Value) -> bool | None:
        """The assumed outcome of a canonical test; None if nothing is assumed about it."""
        for assumed_test, truth in self.assumed:
            if canonical is assumed_test:
                return truth
            if canonical.op == NOT and canonical.inputs[0] is assumed_test:
                return not truth
        return None

    def has_same_names(self, place: ValuePosition, value: Value) -> bool:
        """Whether the names in the expression at `place` hold the same values here."""
        if place.attribute_writes != self.place.attribute_writes and any(
            self._may_change_in_calls(v) for v in ancestors(value)
        ):
            return False
        lambda_arguments = {a.arg for n in walk(place.node) if isinstance(n, ast.Lambda) for a in n.args.args}
        names_in_text = {n.id for n in walk(place.node) if isinstance(n, ast.Name)} - lambda_arguments
        if not all(
            place.names.get(n) is self.held_value(n) and (n in place.names) == (n in self.place.names)
            for n in names_in_text
        ):
            return False
        self.removed_statements |= {s for n in names_in_text for s in self._removed_by_name.get(n, ())}
        return True

    def _may_change_in_calls(self, v: Value) -> bool:
        """Whether a call may change what `v` read.

        It may change an attribute of an argument or of a file variable, or a global name.
        """
        if v.op == GLOBAL:
            return v.data in self.imports.scope.reassigned
        if v.op == ITEM:
            return v.inputs[0].op == GLOBAL
        is_file_attribute = (
            v.op == ATTRIBUTE and v.inputs[0].op == GLOBAL and v.inputs[0].data in self.imports.scope.variables
        )
        return is_file_attribute or v.op == ATTRIBUTE and v.inputs[0].op == PARAMETER

    # Text from the parts of a value.

    def text_from_parts(self, v: Value) -> str:
        """Return `v` as an expression of its parts."""
        self._check_current(v)
        match v.op:
            case "kept" | "identity":
                return self.text(v.inputs[0])
            case "cast":
                return self.cast_text(v)
            case "permute" if isinstance(v.data, tuple):
                return self.permuted_operand_text(v, v.data)
            case "choice":
                return self.choice_text(v)
            case "is_none" if (none_name := self.find_none_name(v)) is not None:
                return f"{none_name} is None"
            case "not" if (test_text := self.text(v.inputs[0])).endswith((" is None", " is not None")):
                return _negate_none_test(test_text)
            case "attribute" if v.data == "shape":
                return self.shape_text(v.inputs[0])
            case "attribute":
                owner_text = self.text(v.inputs[0])
                return fill(
                    "{0}." + str(v.data), without_views(owner_text) if v.data in ("dtype", "device") else owner_text
                )
            case "size" if v.inputs[1].op == CONST and v.inputs[1].data is not None:
                return self.size_text(v.inputs[0], v.inputs[1])
            case "item" if v.inputs[0].op == ATTRIBUTE and v.inputs[0].data == "shape":
                return self.size_text(v.inputs[0].inputs[0], v.inputs[1])
            case "slice":
                return ":".join("" if p.op == CONST and p.data is None else self.text(p) for p in v.inputs[:2])
            case "tuple":
                return "(" + ", ".join(map(self.text, v.inputs)) + ("," if len(v.inputs) == 1 else "") + ")"
            case "refold":
                mask, split, joined = map(self.text, v.inputs)
                return fill("{0}.expand" + split + ".reshape" + joined, mask)
            case "item" if v.inputs[1].op == TUPLE:
                return (
                    fill("{0}", self.text(v.inputs[0]), tight=True)
                    + f"[{', '.join(map(self.text, v.inputs[1].inputs))}]"
                )
            case "mul":
                return self.product_text(v)
        if v.op == SYNTAX or v.op == LEAF and isinstance(v.data, Value) and v.data.op == SYNTAX:
            return self.getattr_text(v.data if isinstance(v.data, Value) else v)
        if v.op in SPELLINGS:
            return self.fill_spelling(SPELLINGS[v.op], [self.text(i) for i in v.inputs])
        raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=v.op))

    def permuted_operand_text(self, v: Value, order: Tail) -> str:
        """Return a permuted operand as text.

        If the operand is not available and is a product with numbers, the tensor in the product is permuted instead.
        """
        inner = v.inputs[0]
        try:
            return permuted_text(self.text(inner), order)
        except Unwritable:
            if (text := self.reordered_name_text(inner, order)) is not None:
                return text
            factors = [i for i in inner.inputs if not self.view.number(i)] if inner.op == "mul" else []
            if len(factors) != 1:
                raise
            permuted = (self.view.permuted(i, order) if i is factors[0] else i for i in inner.inputs)
            return self.product_text(self.view.plain("mul", *permuted))

    def reordered_name_text(self, inner: Value, order: Tail) -> str | None:
        """Return `inner` with its dimensions in `order`, from a name that holds it in another order; or None."""
        for name in self.place.names:
            value = self.held_value(name)
            other = self.view.of(value) if value is not None and value not in self.removed_values else inner
            if value is not None and other.op == PERMUTE and other.inputs[0] is inner:
                self.used.add(value)
                self.removed_statements |= self._removed_by_name.get(name, set())
                return permuted_text(name, compose(inverse(order_of(other)), order))
        return None

    def cast_text(self, v: Value) -> str:
        """Return a cast of the program. A cast that only the canonical form has is left out, since it only rounds."""
        inner = self.text(v.inputs[0])
        reason = None
        for original in self._program_values(v):
            if original.op in ("float", "double", "half", "bfloat16"):
                return fill("{0}." + f"{original.op}()", inner)
            if original.op == "to":
                targets = [self.view.of(t) for t in (*original.inputs[1].inputs, *original.inputs[2].inputs)]
                like = targets[0].inputs[0] if len(targets) == 2 and targets[0].inputs else targets[0]
                try:
                    return fill("{0}.to({1})", inner, self.text(like))
                except Unwritable as unwritable:  # another cast to this dtype may be writable
                    reason = unwritable
        if reason is not None:
            raise reason
        return inner

    def _check_current(self, v: Value) -> None:
        """Raise Unwritable if an attribute was assigned after `v` was read from it."""
        reads = [o for o in self._program_values(v) if o.op in (ATTRIBUTE, ITEM, GLOBAL) and not is_metadata(o)]
        attributes = [o for o in reads if o.op == ATTRIBUTE and any(a.op == PARAMETER for a in ancestors(o))]
        attributes += [o for o in reads if o not in attributes and self._may_change_in_calls(o)]
        if attributes and not any(self.captured.is_current(o, self.place) for o in attributes):
            attribute = attributes[0].inputs[0] if attributes[0].op == ITEM else attributes[0]
            raise Unwritable(because(writing.ATTRIBUTE_CHANGES, name=attribute.data), attributes[0])

    def fill_spelling(self, template: str, parts: list[str]) -> str:
        """Return a template of the shared table, filled in, with functions spelled as in this file."""
        for module in ("torch.", "math."):
            if template.startswith(module):
                function, _, arguments = template.partition("(")
                template = self.imports.text(function, self.place) + "(" + arguments
        if template.startswith("{*"):
            text = parts[0]
            for part in parts[1:]:
                text = fill("{0}" + template[2:-1] + "{1}", text, part)
            return text
        if self.text_of.hugs_powers and all(map(is_simple_operand, parts)):
            template = template.replace(" ** ", "**")
        return fill(template, *parts)

    def product_text(self, v: Value) -> str:
        """Return a product; reciprocals become divisions."""
        divided = [i for i in v.inputs if i.op == "reciprocal" and not self._is_available(i)]
        factors = [i for i in v.inputs if i not in divided and not (i.op == CONST and i.data == -1)]
        divisors = [i.inputs[0] for i in divided]
        text = self.text(factors[0]) if factors else "1.0"
        if any(i.op == CONST and i.data == -1 for i in v.inputs):
            text = fill("-{0}", text)
        for factor in factors[1:]:
            text = fill("{0} * {1}", text, self.text(factor))
        for divisor in divisors:
            text = fill("{0} / {1}", text, self.text(divisor))
        return text

    def getattr_text(self, v: Value) -> str:
        """Return `getattr(self.drop, "p", 0.0)`, the probability of a child that may be an Identity."""
        if v.data != "getattr":
            raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=v.data), v)
        return "getattr(" + ", ".join(self.text(self.view.of(i)) for i in v.inputs).replace("'", '"') + ")"

    def shape_text(self, v: Value) -> str:
        """Return the shape of a value; a removed value has the shape of its operands."""
        while v.op in _SAME_SHAPE and not self._is_available(v):
            v = v.inputs[1] if v.op == CHOICE else v.inputs[0]
        if v.op == "matmul" and not self._is_available(v):
            return f"(*{fill('{0}.shape', self.text(v.inputs[0]))}[:-1], {self._matmul_size(v, True)})"
        return fill("{0}.shape", self.text(v))

    def size_text(self, v: Value, index: Value) -> str:
        """Return one size or the last two sizes of a value; a removed value has the sizes of its operands."""
        while v.op in _SAME_SHAPE and not self._is_available(v):
            v = v.inputs[1] if v.op == CHOICE else v.inputs[0]
        if v.op != "matmul" or self._is_available(v):
            return fill("{0}", self.shape_text(v), tight=True) + f"[{self.text(index)}]"
        if index.op == CONST and index.data in (-1, -2):
            return self._matmul_size(v, index.data == -1)
        if index.op == SLICE and index.inputs[0].data == -2 and index.inputs[1].data is index.inputs[2].data is None:
            return f"({self._matmul_size(v, False)}, {self._matmul_size(v, True)})"
        return f"{self.shape_text(v)}[{self.text(index)}]"

    def _matmul_size(self, product: Value, columns: bool) -> str:
        left, right = product.inputs
        if not columns:
            return fill("{0}.shape[-2]", self.text(left))
        if right.op == PERMUTE and right.data == SWAP:
            return fill("{0}.shape[-2]", self.text(right.inputs[0]))
        return fill("{0}.shape[-1]", self.text(right))

    def _is_available(self, v: Value) -> bool:
        return any(self.current_text(o) is not None for o in self._program_values(v))

    def choice_text(self, v: Value) -> str:
        test, yes, no = v.inputs
        if test.op == IS_NONE and yes.op == CONST and yes.data is None and no is test.inputs[0]:
            return self.text(no)
        return self.conditional_text(v, lambda side, speller: speller.text(side))

    def conditional_text(self, v: Value, write: Callable[[Value, Speller], str]) -> str:
        """Return a conditional expression.

        Args:
            v: the conditional value.
            write: writes one side, with a speller that assumes the outcome of the test on that side.
        """
        test_text, (yes, with_yes), (no, with_no) = self.split_branches(v)
        then, otherwise = write(yes, with_yes), write(no, with_no)
        if otherwise == "None" and test_text == f"{then} is not None":
            return then
        return fill("{0} if {1} else {2}", then, test_text, otherwise)

    def split_branches(self, v: Value) -> tuple[str, tuple[Value, Speller], tuple[Value, Speller]]:
        """Return the text of the test of a conditional value, and each side with a speller that assumes its outcome."""
        test, yes, no = v.inputs
        with_yes, with_no = (
            replace(self, assumed=(*self.assumed, (test, t)), _repeatable_values={}) for t in (True, False)
        )
        test_text = self.text(test)
        if test_text.endswith(" is None"):  # the usual order is `x if mask is not None else y`
            return _negate_none_test(test_text), (no, with_no), (yes, with_yes)
        return test_text, (yes, with_yes), (no, with_no)

    def find_none_name(self, test: Value) -> str | None:
        """Return a name that is None exactly if `test` is true, even if it was reassigned where it is not None."""
        for name in self.place.names:
            value = self.held_value(name)
            if value is not None and value.op in (PARAMETER, CHOICE, ATTRIBUTE):
                if self.view.make(IS_NONE, self.view.of(value)) is test:
                    return name
        return None


def _negate_none_test(test: str) -> str:
    """The negation of `x is None` or `x is not None`."""
    if test.endswith(" is None"):
        return test.removesuffix(" is None") + " is not None"
    return test.removesuffix(" is not None") + " is None"


def _dotted_name(v: Value) -> str:
    return f"{_dotted_name(v.inputs[0])}.{v.data}" if v.op == ATTRIBUTE else str(v.data)


def layer_text(text_of: SourceText, node: ast.expr, path: tuple[int, ...]) -> str:
    """Return one layer of the Sequential that `node` calls: `self.net[2]`."""
    if not isinstance(node, ast.Call) or isinstance(node.func, ast.Call):
        raise Unwritable(because(writing.LAYERS_UNNAMED))
    return text_of.of(node.func) + "".join(f"[{i}]" for i in path)


def find_call_places(captured: CapturedFunction, site: Site) -> list[ValuePosition]:
    """Return the positions where the call that replaces a site can be.

    - The expression that computes the root of the site.
    - Otherwise the call of a Sequential, if one of its layers computes the root.
    - Otherwise the call of a helper or a child that returns the root, if the edit also removes a value outside it. A
      site that is entirely inside the helper is found when the helper itself is captured.
    """
    root = site.root
    if places := [p for p in dict.fromkeys(computing_places(captured, root)) if not p.inlined]:
        return places
    calls = [p for p in captured.positions.get(root, []) if isinstance(p.node, ast.Call)]
    if inner := [p for p in calls if p.inner]:
        return inner
    removed_values = {*(site.removed.values or site.steps), *(r.value for r in site.results)} - {root}
    outside = (p for v in removed_values for p in captured.positions.get(v, []))
    return calls if any(p.node not in [c.node for c in calls] for p in outside) else []


def computing_places(captured: CapturedFunction, v: Value) -> Iterator[ValuePosition]:
    """Yield the positions of the text that computes `v`; not its names, and not calls of a helper that computes it."""
    return (
        p for p in captured.positions.get(v, []) if not p.inlined and not isinstance(p.node, (ast.Name, ast.NamedExpr))
    )
