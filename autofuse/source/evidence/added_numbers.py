"""How large are the numbers that an expression holds, if it is added to the scores of an attention?

dropped_rows.py explains the kinds. This file reads syntax: what calls in the file pass to an argument, what classes
assign to an attribute, what a function returns. A name may hold every value that its function assigns to it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce

from autofuse.ir.steps import spend
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.buffer_contents import number_in, triangle_form
from autofuse.source.capture.scope import DefinedFunction, FileScope, functions, target_pairs
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.added_sizes import (
    INFINITE,
    KEPT,
    SMALL,
    UNKNOWN,
    Size,
    any_of,
    mixture_of,
    product_of,
    size_of_number,
    sum_of,
)
from autofuse.source.evidence.attribute_writes import AttributeWrites
from autofuse.source.evidence.call_arguments import MAX_CALLS, CallArguments
from autofuse.source.evidence.number_syntax import (
    argument_of,
    computes_with_large,
    default_of,
    is_filled_with_finite,
    is_small_opposite,
    large_factor,
    passes_others,
)
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.evidence.unseen_writes import KEEPING_WRITES, writes_unseen

_MAX_DEPTH = 6  # functions, attributes and callers that are followed, one inside the other

CREATED = frozenset("zeros ones zeros_like ones_like arange rand randn rand_like randn_like eye linspace".split())
_NEW = frozenset("new_zeros new_ones".split())
_SAME = frozenset(
    "to type type_as float half double bfloat16 view reshape unsqueeze squeeze expand expand_as repeat contiguous "
    "clone detach permute transpose movedim flatten cuda cpu tril triu t abs neg repeat_interleave broadcast_to "
    "reduce clamp clamp_min clip "
    "roll flip gather index_select requires_grad_ rearrange".split()
)
_BOUNDED = frozenset(
    "tanh sigmoid softmax sin cos bool eq ne lt le gt ge logical_not logical_and logical_or isin isfinite any all "
    "linear embedding one_hot argmax argsort sign".split()
)
_LEARNED_LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in "Linear Embedding EmbeddingBag Bilinear Conv1d Conv2d Conv3d LayerNorm RMSNorm GroupNorm BatchNorm1d "
    "BatchNorm2d Tanh Sigmoid Softmax Softsign Hardtanh".split()
)
_KEEPING_LAYERS = frozenset(f"torch.nn.{n}" for n in "ReLU GELU SiLU LeakyReLU Identity Dropout Flatten".split())
_JOINED = frozenset("cat concat hstack vstack stack".split())


class AddedNumbers:
    """Reads the expressions of the file of one function. `files` are the other files of the project."""

    def __init__(self, defined: DefinedFunction, files: ProjectFiles | None) -> None:
        self._defined, self._files = defined, files
        self._calls = defined.scope.index(CallArguments)
        self._by_function = {id(d.function): d for d in functions(self._calls.scope)}
        self._writes = defined.scope.index(AttributeWrites)
        self._open: dict[tuple[int, str], Size] = {}  # the names that are being read, with what is known of them

    def of_argument(self, name: str) -> Size:
        """The size of an argument of the function, from all calls in the file; unknown if none passes it."""
        return self._of_argument(self._defined, name, _MAX_DEPTH)

    def of_attribute(self, name: str) -> Size:
        """The size of `self.name`."""
        return self._of_attribute(self._defined, name, _MAX_DEPTH)

    def of_called(self, name: str) -> Size:
        """The size of what the layer or the method `self.name` returns."""
        return self._of_called(self._defined, name, _MAX_DEPTH)

    def is_written_unseen(self, name: str) -> bool:
        """Whether the function may write to a variable in a way that the capture does not follow."""
        return any(writes_unseen(n, name, self._calls.scope) for n in walk(self._defined.function))

    def of_expression(self, node: ast.expr) -> Size:
        """The size of an expression of the function."""
        return self._read(node, self._defined, _MAX_DEPTH)

    def _of_argument(self, d: DefinedFunction, name: str, depth: int) -> Size:
        """Every call that may reach the function counts, so a call that passes on `*args` leaves it unknown."""
        calls = [*self._calls.calls_of(d), *self._calls.calls_of_objects(d)]
        passed = [(e, call) for call in calls for e in call.arguments.get(name, ())]
        if depth == 0 or not passed or len(calls) >= MAX_CALLS or any(passes_others(c) for c in calls):
            return UNKNOWN
        outer = d.owner.node.name if d.owner is not None else d.function.name
        if self._files is not None and self._files.importing_files(d.scope, outer):
            return UNKNOWN
        sizes = [self._read(e, self._function_of(call.scopes), depth - 1) for e, call in passed]
        default = default_of(d.function, name)
        return any_of([*sizes, self._read(default, None, depth - 1)] if default is not None else sizes)

    def _function_of(self, scopes: Sequence[ast.AST]) -> DefinedFunction | None:
        return self._by_function.get(id(scopes[-1])) if scopes else None

    def _of_attribute(self, d: DefinedFunction, name: str, depth: int) -> Size:
        scope, owner = d.scope, d.owner
        every = scope.assigned_to(owner, name)
        if every and all(isinstance(e, ast.Dict) and not e.keys for e in every):
            return self._of_entries(name, depth - 1)
        if every and all(map(_is_parameter, every)):
            return SMALL
        assigned, init = scope.buffer(owner, name) or scope.attribute(owner, name), scope.method(owner, "__init__")
        if assigned is None or depth == 0:
            return UNKNOWN
        size = self._read(assigned, self._by_function.get(id(init)), depth - 1)
        # What is written into a parameter is learned, too.
        is_written = name in self._writes.attributes and not _is_parameter(assigned)
        return UNKNOWN if is_written else size

    def _of_entries(self, name: str, depth: int) -> Size:
        """The size of the entries of a dict in an attribute, if only `self.name[key] = value` fills it."""
        entries = self._writes.entries.get(name, [])
        if depth < 0 or not entries or name in self._writes.other_uses:
            return UNKNOWN
        return any_of([self._read(e, self._by_function.get(id(f)), depth) for e, f in entries])

    def _of_called(self, d: DefinedFunction, name: str, depth: int) -> Size:
        if (method := d.scope.method(d.owner, name)) is not None:
            return self._of_returned(method, depth)
        assigned = d.scope.attribute(d.owner, name)
        return UNKNOWN if assigned is None else self._of_layer(assigned, depth)

    def _of_layer(self, node: ast.expr, depth: int) -> Size:
        """The size of what a layer returns that an expression makes. Layers of torch.nn return small numbers."""
        scope = self._calls.scope
        if not isinstance(node, ast.Call) or depth == 0:
            return UNKNOWN
        name = scope.name_of(node.func) or ""
        if name in _LEARNED_LAYERS:
            return SMALL
        if name == "torch.nn.Sequential":
            # Only layers that keep small numbers small may follow the last layer that makes them small.
            last = next((a for a in reversed(node.args) if not self._keeps_small(a)), None)
            return UNKNOWN if last is None else self._of_layer(last, depth - 1)
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if (function := scope.functions.get(called)) is not None:
            returned = [n.value for n in walk(function) if isinstance(n, ast.Return)]
            return any_of([self._of_layer(e, depth - 1) if e is not None else UNKNOWN for e in returned]) or UNKNOWN
        forward = scope.method(scope.classes.get(called), "forward") if called in scope.classes else None
        return UNKNOWN if forward is None else self._of_returned(forward, depth)

    def _keeps_small(self, layer: ast.expr) -> bool:
        name = self._calls.scope.name_of(layer.func) if isinstance(layer, ast.Call) else None
        return name in _KEEPING_LAYERS

    def _of_function(self, scope: FileScope, name: str, depth: int) -> Size:
        function = scope.functions.get(name)
        return self._of_returned(function, depth) if function is not None else UNKNOWN

    def _of_returned(self, function: Function, depth: int) -> Size:
        returned = [n.value for n in walk(function) if isinstance(n, ast.Return) and n.value is not None]
        if depth == 0 or not returned:
            return UNKNOWN
        return any_of([self._read(e, self._by_function.get(id(function)), depth - 1) for e in returned])

    def _read(self, node: ast.expr, d: DefinedFunction | None, depth: int) -> Size:
        spend()
        scope = self._calls.scope
        if triangle_form(scope, node) == "bias" and is_filled_with_finite(node):
            return KEPT
        match node:
            case ast.Constant(value=None) | ast.Compare() | ast.UnaryOp(op=ast.Invert() | ast.Not()):
                return SMALL
            case ast.BinOp(op=ast.Mult() | ast.Div()) if (factor := large_factor(node)) is not None:
                return SMALL if is_small_opposite(node, factor) else UNKNOWN
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right=right):
                combine = sum_of if isinstance(op, (ast.Add, ast.Sub)) else product_of
                return combine(self._read(left, d, depth), self._read(right, d, depth))
            case ast.BinOp(op=ast.MatMult()):
                return self._of_matrix_product(d)
            case ast.BinOp(op=ast.Pow(), right=exponent) if abs(number_in(exponent) or math.inf) <= 1:
                return SMALL  # the root of a size, or its reciprocal
            case ast.IfExp(body=body, orelse=other):
                return any_of([self._read(body, d, depth), self._read(other, d, depth)])
            case ast.Subscript(value=value):
                return self._read(value, d, depth)
            case ast.Call():
                return self._of_call(node, d, depth)
            case ast.Name() if d is not None:
                return self._of_name(node.id, d, depth)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if d is not None:
                return self._of_attribute(d, name, depth)
        return size_of_number(number_in(node))

    def _of_call(self, call: ast.Call, d: DefinedFunction | None, depth: int) -> Size:
        qualified = self._calls.scope.name_of(call.func) or ""
        if qualified.startswith(("torch.", "einops.")):
            return self._of_torch_call(qualified, call, d, depth)
        match call.func:
            case ast.Name(id="float" | "int"):
                return size_of_number(number_in(call))
            case ast.Name(id=name):
                return self._of_function(self._calls.scope, name, depth)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if d is not None:
                return self._of_called(d, name, depth)
            case ast.Attribute(value=value, attr=name):
                return self._of_operation(name, value, call.args, call, d, depth)
        return UNKNOWN

    def _of_torch_call(self, qualified: str, call: ast.Call, d: DefinedFunction | None, depth: int) -> Size:
        name = qualified.rpartition(".")[2]
        if name in CREATED or name in ("Parameter", "Embedding", "Linear"):
            return SMALL
        if name in ("full", "full_like"):
            return size_of_number(number_in(argument_of(call, 1, "fill_value")))
        if name == "generate_square_subsequent_mask":
            return INFINITE
        if name == "pad" and call.args:
            filled = argument_of(call, 3, "value")
            return mixture_of(
                self._read(call.args[0], d, depth), SMALL if filled is None else size_of_number(number_in(filled))
            )
        if name == "where" and len(call.args) == 3:
            return mixture_of(self._read(call.args[1], d, depth), self._read(call.args[2], d, depth))
        if name in _JOINED and call.args and isinstance(call.args[0], (ast.Tuple, ast.List)):
            return reduce(mixture_of, (self._read(e, d, depth) for e in call.args[0].elts))
        return self._of_operation(name, call.args[0], call.args[1:], call, d, depth) if call.args else UNKNOWN

    def _of_operation(
        self, name: str, value: ast.expr, others: list[ast.expr], call: ast.Call, d: DefinedFunction | None, depth: int
    ) -> Size:
        """The size of an operation on `value`, written as a method or as a function of torch."""
        if name in _BOUNDED or name in _NEW:
            return SMALL
        if name in ("matmul", "einsum", "bmm"):
            return self._of_matrix_product(d)
        if name in ("neg", "abs") and self._read(value, d, depth) != SMALL:
            return UNKNOWN
        if name in ("new_full", "fill_"):
            return size_of_number(number_in(others[-1] if others else argument_of(call, 9, "fill_value")))
        if name in ("masked_fill", "masked_fill_"):
            fill = others[1] if len(others) == 2 else argument_of(call, 9, "value")
            return mixture_of(self._read(value, d, depth), size_of_number(number_in(fill)))
        if name == "log":
            return INFINITE if self._read(value, d, depth) == SMALL else UNKNOWN
        return self._read(value, d, depth) if name in _SAME or name in KEEPING_WRITES else UNKNOWN

    @staticmethod
    def _of_matrix_product(d: DefinedFunction | None) -> Size:
        """A matrix product has the size of scores, unless the function computes with large numbers."""
        return SMALL if d is not None and not computes_with_large(d.function) else UNKNOWN

    @cached_property
    def names_large_number(self) -> bool:
        """Whether the function computes with large numbers."""
        return computes_with_large(self._defined.function)

    def _of_name(self, name: str, d: DefinedFunction, depth: int) -> Size:
        """The size of a variable. It may hold its own earlier value, so it is read until nothing new is found."""
        key = id(d.function), name
        if key in self._open:
            return self._open[key]
        size: Size = frozenset()
        try:
            while True:
                self._open[key] = size
                found = self._of_assignments(name, d, depth) | size
                if found == size or "unknown" in found:
                    return found or UNKNOWN
                size = found
        finally:
            del self._open[key]

    def _of_assignments(self, name: str, d: DefinedFunction, depth: int) -> Size:
        arguments = {a.arg for a in walk(d.function.args) if isinstance(a, ast.arg)}
        if any(writes_unseen(n, name, self._calls.scope) for n in walk(d.function)):
            return UNKNOWN
        sizes = [self._of_argument(d, name, depth)] if name in arguments else []
        for n in walk(d.function):
            sizes += self._of_write(n, name, d, depth)
        return any_of(sizes) if sizes else UNKNOWN

    def _of_write(self, n: ast.AST, name: str, d: DefinedFunction, depth: int) -> Iterator[Size]:
        """The sizes that a node of the function gives to the variable `name`: an assignment, or a write in place."""
        match n:
            case ast.Assign(targets=targets, value=value):
                for target, assigned in (pair for t in targets for pair in target_pairs(t, value)):
                    if _is_name(target, name):
                        yield self._read(assigned, d, depth)
                    elif isinstance(target, ast.Subscript) and _is_name(target.value, name):
                        yield mixture_of(self._of_name(name, d, depth), self._read(assigned, d, depth))
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                yield self._read(value, d, depth)
            case ast.AugAssign(target=ast.Name(id=target), op=op, value=value) if target == name:
                yield self._read(ast.BinOp(ast.Name(name, ast.Load()), op, value), d, depth)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=attr)) if target == name:
                if attr.endswith("_") and not attr.endswith("__"):
                    yield self._of_call(n, d, depth)
            case ast.Name(id=target, ctx=ast.Store() | ast.Del()) if target == name and not self._is_assigned(n, d):
                yield UNKNOWN

    def _is_assigned(self, n: ast.Name, d: DefinedFunction) -> bool:
        """Whether a name is the target of an assignment that `_of_write` reads."""
        for s in walk(d.function):
            if isinstance(s, ast.Assign) and any(t is n for g in s.targets for t, _ in target_pairs(g, s.value)):
                return True
            if isinstance(s, (ast.AnnAssign, ast.AugAssign)) and s.target is n:
                return True
        return False


def _is_parameter(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "Parameter"


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
