"""Derives facts about attributes of a module from its constructor: numbers, ranks, and equal sizes.

The result of arithmetic on arguments, such as `head_dim ** -0.5`, counts as a number, because modules compute their
sizes and scales in this way. A bare argument counts as a number only if its annotation or its default says so.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.scope import ClassScope, FileScope, has_field_arguments
from autofuse.source.capture.syntax import walk

_NUMBERS = ("int", "float", "round", "abs", "len", "max", "min", "pow")


def is_number_attribute(scope: FileScope, owner: ClassScope, name: str, depth: int = 0) -> bool | None:
    """Whether `self.name` is a Python number.

    Returns:
        True for a number, False for a tensor or a module, None if it is not known.
    """
    assigned = scope.attribute(owner, name)
    if assigned is None or depth > 4:
        return _is_number_field(scope, owner, name) if depth <= 4 else None
    if isinstance(assigned, ast.Name):
        # By convention, an argument for `self.eps` is a number even without an annotation.
        return True if "eps" in name else is_number_parameter(_assigning_class(scope, owner, name), assigned.id)
    return _is_number(scope, owner, assigned, depth)


def _is_number_field(scope: FileScope, owner: ClassScope, name: str) -> bool | None:
    """Whether the field `name` of a dataclass is annotated as a number. No method may assign it."""
    lineage = list(scope.lineage(owner))
    if any(c.opaque or name in c.attributes for c in lineage):
        return None
    answers = [
        is_number_annotation(s.annotation)
        for c in lineage
        if has_field_arguments(c.node)
        for s in c.node.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.target.id == name
    ]
    return answers[0] if answers and all(s == answers[0] for s in answers) else None


def _assigning_class(scope: FileScope, owner: ClassScope, name: str) -> ClassScope:
    """Return the class that assigns `self.name` in a method: `owner` or one of its bases."""
    return next((c for c in scope.lineage(owner) if name in c.attributes), owner)


def _is_number(scope: FileScope, owner: ClassScope, node: ast.expr, depth: int) -> bool | None:
    """Whether an expression in the constructor is a number, or None. `depth` limits chains of attributes."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.BinOp(left=left, right=right):
            return _all_numbers(scope, owner, [left, right], depth)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_number(scope, owner, operand, depth)
        case ast.IfExp(body=yes, orelse=no):
            return _is_number_alternative(scope, owner, [yes, no], depth)
        case ast.BoolOp(op=ast.Or(), values=values):  # qk_scale or head_dim ** -0.5
            return _is_number_alternative(scope, owner, values, depth)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return is_number_attribute(scope, owner, name, depth + 1)
        case ast.Call(func=function):
            name = scope.name_of(function) or ""
            if name.startswith(("math.", "numpy.")) or isinstance(function, ast.Name) and function.id in _NUMBERS:
                return True
            return False if name.startswith("torch.") or _is_tensor_method(scope, function) else None
    return None


def is_positive_attribute(scope: FileScope, owner: ClassScope, name: str) -> bool | None:
    """Return True if `self.name` is a number above zero whatever the arguments are, else None."""
    assigned = scope.attribute(owner, name)
    return True if assigned is not None and _is_positive(scope, assigned) else None


def _is_positive(scope: FileScope, node: ast.expr) -> bool:
    """Whether an expression is always positive: a root, a power with a fractional exponent, or a positive literal.

    Products and quotients of these are positive, too. The base of such a power cannot be negative, because a negative
    number has no real root.
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


def _is_tensor_method(scope: FileScope, function: ast.expr) -> bool:
    """Whether `function` is a method of a tensor that torch creates, as in `torch.sqrt(...).to(device)`."""
    return isinstance(function, ast.Attribute) and any(
        isinstance(n, ast.Call) and (scope.name_of(n.func) or "").startswith("torch.") for n in ast.walk(function.value)
    )


def _all_numbers(scope: FileScope, owner: ClassScope, parts: list[ast.expr], depth: int) -> bool | None:
    """Whether all operands of an arithmetic expression are numbers. Bare names and `config.x` count as numbers."""
    answers = {_is_number(scope, owner, p, depth) for p in parts if not _is_free_name(p)}
    return False if False in answers else None if None in answers else True


def _is_number_alternative(scope: FileScope, owner: ClassScope, parts: list[ast.expr], depth: int) -> bool | None:
    """Return True if `a or b`, or `a if test else b`, is a number, else None.

    At least one alternative must be a number. Bare names may be anything, so they are skipped.
    """
    answers = {_is_number(scope, owner, p, depth) for p in parts if not isinstance(p, ast.Name)}
    return True if answers == {True} else None


def _is_free_name(node: ast.expr) -> bool:
    """Whether an expression is a name or an attribute such as `config.x`, but not an attribute of `self`."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, (ast.Name, ast.Attribute)) and not of_self


def parameter_rank(scope: FileScope, owner: ClassScope, name: str) -> int | None:
    """Return the rank of the parameter or buffer `self.name`, such as `nn.Parameter(torch.ones(dim))`, or None.

    `nn.Parameter(torch.ones(1))` has rank 0 here, because it broadcasts like a scalar.
    """
    assigned = scope.attribute(owner, name)
    if (buffer := scope.buffer(owner, name)) is not None:
        return _buffer_rank(scope, buffer)
    if not isinstance(assigned, ast.Call) or scope.name_of(assigned.func) not in _PARAMETERS or not assigned.args:
        return None
    tensor = _without_factors(scope, assigned.args[0])
    if not isinstance(tensor, ast.Call) or scope.name_of(tensor.func) not in _TENSOR_FUNCTIONS:
        return None
    sizes = tensor.args
    if len(sizes) == 1 and isinstance(sizes[0], ast.Constant) and sizes[0].value == 1:
        return 0
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    elif (
        len(sizes) == 1
        and isinstance(sizes[0], ast.Name)
        and is_number_parameter(_assigning_class(scope, owner, name), sizes[0].id) is not True
    ):
        return None if any(word in sizes[0].id for word in ("shape", "dims", "sizes")) else 1
    return None if not sizes or any(isinstance(s, ast.Starred) for s in sizes) else len(sizes)


def _buffer_rank(scope: FileScope, tensor: ast.expr) -> int | None:
    """Return the rank of a buffer if it is 0 or 1: `torch.arange(n)`, `torch.zeros(8)`, `torch.tensor(1.0)`."""
    tensor = _without_factors(scope, tensor)
    name = scope.name_of(tensor.func) or "" if isinstance(tensor, ast.Call) else ""
    if not isinstance(tensor, ast.Call) or not name.startswith("torch."):
        return None
    if name in ("torch.arange", "torch.linspace"):
        return 1
    argument = tensor.args[0] if len(tensor.args) == 1 else None
    if name in _TENSOR_FUNCTIONS and isinstance(argument, ast.Constant):
        return 1
    if name != "torch.tensor" or argument is None:
        return None
    flat = isinstance(argument, (ast.List, ast.Tuple)) and all(isinstance(e, ast.Constant) for e in argument.elts)
    return 0 if isinstance(argument, ast.Constant) else 1 if flat else None


def _without_factors(scope: FileScope, node: ast.expr) -> ast.expr:
    """Return a tensor expression without numeric factors: `torch.randn(hidden, dim)` for the same `* 0.02`."""
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


def attribute_source(scope: FileScope, owner: ClassScope, name: str) -> object:
    """Return a key for the constructor argument that `self.name` is assigned, as in `self.dim = dim`, or None.

    Two attributes with equal keys have the same value. See also `parameter_length_source`.
    """
    return _source_key(_assigning_class(scope, owner, name), scope.attribute(owner, name))


def parameter_length_source(scope: FileScope, owner: ClassScope, name: str) -> object:
    """Return a key for the length of a parameter with rank 1, such as `nn.Parameter(torch.ones(dim))`, or None.

    It equals the key of an attribute if the length of the parameter equals the value of the attribute.
    """
    assigned = scope.attribute(owner, name)
    tensor = _without_factors(scope, assigned.args[0]) if isinstance(assigned, ast.Call) and assigned.args else None
    if parameter_rank(scope, owner, name) != 1 or not isinstance(tensor, ast.Call) or len(tensor.args) != 1:
        return None
    size = tensor.args[0]
    if isinstance(size, (ast.Tuple, ast.List)):
        size = size.elts[0]
    if isinstance(size, ast.Attribute) and isinstance(size.value, ast.Name) and size.value.id == "self":
        return attribute_source(scope, owner, size.attr)
    return _source_key(_assigning_class(scope, owner, name), size)


def _source_key(assigning: ClassScope, node: ast.expr | None) -> object:
    """Return a key for an argument of the constructor: `dim` or `config.hidden_size`.

    Args:
        assigning: The class with the constructor.
        node: The expression.

    Returns:
        The key, or None if the constructor may rebind the argument.
    """
    init = assigning.methods.get("__init__")
    base = node
    while isinstance(base, ast.Attribute):
        base = base.value
    if init is None or not isinstance(base, ast.Name) or base.id == "self" or node is None:
        return None
    text = ast.unparse(node)
    arguments = {a.arg for a in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs)}
    stores = [n for n in walk(init) if isinstance(getattr(n, "ctx", None), (ast.Store, ast.Del))]
    is_rebound = any(ast.unparse(n) in (base.id, text) for n in stores)
    return None if is_rebound or base.id not in arguments else ("given", assigning.node.name, text)


_PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_TENSOR_FUNCTIONS = tuple(f"torch.{m}" for m in ("ones", "zeros", "empty", "randn", "rand"))


def is_number_parameter(owner: ClassScope, name: str) -> bool | None:
    """Whether the parameter `name` of the constructor is a number, according to its annotation or default, or None."""
    init = owner.methods.get("__init__")
    return is_number_argument(init.args, name) if init is not None else None


def is_number_argument(arguments: ast.arguments, name: str) -> bool | None:
    """Whether a parameter is a number, according to its annotation or its default; None if they do not say."""
    positional = [*arguments.posonlyargs, *arguments.args]
    for a in (*positional, *arguments.kwonlyargs):
        if a.arg == name and a.annotation is not None:
            return is_number_annotation(a.annotation)
    defaults = dict(zip([a.arg for a in positional][::-1], arguments.defaults[::-1], strict=False))
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    default = defaults.get(name)
    if isinstance(default, ast.UnaryOp):
        default = default.operand
    value = default.value if isinstance(default, ast.Constant) else None
    return True if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_number_annotation(annotation: ast.expr) -> bool | None:
    """Whether an annotation means a number.

    Returns:
        True for `int`, `float`, `Optional[float]` and `float | None`, False for tensors, None for anything else.
    """
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        words = annotation.value.replace("torch.", "").replace("Optional[", "").rstrip("]").split("|")
    else:
        words = ast.unparse(annotation).replace("torch.", "").replace("typing.", "").split("|")
    names = {w.strip().removeprefix("Optional[").rstrip("]") for w in words} - {"None"}
    if names and names <= {"int", "float"}:
        return True
    return False if names and names <= {"Tensor", "FloatTensor", "BoolTensor", "LongTensor"} else None
