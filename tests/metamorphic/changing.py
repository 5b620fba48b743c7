"""Mutations: each changes the meaning of a program in a way that a rewrite may overlook.

A mutated program may still be fused, partly or completely, but its results must stay the same. Mutations in ESCAPES
expose an intermediate value.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from tests.metamorphic.draft import Change, Draft, Function, call, expression, name, statement

_SIMPLE = (ast.Assign, ast.Return, ast.Expr, ast.AugAssign)


def _floating_variables(draft: Draft) -> Iterator[tuple[Function, list[ast.stmt], int, str]]:
    """A place after which a local variable holds a floating tensor: (function, block, index, variable)."""
    for function, block, i in draft.statements():
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if draft.is_floating(value):
                yield function, block, i, target


def _parts(draft: Draft) -> Iterator[tuple[Function, list[ast.stmt], int, ast.expr]]:
    """Floating tensors inside simple statements."""
    for function, block, i in draft.statements():
        if isinstance(block[i], _SIMPLE):
            for part in draft.unconditional(block[i]):
                if isinstance(part, (ast.Call, ast.BinOp, ast.Name, ast.Attribute)) and draft.is_floating(part):
                    yield function, block, i, part


# Uses of intermediate values.


def use_it_afterwards(draft: Draft) -> Iterator[Change]:
    """Return, store, append, print or hook an intermediate value, or make it part of the result."""
    for function, block, i, target in _floating_variables(draft):
        result = next((s for s in block[i + 1 :] if isinstance(s, ast.Return) and s.value is not None), None)
        if result is not None:
            yield lambda r=result, t=target: setattr(r, "value", ast.Tuple([r.value, name(t)], ast.Load()))
            yield lambda r=result, t=target: setattr(
                r, "value", ast.Dict([ast.Constant("a"), ast.Constant("b")], [r.value, name(t)])
            )
            yield lambda r=result, t=target: setattr(
                r, "value", ast.BinOp(r.value, ast.Add(), expression(f"{t}.sum()"))
            )
            yield lambda r=result, t=target: setattr(
                r, "value", ast.Tuple([r.value, expression(f"{t}.shape")], ast.Load())
            )
            yield lambda r=result, t=target: setattr(
                r, "value", ast.Tuple([r.value, expression(f"{t}.detach()")], ast.Load())
            )
            yield lambda r=result, t=target: setattr(
                r, "value", ast.Tuple([r.value, expression(f"{t}[..., 0]")], ast.Load())
            )
            yield lambda r=result, t=target: setattr(
                r, "value", ast.Tuple([r.value, expression(f"locals()['{t}']")], ast.Load())
            )
        texts = [
            f"SEEN.append({target})", f"SEEN.append({target}.mean())", f"SEEN.extend([{target}.detach()])",
            f"print(f'{{float({target}.detach().double().sum()):.3f}}')", f"{target}.register_hook(lambda g: g * 2)",
            f"SEEN.append({target}.requires_grad)", f"SEEN += [{target} * 1]", f"SEEN[:] = [{target}]",
            f"if {target}.detach().max() > 0.5:\n    SEEN.append(1)", f"SEEN.append((lambda: {target})())",
            f"later = lambda: {target}\nSEEN.append(later)\nSEEN.append(SEEN.pop()())",
            f"def later():\n    return {target}\nSEEN.append(later())",
            f"{target}.retain_grad()\nSEEN.append({target})",
        ]  # fmt: skip
        if function.args.args[:1] and function.args.args[0].arg == "self":
            texts += [
                f"self.last = {target}",
                f"self.last = {target}.detach()",
                f"self.seen = [{target}]",
                f"setattr(self, 'last', {target})",
                f"self.__dict__['last'] = {target}",
            ]
        for text in texts:
            yield lambda block=block, i=i, text=text: block.__setitem__(slice(i + 1, i + 1), ast.parse(text).body)


# Memory.


def write_in_place(draft: Draft) -> Iterator[Change]:
    """Write to a tensor before, between or after."""
    for function, block, i in draft.statements():
        known = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and draft.is_floating(n)}
        bound = {a.arg for a in function.args.args} | {
            t.id for s in block[:i] if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)
        }
        for n in sorted(known & bound):
            for text in (
                f"{n}.mul_(2.0)", f"{n} *= 1.5", f"{n} += 0.25", f"{n}[..., 0] = 0.5", f"{n}.add_(0.5)", f"{n}.zero_()",
                f"{n}.data.mul_(2.0)", f"{n}[..., :1].mul_(3.0)", f"{n}.transpose(-1, -2).mul_(1.5)",
                f"torch.mul({n}, 2.0, out={n})",
                f"view = {n}.view_as({n})\nview.mul_(2.0)", f"[{n}][0].mul_(2.0)", f"{n}.copy_({n} * 2)",
                f"{n}.relu_()",
                f"def change(t):\n    t.mul_(2.0)\nchange({n})", f"for part in {n}:\n    part.mul_(0.5)",
                f"{n} = {n} * 2",
                f"{n}.requires_grad_().detach().mul_(2.0)", f"{n}.detach().mul_(2.0)", f"F.relu({n}, inplace=True)",
            ):  # fmt: skip
                if (
                    text.startswith("torch.")
                    and "torch" not in draft.imports
                    or "F." in text
                    and "F" not in draft.imports
                ):
                    continue
                yield lambda block=block, i=i, text=text: block.__setitem__(slice(i, i), ast.parse(text).body)


def write_a_mask(draft: Draft) -> Iterator[Change]:
    """Write to a mask, or to another tensor that is not an activation, before, between or after."""
    for function, block, i in draft.statements():
        arguments = {a.arg for a in function.args.args}
        known = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and draft.is_tensor(n)}
        for n in sorted(known & arguments):
            for text in (
                f"{n}.zero_()",
                f"{n}[..., 0] = 1",
                f"{n}.fill_(1)",
                f"{n} = {n}.flip(-1)",
                f"{n} = {n}.clone()",
            ):
                yield lambda block=block, i=i, text=text: block.__setitem__(slice(i, i), ast.parse(text).body)


def write_an_attribute(draft: Draft) -> Iterator[Change]:
    """Assign to `self.scale` in between, or call a method that does."""
    for function, block, i in draft.statements():
        if not function.args.args[:1] or function.args.args[0].arg != "self":
            continue
        stored = {n.attr for n in draft.expressions(ast.Attribute) if ast.unparse(n.value) == "self"}
        for attribute in sorted(stored):
            numbers = [n for n in draft.expressions(ast.Attribute) if n.attr == attribute and draft.is_number(n)]
            texts = [f"if not hasattr(self, 'once'):\n    self.{attribute} = self.{attribute} * 1.5\nself.once = 1"]
            texts += [f"self.{attribute}.train(not self.training)"] if not numbers else []
            for text in texts:
                yield lambda block=block, i=i, text=text: block.__setitem__(slice(i, i), ast.parse(text).body)


def cut_the_gradient(draft: Draft) -> Iterator[Change]:
    """Detach a part, or compute it under no_grad."""
    for _, _, _, part in _parts(draft):
        yield lambda part=part: draft.replace(part, call(ast.Attribute(part, "detach", ast.Load())))
        yield lambda part=part: draft.replace(part, ast.Attribute(part, "data", ast.Load()))
    for _, block, i in draft.statements():
        for manager in ("torch.no_grad", "torch.enable_grad", "torch.inference_mode"):
            if isinstance(block[i], _SIMPLE):

                def change(block: list[ast.stmt] = block, i: int = i, manager: str = manager) -> None:
                    block[i] = ast.With([ast.withitem(call(draft.of_name(manager)))], [block[i]], lineno=0)

                yield change
    for function in draft.functions():
        yield lambda f=function: f.decorator_list.append(call(draft.of_name("torch.no_grad")))


# Arithmetic.


def change_a_constant(draft: Draft) -> Iterator[Change]:
    """Change a number, a dimension or a flag."""
    for node in draft.expressions(ast.Constant):
        others: list[object] = []
        if isinstance(node.value, bool):
            others = [not node.value]
        elif isinstance(node.value, int):
            others = [node.value + 1, node.value - 1, -node.value, 0]
        elif isinstance(node.value, float):
            others = [node.value * 2, -node.value, node.value + 1, node.value / 1000]
        elif node.value == "-inf":
            others = ["-1", "-100", "0", "inf"]
        for other in others:
            yield lambda node=node, other=other: setattr(node, "value", other)


def change_an_operator(draft: Draft) -> Iterator[Change]:
    """Change an operator: `*` to `+`, `+` to `-`, `==` to `!=`."""
    others = {
        ast.Mult: (ast.Add, ast.Div), ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add,), ast.Div: (ast.Mult, ast.Sub),
        ast.Eq: (ast.NotEq, ast.Gt), ast.NotEq: (ast.Eq,), ast.Gt: (ast.Lt, ast.GtE), ast.Lt: (ast.Gt,),
        ast.BitAnd: (ast.BitOr,),
        ast.BitOr: (ast.BitAnd,), ast.Pow: (ast.Mult,),
    }  # fmt: skip
    for node in draft.expressions(ast.BinOp):
        for other in others.get(type(node.op), ()):
            yield lambda node=node, other=other: setattr(node, "op", other())
    for node in draft.expressions(ast.Compare):
        for other in others.get(type(node.ops[0]), ()):
            yield lambda node=node, other=other: setattr(node, "ops", [other()])
    for node in draft.expressions(ast.UnaryOp):
        if isinstance(node.op, (ast.Invert, ast.USub)):
            yield lambda node=node: draft.replace(node, node.operand)
    methods = {
        "softmax": ("log_softmax",), "sigmoid": ("tanh",), "tanh": ("sigmoid",), "triu": ("tril",),
        "tril": ("triu",), "rsqrt": ("sqrt",),
        "mean": ("sum",), "silu": ("relu",), "gelu": ("silu",), "masked_fill": ("masked_fill_",), "relu": ("relu6",),
        "amax": ("amin",), "sum": ("mean",), "view": ("reshape",), "softplus": ("elu",),
        "dropout": ("alpha_dropout",), "exp": ("exp2",),
    }  # fmt: skip
    for node in draft.expressions(ast.Attribute):
        for new in methods.get(node.attr, ()):
            yield lambda node=node, new=new: setattr(node, "attr", new)


def swap_operands(draft: Draft) -> Iterator[Change]:
    """Swap operands: `a - b` becomes `b - a`, or two arguments of a call are swapped."""
    for node in draft.expressions(ast.BinOp):
        if not isinstance(node.op, (ast.Add, ast.Mult)):

            def change(node: ast.BinOp = node) -> None:
                node.left, node.right = node.right, node.left

            yield change
    for node in draft.expressions(ast.Call):
        if len(node.args) > 1:
            yield lambda node=node: node.args.reverse()
    for node in draft.expressions(ast.Tuple):
        yield lambda node=node: node.elts.reverse()


def use_another_variable(draft: Draft) -> Iterator[Change]:
    """Replace a variable by another one of the same shape."""
    names = [n for n in draft.expressions(ast.Name) if draft.is_tensor(n)]
    for node in names:
        for other in dict.fromkeys(n.id for n in names if draft.shape(n) == draft.shape(node) and n.id != node.id):
            yield lambda node=node, other=other: setattr(node, "id", other)


def add_an_operation(draft: Draft) -> Iterator[Change]:
    """Apply another operation to a part."""
    for _, _, _, part in _parts(draft):
        for text in (
            "x.relu()", "x * 2", "x + 1", "x.abs()", "-x", "x.flip(-1)", "x.float()", "x.clone()", "x.softmax(-1)",
            "x.roll(1, 0)",
            "x.to(torch.bfloat16)", "x ** 2", "x.mT", "x.transpose(0, 1)", "x.flip(0)", "x.clamp(min=0)",
            "x.float().double()", "x.cumsum(-1)",
            "x - x.mean(-1, keepdim=True)", "x.exp()", "x.expand_as(x)", "x.masked_fill(x > 1, 0.0)",
            "x.nan_to_num()", "x.unsqueeze(0)",
        ):  # fmt: skip
            if "torch" in text and "torch" not in draft.imports:
                continue

            def change(part: ast.expr = part, text: str = text) -> None:
                made = expression(text)
                draft.replace(part, made)
                for n in [n for n in ast.walk(made) if isinstance(n, ast.Name) and n.id == "x"]:
                    wrapped = ast.Expression(made)
                    if n is made:
                        continue
                    _put(wrapped, n, copy.deepcopy(part))

            yield change


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if value is old:
                setattr(node, field, new)
            elif isinstance(value, list) and any(v is old for v in value):
                value[[v is old for v in value].index(True)] = new


def drop_an_operation(draft: Draft) -> Iterator[Change]:
    """Remove a step."""
    for node in draft.expressions(ast.Call):
        match node.func:
            case ast.Attribute(value=owner) if draft.is_tensor(owner):
                yield lambda node=node, owner=owner: draft.replace(node, owner)
            case _ if node.args and draft.is_tensor(node.args[0]):
                yield lambda node=node: draft.replace(node, node.args[0])
    for node in draft.expressions(ast.BinOp):
        for side in (node.left, node.right):
            if draft.is_tensor(side):
                yield lambda node=node, side=side: draft.replace(node, side)
    for _, block, i in draft.statements():
        if len(block) > 1 and not isinstance(block[i], ast.Return):
            yield lambda block=block, i=i: block.pop(i)


# Control.


def do_it_twice(draft: Draft) -> Iterator[Change]:
    """Run a statement twice, in a loop, or conditionally."""
    for function, block, i in draft.statements():
        s = block[i]
        if not isinstance(s, (*_SIMPLE, ast.If)) or isinstance(s, ast.Return):
            continue
        yield lambda block=block, i=i: block.insert(i, copy.deepcopy(block[i]))
        for text in (
            "for _ in range(2):\n    pass", "if TEST:\n    pass", "try:\n    pass\nfinally:\n    pass",
            "while True:\n    pass\n    break",
            "if self.training:\n    pass", "if not self.training:\n    pass",
        ):  # fmt: skip
            if "self" in text and not (function.args.args[:1] and function.args.args[0].arg == "self"):
                continue

            def change(
                function: Function = function, block: list[ast.stmt] = block, i: int = i, text: str = text
            ) -> None:
                given = [a.arg for a in function.args.args if a.arg != "self"]
                outer = statement(text.replace("TEST", f"{given[0]}.shape[0] > 2" if given else "len(SEEN)"))
                outer.body[0] = block[i]  # type: ignore[attr-defined]
                block[i] = outer

            yield change


def swap_statements(draft: Draft) -> Iterator[Change]:
    """Swap two statements."""
    for _, block, i in draft.statements():
        if i + 1 < len(block) and all(
            isinstance(s, _SIMPLE) and not isinstance(s, ast.Return) for s in block[i : i + 2]
        ):

            def change(block: list[ast.stmt] = block, i: int = i) -> None:
                block[i], block[i + 1] = block[i + 1], block[i]

            yield change


def leave_in_the_middle(draft: Draft) -> Iterator[Change]:
    """Return an intermediate value if the input is large."""
    for function, block, i, target in _floating_variables(draft):
        given = [a.arg for a in function.args.args if a.arg != "self"]
        for limit in (100, 1):
            if given and block is function.body:
                text = f"if {given[0]}.shape[0] > {limit}:\n    return {target}"
                yield lambda block=block, i=i, text=text: block.insert(i + 1, statement(text))


# Names.


def shadow_a_name(draft: Draft) -> Iterator[Change]:
    """Define `torch`, `F`, or a function of theirs in the file."""
    functions = {n.attr for n in draft.expressions(ast.Attribute) if draft.qualified(n).startswith("torch")}
    last = max(i for i, n in enumerate(draft.tree.body) if isinstance(n, (ast.Import, ast.ImportFrom)))
    for own, meaning in draft.imports.items():
        if not meaning.startswith(("torch", "math")):
            continue
        for function in sorted(functions | {"sqrt"}):
            text = (
                f"class Own:\n    def __getattr__(self, name, real={own}):\n        found = getattr(real, name)\n"
                f"        return (lambda *a, **k: found(*a, **k) * 2) if name == '{function}' else found\n{own} = Own()"
            )
            yield lambda text=text: draft.tree.body.__setitem__(slice(last + 1, last + 1), ast.parse(text).body)
        double = f"def doubled(real):\n    return lambda *a, **k: real(*a, **k) * 2\n{own} = doubled({own})"
        if meaning.count(".") > 1 and meaning != "torch.nn.functional":
            yield lambda text=double: draft.tree.body.__setitem__(slice(last + 1, last + 1), ast.parse(text).body)
    for function in draft.functions():
        for node in [n for s in function.body for n in ast.walk(s) if isinstance(n, ast.Attribute)]:
            meaning = draft.qualified(node)
            if (
                meaning.startswith("torch.")
                and isinstance(node.value, ast.Name)
                and any(node in ast.walk(c.func) for c in ast.walk(function) if isinstance(c, ast.Call))
            ):

                def change(function: Function = function, node: ast.Attribute = node) -> None:
                    new = draft.fresh(node.attr)
                    made = statement(f"def {new}(*a, **k):\n    return {ast.unparse(node)}(*a, **k) * 2")
                    draft.replace(node, name(new))
                    function.body.insert(0, made)

                yield change


def replace_a_layer(draft: Draft) -> Iterator[Change]:
    """Replace a layer after `__init__`, or give it additional behaviour."""
    constructors = [n for n in ast.walk(draft.tree) if isinstance(n, Function) and n.name == "__init__"]
    for constructor in constructors:
        layers = [
            s.targets[0].attr for s in constructor.body
            if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Attribute) and isinstance(s.value, ast.Call)
            and draft.qualified(s.value.func).startswith("torch.nn.") and "Parameter" not in ast.unparse(s.value)
        ]  # fmt: skip
        for layer in layers:
            for text in (
                f"self.{layer}.register_forward_hook(lambda m, a, o: o * 2)",
                f"self.{layer} = nn.Sequential(self.{layer}, nn.Tanh())",
                f"self.{layer}.forward = lambda x: x * 2", f"setattr(self, '{layer}', nn.Tanh())",
                f"self.{layer} = type('Own', (type(self.{layer}),), dict(forward=lambda s, x: x + 1))(*ARGS)",
                f"self.{layer}.register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
                f"self.{layer} = nn.utils.parametrizations.weight_norm(self.{layer})",
            ):  # fmt: skip
                if "ARGS" in text or "nn" in text and "nn" not in draft.imports:
                    continue
                yield lambda c=constructor, text=text: c.body.append(statement(text))


ALL = (
    use_it_afterwards, use_it_afterwards, write_in_place, write_in_place, write_a_mask, write_an_attribute,
    cut_the_gradient, change_a_constant,
    change_an_operator, swap_operands, use_another_variable, add_an_operation, add_an_operation, drop_an_operation,
    do_it_twice,
    swap_statements, leave_in_the_middle, shadow_a_name, replace_a_layer,
)  # fmt: skip
