"""Reads expressions. An expression that is not understood becomes a value that depends on everything it reads."""

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
from autofuse.source.capture.module_attributes import (
    attribute_source,
    is_number_attribute,
    is_positive_attribute,
    parameter_length_source,
    parameter_rank,
)
from autofuse.source.capture.syntax import children, walk

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Invert: "~", ast.USub: "u-",
}  # fmt: skip
_LONGEST_TEXT = 1000  # characters of an f-string that is evaluated: an einsum equation or an einops pattern
_FIXED = METADATA | {"shape"}  # attributes of a tensor that no write changes


class Expressions(Calls):
    """Reads expressions."""

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression, and record its position."""
        if id(node) in self.precomputed:
            return self.precomputed.pop(id(node))
        first = len(self.graph.values)
        result = self.evaluate(node)
        self.record_position(result, node, inlined=result.serial >= first and id(node) in self.inlined_calls)
        if self.in_helper and not isinstance(node, (ast.Name, ast.Constant)):
            self.record_helper_position(result, node)
        return result

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression without recording its position."""
        match node:
            case ast.Constant(value=constant):
                return self.graph.const(constant)
            case ast.Name(id=name):
                return self.read_name(name)
            case ast.Attribute(value=owner, attr=name):
                return self.read_attribute(self.value(owner), name)
            case ast.Call():
                return self.read_call(node)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) if not _has_starred(elements):
                return self.graph.value(TUPLE, *map(self.value, elements))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp():
                return self.read_operator(node)
            case ast.IfExp(test=test, body=yes, orelse=no):
                test_value = self.value(test)
                return self.make_choice(test_value, self.read_conditionally(yes), self.read_conditionally(no))
            case ast.Subscript(value=container, slice=index):
                return self.read_subscript(self.value(container), self.value(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [self.value(p) if p else self.graph.const(None) for p in (lower, upper, step)]
                return self.graph.value(SLICE, *parts)
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value)
                self.bind_name(target.id, result)
                self.record_binding(result)
                return result
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self.read_comprehension(node)
            case ast.JoinedStr(values=parts):
                return self.read_f_string(node, parts)
            case ast.Lambda():
                return self.capture_nested(node)
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return self.read_suspension(node)
        return self.graph.value(SYNTAX, *map(self.value, _children(node)), data=type(node).__name__)

    def read_f_string(self, node: ast.JoinedStr, parts: list[ast.expr]) -> Value:
        """Return the value of an f-string. It is a constant if all parts are: `f"b i d, {keys} -> b i j"`."""
        plain = [p for p in parts if isinstance(p, ast.FormattedValue) and p.conversion == -1 and p.format_spec is None]
        values = {id(p): self.value(p.value) for p in plain}
        pieces = [
            p.value if isinstance(p, ast.Constant) else values[id(p)].data if id(p) in values else None for p in parts
        ]
        if all(isinstance(p, str) for p in pieces) and all(v.op == CONST for v in values.values()):
            text = "".join(map(str, pieces)) if sum(len(str(p)) for p in pieces) <= _LONGEST_TEXT else None
            if text is not None:
                return self.graph.const(text)
        others = [self.value(p) for p in parts if id(p) not in values and not isinstance(p, ast.Constant)]
        return self.graph.value(SYNTAX, *values.values(), *others, data=type(node).__name__)

    # Names and attributes.

    def read_name(self, name: str) -> Value:
        """Return the value of a name: a variable, an imported module, a constant of the file, or a global."""
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        if name in self.declared_names or name in self.names_rebound_by_nested:
            return self.graph.read(GLOBAL, data=name)
        if (value := self.names.get(name)) is not None:
            return value
        if name in self.local_names:
            return self.unknown_value("unbound")
        if meaning := self.scope.qualified_names.get(name):
            return self.module_value(meaning)
        if name in self.scope.reassigned:
            return self.graph.read(GLOBAL, data=name)
        number = self.scope.number(name)
        if number is None and self.in_other_file and name in self.scope.bound:
            return self.unknown_value("a name of another file")
        return self.graph.const(number) if number is not None else self.graph.value(GLOBAL, data=name)

    def module_value(self, meaning: str) -> Value:
        """Return the value of an imported name. `torch.nn.functional` is an attribute of `torch.nn`."""
        owner, _, name = meaning.rpartition(".")
        if not owner:
            return self.graph.value(MODULE, data=name)
        return self.graph.value(ATTRIBUTE, self.module_value(owner), data=name)

    def read_attribute(self, owner: Value, name: str) -> Value:
        """Return the value of `owner.name`, with the facts that the class of the instance gives."""
        if name == "mT":
            return self.graph.value("mT", owner)
        is_variable = owner.op == GLOBAL and str(owner.data) in self.scope.variables
        if (
            name in _FIXED
            or owner.op in (MODULE, GLOBAL)
            and not is_variable
            or owner.op == ATTRIBUTE
            and self.is_imported(owner)
        ):
            return self.graph.value(ATTRIBUTE, owner, data=name)
        if owner is self.instance_value and (fill := self.constant_buffer(name)) is not None:
            return fill
        result = self.graph.read(ATTRIBUTE, owner, data=name)
        if owner is self.instance_value and self.owner and result not in self.captured.known:
            form = buffer_form(self.scope, self.owner, name)
            number = is_number_attribute(self.scope, self.owner, name) if form is None else False
            above_zero = is_positive_attribute(self.scope, self.owner, name) if number else None
            rank = parameter_rank(self.scope, self.owner, name)
            self.add_facts(result, number=number, form=form, rank=rank, positive=above_zero)
            if number:
                self.add_facts(result, size=attribute_source(self.scope, self.owner, name))
            if rank == 1 and (length := parameter_length_source(self.scope, self.owner, name)) is not None:
                self.add_facts(result, lengths=(length,))
        return result

    def constant_buffer(self, name: str) -> Value | None:
        """Return the value of a buffer with one constant number, such as `masked_bias` of GPT-2; None for others."""
        match self.scope.buffer(self.owner, name):
            case ast.Call(
                func=function, args=[ast.Constant() | ast.UnaryOp(operand=ast.Constant()) as number], keywords=[]
            ):
                if self.scope.name_of(function) == "torch.tensor":
                    return self.make_operation(NAMES["torch.tensor"], "torch.tensor", [self.read_constant(number)], {})
        return None

    def read_constant(self, node: ast.Constant | ast.UnaryOp) -> Value:
        """Return the value of a number in `__init__`, which has no position in the captured function."""
        kept, self.in_helper = self.in_helper, True
        result = self.evaluate(node)
        self.in_helper = kept
        return result

    def is_imported(self, v: Value) -> bool:
        """Whether a value is an attribute of an imported module."""
        while v.op == ATTRIBUTE:
            v = v.inputs[0]
        return v.op == MODULE

    def read_subscript(self, container: Value, index: Value) -> Value:
        """Return the value of `container[index]`."""
        if container.op == TUPLE and index.op == CONST and type(index.data) is int:
            if -len(container.inputs) <= index.data < len(container.inputs):
                return container.inputs[index.data]
        if container.op in OPS or container.op == ATTRIBUTE and container.data in _FIXED:
            return self.graph.value(ITEM, container, index)
        return self.graph.read(ITEM, container, index)

    # Operators.

    def read_operator(self, node: ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp) -> Value:
        """Return the value of an expression with an operator."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.negate(self.value(operand))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return self.graph.const(-number)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return self.apply_operator(op, self.value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self.apply_operator(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                test = self.graph.value(IS_NONE, self.value(left))
                return test if isinstance(op, ast.Is) else self.negate(test)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return self.apply_operator(op, self.value(left), self.value(right))
        read = self.read_conditionally if isinstance(node, ast.BoolOp) else self.value
        parts = list(map(read, _children(node)))
        if isinstance(node, ast.BinOp):
            return self.apply_binary_operator(node.op, *parts)
        kind = ",".join(map(ast.dump, node.ops)) if isinstance(node, ast.Compare) else ast.dump(node.op)
        return self.graph.value(SYNTAX, *parts, data=f"{type(node).__name__} {kind}")

    def apply_binary_operator(self, operator: ast.operator, left: Value, right: Value) -> Value:
        """Return the value of a binary operator of any kind."""
        if type(operator) in _OPERATORS:
            return self.apply_operator(operator, left, right)
        return self.graph.value(SYNTAX, left, right, data=f"BinOp {ast.dump(operator)}")

    def apply_operator(self, operator: ast.AST, *operands: Value) -> Value:
        """Return the value of an operator of the vocabulary."""
        spelling = _OPERATORS[type(operator)]
        result = self.make_operation(NAMES[spelling], spelling, list(operands), {})
        assert result is not None, f"the vocabulary defines `{spelling}` with another number of operands"
        return result

    def negate(self, test: Value) -> Value:
        """Return the value of `not test`."""
        return test.inputs[0] if test.op == NOT else self.graph.value(NOT, test)

    def make_choice(self, test: Value, yes: Value | None, no: Value | None) -> Value:
        """Return the value that is `yes` if `test` is true, else `no`. None means that a name is unbound."""
        if yes is no and yes is not None:
            return yes
        if yes is None or no is None:
            unbound = self.graph.value(GLOBAL, data="<unbound>")
            return self.graph.value(CHOICE, test, yes or unbound, no or unbound)
        return self.graph.value(CHOICE, test, yes, no)

    # Expressions that may not run, run several times, or let other code run.

    def read_conditionally(self, node: ast.expr) -> Value:
        """Return the value of an expression that may not be evaluated.

        Names that the expression changes hold an opaque value afterwards.
        """
        mark, horizon = self.names.mark, self.branch_start
        self.branch_start = len(self.graph.values)
        result = self.value(node)
        self.branch_start = horizon
        changed = {name: self.names.values_since(name, mark) for name in self.names.changed_since(mark)}
        self.names.restore(mark)
        for name, values in changed.items():
            self.bind_name(name, self.one_of("changed where it may not be evaluated", values))
        return result

    def read_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> Value:
        """Return the value of a comprehension: a tuple if its elements are known, else an opaque value."""
        if (elements := self.read_elements(node, None)) is not None:
            return self.graph.value(TUPLE, *elements)
        first = self.value(node.generators[0].iter)
        read = [v for name in sorted(free_names(node)) if (v := self.lookup(name)) is not None]
        for n in walk(node):
            if isinstance(n, ast.NamedExpr):
                self.bind_name(n.target.id, self.unknown_value("assigned in a comprehension", *read))
        if any(isinstance(n, (ast.Call, ast.Await)) for n in walk(node)):
            self.record_effect()
            return self.graph.fresh(CALL, first, *read, data=("a comprehension", ()))
        return self.unknown_value("a comprehension", first, *read)

    def read_suspension(self, node: ast.Await | ast.Yield | ast.YieldFrom) -> Value:
        """Return the value of `await` or `yield`. Any code may run before the function continues."""
        values = list(map(self.value, _children(node)))
        how = "yielded" if not isinstance(node, ast.Await) else "awaited"
        self.add_escape(because(matches.VALUE_YIELDED, how=how), *values)
        self.forget_attributes("other code runs")
        self.record_effect()
        return self.unknown_value(type(node).__name__.lower(), *values)


def _has_starred(elements: list[ast.expr]) -> bool:
    return any(isinstance(e, ast.Starred) for e in elements)


def _children(node: ast.AST) -> Iterator[ast.expr]:
    return (c for c in children(node) if isinstance(c, ast.expr))
