"""Reads calls: finds the called function and computes the result of the call.

A call is one of these:

- an operation of the vocabulary,
- a layer of the module,
- a helper of the same file, which is inlined,
- a function that is applied to each element of a tuple,
- an unknown call, which reads its arguments and may have any side effect.
"""

from __future__ import annotations

import ast
from abc import abstractmethod

from autofuse.ir.binding import bound_arguments, replace_like_argument
from autofuse.ir.facts import named_ranks
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, GLOBAL, IS_NONE, ITEM, PARAMETER, SYNTAX, TUPLE, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import MODULES, NAMES, OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.capture.captured import Chain
from autofuse.source.capture.inlining import Inlining
from autofuse.source.capture.loss_modules import LossModule, find_loss_module
from autofuse.source.capture.mapped_elements import Elements
from autofuse.source.capture.modules import AppliedLayer, ProjectLayer, applied_layers, called_child, find_constructor
from autofuse.source.capture.returned_ranks import returned_rank
from autofuse.source.capture.writes import written_outer_names

_MUTATORS = frozenset(".append .extend .insert .add_ .update .setdefault .pop .clear .remove .sort .reverse".split())
_SEES_NAMES = frozenset({"locals", "vars", "eval", "exec", "globals", "dir"})  # these may read any local name
# Products that accept tensors of one rank only: the rank, and the indexes of the arguments that they multiply.
_RANKS = {
    "bmm": (3, (0, 1)),
    "baddbmm": (3, (1, 2)),
    "mm": (2, (0, 1)),
}


class Calls(Inlining, Elements):
    """Reads `ast.Call`."""

    def read_call(self, node: ast.Call) -> Value:
        """Return the result of a call."""
        if _has_starred_shape(node):
            return self.read_call_with_shape(node)
        if not _has_plain_arguments(node):
            function = self.value(node.func)
            return self.make_unknown_call(node, function, list(map(self.value, _argument_expressions(node))), ())
        if (mapped := self.read_elements(node, None)) is not None:
            return self.graph.value(TUPLE, *mapped)
        function = self.value(node.func)
        arguments = [self.value(a) for a in node.args]
        named = {str(k.arg): self.value(k.value) for k in node.keywords}
        known = self.make_known_call(node, function, arguments, named)
        if known is not None:
            return known
        result = self.make_unknown_call(node, function, [*arguments, *named.values()], tuple(named))
        helper = self.find_helper(node.func) if isinstance(node.func, ast.Name) else None
        if helper is not None and (rank := returned_rank(helper)) is not None:
            self.add_facts(result, rank=rank)
        return result

    def read_call_with_shape(self, node: ast.Call) -> Value:
        """Return the result of a call such as `x.view(*x.shape[:-1], -1, 2)`. A starred argument is one value."""
        function, arguments = self.value(node.func), list[Value]()
        for a in node.args:
            starred = isinstance(a, ast.Starred)
            value = self.value(a.value if isinstance(a, ast.Starred) else a)
            arguments.append(self.graph.value(SYNTAX, value, data="*") if starred else value)
        assert isinstance(node.func, ast.Attribute)
        known = function.inputs and qualified_name(function) is None and self.may_be_tensor(function.inputs[0])
        result = self.call_method(function.inputs[0], node.func.attr, arguments, {}) if known else None
        return self.make_unknown_call(node, function, arguments, ()) if result is None else result

    def make_known_call(
        self, node: ast.Call, function: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Return the result of a call, or None if the called function is not known.

        Args:
            node: The call.
            function: The called value.
            arguments: The positional arguments.
            named: The keyword arguments.
        """
        if not self.in_helper:
            self.current_call = node
        if function.op == CHOICE:
            return self.call_either(node, function, arguments, named)
        name = qualified_name(function) or (
            str(function.data) if function.op == GLOBAL and self.is_builtin_value(function) else None
        )
        called = self.function_expression(node.func, function)
        if name is None and (alias := self.attribute_alias(called)):
            name = alias
        if name is not None:
            return self.make_operation(NAMES[name], name, arguments, named) if name in NAMES else None
        if isinstance(node.func, ast.Attribute) and self.may_be_tensor(
            function.inputs[0] if function.inputs else function
        ):
            if (called_method := self.call_method(function.inputs[0], node.func.attr, arguments, named)) is not None:
                return called_method
        if (
            len(arguments) == 1
            and not named
            and (layers := applied_layers(self.scope, self.owner, self.instance_name, called))
        ):
            return self.apply_layers(layers, node, function, arguments[0])
        constructor = find_constructor(self.scope, self.owner, self.instance_name, node.func)
        if (criterion := find_loss_module(self.scope, function, constructor)) is not None:
            return self.apply_loss(criterion, function, arguments, named)
        result = None
        if (helper := self.find_helper(called)) is not None:
            result = self.inline_helper(helper, function, arguments, named)
        elif (child := called_child(self.scope, self.owner, self.instance_name, called)) is not None:
            result = self.inline_child(child, function, arguments, named)
        if result is not None:
            self.inlined_calls.add(id(node))
        return result

    def call_either(
        self, node: ast.Call, function: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Return the result of a call of one of two known functions.

        An example of such a function is `softmax = torch.softmax if fast else stable_softmax`.
        """
        results = list[Value]()
        for side in function.inputs[1:]:
            written = (
                ast.Name(str(side.data), ast.Load()) if side.op == GLOBAL else self.function_expression(node.func, side)
            )
            call = ast.copy_location(ast.Call(written, node.args, node.keywords), node)
            result = self.make_known_call(call, side, arguments, named)
            # A random operation would draw numbers even if the other function is called.
            if result is None or result.op in OPS and OPS[result.op].effect == "random":
                return None
            results.append(result)
        self.inlined_calls.add(id(node))
        return self.make_choice(function.inputs[0], *results)

    def make_unknown_call(self, node: ast.Call, function: Value, inputs: list[Value], named: tuple[str, ...]) -> Value:
        """Return the result of an unknown call, and record its side effects.

        Args:
            node: The call.
            function: The called value.
            inputs: The values of all arguments.
            named: The names of the keyword arguments. Their values are last in `inputs`.
        """
        name = qualified_name(function) or (f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else "")
        if function.op == GLOBAL:
            name = str(function.data) if self.is_builtin_value(function) else name
        data = (name or "a function", named)
        method = name.startswith(".")
        if (
            _has_plain_arguments(node)
            and (name in HARMLESS or name in MODULES)
            and (not method or self.may_be_tensor(function.inputs[0]))
        ):
            return self.graph.value(CALL, function, *inputs, data=data)
        if name in _SEES_NAMES:
            self.add_escape(because(matches.VALUE_SEEN, call=name), *(v for _, v in self.names.items()))
        if function in self.nested_functions:
            inputs = [*inputs, self.capture_nested(self.nested_functions[function])]
        self.record_effect()
        result = self.graph.fresh(CALL, function, *inputs, data=data)
        if self.in_helper and self.statement is not None and self.current_call is not None:
            self.captured.helper_calls.setdefault(self.statement, []).append((self.current_call, result))
        if name in _MUTATORS and function.inputs:
            self._record_mutation(name, function.inputs[0], result)
        elif self.may_write_self(node, function, inputs):
            self.forget_attributes(f"{name} may assign to self")
        return result

    def _record_mutation(self, name: str, owner: Value, result: Value) -> None:
        """Record that a method changes its object. `xs.pop()` returns an entry, and `xs` is still the list."""
        changed = result if name.endswith("_") else self.unknown_value("changed by a method", owner, result)
        self.record_write(owner, changed)

    @abstractmethod
    def make_choice(self, test: Value, yes: Value | None, no: Value | None) -> Value:
        """Return the value that is `yes` if `test` is true, else `no`."""

    # Find the called function.

    def function_expression(self, node: ast.expr, function: Value) -> ast.expr:
        """Return an expression for the called function that says more than a local name does.

        - After `attend = self.attend`, the result for `attend` is `self.attend`.
        - For a parameter that is a module, the result is the expression that constructs the module.
        """
        if function.op == PARAMETER and function.data in self.module_parameters:
            return self.module_parameters[str(function.data)]
        owner = function.inputs[0] if function.op == ATTRIBUTE else None
        if not isinstance(node, ast.Name) or owner is None or owner.op != PARAMETER or owner.data != self.instance_name:
            return node
        return ast.Attribute(ast.Name(str(self.instance_name), ast.Load()), str(function.data), ast.Load())

    def is_builtin_value(self, function: Value) -> bool:
        """Whether a global name is a builtin, because the file does not bind it."""
        return function.data not in self.scope.bound

    def attribute_alias(self, function: ast.expr) -> str | None:
        """Return the full name of a function in an attribute, such as `self.act` after `self.act = F.gelu`."""
        if not isinstance(function, ast.Attribute) or not self.is_self(function.value):
            return None
        assigned = self.scope.attribute(self.owner, function.attr)
        return None if assigned is None or isinstance(assigned, ast.Call) else self.scope.name_of(assigned)

    def may_be_tensor(self, owner: Value) -> bool:
        """Whether `owner` may be a tensor. The instance, submodules, imported modules and classes are not tensors."""
        if owner.op == GLOBAL:
            return owner.data in self.scope.local
        if qualified_name(owner) is not None:
            return False
        if owner.op == CALL and isinstance(owner.data, tuple) and owner.data[0] == "super":
            return False
        if owner.op == PARAMETER or owner is self.instance_value:
            return owner is not self.instance_value
        if owner.op == ATTRIBUTE and owner.inputs[0] is self.instance_value:
            return not self.is_child_module(str(owner.data))
        return owner.op != CONST

    def is_child_module(self, name: str) -> bool:
        """Whether `self.name` is a submodule: an instance of a class that is neither a parameter nor a buffer."""
        assigned = self.scope.attribute(self.owner, name)
        if not isinstance(assigned, ast.Call):
            return False
        class_name = self.scope.name_of(assigned.func) or ast.unparse(assigned.func)
        last = class_name.rpartition(".")[2]
        return last[:1].isupper() and last not in ("Parameter", "Buffer") and not last.endswith("Tensor")

    def may_write_self(self, node: ast.Call, function: Value, inputs: list[Value]) -> bool:
        """Whether an unknown call may assign to attributes of the instance."""
        if self.instance_value is not None and self.instance_value in inputs:
            return True
        if not isinstance(node.func, ast.Attribute) or not self.is_self(node.func.value):
            return isinstance(self.statement, ast.Expr) or self.may_write_globals(node.func)
        method = self.scope.method(self.owner, node.func.attr)
        return method is not None and any(method.name in c.writing_methods for c in self.scope.lineage(self.owner))

    def may_write_globals(self, function: ast.expr) -> bool:
        """Whether a call of the expression `function` may write to global variables of the file."""
        if isinstance(function, ast.Name) and (called := self.scope.functions.get(function.id)) is not None:
            return bool(written_outer_names(called))
        return bool(self.scope.reassigned) and self.scope.name_of(function) is None

    # Compute the result of the call.

    def make_operation(self, op: Op, name: str, arguments: list[Value], named: dict[str, Value]) -> Value | None:
        """Return the result of an operation of the vocabulary, or None if it does not accept the arguments.

        Args:
            op: The operation.
            name: The name under which it is called, such as `.softmax`.
            arguments: The positional arguments.
            named: The keyword arguments.
        """
        inputs = bound_arguments(self.graph, op, arguments, named)
        if inputs is None:
            return None
        op, inputs = replace_like_argument(self.graph, op, inputs)
        self.record_named_ranks(op, inputs)
        result = (self.graph.fresh if op.effect == "random" else self.graph.value)(op.name, *inputs)
        self.captured.spellings.setdefault(result, set()).update({name, *(f"{name}({k}=)" for k in named)})
        rank, multiplied = _RANKS.get(name.removeprefix("torch").removeprefix("."), (0, ()))
        for v in (result, *(inputs[i] for i in multiplied)) if rank else ():
            self.require_rank(v, rank)
        return result

    def record_named_ranks(self, op: Op, inputs: list[Value]) -> None:
        """Record the ranks that an einsum equation or an einops pattern requires."""
        for v, rank in named_ranks(op.name, inputs):
            if v.op not in (TUPLE, CONST):
                self.require_rank(v, rank)

    def call_method(self, owner: Value, name: str, arguments: list[Value], named: dict[str, Value]) -> Value | None:
        """Return the result of a tensor method, or None if the vocabulary has no such method.

        A name that ends in an underscore is the method in place.
        """
        if op := NAMES.get(f".{name}"):
            return self.make_operation(op, f".{name}", [owner, *arguments], named)
        if name.endswith("_") and not name.startswith("_") and (op := NAMES.get(f".{name[:-1]}")):
            result = self.make_operation(op, f".{name[:-1]}", [owner, *arguments], named)
            if result is not None:
                if (rank := self.facts.rank(owner)) is not None:  # an operation in place keeps the shape
                    self.add_facts(result, rank=rank)
                self.record_write(owner, result)
            return result
        return None

    def apply_layers(
        self, layers: list[AppliedLayer | ProjectLayer], node: ast.Call, function: Value, x: Value
    ) -> Value | None:
        """Return the result of applying layers in turn to `x`, or None if one of them is not known.

        Args:
            layers: The layers.
            node: The call.
            function: The called module: the layer itself, or a Sequential that contains the layers.
            x: The argument.
        """
        steps, argument = list[tuple[tuple[int, ...], Value]](), x
        for layer in layers:
            module = function
            for part in layer.path:
                module = self.graph.value(ITEM, module, self.graph.const(part))
            if isinstance(layer, ProjectLayer):
                result = self.inline_child(layer.child, module, [x], {})
            else:
                result = self.apply_layer(layer, module, x)
            if result is None:
                return None
            if layer is not layers[-1] and result is not x:
                self.record_position(result, node, inlined=True, inner=True)
            x = result
            steps.append((layer.path, x))
        if isinstance(layers[-1], ProjectLayer):
            self.inlined_calls.add(id(node))
        if len(steps) > 1 and not self.in_helper:
            written = find_constructor(self.scope, self.owner, self.instance_name, node.func)
            self.captured.chains[node] = Chain(written or node, argument, tuple(steps))
        return x

    def apply_layer(self, layer: AppliedLayer, module: Value, x: Value) -> Value | None:
        """Return the result of applying one layer to `x`. `module` is the layer as a value of the graph."""
        if layer.op == "identity":
            return x
        if layer.op == "activation":  # an activation that is known only when the module runs
            return self.make_operation(OPS["activation"], "activation", [x, module], {})
        named = {k: self.graph.const(v) for k, v in layer.fixed}
        for k in layer.read:
            named[k] = self.graph.read(ATTRIBUTE, module, data=k)
            if k in ("p", "eps"):
                self.add_facts(named[k], number=True)
        if layer.optional:  # the layer may be an Identity, which has no attribute `p`
            parts = (module, self.graph.const("p"), self.graph.const(0.0))
            named["p"] = self.graph.value(SYNTAX, *parts, data="getattr")
        if (
            layer.may_be_none
        ):  # the code tests for None before the call, so the choice below always has its second value
            missing = self.unknown_value("the probability of a dropout that may be None")
            named["p"] = self.make_choice(self.graph.value(IS_NONE, module), missing, named["p"])
        return self.make_operation(OPS[layer.op], layer.op, [x], named)

    def apply_loss(
        self, criterion: LossModule, module: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Return the loss of an output and a target.

        Args:
            criterion: The settings of the loss module.
            module: The loss module as a value of the graph.
            arguments: The positional arguments of the call.
            named: The keyword arguments of the call.
        """
        settings = {k: self.graph.const(v) for k, v in criterion.fixed.items()} | dict(criterion.arguments)
        settings |= {k: self.graph.read(ATTRIBUTE, module, data=k) for k in criterion.read}
        return self.make_operation(OPS[criterion.op], criterion.op, arguments, settings | named)


def _has_starred_shape(node: ast.Call) -> bool:
    """Whether a call is `x.view(*shape)` or `x.reshape(*shape)` without keyword arguments."""
    method = isinstance(node.func, ast.Attribute) and node.func.attr in ("view", "reshape")
    return method and not node.keywords and any(isinstance(a, ast.Starred) for a in node.args)


def _has_plain_arguments(node: ast.Call) -> bool:
    """Whether a call has no `*args` and no `**kwargs`."""
    return not any(isinstance(a, ast.Starred) for a in node.args) and all(k.arg for k in node.keywords)


def _argument_expressions(node: ast.Call) -> list[ast.expr]:
    return [a.value if isinstance(a, ast.Starred) else a for a in node.args] + [k.value for k in node.keywords]
