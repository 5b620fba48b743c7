"""Reads statements that bind names or write to memory: assignments, `del`, imports and definitions."""

from __future__ import annotations

import ast

from autofuse.ir.graph import ATTRIBUTE, CONST, TUPLE, Value, is_const
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.expressions import Expressions


class Assignments(Expressions):
    """Reads simple statements and definitions."""

    def read_assignment(self, targets: list[ast.expr], node: ast.expr) -> None:
        """Read `a = b = value`, where `node` is the value."""
        first = targets[0]
        if isinstance(first, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in first.elts):
            parts = self.read_elements(node, len(first.elts))
            result = self.graph.value(TUPLE, *parts) if parts is not None else self.value(node)
        else:
            result = self.value(node)
        for target in targets:
            self.bind_target(target, result)

    def bind_target(self, target: ast.expr, result: Value) -> None:
        """Assign a value to a target: a name, a tuple of targets, an attribute or an item."""
        match target:
            case ast.Name(id=name):
                self.bind_name(name, result)
                self.record_binding(result)
            case ast.Starred(value=inner):
                self.bind_target(inner, self.unknown_value("the rest of a sequence", result))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                self.unpack_value(elements, result)
            case ast.Attribute(value=owner):
                self.value(owner)
                self.add_escape(because(matches.VALUE_STORED, place="an attribute"), result)
                self.forget_attributes("an attribute is assigned")
                self.record_effect()
            case ast.Subscript(value=container, slice=index):
                stored, position = self.value(container), self.value(index)
                if (filled := self.fill_masked(stored, position, result)) is not None:
                    self.record_write(stored, filled)
                    self.record_binding(filled)
                    return
                self.record_write(stored, self.unknown_value("written in part", stored, position, result))
                self.record_effect()
                if not self.bases(stored) or stored.op not in OPS:
                    self.add_escape(because(matches.VALUE_STORED, place="a container"), result)

    def fill_masked(self, stored: Value, index: Value, fill: Value) -> Value | None:
        """Return the tensor after `stored[index] = fill`, if the index may be a mask.

        A mask is the result of an operation, such as a comparison. For any other index the result is None.
        """
        last = index.inputs[-1] if index.op == TUPLE and index.inputs else index
        if stored.op not in OPS or last.op not in OPS or self.facts.number(fill) is False:
            return None
        result = self.graph.value("masked_at", stored, index, fill)
        if (rank := self.facts.rank(stored)) is not None:
            self.add_facts(result, rank=rank)
        return result

    def unpack_value(self, elements: list[ast.expr], result: Value) -> None:
        """Assign the elements of a value to several targets."""
        if any(isinstance(e, ast.Starred) for e in elements):
            star = next(i for i, e in enumerate(elements) if isinstance(e, ast.Starred))
            for i, e in enumerate(elements):
                at = i if i < star else i - len(elements)
                rest = self.unknown_value("the rest of a sequence", result)
                self.bind_target(
                    e.value if isinstance(e, ast.Starred) else e, rest if i == star else self.element(result, at)
                )
            return
        parts = [self.element(result, i) for i in range(len(elements))]
        self.captured.unpacked[result] = len(elements)
        sizes = result.op == "size" and is_const(result.inputs[1], None)
        if sizes or result.op == ATTRIBUTE and result.data == "shape":
            self.require_rank(result.inputs[0], len(elements))
        for e, part in zip(elements, parts, strict=True):
            self.bind_target(e, part)

    def read_augmented_assignment(self, target: ast.expr, operator: ast.operator, value: ast.expr) -> None:
        """Read `target += value`, or the same with another operator."""
        old, other = self.value(_as_load(target)), self.value(value)
        result = self.apply_binary_operator(operator, old, other)
        if isinstance(target, ast.Name):
            self.record_position(old, target, inlined=False)  # the statement also reads the name
            self._augment_name(target.id, old, result)
            return
        self.bind_target(target, result)

    def _augment_name(self, name: str, old: Value, result: Value) -> None:
        """Bind `name` to the result of `name += other`.

        If the old value is a tensor, its memory is overwritten. If it is a number, the name is only rebound. If this is
        not known, other names with the old value hold an opaque value afterwards.
        """
        if self.facts.number(old) is not True and old.op != CONST:
            aliases = [n for n, v in self.names.items() if v is old and n != name]
            self.record_write(old, result)
            if self.facts.number(old) is None and old.op not in OPS:
                for n in aliases:  # they hold the old number, or the tensor that was overwritten
                    self.names.set(n, self.unknown_value("a number or what was written in place", old, result))
        self.bind_name(name, result)
        self.record_binding(result)

    def read_expression_statement(self, node: ast.expr) -> None:
        """Read an expression statement. Its value is not assigned."""
        if isinstance(node, ast.Constant):
            return  # a docstring
        start = len(self.graph.writes)
        result = self.value(node)
        written = {w.result for w in self.graph.writes[start:]}
        if result.op in OPS and result in written:
            self.record_binding(result)  # x.mul_(2) is not needed if x is not needed, like an assignment to x
        elif not isinstance(node, ast.NamedExpr):
            self.add_escape(because(matches.VALUE_LOOKED_AT), result)

    def read_delete(self, statement: ast.stmt, targets: list[ast.expr]) -> None:
        """Read `del targets`."""
        for target in targets:
            if isinstance(target, ast.Name):
                value = self.names.get(target.id)
                self.captured.deleted.setdefault(statement, []).extend([value] if value else [])
                self.names.set(target.id, None)
            elif isinstance(target, (ast.Attribute, ast.Subscript)):
                owner = self.value(target.value)
                self.record_write(owner, self.unknown_value("deleted in part", owner))
                self.record_effect()

    # Definitions.

    def read_definition(self, statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Read the definition of a nested function or class. Its defaults, decorators and bases are evaluated."""
        if statement in self.local_helpers and isinstance(statement, Function):
            function = self.unknown_value("a definition")
            self.nested_functions[function] = statement
            self.bind_name(statement.name, function)
            self.record_effect()
            return
        evaluated = [*statement.decorator_list]
        if isinstance(statement, Function):
            evaluated += [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        else:
            evaluated += [*statement.bases, *(k.value for k in statement.keywords)]
        inputs = [self.value(e) for e in evaluated]
        self.bind_name(statement.name, self.unknown_value("a definition", self.capture_nested(statement), *inputs))
        self.record_effect()

    def read_import(self, statement: ast.Import | ast.ImportFrom) -> None:
        """Bind the names of an import."""
        for a in statement.names:
            name = a.asname or a.name.partition(".")[0]
            if isinstance(statement, ast.Import):
                self.bind_name(name, self.module_value(a.name if a.asname else name))
            elif statement.module and not statement.level and a.name != "*":
                self.bind_name(name, self.module_value(f"{statement.module}.{a.name}"))
            else:
                self.bind_name(name, self.unknown_value("an import"))
        self.record_effect()


def _as_load(target: ast.expr) -> ast.expr:
    """Return the target of an augmented assignment as an expression that reads it."""
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
