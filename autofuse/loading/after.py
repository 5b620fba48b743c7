"""Reads a rule's `after`: one expression of what `before` captured, literals, and functions that the file imports.

An operation of autofuse.ops stands alone, with captures and literals. Everything else is kept step by step, so that
each door can write it. Knows syntax and imports; imports nothing of what an `after` names.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autofuse.ir.vocabulary import NAMES
from autofuse.loading.functions import parameters_of
from autofuse.rule import Applied, Constant, Imported, Part, Replacement, Rule, RuleError, Scalar
from autofuse.source.capture.constants import number_of
from autofuse.source.capture.scope import FileScope

_OPS = "autofuse.ops."
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|",
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], str] = {ast.USub: "-", ast.Invert: "~"}
_F = "torch.nn.functional."
# How many arguments stand before `inplace`, of functions that the vocabulary lacks; of others it knows the parameters.
_INPLACE: Mapping[str, int] = {
    "selu": 1, "elu": 2, "celu": 2, "leaky_relu": 2, "threshold": 3, "rrelu": 4, "dropout1d": 3, "dropout2d": 3,
    "dropout3d": 3, "alpha_dropout": 3, "feature_alpha_dropout": 3,
}  # fmt: skip


def replacement_of(rule: type[Rule], function: ast.FunctionDef, scope: FileScope) -> Replacement:
    """`after` of a rule. Raises RuleError with what cannot be written, and what to write instead."""
    node = _returned(rule, function)
    if not isinstance(node, ast.Call):
        raise RuleError(
            f"{rule.__name__}.after must end in a call: `return ops.<operation>(...)`, or of an imported function."
        )
    reader = _Reader(rule, scope)
    name = scope.name_of(node.func) or ""
    if name.startswith(_OPS):
        return Replacement(name.removeprefix(_OPS), tuple(reader.plain_arguments(node)))
    expression = reader.call(node)
    named = next((p.name for p in _parts(expression) if isinstance(p, Imported)), "")
    if not named:
        raise RuleError(
            f"{rule.__name__}.after calls no function that its file imports. Import one, such as "
            "`import torch.nn.functional as F`, under `if TYPE_CHECKING:` where nothing else needs it."
        )
    return Replacement(named, (), expression)


def _returned(rule: type[Rule], function: ast.FunctionDef) -> ast.expr | None:
    """What `after` returns, which must be all that it does."""
    *before, last = function.body
    documented = before[1:] if before and ast.get_docstring(function) is not None else before
    if documented:
        raise RuleError(
            f"{rule.__name__}.after does more than return a call: `{ast.unparse(documented[0])}`. Write one `return`, "
            "and put what else there is to compute into the function that it calls."
        )
    return last.value if isinstance(last, ast.Return) else None


def _parts(part: Part) -> Iterator[Part]:
    yield part
    if isinstance(part, Applied):
        for inner in (*part.parts, *(p for _, p in part.named)):
            yield from _parts(inner)


@dataclass(frozen=True)
class _Reader:
    rule: type[Rule]
    scope: FileScope

    @property
    def known(self) -> Mapping[str, inspect.Parameter]:
        return parameters_of(self.rule)

    def refused(self, why: str) -> RuleError:
        return RuleError(f"{self.rule.__name__}.after {why}")

    def plain_arguments(self, call: ast.Call) -> Iterator[tuple[str, str | Constant]]:
        """The arguments of an operation of autofuse.ops, none of them computed."""
        for name, node in _arguments(call):
            found = self.part(node) if not isinstance(node, ast.Call) else None
            if not isinstance(found, (str, Constant)):
                raise self.refused(
                    f"uses `{ast.unparse(node)}`. It may use only literals and the parameters of `before`: "
                    f"{', '.join(sorted(self.known))}. What is computed besides belongs into the operation."
                )
            yield name, found

    def part(self, node: ast.expr) -> Part:
        """One expression. Raises RuleError where it cannot be written in both doors."""
        number = number_of(node, self.scope.qualified, {})
        if number is not None:
            return Constant(number)
        match node:
            case ast.Name(id=name) if name in self.known:
                return name
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return Constant(value)
            case ast.Name() | ast.Attribute() if (found := self.imported(node)) is not None:
                return found
            case ast.Name(id=name) if (constant := self.scope.number(name)) is not None:
                return Constant(constant)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self.several([self.value(e) for e in elements])
            case ast.Call():
                return self.call(node)
            case ast.Attribute(value=owner, attr=name):
                return Applied("attribute", name, (self.value(owner),))
            case ast.Subscript(value=container, slice=index):
                return Applied("item", "", (self.value(container), self.value(index)))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return Applied("slice", "", tuple(self.value(p) if p else Constant(None) for p in (lower, upper, step)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Applied("operator", f"{{0}} {_BINARY[type(op)]} {{1}}", (self.value(left), self.value(right)))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return Applied("operator", f"{_UNARY[type(op)]}{{0}}", (self.value(operand),))
        raise self.refused(
            f"uses `{ast.unparse(node)}`. It may use only literals, the parameters of `before` "
            f"({', '.join(sorted(self.known))}), and calls of functions that its file imports."
        )

    def several(self, parts: list[Part]) -> Part:
        values: list[Scalar] = [p.value for p in parts if isinstance(p, Constant) and not isinstance(p.value, tuple)]
        return Constant(tuple(values)) if len(values) == len(parts) else Applied("tuple", "", tuple(parts))

    def value(self, node: ast.expr) -> Part:
        """A part that must be there: what the code may leave out can only be left out of a call."""
        if isinstance(node, ast.Name) and node.id in self.known and self._optional(node.id):
            raise self.refused(
                f"uses `{node.id}`, which the code may leave out, where it cannot be left out. Pass it by keyword: "
                f"`{node.id}={node.id}`."
            )
        return self.part(node)

    def _optional(self, name: str) -> bool:
        return self.known[name].default is not inspect.Parameter.empty

    def imported(self, node: ast.expr) -> Imported | None:
        """What a dotted name is, in full, and which part of it the file imports."""
        name = self.scope.name_of(node)
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if name is None or not isinstance(first, ast.Name):
            return None
        if name.startswith(_OPS):
            raise self.refused(
                f"uses `{ast.unparse(node)}` inside another call. An operation of autofuse.ops stands alone: return "
                "it, or write a function of your own that calls it."
            )
        by_name = first.id in self.scope.imports or first.id in self.scope.variables
        return Imported(name, self.scope.qualified[first.id], by_name)

    def call(self, node: ast.Call) -> Applied:
        text = ast.unparse(node.func)
        for keyword in node.keywords:
            if keyword.arg in ("out", "inplace"):
                raise self.refused(f"gives `{text}` the argument `{keyword.arg}`, which writes to what is captured.")
        last = text.rpartition(".")[2]
        if last.endswith("_") and not last.endswith("__"):
            raise self.refused(f"calls `{text}`, which writes to what is captured. Call `{text[:-1]}`.")
        positional = tuple(self.value(a) for a in _starless(self, node))
        named = tuple((str(k.arg), self.part(k.value)) for k in node.keywords)
        if (function := self.imported(node.func)) is not None:
            before_inplace = _before_inplace(function.name)
            if before_inplace is not None and len(positional) > before_inplace:
                raise self.refused(f"gives `{text}` the argument `inplace`, which writes to what is captured.")
            return Applied("call", "", (function, *positional), named)
        if isinstance(node.func, ast.Attribute):
            return Applied("method", node.func.attr, (self.value(node.func.value), *positional), named)
        if text in self.scope.functions or text in self.scope.classes:
            raise self.refused(
                f"calls `{text}`, which stands in the rule's own file. Put it into a module that the rewritten code "
                "can import, and import it here."
            )
        if not isinstance(node.func, ast.Name):
            raise self.refused(f"calls `{text}`. Call a function that its file imports, by its name.")
        raise self.refused(
            f"calls `{text}`, which its file does not import. Import it by its full name: "
            f"`from package.module import {text}`."
        )


def _before_inplace(name: str) -> int | None:
    """How many arguments of a function stand before its `inplace`; None where it has none."""
    if name in NAMES and NAMES[name].inplace:
        return len(NAMES[name].parameters)
    return _INPLACE.get(name.removeprefix(_F)) if name.startswith(_F) else None


def _arguments(call: ast.Call) -> list[tuple[str, ast.expr]]:
    return [("", a) for a in call.args] + [(k.arg or "", k.value) for k in call.keywords]


def _starless(reader: _Reader, call: ast.Call) -> list[ast.expr]:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        raise reader.refused(f"passes `*` or `**` to `{ast.unparse(call.func)}`. Write each argument.")
    return call.args
