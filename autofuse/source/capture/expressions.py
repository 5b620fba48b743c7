"""Expressions -> values. Whatever is not understood becomes a value that depends on everything it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
    SLICE,
    SYNTAX,
    TUPLE,
    Value,
)
from autofuse.ir.vocabulary import METADATA, NAMES, OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import free_names
from autofuse.source.capture.buffer_contents import buffer_form
from autofuse.source.capture.calls import Calls
from autofuse.source.capture.module_numbers import (
    length_given,
    number_assigned,
    parameter_rank,
    positive_assigned,
    size_given,
)
from autofuse.source.capture.syntax import children, walk

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Invert: "~", ast.USub: "u-",
}  # fmt: skip
_LONGEST_TEXT = 1000  # of an f-string that is put together: an equation, or the pattern of a rearrangement
_FIXED = METADATA | {"shape"}  # attributes that no write changes


class Expressions(Calls):
    """Reads expressions."""

    def value(self, node: ast.expr) -> Value:
        if id(node) in self.evaluated:
            return self.evaluated.pop(id(node))
        first = len(self.graph.values)
        result = self.evaluate(node)
        self.place(result, node, inlined=result.serial >= first and id(node) in self.entered)
        if self.quiet and not isinstance(node, (ast.Name, ast.Constant)):
            self.place_in_helper(result, node)
        return result

    def evaluate(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=constant):
                return self.graph.const(constant)
            case ast.Name(id=name):
                return self.named(name)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner), name)
            case ast.Call():
                return self.call(node)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) if not _starred(elements):
                return self.graph.value(TUPLE, *map(self.value, elements))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp():
                return self.operator(node)
            case ast.IfExp(test=test, body=yes, orelse=no):
                test_value = self.value(test)
                return self.choice(test_value, self.perhaps(yes), self.perhaps(no))
            case ast.Subscript(value=container, slice=index):
                return self.subscript(self.value(container), self.value(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [self.value(p) if p else self.graph.const(None) for p in (lower, upper, step)]
                return self.graph.value(SLICE, *parts)
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value)
                self.hold(target.id, result)
                self.binds(result)
                return result
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self.comprehension(node)
            case ast.JoinedStr(values=parts):
                return self.joined(node, parts)
            case ast.Lambda():
                return self.nested(node)
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return self.suspended(node)
        return self.graph.value(SYNTAX, *map(self.value, _children(node)), data=type(node).__name__)

    def joined(self, node: ast.JoinedStr, parts: list[ast.expr]) -> Value:
        """An f-string; one that is made of constants is a constant: `f"b i d, {keys} -> b i j"`."""
        plain = [p for p in parts if isinstance(p, ast.FormattedValue) and p.conversion == -1 and p.format_spec is None]
        held = {id(p): self.value(p.value) for p in plain}
        pieces = [
            p.value if isinstance(p, ast.Constant) else held[id(p)].data if id(p) in held else None for p in parts
        ]
        if all(isinstance(p, str) for p in pieces) and all(v.op == CONST for v in held.values()):
            text = "".join(map(str, pieces)) if sum(len(str(p)) for p in pieces) <= _LONGEST_TEXT else None
            if text is not None:
                return self.graph.const(text)
        others = [self.value(p) for p in parts if id(p) not in held and not isinstance(p, ast.Constant)]
        return self.graph.value(SYNTAX, *held.values(), *others, data=type(node).__name__)

    # Names and attributes.

    def named(self, name: str) -> Value:
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        if name in self.declared or name in self.rebound_inside:
            return self.graph.read(GLOBAL, data=name)
        if (held := self.names.get(name)) is not None:
            return held
        if name in self.local:
            return self.unknown("unbound")
        if meaning := self.scope.qualified.get(name):
            return self.module(meaning)
        if name in self.scope.reassigned:
            return self.graph.read(GLOBAL, data=name)
        number = self.scope.number(name)
        if number is None and self.abroad and name in self.scope.bound:
            return self.unknown("a name of another file")
        return self.graph.const(number) if number is not None else self.graph.value(GLOBAL, data=name)

    def module(self, meaning: str) -> Value:
        """An imported name: `torch.nn.functional` is an attribute of an attribute of a module."""
        owner, _, name = meaning.rpartition(".")
        if not owner:
            return self.graph.value(MODULE, data=name)
        return self.graph.value(ATTRIBUTE, self.module(owner), data=name)

    def attribute(self, owner: Value, name: str) -> Value:
        if name == "mT":
            return self.graph.value("mT", owner)
        own = owner.op == GLOBAL and str(owner.data) in self.scope.variables
        if name in _FIXED or owner.op in (MODULE, GLOBAL) and not own or owner.op == ATTRIBUTE and self.imported(owner):
            return self.graph.value(ATTRIBUTE, owner, data=name)
        if owner is self.instance and (fill := self.constant_buffer(name)) is not None:
            return fill
        found = self.graph.read(ATTRIBUTE, owner, data=name)
        if owner is self.instance and self.owner and found not in self.out.known:
            form = buffer_form(self.scope, self.owner, name)
            number = number_assigned(self.scope, self.owner, name) if form is None else False
            above_zero = positive_assigned(self.scope, self.owner, name) if number else None
            rank = parameter_rank(self.scope, self.owner, name)
            self.know(found, number=number, form=form, rank=rank, positive=above_zero)
            if number:
                self.know(found, size=size_given(self.scope, self.owner, name))
            if rank == 1 and (length := length_given(self.scope, self.owner, name)) is not None:
                self.know(found, lengths=(length,))
        return found

    def constant_buffer(self, name: str) -> Value | None:
        """What GPT-2 calls `masked_bias`: a buffer that holds one number, and is never assigned to."""
        match self.scope.buffer(self.owner, name):
            case ast.Call(
                func=function, args=[ast.Constant() | ast.UnaryOp(operand=ast.Constant()) as number], keywords=[]
            ):
                if self.scope.name_of(function) == "torch.tensor":
                    return self.operation(
                        NAMES["torch.tensor"], "torch.tensor", [self.operator_or_constant(number)], {}
                    )
        return None

    def operator_or_constant(self, node: ast.Constant | ast.UnaryOp) -> Value:
        kept, self.quiet = self.quiet, True
        found = self.evaluate(node)
        self.quiet = kept
        return found

    def imported(self, v: Value) -> bool:
        while v.op == ATTRIBUTE:
            v = v.inputs[0]
        return v.op == MODULE

    def subscript(self, container: Value, index: Value) -> Value:
        if container.op == TUPLE and index.op == CONST and type(index.data) is int:
            if -len(container.inputs) <= index.data < len(container.inputs):
                return container.inputs[index.data]
        if container.op in OPS or container.op == ATTRIBUTE and container.data in _FIXED:
            return self.graph.value(ITEM, container, index)
        return self.graph.read(ITEM, container, index)

    # Operators.

    def operator(self, node: ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp) -> Value:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.negated(self.value(operand))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return self.graph.const(-number)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return self.applied(op, self.value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self.applied(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                test = self.graph.value(IS_NONE, self.value(left))
                return test if isinstance(op, ast.Is) else self.negated(test)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return self.applied(op, self.value(left), self.value(right))
        read = self.perhaps if isinstance(node, ast.BoolOp) else self.value
        parts = list(map(read, _children(node)))
        if isinstance(node, ast.BinOp):
            return self.combined(node.op, *parts)
        kind = ",".join(map(ast.dump, node.ops)) if isinstance(node, ast.Compare) else ast.dump(node.op)
        return self.graph.value(SYNTAX, *parts, data=f"{type(node).__name__} {kind}")

    def combined(self, operator: ast.operator, left: Value, right: Value) -> Value:
        if type(operator) in _OPERATORS:
            return self.applied(operator, left, right)
        return self.graph.value(SYNTAX, left, right, data=f"BinOp {ast.dump(operator)}")

    def applied(self, operator: ast.AST, *operands: Value) -> Value:
        spelling = _OPERATORS[type(operator)]
        made = self.operation(NAMES[spelling], spelling, list(operands), {})
        assert made is not None, f"the vocabulary gives `{spelling}` another number of operands"
        return made

    def negated(self, test: Value) -> Value:
        return test.inputs[0] if test.op == NOT else self.graph.value(NOT, test)

    def choice(self, test: Value, yes: Value | None, no: Value | None) -> Value:
        """`yes` where `test` holds, `no` elsewhere; None stands for a name that is unbound there."""
        if yes is no and yes is not None:
            return yes
        if yes is None or no is None:
            unbound = self.graph.value(GLOBAL, data="<unbound>")
            return self.graph.value(CHOICE, test, yes or unbound, no or unbound)
        return self.graph.value(CHOICE, test, yes, no)

    # What may not run, runs elsewhere, or several times.

    def perhaps(self, node: ast.expr) -> Value:
        """An expression that may not be evaluated: what it writes or binds, names hold only perhaps."""
        mark, horizon = self.names.mark, self.horizon
        self.horizon = len(self.graph.values)
        result = self.value(node)
        self.horizon = horizon
        changed = {name: self.names.held_since(name, mark) for name in self.names.changed(mark)}
        self.names.restore(mark)
        for name, values in changed.items():
            self.hold(name, self.some_of("changed where it may not be evaluated", values))
        return result

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> Value:
        if (found := self.elements(node, None)) is not None:
            return self.graph.value(TUPLE, *found)
        first = self.value(node.generators[0].iter)
        read = [v for name in sorted(free_names(node)) if (v := self._held(name)) is not None]
        for n in walk(node):
            if isinstance(n, ast.NamedExpr):
                self.hold(n.target.id, self.unknown("assigned in a comprehension", *read))
        if any(isinstance(n, (ast.Call, ast.Await)) for n in walk(node)):
            self.effect()
            return self.graph.fresh(CALL, first, *read, data=("a comprehension", ()))
        return self.unknown("a comprehension", first, *read)

    def suspended(self, node: ast.Await | ast.Yield | ast.YieldFrom) -> Value:
        """Anything may happen before control comes back."""
        values = list(map(self.value, _children(node)))
        how = "yielded" if not isinstance(node, ast.Await) else "awaited"
        self.sink(because(matches.VALUE_YIELDED, how=how), *values)
        self.forget("other code runs")
        self.effect()
        return self.unknown(type(node).__name__.lower(), *values)


def _starred(elements: list[ast.expr]) -> bool:
    return any(isinstance(e, ast.Starred) for e in elements)


def _children(node: ast.AST) -> Iterator[ast.expr]:
    return (c for c in children(node) if isinstance(c, ast.expr))
