"""Canonical values -> Python text that holds at one place.

A value is written as the name that holds it there, else as its own source text if all of that is still current, else
from its parts by the shared table of spellings. Parentheses stand only where Python needs them. Knows what names held
where (capture/captured.py). Edits nothing.
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
from autofuse.ir.layout import SWAP, Tail, inverse, then
from autofuse.ir.spelling import SPELLINGS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import is_metadata
from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import Reason, because
from autofuse.source.capture.captured import CapturedFunction, ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.symbolic_lengths import GraphSizes
from autofuse.source.capture.syntax import walk
from autofuse.source.targets.printing import SourceText, fill, literal_text, permuted_text, without_views

_STRUCTURE = frozenset({CONST, PARAMETER, ATTRIBUTE, ITEM, TUPLE, IS_NONE, CHOICE, NOT, SLICE, MODULE, GLOBAL, SYNTAX})
_SAME_SHAPE = frozenset({"mul", "add", "keep", "softmax", "dropout", "cast", CHOICE})


Assumed = tuple[tuple[Value, bool], ...]  # canonical tests and what they were


class Unwritable(Exception):
    """Why a value cannot be written at the place where it is needed; `value` is the program's, where there is one."""

    def __init__(self, reason: Reason, value: Value | None = None) -> None:
        super().__init__(str(reason))
        self.reason, self.value = reason, value
        self.within: list[tuple[Value, Assumed]] = []  # the values it is part of, the innermost first


@dataclass(frozen=True)
class Unscaled:
    """A product that the call makes itself, in a statement of its own: `operand` is to stand in place of `product`."""

    product: ast.expr
    operand: ast.expr
    statement: ast.stmt


@dataclass
class Speller:
    """Writes values as of just before `place`. `gone` may not be mentioned; `assumed` maps tests to what they were.

    `used` collects the program's values that were mentioned, `bound` are new names for some of them.
    """

    text_of: SourceText
    captured: CapturedFunction
    view: View
    place: ValuePosition
    root: ValuePosition
    gone: frozenset[Value]
    imports: Imports
    sizes: GraphSizes
    bound: dict[Value, str] = field(default_factory=dict)
    used: set[Value] = field(default_factory=set)
    removed: set[ast.stmt] = field(default_factory=set)  # statements whose going the text relies on
    assumed: Assumed = ()
    kept: dict[Value, tuple[str, Assumed]] = field(default_factory=dict)  # names that hold values under some tests
    told: dict[Value, tuple[str, bool]] = field(default_factory=dict)  # tests that hold where a name is (not) None
    result: Value | None = None  # the program's value that the call stands for
    may_insert: bool = False  # whether statements can be put before the one that the call stands in
    taken: set[str] = field(default_factory=set)  # names that are in use
    query: Value | None = None  # of attention, in whose dtype masks are added
    owner: ClassScope | None = None  # the class whose method it is
    may_unscale: bool = True  # whether a product may be left out that the call can make
    unscaled: list[Unscaled] = field(default_factory=list)
    _moved: set[Value] = field(default_factory=set)
    _cheap: dict[Value, bool] = field(default_factory=dict)
    _relied: dict[str, set[ast.stmt]] = field(default_factory=dict)

    @cached_property
    def first_gone(self) -> int:
        """The serial before which nothing goes."""
        return min((v.serial for v in self.gone), default=0)

    def text(self, v: Value) -> str:
        """`v` as an expression. Raises Unwritable where it is not available at the place."""
        while v.op == CHOICE and (side := self._answered(v.inputs[0])) is not None:
            v = v.inputs[1] if side else v.inputs[2]
        spend(5)
        if (name := self._kept_as(v)) is not None:
            return name
        try:
            return self._text(v)
        except Unwritable as reason:
            reason.within.append((v, self.assumed))
            raise

    def _kept_as(self, v: Value) -> str | None:
        """A new name that was made to hold `v` in a branch, or what such a name tells of the test `v`."""
        if v in self.kept and all(self._answered(test) is truth for test, truth in self.kept[v][1]):
            return self.kept[v][0]
        if v in self.told:
            name, held = self.told[v]
            return f"{name} is not None" if held else f"{name} is None"
        return None

    def _text(self, v: Value) -> str:
        if v.op == CONST:
            return self.literal(v)
        for original in self._originals(v):
            if (found := self.current(original)) is not None:
                self.used.add(original)
                return found
        if v.op == PARAMETER and (held := self.holds(str(v.data))) is not None and held.op == PARAMETER:
            self.removed |= self._relied.get(str(v.data), set())
            return str(v.data)
        try:
            return self.derived(v)
        except Unwritable as reason:
            if v.op not in (PERMUTE, CHOICE) and (found := self.turned(v, ())) is not None:
                return found
            originals = self._originals(v)
            if originals and not reason.value:
                reason.value = originals[0]
            raise

    def literal(self, v: Value) -> str:
        """A constant, in the digits of the program where it stands there."""
        for original in self.view.originals(v) if isinstance(v.data, float) else ():
            for place in self.captured.places.get(original, []):
                if isinstance(place.node, (ast.Constant, ast.UnaryOp)):
                    return self.text_of.of(place.node)
        return literal_text(v.data)

    def _originals(self, v: Value) -> list[Value]:
        return [v.data] if v.op == LEAF and isinstance(v.data, Value) else self.view.originals(v)

    # What the program itself calls it.

    def current(self, original: Value) -> str | None:
        """A name that holds `original`, or its own source text if that still means the same."""
        if original in self.bound:
            return self.bound[original]
        if original in self.gone:
            return None
        if (name := self.name_of(original)) is not None:
            return name
        if original.op == MODULE or original.op == ATTRIBUTE and self._imported(original):
            return self.imports.text(_qualified(original), self.place)
        if any(v in self.gone for v in ancestors(original, since=self.first_gone)):
            return None
        for place in self.captured.places.get(original, []):
            if place.inner and place.node is self.root.node and original not in self._moved:
                self._moved.add(original)
                return self.layers(place.node, original)
            if place.inner or not self.same_names(place, original):
                continue
            if self.repeatable(original) and not place.inlined:
                return self.text_of.of(place.node)
            if place.statement is self.place.statement and original not in self._moved:
                if any(n is place.node for n in ast.walk(self.place.node)):
                    self._moved.add(original)  # it stood inside what is replaced, and moves with it
                    return self.text_of.of(place.node)
        return None

    def layers(self, node: ast.expr, original: Value) -> str:
        """What the first layers of the Sequential that `node` calls compute, as calls of these layers."""
        chain = self.captured.chains[node]
        text = self.text(self.view.of(chain.argument))
        for path, v in chain.steps:
            text = f"{layer_text(self.text_of, node, path)}({text})"
            if v is original:
                break
        return text

    def name_of(self, original: Value) -> str | None:
        """A name that holds `original` at the place."""
        for name in self.place.names:
            if self.holds(name) is self._resolved(original):
                self.removed |= self._relied.get(name, set())
                return name
        return None

    def _imported(self, v: Value) -> bool:
        while v.op == ATTRIBUTE:
            v = v.inputs[0]
        return v.op == MODULE

    def repeatable(self, v: Value) -> bool:
        """Whether computing `v` again gives it again, cheaply: what names hold is not computed again."""
        if v not in self._cheap:
            self._cheap[v] = self._repeatable(v)
        return self._cheap[v]

    def _repeatable(self, v: Value) -> bool:
        if self.name_of(v) is not None:
            return True
        op = OPS.get(v.op)
        if v in self.captured.graph.overwritten or op and (op.heavy or op.effect == "random"):
            return False
        if any(w.result is v for w in self.captured.graph.writes):  # its text would write once more
            return False
        harmless = v.op == CALL and isinstance(v.data, tuple) and v.data[0] in HARMLESS
        return bool(op or v.op in _STRUCTURE or harmless) and all(map(self.repeatable, v.inputs))

    def holds(self, name: str) -> Value | None:
        """What `name` holds at the place, given what is assumed, and that what goes is gone."""
        v = self.place.names.get(name)
        while v is not None:
            if v.op == CHOICE and (side := self._assumed(v.inputs[0])) is not None:
                v = v.inputs[1] if side else v.inputs[2]
            elif v.op == CHOICE and (either := self._either_way(v, name)) is not None:
                v = either
            elif v in self.gone and (binder := self._binder(v, name)) is not None:
                self._relied[name] = {*self._relied.get(name, ()), binder}
                v = self.captured.before[binder].get(name)
            else:
                break
        return None if v is not None and v.op == GLOBAL and v.data == "<unbound>" else v

    def _either_way(self, choice: Value, name: str) -> Value | None:
        """What `name` holds behind a branch in which it was bound to what goes; None where the branch still matters."""
        left, relied = list[Value | None](), set[ast.stmt]()
        for side in choice.inputs[1:]:
            before: Value | None = side
            while before is not None and before in self.gone and (binder := self._binder(before, name)) is not None:
                relied.add(binder)
                before = self.captured.before[binder].get(name)
            left.append(before)
        if not relied or left[0] is None or any(other is not left[0] for other in left):
            return None
        self._relied[name] = {*self._relied.get(name, ()), *relied}
        return left[0]

    def _binder(self, v: Value, name: str) -> ast.stmt | None:
        """The one statement that binds `name` to a value that goes, and other names to others that go."""
        found = list(dict.fromkeys(self.captured.binders(v)))
        if len(found) != 1 or found[0] in self.captured.effects:
            return None
        statement = found[0]
        if any(other not in self.gone for other in self.captured.assigned[statement]):
            return None
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        bound = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names = [t.id if isinstance(t, ast.Name) else "" for t in bound]
        return statement if name in names and all(names) else None

    def _resolved(self, v: Value) -> Value:
        """The side of a choice of the program that is taken, given what is assumed."""
        while v.op == CHOICE and (side := self._assumed(v.inputs[0])) is not None:
            v = v.inputs[1] if side else v.inputs[2]
        return v

    def _assumed(self, test: Value) -> bool | None:
        return self._answered(self.view.of(test)) if self.assumed else None

    def _answered(self, canonical: Value) -> bool | None:
        """What a canonical test is assumed to be."""
        for known, truth in self.assumed:
            if canonical is known:
                return truth
            if canonical.op == NOT and canonical.inputs[0] is known:
                return not truth
        return None

    def same_names(self, place: ValuePosition, value: Value) -> bool:
        """Whether the expression at `place` reads the same things here."""
        if place.forgets != self.place.forgets and any(self._may_change(v) for v in ancestors(value)):
            return False
        inner = {a.arg for n in walk(place.node) if isinstance(n, ast.Lambda) for a in n.args.args}
        read = {n.id for n in walk(place.node) if isinstance(n, ast.Name)} - inner
        if not all(place.names.get(n) is self.holds(n) and (n in place.names) == (n in self.place.names) for n in read):
            return False
        self.removed |= {s for n in read for s in self._relied.get(n, ())}
        return True

    def _may_change(self, v: Value) -> bool:
        """Whether a call may change what `v` read: an attribute of an argument or of the file's, a global name."""
        if v.op == GLOBAL:
            return v.data in self.imports.scope.reassigned
        if v.op == ITEM:
            return v.inputs[0].op == GLOBAL
        own = v.op == ATTRIBUTE and v.inputs[0].op == GLOBAL and v.inputs[0].data in self.imports.scope.variables
        return own or v.op == ATTRIBUTE and v.inputs[0].op == PARAMETER

    # From its parts.

    def derived(self, v: Value) -> str:
        self._check_current(v)
        match v.op:
            case "kept" | "identity":
                return self.text(v.inputs[0])
            case "cast":
                return self.cast(v)
            case "permute" if isinstance(v.data, tuple):
                return self.permuted(v, v.data)
            case "choice":
                return self.choice(v)
            case "is_none" if (name := self.name_that_is_none(v)) is not None:
                return f"{name} is None"
            case "not" if (asked := self.text(v.inputs[0])).endswith((" is None", " is not None")):
                return _denied(asked)
            case "attribute" if v.data == "shape":
                return self.shape(v.inputs[0])
            case "attribute":
                held = self.text(v.inputs[0])
                return fill("{0}." + str(v.data), without_views(held) if v.data in ("dtype", "device") else held)
            case "size" if v.inputs[1].op == CONST and v.inputs[1].data is not None:
                return self.size(v.inputs[0], v.inputs[1])
            case "item" if v.inputs[0].op == ATTRIBUTE and v.inputs[0].data == "shape":
                return self.size(v.inputs[0].inputs[0], v.inputs[1])
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
                return self.product(v)
        if v.op == SYNTAX or v.op == LEAF and isinstance(v.data, Value) and v.data.op == SYNTAX:
            return self.optional_attribute(v.data if isinstance(v.data, Value) else v)
        if v.op in SPELLINGS:
            return self.spelled(SPELLINGS[v.op], [self.text(i) for i in v.inputs])
        raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=v.op))

    def permuted(self, v: Value, order: Tail) -> str:
        """A permutation of what can be written; of a product with numbers, that of the tensor in it."""
        inner = v.inputs[0]
        try:
            return permuted_text(self.text(inner), order)
        except Unwritable:
            if (found := self.turned(inner, order)) is not None:
                return found
            factors = [i for i in inner.inputs if not self.view.number(i)] if inner.op == "mul" else []
            if len(factors) != 1:
                raise
            turned = (self.view.permuted(i, order) if i is factors[0] else i for i in inner.inputs)
            return self.product(self.view.plain("mul", *turned))

    def turned(self, inner: Value, order: Tail) -> str | None:
        """`inner` with its dimensions in `order`, made from a name that holds them in another order."""
        for name in self.place.names:
            held = self.holds(name)
            other = self.view.of(held) if held is not None and held not in self.gone else inner
            if held is not None and other.op == PERMUTE and other.inputs[0] is inner:
                self.used.add(held)
                self.removed |= self._relied.get(name, set())
                return permuted_text(name, then(inverse(order_of(other)), order))
        return None

    def cast(self, v: Value) -> str:
        """A change of dtype that the program makes; one that only the canonical form makes is no more than rounding."""
        inner = self.text(v.inputs[0])
        reason = None
        for original in self._originals(v):
            if original.op in ("float", "double", "half", "bfloat16"):
                return fill("{0}." + f"{original.op}()", inner)
            if original.op == "to":
                targets = [self.view.of(t) for t in (*original.inputs[1].inputs, *original.inputs[2].inputs)]
                like = targets[0].inputs[0] if len(targets) == 2 and targets[0].inputs else targets[0]
                try:
                    return fill("{0}.to({1})", inner, self.text(like))
                except Unwritable as unwritable:  # a cast elsewhere may say it
                    reason = unwritable
        if reason is not None:
            raise reason
        return inner

    def _check_current(self, v: Value) -> None:
        """Raises Unwritable where an attribute was assigned after `v` was read from one."""
        reads = [o for o in self._originals(v) if o.op in (ATTRIBUTE, ITEM, GLOBAL) and not is_metadata(o)]
        held = [o for o in reads if o.op == ATTRIBUTE and any(a.op == PARAMETER for a in ancestors(o))]
        held += [o for o in reads if o not in held and self._may_change(o)]
        if held and not any(self.captured.current(o, self.place) for o in held):
            named = held[0].inputs[0] if held[0].op == ITEM else held[0]
            raise Unwritable(because(writing.ATTRIBUTE_CHANGES, name=named.data), held[0])

    def spelled(self, template: str, parts: list[str]) -> str:
        """`template` of the shared table filled in, its functions spelled as this file spells them."""
        for module in ("torch.", "math."):
            if template.startswith(module):
                function, _, rest = template.partition("(")
                template = self.imports.text(function, self.place) + "(" + rest
        if template.startswith("{*"):
            text = parts[0]
            for part in parts[1:]:
                text = fill("{0}" + template[2:-1] + "{1}", text, part)
            return text
        return fill(template, *parts)

    def product(self, v: Value) -> str:
        """A product; what is divided by stands behind a stroke."""
        divided = [i for i in v.inputs if i.op == "reciprocal" and not self._written(i)]
        factors = [i for i in v.inputs if i not in divided and not (i.op == CONST and i.data == -1)]
        below = [i.inputs[0] for i in divided]
        text = self.text(factors[0]) if factors else "1.0"
        if any(i.op == CONST and i.data == -1 for i in v.inputs):
            text = fill("-{0}", text)
        for f in factors[1:]:
            text = fill("{0} * {1}", text, self.text(f))
        for b in below:
            text = fill("{0} / {1}", text, self.text(b))
        return text

    def optional_attribute(self, v: Value) -> str:
        """`getattr(self.drop, "p", 0.0)`: the probability of what may be an Identity."""
        if v.data != "getattr":
            raise Unwritable(because(writing.VALUE_OUT_OF_REACH, operation=v.data), v)
        return "getattr(" + ", ".join(self.text(self.view.of(i)) for i in v.inputs).replace("'", '"') + ")"

    def shape(self, v: Value) -> str:
        """The shape of a value that may itself be gone, from those of its operands."""
        while v.op in _SAME_SHAPE and not self._written(v):
            v = v.inputs[1] if v.op == CHOICE else v.inputs[0]
        if v.op == "matmul" and not self._written(v):
            return f"(*{fill('{0}.shape', self.text(v.inputs[0]))}[:-1], {self._product_size(v, True)})"
        return fill("{0}.shape", self.text(v))

    def size(self, v: Value, index: Value) -> str:
        """One size, or the last two, of a value that may itself be gone."""
        while v.op in _SAME_SHAPE and not self._written(v):
            v = v.inputs[1] if v.op == CHOICE else v.inputs[0]
        if v.op != "matmul" or self._written(v):
            return fill("{0}", self.shape(v), tight=True) + f"[{self.text(index)}]"
        if index.op == CONST and index.data in (-1, -2):
            return self._product_size(v, index.data == -1)
        if index.op == SLICE and index.inputs[0].data == -2 and index.inputs[1].data is index.inputs[2].data is None:
            return f"({self._product_size(v, False)}, {self._product_size(v, True)})"
        return f"{self.shape(v)}[{self.text(index)}]"

    def _product_size(self, product: Value, columns: bool) -> str:
        left, right = product.inputs
        if not columns:
            return fill("{0}.shape[-2]", self.text(left))
        if right.op == PERMUTE and right.data == SWAP:
            return fill("{0}.shape[-2]", self.text(right.inputs[0]))
        return fill("{0}.shape[-1]", self.text(right))

    def _written(self, v: Value) -> bool:
        return any(self.current(o) is not None for o in self._originals(v))

    def choice(self, v: Value) -> str:
        test, yes, no = v.inputs
        if test.op == IS_NONE and yes.op == CONST and yes.data is None and no is test.inputs[0]:
            return self.text(no)
        return self.chosen(v, lambda side, speller: speller.text(side))

    def chosen(self, v: Value, write: Callable[[Value, Speller], str]) -> str:
        """A conditional expression, each side written by `write` under what the test says there."""
        asked, (yes, with_yes), (no, with_no) = self.branches(v)
        then, otherwise = write(yes, with_yes), write(no, with_no)
        if otherwise == "None" and asked == f"{then} is not None":
            return then
        return fill("{0} if {1} else {2}", then, asked, otherwise)

    def branches(self, v: Value) -> tuple[str, tuple[Value, Speller], tuple[Value, Speller]]:
        """The test of a choice, and each side with a speller that knows what the test says there."""
        test, yes, no = v.inputs
        with_yes, with_no = (replace(self, assumed=(*self.assumed, (test, t)), _cheap={}) for t in (True, False))
        asked = self.text(test)
        if asked.endswith(" is None"):  # the usual way round
            return _denied(asked), (no, with_no), (yes, with_yes)
        return asked, (yes, with_yes), (no, with_no)

    def name_that_is_none(self, test: Value) -> str | None:
        """A name that is None exactly where `test` is true: a mask reassigned where it is not None still is."""
        for name in self.place.names:
            held = self.holds(name)
            if held is not None and held.op in (PARAMETER, CHOICE, ATTRIBUTE):
                if self.view.make(IS_NONE, self.view.of(held)) is test:
                    return name
        return None


def _denied(test: str) -> str:
    """The opposite of `x is None` or `x is not None`."""
    if test.endswith(" is None"):
        return test.removesuffix(" is None") + " is not None"
    return test.removesuffix(" is not None") + " is None"


def _qualified(v: Value) -> str:
    return f"{_qualified(v.inputs[0])}.{v.data}" if v.op == ATTRIBUTE else str(v.data)


def layer_text(text_of: SourceText, node: ast.expr, path: tuple[int, ...]) -> str:
    """One layer of the Sequential that `node` calls: self.net[2]."""
    if not isinstance(node, ast.Call) or isinstance(node.func, ast.Call):
        raise Unwritable(because(writing.LAYERS_UNNAMED))
    return text_of.of(node.func) + "".join(f"[{i}]" for i in path)


def root_places(captured: CapturedFunction, site: Site) -> list[ValuePosition]:
    """Where the call that makes a site can stand.

    The expression that computes it; else the call of a Sequential of which one layer gives it; else the call of a
    helper or a child that returns it, if something outside that goes too: what lies wholly inside is found there.
    """
    root = site.root
    if places := [p for p in dict.fromkeys(places_of(captured, root)) if not p.inlined]:
        return places
    calls = [p for p in captured.places.get(root, []) if isinstance(p.node, ast.Call)]
    if inner := [p for p in calls if p.inner]:
        return inner
    gone = {*(site.doomed.values or site.steps), *(r.value for r in site.results)} - {root}
    outside = (p for v in gone for p in captured.places.get(v, []))
    return calls if any(p.node not in [c.node for c in calls] for p in outside) else []


def places_of(captured: CapturedFunction, v: Value) -> Iterator[ValuePosition]:
    """Where the text computes `v`, other than by naming it, or by calling a helper that does."""
    return (
        p for p in captured.places.get(v, []) if not p.inlined and not isinstance(p.node, (ast.Name, ast.NamedExpr))
    )
