"""Is the input of an activation floating-point?

`x * torch.sigmoid(x)` takes integers, truth values and complex numbers; torch's activations raise an error for them.
Evidence is what the function makes of the input, what else it does with it that only floating-point tensors allow, and
that it is what the `forward` of a module must be called with: a module that computes an activation of its argument is
given data, unless its annotation, or its use as an index, says otherwise; and a function that is named for an
activation, `gelu_new(x)`, is one (docs/safety.md).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autofuse.canonical import CAST, LEAF, PERMUTE
from autofuse.ir.floating import NEEDS_FLOATING, is_layer
from autofuse.ir.graph import CALL, CHOICE, ITEM, PARAMETER, Value
from autofuse.ir.vocabulary import OUR_ACTIVATIONS, SAME_SIZES
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.given_arguments import GivenArguments
from autofuse.source.evidence.reached import attribute_of_self, named, programs_own, surely_run

_OPERATIONS = frozenset({*OUR_ACTIVATIONS, "glu", "activation", "gated_activation"})
_INTEGERS = ("Long", "Int", "Bool", "Byte", "Short", "Char", "Complex", "int", "bool")
_ACTIVATION = re.compile(
    r"(ge|si|re|e|se|ce)lu|swish|mish|sigmoid|tanh|softplus|glu|activation|nonlinearit|(^|_)act(_|$)"
)
_NOT_FLOATING_LAYERS = frozenset({"Identity", "Flatten", "Unflatten", "Dropout", "ReLU", "Sequential", "Embedding"})


def input_is_floating(claim: Claim) -> Iterator[Missing | Fails]:
    """The input of an activation is floating-point."""
    if claim.site.rule.replacement.operation not in _OPERATIONS:
        return
    x = claim.site.captures.get("x")
    if x is not None and not _is_floating(claim, x):
        yield Missing(f"assumes that {named(claim, x, 'the input')} is floating-point")


def _is_floating(claim: Claim, canonical: Value) -> bool:
    own = programs_own(claim, canonical)
    if canonical.op in (CAST,) or any(_by_itself(claim, v) for v in own):
        return True
    if canonical.op == PERMUTE:
        return _is_floating(claim, canonical.inputs[0])
    if canonical.op in ("mul", "add") and not own:
        return any(_is_floating(claim, i) for i in canonical.inputs)
    return canonical.op not in (LEAF, PARAMETER) and not own and canonical.op in NEEDS_FLOATING


def _by_itself(claim: Claim, v: Value) -> bool:
    """Whether the program's value `v` is floating, or would have raised an error where it is used."""
    known = claim.view.facts.floating(v)
    if known is not None:
        return known
    sources = set(_sources(v))
    if any(_made_by_layer(claim, s) or _is_data(claim, s) for s in sources):
        return True
    used = (u for u in surely_run(claim.captured, claim.site.root) if u.op in NEEDS_FLOATING or is_layer(u))
    return any(sources & set(_sources(u.inputs[0])) for u in used)


def _sources(v: Value) -> Iterator[Value]:
    """`v`, and what has its dtype: parts of it, views of it, and what it is a view of."""
    while True:
        yield v
        if v.op == CHOICE:
            return
        if v.op == ITEM or v.op in SAME_SIZES or v.op in ("view", "transpose", "permute", "chunk", "split", "unbind"):
            v = v.inputs[0]
        else:
            return


def _made_by_layer(claim: Claim, v: Value) -> bool:
    """Whether `v` is what a layer of torch.nn gives, or a parameter."""
    scope, owner = claim.defined.scope, claim.defined.owner
    name = attribute_of_self(v.inputs[0] if v.op == CALL and v.inputs else v)
    made = scope.attribute(owner, name) if name else None
    if not isinstance(made, ast.Call):
        return False
    called = scope.name_of(made.func) or ""
    if v.op == CALL:
        return called.startswith("torch.nn.") and called.rpartition(".")[2] not in _NOT_FLOATING_LAYERS
    return called in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


def _is_data(claim: Claim, v: Value) -> bool:
    """Whether a module, or an activation by its name, is called with `v`, and nothing says that it holds indices."""
    function = claim.captured.function
    name = getattr(function, "name", "")
    given_data = claim.defined.owner is not None and name == "forward" or _ACTIVATION.search(name.lower())
    if v.op != PARAMETER or not given_data:
        return False
    given = [a for a in (*function.args.posonlyargs, *function.args.args) if a.arg == v.data]
    if not given or any(word in ast.unparse(given[0].annotation or ast.Constant(None)) for word in _INTEGERS):
        return False
    if any(u.op == ITEM and v in u.inputs[1:] for u in claim.captured.graph.values):
        return False
    calls = claim.defined.scope.index(GivenArguments)
    return not calls.is_own_index(function, str(v.data)) and not calls.is_tried(claim.defined)
