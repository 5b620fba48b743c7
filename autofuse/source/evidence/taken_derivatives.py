"""Where a file takes derivatives of which others may be taken: `create_graph=True`, Hessians, transforms of transforms.

Knows the names of torch that do so, and syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import walk

_FORWARD = frozenset("jvp jacfwd linearize forward_ad make_dual dual_level".split())
_TWICE = frozenset("hessian hvp vhp gradgradcheck".split())  # by themselves
_TRANSFORMS = frozenset("grad grad_and_value vjp jacrev".split())  # of torch.func, which may stand in each other
_NAME = "create_graph"
_LONGEST = 60  # characters of the code that a message repeats


@dataclass(frozen=True)
class Derivative:
    """A place that takes a derivative of which another may be taken: how many it takes, and whether in forward mode."""

    node: ast.expr
    orders: int
    forward: bool = False

    @property
    def text(self) -> str:
        text = ast.unparse(self.node).splitlines()[0]
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def derivatives(tree: ast.Module) -> tuple[Derivative, ...]:
    """Every place of a file that takes a derivative of which another may be taken, by line."""
    nodes = list(walk(tree))
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    found = [Derivative(n, *taken) for n in nodes if isinstance(n, ast.expr) for taken in _taken(n)]
    fed = {id(n) for n in _fed_with_their_results(nodes, calls, {id(d.node) for d in found})}
    found = [replace(d, orders=2) if id(d.node) in fed else d for d in found]
    mapped = {id(n) for n in _mapped(nodes, calls)}
    transforms = [Derivative(n, 1) for n in calls if _is_transform(n) and id(n) not in mapped]
    backward = any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in nodes)
    if len(transforms) > 1 or transforms and (backward or found):
        found += transforms
    return tuple(sorted(found, key=lambda d: d.node.lineno))


def _taken(n: ast.expr) -> Iterator[tuple[int, bool]]:
    """How many derivatives an expression takes which can be differentiated, and whether in forward mode."""
    match n:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FORWARD:
            yield 1, True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _TWICE:
            yield 2, name != "gradgradcheck"
        case ast.Call(func=function, args=args, keywords=keywords):
            given = [k.value for k in keywords if k.arg == _NAME]
            given += args[_GIVEN_AT.get(_last(function), len(args)) :][:1] if _may_be_torch(function) else []
            if any(not _is_false(v) for v in given):
                yield 1, False
        case ast.Dict(keys=keys, values=values):  # grad(loss, parameters, **options)
            told = [v for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant) and k.value == _NAME]
            if any(not _is_false(v) for v in told):
                yield 1, False


# Where the functions of torch.autograd take `create_graph` by position.
_GIVEN_AT = {"grad": 4, "backward": 3}


def _may_be_torch(function: ast.expr) -> bool:
    """`torch.autograd.grad`, `autograd.grad`, `grad`, and not a method that has its own arguments."""
    return isinstance(function, ast.Name) or isinstance(function, ast.Attribute) and _last(function.value) == "autograd"


def _fed_with_their_results(nodes: list[ast.AST], calls: list[ast.Call], taking: set[int]) -> Iterator[ast.AST]:
    """The derivatives of what they gave: `u_x = d(u, x); u_xx = d(u_x, x)`, where `d` takes one. In loops, too."""
    if not taking:
        return
    helpers = {f.name: d for f in nodes if isinstance(f, Function) for d in walk(f) if id(d) in taking}
    given: dict[int, set[str]] = {}  # the names that hold what each derivative gave
    for n in nodes:
        if isinstance(n, ast.Assign):
            names = {t.id for target in n.targets for t in walk(target) if isinstance(t, ast.Name)}
            for key in _derivatives_inside(n.value, taking, helpers):
                given.setdefault(key, set()).update(names)
    for call in calls:
        for key in {id(call)} & taking | ({id(helpers[name])} if (name := _last(call.func)) in helpers else set()):
            inside = [p for a in call.args for p in walk(a)]
            if any(isinstance(p, ast.Name) and p.id in given.get(key, ()) for p in inside) or any(
                key in _derivatives_inside(a, taking - {id(call)}, helpers) for a in call.args
            ):
                yield call if id(call) in taking else helpers[_last(call.func)]


def _derivatives_inside(expression: ast.expr, taking: set[int], helpers: dict[str, ast.AST]) -> Iterator[int]:
    for n in walk(expression):
        if id(n) in taking:
            yield id(n)
        elif isinstance(n, ast.Call) and (made := helpers.get(_last(n.func))) is not None:
            yield id(made)


def _is_transform(call: ast.Call) -> bool:
    """`grad(f)`, which gives a function, not `torch.autograd.grad(y, x)`, which gives the derivative."""
    func = call.func
    owner = _last(func.value) if isinstance(func, ast.Attribute) else "func"
    return _last(func) in _TRANSFORMS and owner in ("func", "functorch", "ft") and len(call.args) == 1


def _mapped(nodes: list[ast.AST], calls: list[ast.Call]) -> Iterator[ast.AST]:
    """The derivatives of each sample, `vmap(grad(f))`, by name too: nobody differentiates those."""
    mapped = [c.args[0] for c in calls if _last(c.func) == "vmap" and c.args]
    yield from (n for a in mapped for n in walk(a))
    names = {a.id for a in mapped if isinstance(a, ast.Name)}
    for n in nodes:
        if names and isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in n.targets):
            yield n.value


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
