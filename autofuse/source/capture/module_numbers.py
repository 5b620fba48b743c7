"""Whether `self.scale` is a plain number, read from what `__init__` assigned to it.

Arithmetic on sizes is a number: a name alone is one only where its annotation or its default says so, but
`head_dim ** -0.5` computed from constructor arguments is what every layer calls its scale. Knows syntax only.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.scope import ClassScope, FileScope, fields_are_arguments
from autofuse.source.capture.syntax import walk

_NUMBERS = ("int", "float", "round", "abs", "len", "max", "min", "pow")


def number_assigned(scope: FileScope, owner: ClassScope, name: str, depth: int = 0) -> bool | None:
    """Whether `self.name` was assigned a Python number: True, False (a tensor, a module), or None."""
    assigned = scope.attribute(owner, name)
    if assigned is None or depth > 4:
        return _field_number(scope, owner, name) if depth <= 4 else None
    if isinstance(assigned, ast.Name):
        return True if "eps" in name else annotated_number(_assigning(scope, owner, name), assigned.id)
    return _is_number(scope, owner, assigned, depth)


def _field_number(scope: FileScope, owner: ClassScope, name: str) -> bool | None:
    """Whether a dataclass says by its annotation that the field `name`, which no method assigns, is a number."""
    lineage = list(scope.lineage(owner))
    if any(c.opaque or name in c.attributes for c in lineage):
        return None
    said = [
        is_number_annotation(s.annotation)
        for c in lineage
        if fields_are_arguments(c.node)
        for s in c.node.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.target.id == name
    ]
    return said[0] if said and all(s == said[0] for s in said) else None


def _assigning(scope: FileScope, owner: ClassScope, name: str) -> ClassScope:
    """The class, of those `owner` inherits from, whose methods assign `self.name`."""
    return next((c for c in scope.lineage(owner) if name in c.attributes), owner)


def _is_number(scope: FileScope, owner: ClassScope, node: ast.expr, depth: int) -> bool | None:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.BinOp(left=left, right=right):
            return _all_numbers(scope, owner, [left, right], depth)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_number(scope, owner, operand, depth)
        case ast.IfExp(body=yes, orelse=no):
            return _some_number(scope, owner, [yes, no], depth)
        case ast.BoolOp(op=ast.Or(), values=values):  # qk_scale or head_dim ** -0.5
            return _some_number(scope, owner, values, depth)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return number_assigned(scope, owner, name, depth + 1)
        case ast.Call(func=function):
            name = scope.name_of(function) or ""
            if name.startswith(("math.", "numpy.")) or isinstance(function, ast.Name) and function.id in _NUMBERS:
                return True
            return False if name.startswith("torch.") or _on_tensor(scope, function) else None
    return None


def positive_assigned(scope: FileScope, owner: ClassScope, name: str) -> bool | None:
    """True where `self.name` was assigned a number that is above zero whatever it was computed from."""
    assigned = scope.attribute(owner, name)
    return True if assigned is not None and _is_positive(scope, assigned) else None


def _is_positive(scope: FileScope, node: ast.expr) -> bool:
    """A root, a power with a fraction as exponent, a positive literal, and products and quotients of these.

    The base of such a power is a size: a negative one would have no root.
    """
    match node:
        case ast.Constant(value=float() | int() as number):
            return number > 0
        case ast.BinOp(op=ast.Pow(), right=power):
            exponent = power.operand if isinstance(power, ast.UnaryOp) else power
            return isinstance(exponent, ast.Constant) and isinstance(exponent.value, float) and exponent.value % 1 != 0
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _is_positive(scope, left) and _is_positive(scope, right)
        case ast.Call(func=function):
            return (scope.name_of(function) or "") in ("math.sqrt", "numpy.sqrt", "math.exp")
    return False


def _on_tensor(scope: FileScope, function: ast.expr) -> bool:
    """`torch.sqrt(...).to(device)`."""
    return isinstance(function, ast.Attribute) and any(
        isinstance(n, ast.Call) and (scope.name_of(n.func) or "").startswith("torch.") for n in ast.walk(function.value)
    )


def _all_numbers(scope: FileScope, owner: ClassScope, parts: list[ast.expr], depth: int) -> bool | None:
    """Arithmetic: bare names and `config.x` count as numbers, anything else must be shown to be one."""
    answers = {_is_number(scope, owner, p, depth) for p in parts if not _is_argument(p)}
    return False if False in answers else None if None in answers else True


def _some_number(scope: FileScope, owner: ClassScope, parts: list[ast.expr], depth: int) -> bool | None:
    """One of several: bare names count, if another is shown to be a number."""
    answers = {_is_number(scope, owner, p, depth) for p in parts if not isinstance(p, ast.Name)}
    return True if answers == {True} else None


def _is_argument(node: ast.expr) -> bool:
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, (ast.Name, ast.Attribute)) and not own


def parameter_rank(scope: FileScope, owner: ClassScope, name: str) -> int | None:
    """How many dimensions the parameter `self.name` has: one for each size in nn.Parameter(torch.ones(dim)).

    nn.Parameter(torch.ones(1)) counts as a scalar, as which it broadcasts: it has the shape of no other dimension.
    """
    assigned = scope.attribute(owner, name)
    if (buffer := scope.buffer(owner, name)) is not None:
        return _buffer_rank(scope, buffer)
    if not isinstance(assigned, ast.Call) or scope.name_of(assigned.func) not in _PARAMETERS or not assigned.args:
        return None
    made = _unscaled(scope, assigned.args[0])
    if not isinstance(made, ast.Call) or scope.name_of(made.func) not in _MAKERS:
        return None
    sizes = made.args
    if len(sizes) == 1 and isinstance(sizes[0], ast.Constant) and sizes[0].value == 1:
        return 0
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    elif (
        len(sizes) == 1
        and isinstance(sizes[0], ast.Name)
        and annotated_number(_assigning(scope, owner, name), sizes[0].id) is not True
    ):
        return None if any(word in sizes[0].id for word in ("shape", "dims", "sizes")) else 1
    return None if not sizes or any(isinstance(s, ast.Starred) for s in sizes) else len(sizes)


def _buffer_rank(scope: FileScope, made: ast.expr) -> int | None:
    """The dimensions of a buffer where these are fewer than two: torch.arange(n), torch.zeros(8), torch.tensor(1.0)."""
    made = _unscaled(scope, made)
    name = scope.name_of(made.func) or "" if isinstance(made, ast.Call) else ""
    if not isinstance(made, ast.Call) or not name.startswith("torch."):
        return None
    if name in ("torch.arange", "torch.linspace"):
        return 1
    given = made.args[0] if len(made.args) == 1 else None
    if name in _MAKERS and isinstance(given, ast.Constant):
        return 1
    if name != "torch.tensor" or given is None:
        return None
    flat = isinstance(given, (ast.List, ast.Tuple)) and all(isinstance(e, ast.Constant) for e in given.elts)
    return 0 if isinstance(given, ast.Constant) else 1 if flat else None


def _unscaled(scope: FileScope, node: ast.expr) -> ast.expr:
    """What is multiplied or divided by a number: torch.randn(hidden, dim) * 0.02, or / math.sqrt(dim)."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        if _is_factor(scope, node.right):
            node = node.left
        elif _is_factor(scope, node.left) and isinstance(node.op, ast.Mult):
            node = node.right
        else:
            break
    return node


def _is_factor(scope: FileScope, node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=float() | int()):
            return True
        case ast.BinOp(op=ast.Pow(), right=power):
            return _is_factor(scope, power.operand if isinstance(power, ast.UnaryOp) else power)
        case ast.Call(func=function):
            return (scope.name_of(function) or "").startswith("math.")
    return False


def size_given(scope: FileScope, owner: ClassScope, name: str) -> object:
    """What `self.name` was constructed with, if it is a name that the constructor never rebinds: `self.dim = dim`.

    Equal answers for two attributes say that both hold, or are as long as, one number.
    """
    return _given(_assigning(scope, owner, name), scope.attribute(owner, name))


def length_given(scope: FileScope, owner: ClassScope, name: str) -> object:
    """The same for the length of the parameter `self.name`, which has one dimension: nn.Parameter(torch.ones(dim))."""
    assigned = scope.attribute(owner, name)
    made = _unscaled(scope, assigned.args[0]) if isinstance(assigned, ast.Call) and assigned.args else None
    if parameter_rank(scope, owner, name) != 1 or not isinstance(made, ast.Call) or len(made.args) != 1:
        return None
    size = made.args[0]
    if isinstance(size, (ast.Tuple, ast.List)):
        size = size.elts[0]
    if isinstance(size, ast.Attribute) and isinstance(size.value, ast.Name) and size.value.id == "self":
        return size_given(scope, owner, size.attr)
    return _given(_assigning(scope, owner, name), size)


def _given(home: ClassScope, node: ast.expr | None) -> object:
    """A name for what the constructor was given: `dim`, `config.hidden_size`; None where it may be bound again."""
    init = home.methods.get("__init__")
    base = node
    while isinstance(base, ast.Attribute):
        base = base.value
    if init is None or not isinstance(base, ast.Name) or base.id == "self" or node is None:
        return None
    text = ast.unparse(node)
    arguments = {a.arg for a in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs)}
    written = [n for n in walk(init) if isinstance(getattr(n, "ctx", None), (ast.Store, ast.Del))]
    rebound = any(ast.unparse(n) in (base.id, text) for n in written)
    return None if rebound or base.id not in arguments else ("given", home.node.name, text)


_PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_MAKERS = tuple(f"torch.{m}" for m in ("ones", "zeros", "empty", "randn", "rand"))


def annotated_number(owner: ClassScope, name: str) -> bool | None:
    """Whether the constructor argument `name` is a number, by its annotation or its default."""
    init = owner.methods.get("__init__")
    return argument_number(init.args, name) if init is not None else None


def argument_number(arguments: ast.arguments, name: str) -> bool | None:
    """Whether an argument is annotated as a number or has one as its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    for a in (*positional, *arguments.kwonlyargs):
        if a.arg == name and a.annotation is not None:
            return is_number_annotation(a.annotation)
    defaults = dict(zip([a.arg for a in positional][::-1], arguments.defaults[::-1], strict=False))
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    given = defaults.get(name)
    if isinstance(given, ast.UnaryOp):
        given = given.operand
    value = given.value if isinstance(given, ast.Constant) else None
    return True if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_number_annotation(annotation: ast.expr) -> bool | None:
    """`int`, `float`, `Optional[float]`, `float | None` are numbers; `Tensor` is not; anything else may be."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        words = annotation.value.replace("torch.", "").replace("Optional[", "").rstrip("]").split("|")
    else:
        words = ast.unparse(annotation).replace("torch.", "").replace("typing.", "").split("|")
    names = {w.strip().removeprefix("Optional[").rstrip("]") for w in words} - {"None"}
    if names and names <= {"int", "float"}:
        return True
    return False if names and names <= {"Tensor", "FloatTensor", "BoolTensor", "LongTensor"} else None
