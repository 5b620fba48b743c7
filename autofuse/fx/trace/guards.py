"""The assumptions of a trace, as Python expressions that a generated forward tests before it uses the trace.

A guard reads `self`, the parameters of forward, and a few functions of install/guard_code.py:

- `_held(m, table, name)` is the entry of module `m` under a name, also where sharding has moved it.
- `_unwatched(m)` is true if m has no hooks and its own forward.
- `_unhooked()` is true if there are no global module hooks.
- `_plain(x)` is true if x is an ordinary local tensor.
- `_lacks(m, name)` is true if m has no such attribute.

This file knows no torch.
"""

from __future__ import annotations

import ast
import enum
import math
import re
import types
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofuse.fx.trace.releasable import may_be_released
from autofuse.fx.trace.same_values import is_container, is_same_value, needs_strict_comparison

_SELF, _CONSTANT = re.compile(r"\bself\b"), re.compile(r"\b_c\d+\b")
_TEXT, _NAME = re.compile(r"'[^']*'|\"[^\"]*\""), re.compile(r"(?<![\w.])[A-Za-z]\w*")
_WORDS = frozenset({"is", "not", "in", "and", "or", "len", "type", "None", "True", "False", "isinstance"})


_MAX_LENGTH = 60  # characters; a sentence names the class of a value that is longer


@dataclass
class Guards:
    """The tests, in the order in which they were added, and the objects that they name.

    Attributes:
        tests: the expressions, as the keys of a dict.
        names: name of a constant in the expressions -> the object.
    """

    tests: dict[str, None] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)

    def add(self, test: str) -> None:
        """Add a test, unless it is known."""
        self.tests[test] = None

    def equal(self, text: str, value: Any) -> None:
        """Require that `text` equals `value`."""
        self._guard_enum_value(value)
        if value is None or isinstance(value, (bool, enum.Enum)):
            self.add(f"{text} is {self.name_of(value)}")  # `==` would accept 1 for True
        elif isinstance(value, float) and math.isnan(value):
            self.add(f"{text} != {text}")  # only NaN differs from itself
        elif needs_strict_comparison(value):
            if is_container(value):
                self.same(f"type({text})", type(value))
            self.add(f"{'_holds' if is_container(value) else '_alike'}({text}, {self._strong_name(value)})")
        else:
            self.add(f"{text} == {self.name_of(value)}")

    def _guard_enum_value(self, value: Any) -> None:
        """Require that a member of an Enum keeps its value: code may assign another one."""
        if isinstance(value, enum.Enum) and not isinstance(value, int | str | float):
            self.add(f"{self.constant(value)}._value_ is {self.constant(value._value_)}")

    def same(self, text: str, value: Any) -> None:
        """Require that `text` is the object `value`."""
        self.add(f"{text} is {self.constant(value)}")

    def alike(self, text: str, value: Any) -> None:
        """Require that `text` has the type of the immutable `value` and equals it."""
        self._guard_enum_value(value)
        if value is None or isinstance(value, (bool, enum.Enum)):
            self.same(text, value)
        else:
            self.add(f"_alike({text}, {self._strong_name(value)})")

    def constant(self, value: Any) -> str:
        """The text of the object itself. An object of a user's class is held weakly, so that guards do not keep it."""
        if value is None or isinstance(value, bool):
            return repr(value)
        for name, known in self.names.items():
            if known is value:
                return name
            if type(known) is weakref.ref and known() is value:
                return self._referent(name)
        if not may_be_released(value):
            return self._strong_name(value)
        return self._referent(self._strong_name(weakref.ref(value)))

    def _referent(self, reference: str) -> str:
        """The text of the object that a weak reference refers to, with a guard that it is still alive."""
        self.add(f"{reference}() is not None")
        return f"{reference}()"

    def _strong_name(self, value: Any) -> str:
        """A name for the object itself, which lives as long as the guards."""
        if value is None or isinstance(value, bool):
            return repr(value)
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"_c{len(self.names)}"
        self.names[name] = value
        return name

    def add_child_guards(self, child: Guards, reach: str) -> None:
        """Add the guards of a child. `reach` is the guard text of the child."""
        for test in child.tests:
            if _SELF.search(test) or reads_no_argument(test):
                text = _SELF.sub(reach, test)
                self.add(_CONSTANT.sub(lambda m: self.constant(child.names[m[0]]), text))

    def name_of(self, value: Any) -> str:
        """The text of a value: its repr if that is short and exact, else a name for an equal object."""
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


def reads_no_argument(test: str) -> bool:
    """Whether a test reads neither the module nor an argument, but only globals, classes or the state of torch."""
    return set(_NAME.findall(_TEXT.sub("", test))) <= _WORDS


_PHRASES = {
    "_unwatched": "no hooks on {0}",
    "_unhooked": "no global module hooks",
    "_unmoded": "none of your modes is active",
    "_plain": "{0} is a plain tensor",
    "_lacks": "{0} has no {1}",
    "_keeps_functions": "{0} is a tensor whose class overrides no function",
    "_of_class": "the class of {0} is {1}",
    "_of_torchs_class": "the class of {0} is {1}",
    "_holds_form": "{0} has the same contents ({1})",
    "_holds_number": "{0} holds {1}",
    "isinstance": "{0} is a tensor",
    "_default_device": "the default device is {0}",
    "_order": "the memory order of {0}",
}


def in_words(test: str, names: Mapping[str, Any]) -> str:
    """A test for a report: "x.dtype is torch.float32", "no hooks on self.ln", "self.mlp[0].bias is None"."""
    tree = _Readable(names).visit(ast.parse(test, mode="eval").body)
    match tree:
        case ast.Compare(ast.Call(ast.Name(name), []), [ast.IsNot()], [ast.Constant(None)]) if _refers(names.get(name)):
            return f"{_label(names[name])} still exists"
        case ast.Call(func=ast.Name(id=name)) if name in _PHRASES:
            return _PHRASES[name].format(*map(ast.unparse, tree.args))
        case ast.Call(ast.Name("_alike" | "_holds" | "_inherited" as word), [first, second]):
            return f"{ast.unparse(first)} {'has' if word == '_inherited' else 'is'} {ast.unparse(second)}"
        case ast.UnaryOp(ast.Not(), ast.Call(ast.Name("_autocast"), [ast.Constant(str(value))])):
            return f"autocast is off on {value}"
    return re.sub(r"\b_(autocast(?:_dtype)?\()", r"\1", ast.unparse(tree))


class _Readable(ast.NodeTransformer):
    """Writes modules, parameters and constants as in the source code of the module."""

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
                return _member_of(self.visit(owner), name)
            case ast.Subscript(value=ast.Name(id=space), slice=ast.Constant(value=str(name))) if "__name__" in (
                namespace if isinstance(namespace := self._names.get(space), dict) else ()
            ):
                return _member_of(self.visit(node.value), name)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="_held"), args=[owner, _, ast.Constant(value=str(name))]):
                return _member_of(self.visit(owner), name)
            case ast.Call(func=ast.Name(id=name), args=[]) if _refers(self._names.get(name)):
                return ast.Name(_label(self._names[name]))
        return self.generic_visit(node)


def _refers(value: object) -> bool:
    return type(value) is weakref.ref


def _label(value: Any) -> str:
    """The name of an object in a sentence. A weak reference has the name of its object."""
    if type(value) is weakref.ref:
        found = value()
        return "an object that is gone" if found is None else _label(found)
    if isinstance(value, dict) and "__name__" in value:
        return str(value["__name__"])
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return value.__qualname__
    text = str(value)
    # An address says nothing and differs in each process.
    return text if " object at 0x" not in text and len(text) <= _MAX_LENGTH else f"a {type(value).__qualname__}"


def _member_of(owner: ast.expr, name: str) -> ast.AST:
    return ast.Subscript(owner, ast.Constant(int(name))) if name.isdigit() else ast.Attribute(owner, name)
