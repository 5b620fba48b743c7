"""Reads the `after` of a rule: one expression of the parameters of `before`, literals and imported functions.

A call of an operation of autofuse.ops has only parameters and literals as arguments. Any other expression is kept step
by step, so that both the codemod and `autofuse.optimize` can write it. This module does not import the functions that
`after` calls.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autofuse.ir.vocabulary import NAMES
from autofuse.loading.functions import parameters_of
from autofuse.rule import Applied, Constant, Imported, Part, Replacement, Rule, RuleError, Scalar
from autofuse.source.capture.constants import evaluate_number
from autofuse.source.capture.scope import FileScope

_OPS = "autofuse.ops."
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|",
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], str] = {ast.USub: "-", ast.Invert: "~"}
_F = "torch.nn.functional."
# The number of arguments before `inplace`, for functions that are not in the vocabulary.
_INPLACE: Mapping[str, int] = {
    "selu": 1, "elu": 2, "celu": 2, "leaky_relu": 2, "threshold": 3, "rrelu": 4, "dropout1d": 3, "dropout2d": 3,
    "dropout3d": 3, "alpha_dropout": 3, "feature_alpha_dropout": 3,
}  # fmt: skip


def read_replacement(rule: type[Rule], function: ast.FunctionDef, scope: FileScope) -> Replacement:
    """Read the `after` of a rule.

    Args:
        rule: The rule.
        function: The syntax of its `after`.
        scope: The names of the file that defines the rule.

    Raises:
        RuleError: `after` contains something that cannot be written. The message says what to write instead.
    """
    node = _returned_expression(rule, function)
    if not isinstance(node, ast.Call):
        raise RuleError(
            f"{rule.__name__}.after must end in a call: `return ops.<operation>(...)`, or of an imported function."
        )
    reader = _AfterReader(rule, scope)
    name = scope.name_of(node.func) or ""
    if name.startswith(_OPS):
        return Replacement(name.removeprefix(_OPS), tuple(reader.operation_arguments(node)))
    expression = reader.read_call(node)
    function_name = next((p.name for p in _walk_parts(expression) if isinstance(p, Imported)), "")
    if not function_name:
        raise RuleError(
            f"{rule.__name__}.after calls no function that its file imports. Import one, such as "
            "`import torch.nn.functional as F`, under `if TYPE_CHECKING:` where nothing else needs it."
        )
    return Replacement(function_name, (), expression)


def _returned_expression(rule: type[Rule], function: ast.FunctionDef) -> ast.expr | None:
    """Return the expression that `after` returns. Raises RuleError if there is any other statement."""
    *before, last = function.body
    statements = before[1:] if before and ast.get_docstring(function) is not None else before
    if statements:
        raise RuleError(
            f"{rule.__name__}.after does more than return a call: `{ast.unparse(statements[0])}`. Write one `return`, "
            "and move the other computations into the function that it calls."
        )
    return last.value if isinstance(last, ast.Return) else None


def _walk_parts(part: Part) -> Iterator[Part]:
    yield part
    if isinstance(part, Applied):
        for inner in (*part.parts, *(p for _, p in part.named)):
            yield from _walk_parts(inner)


@dataclass(frozen=True)
class _AfterReader:
    """Reads the expressions of an `after`."""

    rule: type[Rule]
    scope: FileScope

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return parameters_of(self.rule)

    def error(self, why: str) -> RuleError:
        return RuleError(f"{self.rule.__name__}.after {why}")

    def operation_arguments(self, call: ast.Call) -> Iterator[tuple[str, str | Constant]]:
        """Yield the arguments of an operation of autofuse.ops. None of them may be computed."""
        for name, node in _arguments(call):
            part = self.read_part(node) if not isinstance(node, ast.Call) else None
            if not isinstance(part, (str, Constant)):
                raise self.error(
                    f"uses `{ast.unparse(node)}`. It may use only literals and the parameters of `before`: "
                    f"{', '.join(sorted(self.parameters))}. Move other computations into the operation."
                )
            yield name, part

    def read_part(self, node: ast.expr) -> Part:
        """Read one expression. Raises RuleError if autofuse cannot write it."""
        number = evaluate_number(node, self.scope.qualified_names, {})
        if number is not None:
            return Constant(number)
        match node:
            case ast.Name(id=name) if name in self.parameters:
                return name
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return Constant(value)
            case ast.Name() | ast.Attribute() if (imported := self.read_imported_name(node)) is not None:
                return imported
            case ast.Name(id=name) if (constant := self.scope.number(name)) is not None:
                return Constant(constant)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self.read_sequence([self.read_required(e) for e in elements])
            case ast.Call():
                return self.read_call(node)
            case ast.Attribute(value=owner, attr=name):
                return Applied("attribute", name, (self.read_required(owner),))
            case ast.Subscript(value=container, slice=index):
                return Applied("item", "", (self.read_required(container), self.read_required(index)))
            case ast.Slice(lower=lower, upper=upper, step=step):
                bounds = (lower, upper, step)
                return Applied("slice", "", tuple(self.read_required(p) if p else Constant(None) for p in bounds))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                sides = (self.read_required(left), self.read_required(right))
                return Applied("operator", f"{{0}} {_BINARY[type(op)]} {{1}}", sides)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return Applied("operator", f"{_UNARY[type(op)]}{{0}}", (self.read_required(operand),))
        raise self.error(
            f"uses `{ast.unparse(node)}`. It may use only literals, the parameters of `before` "
            f"({', '.join(sorted(self.parameters))}), and calls of functions that its file imports."
        )

    def read_sequence(self, parts: list[Part]) -> Part:
        """Return a tuple or list as one part."""
        values: list[Scalar] = [p.value for p in parts if isinstance(p, Constant) and not isinstance(p.value, tuple)]
        return Constant(tuple(values)) if len(values) == len(parts) else Applied("tuple", "", tuple(parts))

    def read_required(self, node: ast.expr) -> Part:
        """Read an expression that must have a value. Raises RuleError if the matched code may leave it out.

        An argument that the code leaves out can only be left out of a call.
        """
        if isinstance(node, ast.Name) and node.id in self.parameters and self._is_optional(node.id):
            raise self.error(
                f"uses `{node.id}`, which the code may leave out, where it cannot be left out. Pass it by keyword: "
                f"`{node.id}={node.id}`."
            )
        return self.read_part(node)

    def _is_optional(self, name: str) -> bool:
        return self.parameters[name].default is not inspect.Parameter.empty

    def read_imported_name(self, node: ast.expr) -> Imported | None:
        """Return the full name of a dotted name, and the part of it that the file imports; None for other names."""
        name = self.scope.name_of(node)
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if name is None or not isinstance(first, ast.Name):
            return None
        if name.startswith(_OPS):
            raise self.error(
                f"uses `{ast.unparse(node)}` inside another call. An operation of autofuse.ops cannot be nested: "
                "return it, or write a function of your own that calls it."
            )
        by_name = first.id in self.scope.imports or first.id in self.scope.variables
        return Imported(name, self.scope.qualified_names[first.id], by_name)

    def read_call(self, node: ast.Call) -> Applied:
        """Read a call of an imported function or of a method. Raises RuleError for a call that writes in place."""
        text = ast.unparse(node.func)
        for keyword in node.keywords:
            if keyword.arg in ("out", "inplace"):
                raise self.error(f"passes `{keyword.arg}` to `{text}`, which writes to what is captured.")
        last = text.rpartition(".")[2]  # torch's methods in place end in one underscore; `__getitem__` does not
        if last.endswith("_") and not last.endswith("__"):
            raise self.error(f"calls `{text}`, which writes to what is captured. Call `{text[:-1]}`.")
        positional = tuple(self.read_required(a) for a in _positional_arguments(self, node))
        named = tuple((str(k.arg), self.read_part(k.value)) for k in node.keywords)
        if (function := self.read_imported_name(node.func)) is not None:
            before_inplace = _arguments_before_inplace(function.name)
            if before_inplace is not None and len(positional) > before_inplace:
                raise self.error(f"passes `inplace` to `{text}`, which writes to what is captured.")
            return Applied("call", "", (function, *positional), named)
        if isinstance(node.func, ast.Attribute):
            return Applied("method", node.func.attr, (self.read_required(node.func.value), *positional), named)
        if text in self.scope.functions or text in self.scope.classes:
            raise self.error(
                f"calls `{text}`, which the rule's own file defines. Move it into a module that the rewritten code "
                "can import, and import it here."
            )
        if not isinstance(node.func, ast.Name):
            raise self.error(f"calls `{text}`. Call a function that its file imports, by its name.")
        raise self.error(
            f"calls `{text}`, which its file does not import. Import it by its full name: "
            f"`from package.module import {text}`."
        )


def _arguments_before_inplace(name: str) -> int | None:
    """Return the number of parameters of a function before `inplace`; None if it has no such parameter."""
    if name in NAMES and NAMES[name].inplace:
        return len(NAMES[name].parameters)
    return _INPLACE.get(name.removeprefix(_F)) if name.startswith(_F) else None


def _arguments(call: ast.Call) -> list[tuple[str, ast.expr]]:
    return [("", a) for a in call.args] + [(k.arg or "", k.value) for k in call.keywords]


def _positional_arguments(reader: _AfterReader, call: ast.Call) -> list[ast.expr]:
    """Return the positional arguments of a call. Raises RuleError if it uses `*` or `**`."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        raise reader.error(f"passes `*` or `**` to `{ast.unparse(call.func)}`. Write each argument.")
    return call.args
