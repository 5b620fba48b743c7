"""Does the query or the value of an attention lose a dimension on its way?

`softmax(q @ k.mT) @ v` accepts vectors: `x[0]`, `x.mean(0)`, `torch.arange(n)`, a parameter of one dimension.
scaled_dot_product_attention raises an error for them. The keys need no check, because they are transposed. This file
follows an operand back through the captured values, and counts the dimensions that operations add and remove.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.ir.dtypes import PARTS
from autofuse.ir.facts import index_change
from autofuse.ir.graph import CALL, CHOICE, CONST, ITEM, PARAMETER, SLICE, TUPLE, Value, is_const
from autofuse.ir.vocabulary import OPS, SAME_SIZES
from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.minimum_ranks import MinimumRanks
from autofuse.source.evidence.site_values import describe_value, program_values, self_attribute_name
from autofuse.source.evidence.tensor_expressions import TensorReader

_MATRIX = 2
_MAX_STEPS = 60
_KEEP_RANK = SAME_SIZES | {"linear", "transpose", "mT", "permute", "identity", PERMUTE, CAST}
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
_CREATE_BY_SIZES = frozenset("randn rand zeros ones empty".split())
_CHANGES = {"select": -1, "squeeze": -1, "unsqueeze": 1, "stack": 1}


@dataclass(frozen=True)
class _Origin:
    """The origin of an operand.

    Attributes:
        base: the value that it is followed back to.
        change: the number of dimensions that the operations in between add; negative if they remove some.
        rank: the number of dimensions of the operand; None if unknown.
    """

    base: Value
    change: int
    rank: int | None = None


def operands_keep_dimensions(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails for a query or value that is a vector; reports one that has lost a dimension and may be a vector."""
    if claim.site.rule.replacement.operation != "attention":
        return
    captures, ranks = claim.site.captures, MinimumRanks(claim.captured, claim.view, claim.site.root)
    key = _follow(claim, captures["key"])
    for name in ("query", "value"):
        operand = captures[name]
        source = _follow(claim, operand)
        if source.rank is not None and source.rank < _MATRIX:
            culprit = next(iter(program_values(claim, operand)), None)
            yield Fails(because(tensors.VECTOR, name=name), culprit, enables=False)
            return
        if source.rank is not None or ranks.bound_of(operand) >= _MATRIX:
            continue
        is_like_key = source.base is key.base and source.change >= key.change
        if not is_like_key and (source.change < 0 or _may_be_created_vector(claim, source.base)):
            yield Missing(f"assumes that {describe_value(claim, operand, f'the {name}')} has two dimensions or more")


def _follow(claim: Claim, operand: Value) -> _Origin:
    """Follows an operand back to a value that no operation of this table computes."""
    v, change = operand, 0
    for _ in range(_MAX_STEPS):
        rank = claim.view.rank(v) if v.op != LEAF else claim.view.facts.rank(v.data)  # type: ignore[arg-type]
        rank = _rank_by_creation(claim, v) if rank is None else rank
        if rank is not None:
            return _Origin(v, change, rank + change)
        step = _step_back(claim, v)
        if step is None:
            break
        v, change = step[0], change + step[1]
    return _Origin(v, change)


def _step_back(claim: Claim, v: Value) -> tuple[Value, int] | None:
    """Returns the value that `v` is computed from, and how many dimensions that adds; None at the end."""
    if v.op == LEAF and isinstance(v.data, Value):
        return v.data, 0
    if v.op == ITEM:
        return _step_back_from_item(v)
    if v.op in _CHANGES:
        inner = v.inputs[0].inputs[0] if v.op == "stack" and v.inputs[0].inputs else v.inputs[0]
        return inner, _CHANGES[v.op]
    if (removed := _reduced_dimensions(v)) is not None:
        return v.inputs[0], -removed
    if v.op == "cat" and v.inputs[0].op == TUPLE and v.inputs[0].inputs:
        return v.inputs[0].inputs[0], 0
    if v.op in _KEEP_RANK and v.inputs:
        return v.inputs[0], 0
    if v.op in _ARITHMETIC:
        tensors_of = [i for i in v.inputs if not claim.view.facts.number(i) and i.op != CONST]
        return (tensors_of[0], 0) if len(tensors_of) == 1 else None
    own = [o for o in program_values(claim, v) if o is not v]
    return (own[0], 0) if own else None


def _step_back_from_item(v: Value) -> tuple[Value, int] | None:
    container, index = v.inputs
    if container.op in PARTS:
        return container.inputs[0], -(container.op == "unbind")
    if index.op == SLICE:
        return container, 0
    if index.op == TUPLE:
        change = index_change(index)
        return None if change is None else (container, change)
    is_number = index.op == CONST and type(index.data) is int
    # The result of an unknown call may be a tuple: `self.lstm(x)[0]`.
    if is_number and container.op not in (CALL, TUPLE, CHOICE) and _reduced_dimensions(container) is None:
        return container, -1
    return (container, 0) if is_number and _reduced_dimensions(container) is not None else None


def _reduced_dimensions(v: Value) -> int | None:
    """Returns how many dimensions a reduction removes; None for other operations, and if it is not known."""
    op = OPS.get(v.op)
    names = list(op.parameters) if op is not None else []
    if "dim" not in names or "keepdim" not in names:
        return None
    dim, keepdim = (v.inputs[names.index(n)] for n in ("dim", "keepdim"))
    if is_const(keepdim, True):
        return 0
    if dim.op == TUPLE:
        return len(dim.inputs)
    return 1 if dim.op == CONST and type(dim.data) is int else None


def _rank_by_creation(claim: Claim, v: Value) -> int | None:
    """Returns the rank of a tensor whose creation shows it, such as `torch.linspace(0, 1, n)`."""
    created = _creation(claim, v)
    facts = TensorReader(claim.defined.scope, lambda _: iter(())).read(created) if created is not None else None
    return len(facts.sizes) if facts is not None and facts.sizes is not None and not facts.number else None


def _may_be_created_vector(claim: Claim, v: Value) -> bool:
    """Whether the value is a parameter or buffer that is created with one size: `torch.zeros(n)`."""
    created = _creation(claim, v)
    for call in ast.walk(created) if created is not None else ():
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _CREATE_BY_SIZES:
            return len(call.args) == 1 and not isinstance(call.args[0], (ast.Tuple, ast.List, ast.Starred))
    return False


def _creation(claim: Claim, v: Value) -> ast.expr | None:
    """Returns the call that creates a tensor: of the value itself, or of a parameter or buffer of the class."""
    v = v.data if v.op == LEAF and isinstance(v.data, Value) else v
    name, scope, owner = self_attribute_name(v), claim.defined.scope, claim.defined.owner
    if name is None:
        nodes = (p.node for p in claim.captured.positions.get(v, ()))
        return next((n for n in nodes if isinstance(n, ast.Call) and v.op == CALL), None)
    if owner is None or v.inputs[0].op != PARAMETER:
        return None
    return scope.buffer(owner, name) or scope.attribute(owner, name)
