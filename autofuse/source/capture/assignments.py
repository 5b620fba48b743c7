"""Statements that bind names or write memory: assignments, `del`, imports and definitions."""

from __future__ import annotations

import ast

from autofuse.ir.graph import ATTRIBUTE, CONST, TUPLE, Value, is_const
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.expressions import Expressions


class Assignments(Expressions):
    """Reads statements that hold no others."""

    def assign(self, targets: list[ast.expr], node: ast.expr) -> None:
        first = targets[0]
        if isinstance(first, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in first.elts):
            parts = self.elements(node, len(first.elts))
            result = self.graph.value(TUPLE, *parts) if parts is not None else self.value(node)
        else:
            result = self.value(node)
        for target in targets:
            self.bind(target, result)

    def bind(self, target: ast.expr, result: Value) -> None:
        match target:
            case ast.Name(id=name):
                self.hold(name, result)
                self.binds(result)
            case ast.Starred(value=inner):
                self.bind(inner, self.unknown("the rest of a sequence", result))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                self.unpack(elements, result)
            case ast.Attribute(value=owner):
                self.value(owner)
                self.sink(because(matches.VALUE_STORED, place="an attribute"), result)
                self.forget("an attribute is assigned")
                self.effect()
            case ast.Subscript(value=container, slice=index):
                stored, at = self.value(container), self.value(index)
                if (masked := self.masked(stored, at, result)) is not None:
                    self.write(stored, masked)
                    self.binds(masked)
                    return
                self.write(stored, self.unknown("written in part", stored, at, result))
                self.effect()
                if not self.bases(stored) or stored.op not in OPS:
                    self.sink(because(matches.VALUE_STORED, place="a container"), result)

    def masked(self, stored: Value, index: Value, filled: Value) -> Value | None:
        """What `scores[index] = fill` makes of scores where the index may be a mask: compared or negated."""
        last = index.inputs[-1] if index.op == TUPLE and index.inputs else index
        if stored.op not in OPS or last.op not in OPS or self.facts.number(filled) is False:
            return None
        made = self.graph.value("masked_at", stored, index, filled)
        if (rank := self.facts.rank(stored)) is not None:
            self.know(made, rank=rank)
        return made

    def unpack(self, elements: list[ast.expr], result: Value) -> None:
        if any(isinstance(e, ast.Starred) for e in elements):
            star = next(i for i, e in enumerate(elements) if isinstance(e, ast.Starred))
            for i, e in enumerate(elements):
                at = i if i < star else i - len(elements)
                rest = self.unknown("the rest of a sequence", result)
                self.bind(e.value if isinstance(e, ast.Starred) else e, rest if i == star else self.part(result, at))
            return
        parts = [self.part(result, i) for i in range(len(elements))]
        sizes = result.op == "size" and is_const(result.inputs[1], None)
        if sizes or result.op == ATTRIBUTE and result.data == "shape":
            self.has_rank(result.inputs[0], len(elements))
        for e, part in zip(elements, parts, strict=True):
            self.bind(e, part)

    def augment(self, target: ast.expr, operator: ast.operator, value: ast.expr) -> None:
        old, other = self.value(_as_load(target)), self.value(value)
        result = self.combined(operator, old, other)
        if isinstance(target, ast.Name):
            self.place(old, target, inlined=False)  # it reads the name, too
            self._in_place(target.id, old, result)
            return
        self.bind(target, result)

    def _in_place(self, name: str, old: Value, result: Value) -> None:
        """`x += y` writes to a tensor, and only rebinds a number."""
        if self.facts.number(old) is not True and old.op != CONST:
            aliases = [n for n, v in self.names.held() if v is old and n != name]
            self.write(old, result)
            if self.facts.number(old) is None and old.op not in OPS:
                for n in aliases:  # the old number, or the tensor that was written
                    self.names.set(n, self.unknown("a number or what was written in place", old, result))
        self.hold(name, result)
        self.binds(result)

    def expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant):
            return
        start = len(self.graph.writes)
        result = self.value(node)
        written = {w.result for w in self.graph.writes[start:]}
        if result.op in OPS and result in written:  # x.mul_(2) binds nothing, and is dead when x is
            self.binds(result)
        elif not isinstance(node, ast.NamedExpr):
            self.sink(because(matches.VALUE_LOOKED_AT), result)

    def delete(self, statement: ast.stmt, targets: list[ast.expr]) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                held = self.names.get(target.id)
                self.out.deleted.setdefault(statement, []).extend([held] if held else [])
                self.names.set(target.id, None)
            elif isinstance(target, (ast.Attribute, ast.Subscript)):
                owner = self.value(target.value)
                self.write(owner, self.unknown("deleted in part", owner))
                self.effect()

    # Definitions.

    def define(self, statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if statement in self.only_called and isinstance(statement, Function):
            made = self.unknown("a definition")
            self.inner_functions[made] = statement
            self.hold(statement.name, made)
            self.effect()
            return
        given = [*statement.decorator_list]
        if isinstance(statement, Function):
            given += [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        else:
            given += [*statement.bases, *(k.value for k in statement.keywords)]
        inputs = [self.value(g) for g in given]
        self.hold(statement.name, self.unknown("a definition", self.nested(statement), *inputs))
        self.effect()

    def imports(self, statement: ast.Import | ast.ImportFrom) -> None:
        for a in statement.names:
            name = a.asname or a.name.partition(".")[0]
            if isinstance(statement, ast.Import):
                self.hold(name, self.module(a.name if a.asname else name))
            elif statement.module and not statement.level and a.name != "*":
                self.hold(name, self.module(f"{statement.module}.{a.name}"))
            else:
                self.hold(name, self.unknown("an import"))
        self.effect()


def _as_load(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment, read."""
    match target:
        case ast.Name(id=name):
            load: ast.expr = ast.Name(name, ast.Load())
        case ast.Attribute(value=value, attr=name):
            load = ast.Attribute(value, name, ast.Load())
        case ast.Subscript(value=value, slice=index):
            load = ast.Subscript(value, index, ast.Load())
        case _:
            return target
    return ast.copy_location(load, target)
