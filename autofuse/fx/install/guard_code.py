"""Translates the guards' language (trace/guards.py) into plain Python that runs as fast as possible.

A module's state is read from its `__dict__`, which is three times as fast as an attribute of the module. A value that
is compared with a number or string must have that type: a tensor can equal a number and still change.
"""

from __future__ import annotations

import ast
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function_variadic

from autofuse.fx.install.failed_calls import is_of_an_operation
from autofuse.fx.install.mask_contents import holds_form, holds_number
from autofuse.fx.trace.ambient_state import device_by_default, foreign_modes
from autofuse.fx.trace.class_questions import is_torch_class, keeps_functions
from autofuse.fx.trace.memory_order import order_in_memory
from autofuse.fx.trace.plain_children import OWN_HOOKS, PLAIN_TENSORS
from autofuse.fx.trace.same_values import holds_same, is_same_value, needs_strict_comparison
from autofuse.fx.trace.twin import plain_class
from autofuse.fx.trace.unreplaced import UsualCase, usual_case
from autofuse.kernels.operation import RECORDERS
from autofuse.torch_private import (
    GLOBAL_MODULE_HOOKS,
    assumed_constant,
    forward_ad,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
)

EAGER = "_eager"  # local variable: whether no compiler traces this call
NO_FUNCTION_MODE = f"not ({EAGER} and _function_modes() and _foreign_modes())"
NO_DISPATCH_MODE = f"not ({EAGER} and _dispatch_modes() and _foreign_modes())"
UNRECORDED = (
    "_forward_ad._current_level < 0 and not _recorders"  # no forward-mode tangents, and no recorder of operations
)
_TABLES = ("_parameters", "_buffers", "_modules")
_STATE = frozenset({"training", *_TABLES, *OWN_HOOKS})
_TYPED = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_FEW = 8  # containers up to this size are compared element by element, without a call
_GUARDED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
)  # a compiler guards values of these types when it reads them
_NAMED = re.compile(r"_c\d+")


def inherited(cls: type, name: str) -> Any:
    """The raw attribute of a class or its first base that defines `name`."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)


@cache
def users_class(cls: type) -> type:
    """The user's class of a module whose class torch derived for sharding or parametrization."""
    cls = plain_class(cls)
    while cls.__module__ == "torch.nn.utils.parametrize" and len(cls.__bases__) == 1:
        cls = plain_class(cls.__bases__[0])
    return cls


SCOPE: Mapping[str, Any] = {
    "_Tensor": Tensor, "_Parameter": nn.Parameter, "_PLAIN": PLAIN_TENSORS, "_torch": torch, "_Error": Exception,
    "_EMPTY": frozenset(), "_holds_form": holds_form, "_holds_number": holds_number,
    "_order": order_in_memory, "_keeps": keeps_functions, "_users_class": users_class,
    "_autocast": torch.is_autocast_enabled, "_autocast_dtype": torch.get_autocast_dtype,
    "_is_compiling": torch.compiler.is_dynamo_compiling, "_is_of_an_operation": is_of_an_operation,
    "_function_modes": len_torch_function_stack, "_dispatch_modes": len_torch_dispatch_stack,
    "_holds": holds_same, "_same_value": is_same_value,
    "_foreign_modes": foreign_modes, "_overridden": has_torch_function_variadic, "_is_torchs": cache(is_torch_class),
    "_forward_ad": forward_ad, "_recorders": RECORDERS,
    "_device_by_default": device_by_default, "_any_autocast": is_any_autocast_enabled, "_inherited": inherited,
    **{f"_hooks{i}": hooks for i, hooks in enumerate(GLOBAL_MODULE_HOOKS)},
}  # fmt: skip


class GuardWords(ast.NodeTransformer):
    """Replaces the words of the guards' language by plain Python."""

    def __init__(self, receiver: str, names: Mapping[str, Any], constant: Callable[[Any], ast.Name]) -> None:
        self._receiver, self._names, self._constant = receiver, names, constant

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if _NAMED.fullmatch(node.id):
            return self._constant(self._names[node.id])
        return ast.Name(self._receiver) if node.id == "self" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        owner = self.visit(node.value)
        if node.attr in _STATE and self._is_module(owner):
            return self._state(owner, node.attr)
        return _attribute(owner, node.attr)

    def _is_module(self, tree: ast.expr) -> bool:
        match tree:
            case ast.Name(name):
                return name == self._receiver
            case ast.Subscript(ast.Subscript(ast.Attribute(_, "__dict__"), ast.Constant("_modules"))):
                return True
        return False

    def _state(self, module: ast.expr, name: str) -> ast.expr:
        return ast.Subscript(_attribute(module, "__dict__"), ast.Constant(name))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        args = [self.visit(a) for a in node.args]
        match node.func:
            case ast.Name("_unwatched"):
                return self._unwatched(args[0])
            case ast.Name("_unhooked"):
                return ast.BoolOp(ast.And(), [_not(ast.Name(f"_hooks{i}")) for i in range(len(GLOBAL_MODULE_HOOKS))])
            case ast.Name("_unmoded"):
                return fill_template(f"{NO_FUNCTION_MODE} and {NO_DISPATCH_MODE}")
            case ast.Name("_default_device"):
                return fill_template(f"not {EAGER} or _device_by_default() == {{0}}", *args)
            case ast.Name("_plain"):
                return fill_template("type({0}) is _Parameter or type({0}) in _PLAIN", *args)
            case ast.Name("_keeps_functions"):
                return fill_template("type({0}) is _Tensor or isinstance({0}, _Tensor) and _keeps(type({0}))", *args)
            case ast.Name("_of_torchs_class"):
                return fill_template("type({0}) is {1} or _is_torchs(type({0}))", *args)
            case ast.Name("_of_class"):
                return fill_template("type({0}) is {1} or _users_class(type({0})) is _users_class({1})", *args)
            case ast.Name("_held"):
                table = self._state(args[0], args[1].value)
                inside = _attribute(args[0], "__dict__")  # Python looks here before it calls __getattr__
                found = "{1}[{2}] if {2} in {1} and {2} not in {3} else getattr({0}, {2})"
                return fill_template(found, args[0], table, args[2], inside)
            case ast.Name("_lacks"):
                return self._lacks(*args)
            case ast.Name("_alike"):
                return self._same_or_equal(args[0], args[1], node.args[1])
            case ast.Name("_holds"):
                return self._holds(args[0], args[1], node.args[1])
            case ast.Name("_holds_form" | "_holds_number"):  # a compiler guards a tensor of which the id is read
                return fill_template(
                    f"{{0}} and ({EAGER} or id({{1}}) == id({{1}}))", ast.Call(node.func, args, []), args[0]
                )
            case ast.Name("_autocast"):
                return ast.BoolOp(ast.And(), [fill_template("_any_autocast()"), ast.Call(node.func, args, [])])
        match node.func, node.args:
            case ast.Attribute(ast.Name(names), "isdisjoint"), [ast.Attribute(owner, "__dict__")] if (
                self._may_be_tensor(owner)
            ):
                return self._lacks_names(self.visit(owner), self.visit(node.func.value), self._names[names])
        if isinstance(node.func, ast.Name) and (case := usual_case(self._names.get(node.func.id))) is not None:
            return self._unreplaced(case, self.visit(node.func))
        return ast.Call(self.visit(node.func), args, [])

    def _value_of(self, tree: ast.expr) -> Any:
        """The object that a name, or a call of a weak reference, stands for now."""
        return self._reader(tree)()

    def _reader(self, tree: ast.expr) -> Callable[[], Any]:
        """A function that returns the object that a name, or a call of a weak reference, stands for."""
        match tree:
            case ast.Name(name):
                value = self._names.get(name)
                return lambda: value
            case ast.Call(ast.Name(name), []) if isinstance(reference := self._names.get(name), weakref.ref):
                return reference
        return lambda: None

    def _identity_function(self, left: ast.expr, right: ast.expr) -> Callable[[], bool] | None:
        """A function that makes an identity test, if Dynamo cannot trace the test; else None.

        Dynamo fails with an internal error at a cell that a function in the compiled code uses too. For a class's
        `__mro__`, it makes a new tuple. So a compiler gets the answer as a constant. It notices no later change.
        """
        expected = self._reader(right)
        match left:
            case ast.Attribute(owner, "cell_contents") if callable(expected()) and self._is_cell(owner):
                cell = self._value_of(owner)
                return lambda: cell.cell_contents is expected()
            case ast.Call(function, [ast.Attribute(owner, "cell_contents")]) if self._is_cell(owner):
                cell, applied = self._value_of(owner), self._value_of(function)
                return lambda: applied(cell.cell_contents) is expected()
            case ast.Attribute(owner, "__mro__") if isinstance(self._value_of(owner), type):
                cls = self._value_of(owner)
                return lambda: cls.__mro__ is expected()
        return None

    def _is_cell(self, owner: ast.expr) -> bool:
        return isinstance(self._value_of(owner), types.CellType)

    def _may_be_tensor(self, owner: ast.expr) -> bool:
        """Whether an expression is not a known object of another kind."""
        return self._value_of(owner) is None

    def _lacks_names(self, owner: ast.expr, names: ast.expr, texts: frozenset[str]) -> ast.expr:
        """Whether an object has none of these names in its `__dict__`.

        Dynamo fails with an internal error at the `__dict__` of a tensor, so it is shown `hasattr` there.
        """
        any_of_them = " or ".join(f"hasattr({{0}}, {text!r})" for text in sorted(texts))
        return fill_template(
            f"{{1}}.isdisjoint({{0}}.__dict__) if {EAGER} or not isinstance({{0}}, _Tensor) else not ({any_of_them})",
            owner, names,
        )  # fmt: skip

    def _unreplaced(self, case: UsualCase, whole: ast.expr) -> ast.expr:
        """The usual case of a test without a call, or else the whole test.

        A compiler treats the result of the whole test as a constant. So it is shown the module attributes that the test
        compares: it guards what it reads.
        """
        tree = ast.parse(case.text, mode="eval").body
        asked: ast.expr = ast.Call(whole, [], [])
        if shown := self._module_reads(tree, case.names):
            asked = fill_template(f"({EAGER} or {' and '.join(shown)}) and {{0}}", asked)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in case.names:
                value = case.names[node.id]
                if identity(value) != id(value):  # equal constants share a name, but the test needs this object
                    return asked
                node.id = self._constant(value).id
        return ast.BoolOp(ast.Or(), [ast.BoolOp(ast.And(), [ast.Name(EAGER), tree]), asked])

    def _module_reads(self, tree: ast.expr, names: Mapping[str, Any]) -> list[str]:
        """True expressions that read, as attributes, the functions, classes and modules that a test compares."""
        found = []
        for node in ast.walk(tree):
            match node:
                case ast.Subscript(ast.Name(namespace), ast.Constant(str(name))) if name.isidentifier():
                    module = _module_with(names.get(namespace))
                    if module is not None and isinstance(vars(module).get(name), _GUARDED):
                        found.append(f"{self._constant(module).id}.{name} is not None")
        return found

    def _unwatched(self, module: ast.expr) -> ast.expr:
        inside = _attribute(module, "__dict__")
        tests = [_not(self._state(module, h)) for h in OWN_HOOKS]
        match module:
            case ast.Subscript(ast.Subscript(owner, ast.Constant("_modules")), ast.Constant(name)):
                tests.append(
                    fill_template(f"{name!r} not in {{0}}", owner)
                )  # Python looks there before it asks the module
        tests.append(fill_template('"forward" not in {0}', inside))
        tests.append(fill_template('not ("_compiled_call_impl" in {0} and {0}["_compiled_call_impl"])', inside))
        return ast.BoolOp(ast.And(), tests)

    def _same_or_equal(self, found: ast.expr, constant: ast.expr, written: ast.expr) -> ast.expr:
        """The same object, or an equal one of the same type."""
        assert isinstance(written, ast.Name)
        if needs_strict_comparison(self._names[written.id]):
            return fill_template("{0} is {1} or _same_value({0}, {1})", found, constant)
        kind = self._constant(type(self._names[written.id]))
        return fill_template("{0} is {1} or type({0}) is {2} and {0} == {1}", found, constant, kind)

    def _holds(self, found: ast.expr, constant: ast.expr, written: ast.expr) -> ast.expr:
        """The test that `found` holds what `constant` holds. Few elements are compared by identity first, in order."""
        assert isinstance(written, ast.Name)
        value = self._names[written.id]
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        spelled = (
            isinstance(value, (list, deque, tuple)) or isinstance(value, dict) and all(type(k) is str for k in keys)
        )
        whole = fill_template("_holds({0}, {1})", found, constant)
        if not spelled or len(keys) > _FEW:
            return whole
        if isinstance(value, dict):
            tests = self._key_tests(found, keys)
        else:
            tests = [fill_template(f"len({{0}}) == {len(keys)}", found)]
        tests += [fill_template(f"{{0}}[{k!r}] is {{1}}", found, self._constant(value[k])) for k in keys]
        return ast.BoolOp(ast.Or(), [ast.BoolOp(ast.And(), tests), whole])

    def _key_tests(self, found: ast.expr, keys: list[Any]) -> list[ast.expr]:
        """Whether a dict has these keys in this order. A defaultdict must not be indexed, since that adds a key."""
        if len(keys) > 2:
            return [fill_template("[*{0}] == {1}", found, self._constant(keys))]
        tests = [fill_template(f"len({{0}}) == {len(keys)}", found)]
        first = [fill_template("next(iter({0})) == {1}", found, ast.Constant(keys[0]))] if len(keys) > 1 else []
        return [*tests, *first, *(fill_template(f"{key!r} in {{0}}", found) for key in keys[-1:])]

    def _lacks(self, module: ast.expr, name: ast.expr) -> ast.expr:
        if not self._is_module(module):
            return fill_template("not hasattr({0}, {1})", module, name)
        places = [_attribute(module, "__dict__"), *(self._state(module, t) for t in _TABLES)]
        absent = [ast.Compare(name, [ast.NotIn()], [p]) for p in places]
        return ast.BoolOp(ast.And(), [*absent, fill_template("not hasattr(type({0}), {1})", module, name)])

    def visit_Set(self, node: ast.Set) -> ast.expr:
        return self._constant(frozenset(ast.literal_eval(node)))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        return _not(operand) if isinstance(node.op, ast.Not) else ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        made = ast.Compare(self.visit(node.left), node.ops, [self.visit(c) for c in node.comparators])
        if (
            isinstance(node.ops[0], ast.Is)
            and (answer := self._identity_function(node.left, node.comparators[0])) is not None
        ):
            return fill_template(f"{{0}} if {EAGER} else {{1}}()", made, self._constant(assumed_constant(answer)))
        match made:
            case ast.Compare(ast.Call(ast.Attribute(table, "keys")), [ast.Eq()], [ast.Name("_EMPTY")]):
                return _not(table)
            case ast.Compare(left, [ast.Eq()], [ast.Call(ast.Name("min"), [same, most])]) if _same(left, same):
                return ast.Compare(left, [ast.LtE()], [most])
            case ast.Compare(left, [ast.Eq()], [value]) if _is_read(left):
                return self._typed(left, value, node.comparators[0], made)
        return made

    def _typed(self, left: ast.expr, right: ast.expr, written: ast.expr, made: ast.expr) -> ast.expr:
        """The comparison, with a test of the type: a tensor can equal a number."""
        if isinstance(written, ast.Constant):
            value = written.value
        elif isinstance(written, ast.Name) and written.id in self._names:
            value = self._names[written.id]
        else:
            return made
        if isinstance(value, torch.dtype):
            return ast.Compare(left, [ast.Is()], [right])
        if not isinstance(value, _TYPED):
            return made
        kind = self._constant(type(value))
        return ast.BoolOp(ast.And(), [fill_template("type({0}) is {1}", left, kind), made])


def _module_with(namespace: Any) -> types.ModuleType | None:
    """The module whose `__dict__` is this namespace."""
    name = namespace.get("__name__") if type(namespace) is dict else None
    found = sys.modules.get(name) if isinstance(name, str) else None
    return found if type(found) is types.ModuleType and vars(found) is namespace else None


def _is_read(tree: ast.expr) -> bool:
    """Whether `tree` reads an argument, an attribute or an element that is not a size (an integer or a symbol)."""
    sized = any(isinstance(n, ast.Attribute) and n.attr in ("shape", "ndim") for n in ast.walk(tree))
    return isinstance(tree, (ast.Name, ast.Attribute, ast.Subscript)) and not sized


def fill_template(template: str, *parts: ast.expr) -> ast.expr:
    return ast.parse(template.format(*(f"({ast.unparse(p)})" for p in parts)), mode="eval").body


def _attribute(owner: ast.expr, name: str) -> ast.expr:
    return ast.Attribute(owner, name)


def _same(a: ast.expr, b: ast.expr) -> bool:
    return ast.unparse(a) == ast.unparse(b)


def _not(tree: ast.expr) -> ast.expr:
    """`not tree`; the negation of an `or` becomes an `and` of negations."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.Or):
        return ast.BoolOp(ast.And(), [_not(v) for v in tree.values])
    return ast.UnaryOp(ast.Not(), tree)


def identity(value: Any) -> Hashable:
    """A hashable key that is equal for the same object and for equal small constants."""
    if needs_strict_comparison(value):
        return id(value)
    plain = isinstance(value, (torch.dtype, torch.device, torch.layout, float, int, str, frozenset))
    return (type(value), value) if plain else id(value)
