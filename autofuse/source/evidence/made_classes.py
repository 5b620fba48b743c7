"""Classes that a call makes: `type("Child", (Base,), {"scores": f})` and `types.new_class("Child", (Base,))`.

Each is given as the class statement that says the same. Knows syntax only.
"""

from __future__ import annotations

import ast

_MAKERS = ("type", "new_class", "make_dataclass")


def class_made_by(call: ast.Call) -> ast.ClassDef | None:
    """The class that a call makes; what its text does not tell is overridden by way of `__getattribute__`."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if last not in _MAKERS:
        return None
    given = call.args[1:] + [k.value for k in call.keywords if k.arg == "bases"]
    bases = next((list(a.elts) for a in given if isinstance(a, (ast.Tuple, ast.List))), [])
    if not bases:
        return None
    name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
    rest = call.args[2:]
    body = _statements(rest[0]) if last == "type" and len(rest) == 1 else [] if not rest else None
    if body is None:
        body = [ast.Assign([ast.Name("__getattribute__", ast.Store())], ast.Constant(None))]
    node = ast.ClassDef(str(name) or "?", bases, [], body or [ast.Pass()], [])
    for part in (node, *node.body):
        ast.copy_location(part, call)
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            ast.copy_location(statement.targets[0], call)
    return node


def _statements(table: ast.expr) -> list[ast.stmt] | None:
    """What a dictionary of a class says, an assignment for each key; None where it does not tell them."""
    match table:
        case ast.Dict(keys=keys, values=values):
            pairs = [(k.value, v) for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant)]
            complete = len(pairs) == len(keys)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=given):
            pairs = [(k.arg, k.value) for k in given]
            complete = all(k.arg is not None for k in given)
        case _:
            return None
    return [ast.Assign([ast.Name(str(n), ast.Store())], v) for n, v in pairs] if complete else None
