"""The places of a file that take a derivative which can be differentiated again.

Examples are `create_graph=True`, Hessians, and nested transforms of torch.func. This file looks at syntax and at the
names of torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autofuse.source.capture.node_index import NodeIndex, node_index
from autofuse.source.capture.syntax import walk

_FORWARD = frozenset("jvp jacfwd linearize forward_ad make_dual dual_level".split())
_SECOND_ORDER = frozenset("hessian hvp vhp gradgradcheck".split())  # by themselves
_TRANSFORMS = frozenset("grad grad_and_value vjp jacrev".split())  # of torch.func, which can be nested
_NAME = "create_graph"
_MAX_TEXT = 60  # characters of the code that a message quotes


@dataclass(frozen=True)
class Derivative:
    """A place that takes a derivative which can be differentiated again.

    Attributes:
        node: the expression.
        orders: how many derivatives it takes.
        forward: whether it takes them in forward mode.
    """

    node: ast.expr
    orders: int
    forward: bool = False

    @property
    def text(self) -> str:
        """The first line of the code, shortened for a message."""
        text = ast.unparse(self.node).splitlines()[0]
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def find_derivatives(tree: ast.Module) -> tuple[Derivative, ...]:
    """Return every place of a file that takes a derivative which can be differentiated again, by line."""
    index = node_index(tree)
    calls = list(index.of(ast.Call))
    derivatives = [Derivative(n, *taken) for n in (*calls, *index.of(ast.Dict)) for taken in _orders_taken(n)]
    repeated = {id(n) for n in _repeated_derivatives(index, calls, {id(derivative.node) for derivative in derivatives})}
    derivatives = [
        replace(derivative, orders=2) if id(derivative.node) in repeated else derivative for derivative in derivatives
    ]
    mapped = {id(n) for n in _mapped_derivatives(index, calls)}
    transforms = [Derivative(n, 1) for n in calls if _is_transform(n) and id(n) not in mapped]
    backward = any(n.attr == "backward" for n in index.of(ast.Attribute))
    if len(transforms) > 1 or transforms and (backward or derivatives):
        derivatives += transforms
    return tuple(sorted(derivatives, key=lambda derivative: derivative.node.lineno))


def _orders_taken(n: ast.expr) -> Iterator[tuple[int, bool]]:
    """Yield how many derivatives an expression takes that can be differentiated again, and whether in forward mode."""
    match n:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FORWARD:
            yield 1, True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _SECOND_ORDER:
            yield 2, name != "gradgradcheck"
        case ast.Call(func=function, args=args, keywords=keywords):
            flags = [k.value for k in keywords if k.arg == _NAME]
            position = _CREATE_GRAPH_POSITIONS.get(_last_name(function), len(args))
            flags += args[position:][:1] if _may_be_torch(function) else []
            if any(not _is_false(v) for v in flags):
                yield 1, False
        case ast.Dict(keys=keys, values=values):  # grad(loss, parameters, **options)
            flags = [v for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant) and k.value == _NAME]
            if any(not _is_false(v) for v in flags):
                yield 1, False


# The position of the argument `create_graph` in the functions of torch.autograd.
_CREATE_GRAPH_POSITIONS = {"grad": 4, "backward": 3}


def _may_be_torch(function: ast.expr) -> bool:
    """Whether the function may be torch's: `torch.autograd.grad`, `autograd.grad`, `grad`. Other methods are not."""
    return (
        isinstance(function, ast.Name)
        or isinstance(function, ast.Attribute)
        and _last_name(function.value) == "autograd"
    )


def _repeated_derivatives(index: NodeIndex, calls: list[ast.Call], derivative_ids: set[int]) -> Iterator[ast.AST]:
    """Yield the derivatives of a derivative's result.

    An example is `u_x = d(u, x); u_xx = d(u_x, x)`, where `d` takes one derivative; a loop is another. They take two
    derivatives.
    """
    if not derivative_ids:
        return
    functions = index.functions()
    helpers = {f.name: d for f in functions for d in walk(f) if id(d) in derivative_ids}
    result_names: dict[int, set[str]] = {}  # the names that hold what each derivative gave
    for n in index.of(ast.Assign):
        names = {t.id for target in n.targets for t in walk(target) if isinstance(t, ast.Name)}
        for key in _derivatives_inside(n.value, derivative_ids, helpers):
            result_names.setdefault(key, set()).update(names)
    for call in calls:
        for key in {id(call)} & derivative_ids | (
            {id(helpers[name])} if (name := _last_name(call.func)) in helpers else set()
        ):
            inside = [p for a in call.args for p in walk(a)]
            if any(isinstance(p, ast.Name) and p.id in result_names.get(key, ()) for p in inside) or any(
                key in _derivatives_inside(a, derivative_ids - {id(call)}, helpers) for a in call.args
            ):
                yield call if id(call) in derivative_ids else helpers[_last_name(call.func)]


def _derivatives_inside(expression: ast.expr, derivative_ids: set[int], helpers: dict[str, ast.AST]) -> Iterator[int]:
    for n in walk(expression):
        if id(n) in derivative_ids:
            yield id(n)
        elif isinstance(n, ast.Call) and (derivative := helpers.get(_last_name(n.func))) is not None:
            yield id(derivative)


def _is_transform(call: ast.Call) -> bool:
    """Whether a call is `grad(f)`, which returns a function.

    `torch.autograd.grad(y, x)` returns the derivative itself.
    """
    func = call.func
    owner = _last_name(func.value) if isinstance(func, ast.Attribute) else "func"
    return _last_name(func) in _TRANSFORMS and owner in ("func", "functorch", "ft") and len(call.args) == 1


def _mapped_derivatives(index: NodeIndex, calls: list[ast.Call]) -> Iterator[ast.AST]:
    """Yield the derivatives of each sample, `vmap(grad(f))`, also by name. They are first derivatives."""
    mapped = [c.args[0] for c in calls if _last_name(c.func) == "vmap" and c.args]
    yield from (n for a in mapped for n in walk(a))
    names = {a.id for a in mapped if isinstance(a, ast.Name)}
    for n in index.of(ast.Assign) if names else ():
        if any(isinstance(t, ast.Name) and t.id in names for t in n.targets):
            yield n.value


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
