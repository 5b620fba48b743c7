"""What a trace took for granted, as Python text that a generated forward tests before it trusts the trace.

A guard speaks of `self` and of forward's own parameters, and of a few words that install/guard_code.py spells out:
`_held(m, table, name)` is what module `m` has under a name, wherever sharding may have put it; `_unwatched(m)` holds
where nobody hooks or replaces m's forward, `_unhooked()` where nobody hooks all modules; `_plain(x)` says that x is an
ordinary local tensor, `_lacks(m, name)` that m has no such attribute. Knows no torch.
"""

from __future__ import annotations

import ast
import enum
import math
import re
import types
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofuse.fx.trace.same_values import is_container, is_same_value, needs_strict_comparison

_SELF, _NAMED = re.compile(r"\bself\b"), re.compile(r"\b_c\d+\b")
_TEXT, _NAME = re.compile(r"'[^']*'|\"[^\"]*\""), re.compile(r"(?<![\w.])[A-Za-z]\w*")
_WORDS = frozenset({"is", "not", "in", "and", "or", "len", "type", "None", "True", "False", "isinstance"})


_LONG = 60  # characters of a value that a sentence names


@dataclass
class Guards:
    """The tests, in the order in which they were met, and the objects that they name."""

    tests: dict[str, None] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)

    def add(self, test: str) -> None:
        self.tests[test] = None

    def equal(self, text: str, value: Any) -> None:
        """`text` must give `value`."""
        self._member(value)
        if value is None or isinstance(value, (bool, enum.Enum)):
            self.add(f"{text} is {self.name_of(value)}")
        elif isinstance(value, float) and math.isnan(value):
            self.add(f"{text} != {text}")
        elif needs_strict_comparison(value):
            if is_container(value):
                self.same(f"type({text})", type(value))
            self.add(f"{'_holds' if is_container(value) else '_alike'}({text}, {self.constant(value)})")
        else:
            self.add(f"{text} == {self.name_of(value)}")

    def _member(self, value: Any) -> None:
        """A member of an Enum stays itself where somebody gives it another value."""
        if isinstance(value, enum.Enum) and not isinstance(value, int | str | float):
            self.add(f"{self.constant(value)}._value_ is {self.constant(value._value_)}")

    def same(self, text: str, value: Any) -> None:
        """`text` must give that very object."""
        self.add(f"{text} is {self.constant(value)}")

    def alike(self, text: str, value: Any) -> None:
        """`text` must give a value of the same type that equals the immutable `value`."""
        self._member(value)
        if value is None or isinstance(value, (bool, enum.Enum)):
            self.same(text, value)
        else:
            self.add(f"_alike({text}, {self.constant(value)})")

    def constant(self, value: Any) -> str:
        """A name for that very object."""
        if value is None or isinstance(value, bool):
            return repr(value)
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"_c{len(self.names)}"
        self.names[name] = value
        return name

    def add_childs(self, child: Guards, reach: str) -> None:
        """Add what the child that a guard reaches by `reach` took for granted of itself."""
        for test in child.tests:
            if _SELF.search(test) or is_outside(test):
                text = _SELF.sub(reach, test)
                self.add(_NAMED.sub(lambda m: self.constant(child.names[m[0]]), text))

    def name_of(self, value: Any) -> str:
        """Text for a value: itself where that is short and exact, else a name bound to it."""
        if value is None or type(value) in (bool, int, str) or type(value) is float and math.isfinite(value):
            return repr(value)
        for name, known in self.names.items():
            if known is value or isinstance(value, Hashable) and is_same_value(known, value):
                return name
        name = f"_c{len(self.names)}"
        self.names[name] = value
        return name

    @property
    def text(self) -> str:
        """All tests as one expression."""
        return " and ".join(f"({t})" if " or " in t else t for t in self.tests) or "True"


def is_outside(test: str) -> bool:
    """Whether a test asks neither the module nor an argument: a global, a class, a state of torch."""
    return set(_NAME.findall(_TEXT.sub("", test))) <= _WORDS


_PHRASES = {
    "_unwatched": "no hooks on {0}",
    "_unhooked": "no hooks on all modules",
    "_unmoded": "no mode of yours is on",
    "_plain": "{0} is a plain tensor",
    "_lacks": "{0} has no {1}",
    "_keeps_functions": "{0} is a tensor whose class overrides no function",
    "_of_class": "{0} is of the class {1}",
    "_of_torchs_class": "{0} is of the class {1}",
    "_holds_form": "{0} holds what it held ({1})",
    "_holds_number": "{0} holds {1}",
    "isinstance": "{0} is a tensor",
    "_order": "how {0} lies in memory",
}


def in_words(test: str, names: Mapping[str, Any]) -> str:
    """A test for people: "x.dtype is torch.float32", "no hooks on self.ln", "self.mlp[0].bias is None"."""
    tree = _Readable(names).visit(ast.parse(test, mode="eval").body)
    match tree:
        case ast.Call(func=ast.Name(id=name)) if name in _PHRASES:
            return _PHRASES[name].format(*map(ast.unparse, tree.args))
        case ast.Call(ast.Name("_alike" | "_holds" | "_inherited" as word), [first, second]):
            return f"{ast.unparse(first)} {'has' if word == '_inherited' else 'is'} {ast.unparse(second)}"
        case ast.UnaryOp(ast.Not(), ast.Call(ast.Name("_autocast"), [ast.Constant(str(value))])):
            return f"autocast is off on {value}"
    return re.sub(r"\b_(autocast(?:_dtype)?\()", r"\1", ast.unparse(tree))


class _Readable(ast.NodeTransformer):
    """Writes modules, parameters and constants as their owner would."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._names:
            return ast.Name("torch") if node.id == "_torch" else node
        return ast.Name(_label(self._names[node.id]))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(value=ast.Attribute(value=owner, attr=table), slice=ast.Constant(value=str(name))) if (
                table in ("_modules", "_parameters", "_buffers", "__dict__")
            ):
                return _named(self.visit(owner), name)
            case ast.Subscript(value=ast.Name(id=space), slice=ast.Constant(value=str(name))) if "__name__" in (
                held if isinstance(held := self._names.get(space), dict) else ()
            ):
                return _named(self.visit(node.value), name)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="_held"), args=[owner, _, ast.Constant(value=str(name))]):
                return _named(self.visit(owner), name)
        return self.generic_visit(node)


def _label(value: Any) -> str:
    """What to call an object in a sentence."""
    if isinstance(value, dict) and "__name__" in value:
        return str(value["__name__"])
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return value.__qualname__
    text = str(value)
    return text if " object at 0x" not in text and len(text) <= _LONG else f"a {type(value).__qualname__}"


def _named(owner: ast.expr, name: str) -> ast.AST:
    return ast.Subscript(owner, ast.Constant(int(name))) if name.isdigit() else ast.Attribute(owner, name)
