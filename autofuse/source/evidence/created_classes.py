"""Classes that a call creates: `type("Child", (Base,), {"scores": f})` and `types.new_class("Child", (Base,))`.

This file turns such a call into the equivalent class statement. It looks at syntax only.
"""

from __future__ import annotations

import ast

_CREATING_FUNCTIONS = ("type", "new_class", "make_dataclass")


def created_class(call: ast.Call) -> ast.ClassDef | None:
    """Return the class statement that is equivalent to `call`, or None if the call creates no class with a base.

    If the text does not show the body of the class, the statement defines `__getattribute__`. The class then counts as
    overriding every attribute.
    """
    function_name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function_name not in _CREATING_FUNCTIONS and not _looks_like_metaclass_call(call):
        return None
    candidates = call.args[1:] + [k.value for k in call.keywords if k.arg == "bases"]
    bases = next((list(a.elts) for a in candidates if isinstance(a, (ast.Tuple, ast.List))), [])
    if not bases:
        return None
    name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
    rest = call.args[2:]
    is_plain = function_name not in _CREATING_FUNCTIONS[1:]
    body = _assignments(rest[0]) if is_plain and len(rest) == 1 else [] if not rest else None
    if body is None:
        body = [ast.Assign([ast.Name("__getattribute__", ast.Store())], ast.Constant(None))]
    # The new nodes get the position of the call, because messages name the line of a class and of its methods.
    node = ast.ClassDef(str(name) or "?", bases, [], body or [ast.Pass()], [])
    for part in (node, *node.body):
        ast.copy_location(part, call)
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            ast.copy_location(statement.targets[0], call)
    return node


def _looks_like_metaclass_call(call: ast.Call) -> bool:
    """Whether a call has the arguments of a metaclass: `Meta("Child", (Base,), {"scores": f})`."""
    match call.args:
        case [ast.Constant(value=str()) | ast.JoinedStr() | ast.Attribute(attr="__name__"), ast.Tuple(), ast.Dict()]:
            return not call.keywords
    return False


def _assignments(table: ast.expr) -> list[ast.stmt] | None:
    """One assignment for each key of a class dictionary; None if the text does not show every key."""
    match table:
        case ast.Dict(keys=keys, values=values):
            pairs = [(k.value, v) for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant)]
            complete = len(pairs) == len(keys)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            pairs = [(k.arg, k.value) for k in keywords]
            complete = all(k.arg is not None for k in keywords)
        case _:
            return None
    return [ast.Assign([ast.Name(str(n), ast.Store())], v) for n, v in pairs] if complete else None
