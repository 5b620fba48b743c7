"""Calls: what is called, and what that computes.

A call is an operation of the vocabulary, a layer of the module, a helper of the same file, a function applied to each
element of a tuple, or unknown; an unknown call reads what it is given and may do anything.
"""

from __future__ import annotations

import ast
from abc import abstractmethod

from autofuse.ir.binding import bound_arguments, like_another
from autofuse.ir.facts import named_ranks
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, GLOBAL, IS_NONE, ITEM, PARAMETER, SYNTAX, TUPLE, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import MODULES, NAMES, OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.source.capture.capture_state import qualified
from autofuse.source.capture.captured import Chain
from autofuse.source.capture.inlining import Inlining
from autofuse.source.capture.loss_modules import LossModule, criterion_of
from autofuse.source.capture.mapped_elements import Elements
from autofuse.source.capture.modules import AppliedLayer, OwnLayer, child_called, constructor_of, layers_of
from autofuse.source.capture.writes import written_roots

_MUTATORS = frozenset(".append .extend .insert .add_ .update .setdefault .pop .clear .remove .sort .reverse".split())
_SEES_NAMES = frozenset({"locals", "vars", "eval", "exec", "globals", "dir"})
# products that take one number of dimensions only -> that number, and which arguments they multiply
_DIMENSIONS = {
    "bmm": (3, (0, 1)),
    "baddbmm": (3, (1, 2)),
    "mm": (2, (0, 1)),
}


class Calls(Inlining, Elements):
    """Reads `ast.Call`."""

    def call(self, node: ast.Call) -> Value:
        if _spreads_a_shape(node):
            return self.spread(node)
        if not _plain(node):
            return self.unknown_call(node, self.value(node.func), list(map(self.value, _parts(node))), ())
        if (mapped := self.elements(node, None)) is not None:
            return self.graph.value(TUPLE, *mapped)
        function = self.value(node.func)
        arguments = [self.value(a) for a in node.args]
        named = {str(k.arg): self.value(k.value) for k in node.keywords}
        known = self.known_call(node, function, arguments, named)
        return (
            known
            if known is not None
            else self.unknown_call(node, function, [*arguments, *named.values()], tuple(named))
        )

    def spread(self, node: ast.Call) -> Value:
        """`x.view(*x.shape[:-1], -1, 2)`; what is starred stays one argument."""
        function, arguments = self.value(node.func), list[Value]()
        for a in node.args:
            starred = isinstance(a, ast.Starred)
            value = self.value(a.value if isinstance(a, ast.Starred) else a)
            arguments.append(self.graph.value(SYNTAX, value, data="*") if starred else value)
        assert isinstance(node.func, ast.Attribute)
        known = function.inputs and qualified(function) is None and self.may_be_tensor(function.inputs[0])
        made = self.method(function.inputs[0], node.func.attr, arguments, {}) if known else None
        return self.unknown_call(node, function, arguments, ()) if made is None else made

    def known_call(
        self, node: ast.Call, function: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """What a call computes where that is known."""
        if not self.quiet:
            self.calling = node
        if function.op == CHOICE:
            return self.either(node, function, arguments, named)
        name = qualified(function) or (str(function.data) if function.op == GLOBAL and self.builtin(function) else None)
        called = self.as_written(node.func, function)
        if name is None and (alias := self.alias_of(called)):
            name = alias
        if name is not None:
            return self.operation(NAMES[name], name, arguments, named) if name in NAMES else None
        if isinstance(node.func, ast.Attribute) and self.may_be_tensor(
            function.inputs[0] if function.inputs else function
        ):
            if (found := self.method(function.inputs[0], node.func.attr, arguments, named)) is not None:
                return found
        if len(arguments) == 1 and not named and (layers := layers_of(self.scope, self.owner, self.me, called)):
            return self.apply(layers, node, function, arguments[0])
        constructor = constructor_of(self.scope, self.owner, self.me, node.func)
        if (criterion := criterion_of(self.scope, function, constructor)) is not None:
            return self.loss(criterion, function, arguments, named)
        made = None
        if (helper := self.helper(called)) is not None:
            made = self.inline(helper, function, arguments, named)
        elif (child := child_called(self.scope, self.owner, self.me, called)) is not None:
            made = self.enter_child(child, function, arguments, named)
        if made is not None:
            self.entered.add(id(node))
        return made

    def either(self, node: ast.Call, function: Value, arguments: list[Value], named: dict[str, Value]) -> Value | None:
        """What a call of one of two known functions computes: `softmax = torch.softmax if fast else stable_softmax`."""
        found = list[Value]()
        for side in function.inputs[1:]:
            written = ast.Name(str(side.data), ast.Load()) if side.op == GLOBAL else self.as_written(node.func, side)
            call = ast.copy_location(ast.Call(written, node.args, node.keywords), node)
            made = self.known_call(call, side, arguments, named)
            if made is None or made.op in OPS and OPS[made.op].effect == "random":
                return None
            found.append(made)
        self.entered.add(id(node))
        return self.choice(function.inputs[0], *found)

    def unknown_call(self, node: ast.Call, function: Value, inputs: list[Value], named: tuple[str, ...]) -> Value:
        name = qualified(function) or (f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else "")
        if function.op == GLOBAL:
            name = str(function.data) if self.builtin(function) else name
        data = (name or "a function", named)
        method = name.startswith(".")
        if (
            _plain(node)
            and (name in HARMLESS or name in MODULES)
            and (not method or self.may_be_tensor(function.inputs[0]))
        ):
            return self.graph.value(CALL, function, *inputs, data=data)
        if name in _SEES_NAMES:
            self.sink(because(matches.VALUE_SEEN, call=name), *(v for _, v in self.names.held()))
        if function in self.inner_functions:
            inputs = [*inputs, self.nested(self.inner_functions[function])]
        self.effect()
        made = self.graph.fresh(CALL, function, *inputs, data=data)
        if self.quiet and self.statement is not None and self.calling is not None:
            self.out.called_inside.setdefault(self.statement, []).append((self.calling, made))
        if name in _MUTATORS and function.inputs:
            self.write(function.inputs[0], made)
        elif self.may_write_self(node, function, inputs):
            self.forget(f"{name} may assign to self")
        return made

    @abstractmethod
    def choice(self, test: Value, yes: Value | None, no: Value | None) -> Value: ...

    # What is called.

    def as_written(self, node: ast.expr, function: Value) -> ast.expr:
        """`self.attend` for a name that holds it: `attend = self.attend`; what makes the module that a parameter is."""
        if function.op == PARAMETER and function.data in self.given:
            return self.given[str(function.data)]
        owner = function.inputs[0] if function.op == ATTRIBUTE else None
        if not isinstance(node, ast.Name) or owner is None or owner.op != PARAMETER or owner.data != self.me:
            return node
        return ast.Attribute(ast.Name(str(self.me), ast.Load()), str(function.data), ast.Load())

    def builtin(self, function: Value) -> bool:
        """Whether a name that the file does not import is Python's own."""
        return function.data not in self.scope.bound

    def alias_of(self, function: ast.expr) -> str | None:
        """`self.act` where `__init__` says `self.act = F.gelu`."""
        if not isinstance(function, ast.Attribute) or not self.is_self(function.value):
            return None
        assigned = self.scope.attribute(self.owner, function.attr)
        return None if assigned is None or isinstance(assigned, ast.Call) else self.scope.name_of(assigned)

    def may_be_tensor(self, owner: Value) -> bool:
        """Whether a method of `owner` may be a tensor's: not the module's, a child's, an import's or a class's own."""
        if owner.op == GLOBAL:
            return owner.data in self.scope.local
        if qualified(owner) is not None:
            return False
        if owner.op == CALL and isinstance(owner.data, tuple) and owner.data[0] == "super":
            return False
        if owner.op == PARAMETER or owner is self.instance:
            return owner is not self.instance
        if owner.op == ATTRIBUTE and owner.inputs[0] is self.instance:
            return not self.is_child(str(owner.data))
        return owner.op != CONST

    def is_child(self, name: str) -> bool:
        """Whether `self.name` is assigned a module: an instance of a class that is not a parameter."""
        assigned = self.scope.attribute(self.owner, name)
        if not isinstance(assigned, ast.Call):
            return False
        class_name = self.scope.name_of(assigned.func) or ast.unparse(assigned.func)
        last = class_name.rpartition(".")[2]
        return last[:1].isupper() and last not in ("Parameter", "Buffer") and not last.endswith("Tensor")

    def may_write_self(self, node: ast.Call, function: Value, inputs: list[Value]) -> bool:
        """Whether an unknown call may assign attributes that are read later."""
        if self.instance is not None and self.instance in inputs:
            return True
        if not isinstance(node.func, ast.Attribute) or not self.is_self(node.func.value):
            return isinstance(self.statement, ast.Expr) or self.may_write_globals(node.func)
        method = self.scope.method(self.owner, node.func.attr)
        return method is not None and any(method.name in c.writes for c in self.scope.lineage(self.owner))

    def may_write_globals(self, function: ast.expr) -> bool:
        """Whether a call may write what names of the file hold: one of a function that does, or of an unknown one."""
        if isinstance(function, ast.Name) and (called := self.scope.functions.get(function.id)) is not None:
            return bool(written_roots(called))
        return bool(self.scope.reassigned) and self.scope.name_of(function) is None

    # Operations.

    def operation(self, op: Op, name: str, arguments: list[Value], named: dict[str, Value]) -> Value | None:
        inputs = bound_arguments(self.graph, op, arguments, named)
        if inputs is None:
            return None
        op, inputs = like_another(self.graph, op, inputs)
        self.know_ranks(op, inputs)
        made = (self.graph.fresh if op.effect == "random" else self.graph.value)(op.name, *inputs)
        self.out.spelled.setdefault(made, set()).update({name, *(f"{name}({k}=)" for k in named)})
        rank, multiplied = _DIMENSIONS.get(name.removeprefix("torch").removeprefix("."), (0, ()))
        for v in (made, *(inputs[i] for i in multiplied)) if rank else ():
            self.has_rank(v, rank)
        return made

    def know_ranks(self, op: Op, inputs: list[Value]) -> None:
        """What the letters of an equation, or the axes of a pattern, say of the tensors it is given."""
        for v, rank in named_ranks(op.name, inputs):
            if v.op not in (TUPLE, CONST):
                self.has_rank(v, rank)

    def method(self, owner: Value, name: str, arguments: list[Value], named: dict[str, Value]) -> Value | None:
        if op := NAMES.get(f".{name}"):
            return self.operation(op, f".{name}", [owner, *arguments], named)
        if name.endswith("_") and not name.startswith("_") and (op := NAMES.get(f".{name[:-1]}")):
            result = self.operation(op, f".{name[:-1]}", [owner, *arguments], named)
            if result is not None:
                if (rank := self.facts.rank(owner)) is not None:  # a tensor written in place keeps its shape
                    self.know(result, rank=rank)
                self.write(owner, result)
            return result
        return None

    def apply(self, layers: list[AppliedLayer | OwnLayer], node: ast.Call, function: Value, x: Value) -> Value | None:
        """What a chain of layers computes of `x`, reading their parameters where the module keeps them."""
        steps, argument = list[tuple[tuple[int, ...], Value]](), x
        for layer in layers:
            module = function
            for part in layer.path:
                module = self.graph.value(ITEM, module, self.graph.const(part))
            if isinstance(layer, OwnLayer):
                made = self.enter_child(layer.child, module, [x], {})
            else:
                made = self.layer(layer, module, x)
            if made is None:
                return None
            if layer is not layers[-1] and made is not x:
                self.place(made, node, inlined=True, inner=True)
            x = made
            steps.append((layer.path, x))
        if isinstance(layers[-1], OwnLayer):
            self.entered.add(id(node))
        if len(steps) > 1 and not self.quiet:
            written = constructor_of(self.scope, self.owner, self.me, node.func)
            self.out.chains[node] = Chain(written or node, argument, tuple(steps))
        return x

    def layer(self, layer: AppliedLayer, module: Value, x: Value) -> Value | None:
        """What one layer, which is `module`, computes of `x`."""
        if layer.op == "identity":
            return x
        if layer.op == "activation":  # whichever it is when the module runs
            return self.operation(OPS["activation"], "activation", [x, module], {})
        named = {k: self.graph.const(v) for k, v in layer.fixed}
        for k in layer.read:
            named[k] = self.graph.read(ATTRIBUTE, module, data=k)
            if k in ("p", "eps"):
                self.know(named[k], number=True)
        if layer.optional:  # an Identity has no probability
            parts = (module, self.graph.const("p"), self.graph.const(0.0))
            named["p"] = self.graph.value(SYNTAX, *parts, data="getattr")
        if layer.may_be_none:  # None cannot be called: there is a probability where that was asked before
            missing = self.unknown("the probability of a dropout that may be None")
            named["p"] = self.choice(self.graph.value(IS_NONE, module), missing, named["p"])
        return self.operation(OPS[layer.op], layer.op, [x], named)

    def loss(
        self, criterion: LossModule, module: Value, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """What a loss of torch's computes of an output and a target."""
        given = {k: self.graph.const(v) for k, v in criterion.fixed.items()} | dict(criterion.given)
        given |= {k: self.graph.read(ATTRIBUTE, module, data=k) for k in criterion.read}
        return self.operation(OPS[criterion.op], criterion.op, arguments, given | named)


def _spreads_a_shape(node: ast.Call) -> bool:
    """Whether a call is `x.view(*shape)`, or the like, with nothing else that is unusual."""
    method = isinstance(node.func, ast.Attribute) and node.func.attr in ("view", "reshape")
    return method and not node.keywords and any(isinstance(a, ast.Starred) for a in node.args)


def _plain(node: ast.Call) -> bool:
    """Whether a call has no `*args` and no `**kwargs`."""
    return not any(isinstance(a, ast.Starred) for a in node.args) and all(k.arg for k in node.keywords)


def _parts(node: ast.Call) -> list[ast.expr]:
    return [a.value if isinstance(a, ast.Starred) else a for a in node.args] + [k.value for k in node.keywords]
