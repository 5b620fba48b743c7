"""Checks that the input of an activation or a norm has a floating-point dtype.

`x * torch.sigmoid(x)` accepts integers, booleans and complex numbers; torch's activations raise an error for them. A
written-out norm accepts complex numbers. If the text shows such an input, the edit is declined.

Evidence for floating-point is one of these (docs/safety.md):

- the function computes the input with an operation that returns floating-point numbers,
- the function uses the input where only floating-point tensors are allowed,
- the input is an argument of a module's `forward`, or of a function that is named like an activation, `gelu_new(x)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.ir.floating import NEEDS_FLOATING, is_linear_layer
from autofuse.ir.graph import CALL, CHOICE, CONST, ITEM, PARAMETER, Value
from autofuse.ir.vocabulary import OUR_ACTIVATIONS, SAME_SIZES
from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.evidence.call_arguments import CallArguments
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.site_values import (
    describe_value,
    find_always_computed,
    program_values,
    self_attribute_name,
)

_ACTIVATIONS = frozenset({*OUR_ACTIVATIONS, "glu", "activation", "gated_activation"})
_NOT_FLOATING_TYPES = ("Long", "Int", "Bool", "Byte", "Short", "Char", "Complex", "int", "bool")
_NORMS = frozenset({"layer_norm", "rms_norm"})
# LongTensor, and the types of jaxtyping: Int[Tensor, "b n"].
_INTEGER_ANNOTATION = re.compile(
    r"['\"]?(\w+\.)*((Long|Int|Short|Char|Byte|Bool)Tensor\b|(Int|UInt|Integer|Bool|Complex)\d*\[)"
)
_ACTIVATION_NAME = re.compile(
    r"(ge|si|re|e|se|ce)lu|swish|mish|sigmoid|tanh|softplus|glu|activation|nonlinearit|(^|_)act(_|$)"
)
_NOT_FLOATING_LAYERS = frozenset({"Identity", "Flatten", "Unflatten", "Dropout", "ReLU", "Sequential", "Embedding"})


def input_is_floating(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if an activation or a norm gets integers or complex numbers; reports an input that may hold integers."""
    operation = claim.site.rule.replacement.operation
    x = claim.site.captures.get("x")
    if x is None or operation not in _ACTIVATIONS | _NORMS:
        return
    if (kind := _other_numbers(claim, x)) is not None:
        yield Fails(because(tensors.NOT_FLOATING, what=kind[0]), kind[1], enables=False)
    elif operation in _ACTIVATIONS and not _is_floating(claim, x):
        yield Missing(f"assumes that {describe_value(claim, x, 'the input')} is floating-point")


def _other_numbers(claim: Claim, canonical: Value) -> tuple[str, Value] | None:
    """The kind of numbers in an input that is not floating-point, and the value of the program that shows it."""
    for v in program_values(claim, canonical):
        if claim.view.facts.is_complex(v):
            return "complex numbers", v
        if claim.view.facts.floating(v) is False or any(
            _is_integer_argument(claim, s) for s in _values_of_same_dtype(v)
        ):
            return "integers or booleans", v
    return None


def _is_integer_argument(claim: Claim, v: Value) -> bool:
    """Whether `v` is an argument whose annotation names integers, or that the function uses as an index."""
    if v.op != PARAMETER:
        return False
    annotation = next((a.annotation for a in _arguments_of(claim) if a.arg == v.data), None)
    if annotation is not None and _INTEGER_ANNOTATION.match(ast.unparse(annotation)):
        return True
    calls = claim.defined.scope.index(CallArguments)
    return _is_index(claim, v) or calls.is_own_index(claim.captured.function, str(v.data))


def _arguments_of(claim: Claim) -> list[ast.arg]:
    arguments = claim.captured.function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _is_index(claim: Claim, v: Value) -> bool:
    """Whether the function indexes a tensor with `v`. An index is an integer or boolean tensor."""
    return any(u.op == ITEM and v in u.inputs[1:] for u in claim.captured.graph.users[v])


def _is_floating(claim: Claim, canonical: Value) -> bool:
    own = program_values(claim, canonical)
    if canonical.op in (CAST,) or any(_is_floating_value(claim, v) for v in own):
        return True
    if canonical.op == PERMUTE:
        return _is_floating(claim, canonical.inputs[0])
    if canonical.op in ("mul", "add") and not own:
        return any(_is_floating(claim, i) for i in canonical.inputs)
    return canonical.op not in (LEAF, PARAMETER) and not own and canonical.op in NEEDS_FLOATING


def _is_floating_value(claim: Claim, v: Value) -> bool:
    """Whether the program's value `v` is floating-point, or the program uses it where any other dtype is an error."""
    is_floating = claim.view.facts.floating(v)
    if is_floating is not None:
        return is_floating
    sources = set(_values_of_same_dtype(v))
    if any(_comes_from_layer(claim, s) or _is_data_argument(claim, s) for s in sources):
        return True
    uses = (
        u for u in find_always_computed(claim.captured, claim.site.root) if u.op in NEEDS_FLOATING or is_linear_layer(u)
    )
    return any(sources & set(_values_of_same_dtype(u.inputs[0])) for u in uses)


def _values_of_same_dtype(v: Value) -> Iterator[Value]:
    """Yields `v`, the values that it is a part or a view of, and those to which it adds an integer."""
    while True:
        yield v
        if v.op == CHOICE:
            return
        if v.op == ITEM or v.op in SAME_SIZES or v.op in ("view", "transpose", "permute", "chunk", "split", "unbind"):
            v = v.inputs[0]
        elif (tensor := _tensor_next_to_integers(v)) is not None:
            v = tensor
        else:
            return


def _tensor_next_to_integers(v: Value) -> Value | None:
    """The tensor in a sum or a product of one tensor and integers: x of `x + 1` and `2 * x`."""
    if v.op not in ("add", "sub", "rsub", "mul"):
        return None
    others = [i for i in v.inputs if not (i.op == CONST and type(i.data) is int)]
    return others[0] if len(others) == 1 else None


def _comes_from_layer(claim: Claim, v: Value) -> bool:
    """Whether `v` is the result of a layer of torch.nn, or a parameter."""
    scope, owner = claim.defined.scope, claim.defined.owner
    name = self_attribute_name(v.inputs[0] if v.op == CALL and v.inputs else v)
    assigned = scope.attribute(owner, name) if name else None
    if not isinstance(assigned, ast.Call):
        return False
    constructor = scope.name_of(assigned.func) or ""
    if v.op == CALL:
        return constructor.startswith("torch.nn.") and constructor.rpartition(".")[2] not in _NOT_FLOATING_LAYERS
    return constructor in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


def _is_data_argument(claim: Claim, v: Value) -> bool:
    """Whether `v` is an argument of a module's forward or of a function named like an activation, and not an index."""
    function = claim.captured.function
    name = getattr(function, "name", "")
    takes_data = claim.defined.owner is not None and name == "forward" or _ACTIVATION_NAME.search(name.lower())
    if v.op != PARAMETER or not takes_data:
        return False
    arguments = [a for a in (*function.args.posonlyargs, *function.args.args) if a.arg == v.data]
    if not arguments or any(
        word in ast.unparse(arguments[0].annotation or ast.Constant(None)) for word in _NOT_FLOATING_TYPES
    ):
        return False
    return not claim.defined.scope.index(CallArguments).is_called_in_try(claim.defined)
