"""Equivalent spellings: operators, functions and methods with the same meaning, keywords, and the order of operands."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from tests.metamorphic.draft import Change, Draft, call, expression

_OPERATORS = {
    ast.Add: "add", ast.Mult: "mul", ast.Sub: "sub", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow",
}  # fmt: skip
_COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.Gt: "gt", ast.GtE: "ge", ast.LtE: "le"}
# Methods of tensors that are functions of torch, with the names of their arguments.
_BOTH = {
    "softmax": ("input", "dim"), "transpose": ("input", "dim0", "dim1"), "masked_fill": ("input", "mask", "value"),
    "matmul": ("input", "other"), "mul": ("input", "other"), "add": ("input", "other"), "div": ("input", "other"),
    "sub": ("input", "other"), "pow": ("input", "exponent"), "exp": ("input",), "rsqrt": ("input",), "sqrt": ("input",),
    "tanh": ("input",), "sigmoid": ("input",), "erf": ("input",), "square": ("input",), "unsqueeze": ("input", "dim"),
    "eq": ("input", "other"), "mean": ("input", "dim", "keepdim"), "sum": ("input", "dim", "keepdim"),
    "var": ("input", "dim"), "chunk": ("input", "chunks", "dim"), "split": ("tensor", "split_size_or_sections", "dim"),
    "tril": ("input", "diagonal"), "triu": ("input", "diagonal"), "reshape": ("input", "shape"),
    "permute": ("input", "dims"), "swapaxes": ("input", "axis0", "axis1"),
}  # fmt: skip
_FUNCTIONAL = {
    "torch.nn.functional.softmax": ("input", "dim"), "torch.nn.functional.dropout": ("input", "p", "training"),
    "torch.nn.functional.linear": ("input", "weight", "bias"), "torch.nn.functional.gelu": ("input",),
    "torch.nn.functional.silu": ("input",),
    "torch.nn.functional.layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "torch.nn.functional.rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "torch.where": ("condition", "input", "other"),
    **{f"torch.{n}": names for n, names in _BOTH.items() if n not in ("reshape", "permute")},
}  # fmt: skip


def swap_commuting_operands(draft: Draft) -> Iterator[Change]:
    """`a * b` is `b * a`."""
    for node in draft.expressions(ast.BinOp):
        sides = (node.left, node.right)
        known = all(draft.is_tensor(s) or draft.is_number(s) for s in sides)
        if known and isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):

            def change(node: ast.BinOp = node) -> None:
                node.left, node.right = node.right, node.left

            yield change


def regroup(draft: Draft) -> Iterator[Change]:
    """`(a * b) * c` is `a * (b * c)`."""
    for node in draft.expressions(ast.BinOp):
        inner = node.left
        if (
            isinstance(inner, ast.BinOp)
            and type(inner.op) is type(node.op)
            and isinstance(node.op, (ast.Mult, ast.MatMult))
        ):
            if all(draft.is_tensor(n) for n in (inner.left, inner.right, node.right)) or isinstance(node.op, ast.Mult):
                if isinstance(node.op, ast.MatMult):
                    continue
                new = ast.BinOp(inner.left, node.op, ast.BinOp(inner.right, node.op, node.right))
                yield lambda node=node, new=new: draft.replace(node, new)


def operator_as_method(draft: Draft) -> Iterator[Change]:
    """`a * b` is `a.mul(b)`."""
    for node, word, left, right in _binary_operations(draft):
        new = call(ast.Attribute(left, word, ast.Load()), right)
        yield lambda node=node, new=new: draft.replace(node, new)


def operator_as_function(draft: Draft) -> Iterator[Change]:
    """`a * b` is `torch.mul(a, b)`."""
    for node, word, left, right in _binary_operations(draft):

        def change(node: ast.expr = node, word: str = word, left: ast.expr = left, right: ast.expr = right) -> None:
            draft.replace(node, call(draft.of_name(f"torch.{word}"), left, right))

        yield change


def _binary_operations(draft: Draft) -> Iterator[tuple[ast.expr, str, ast.expr, ast.expr]]:
    for node in draft.expressions(ast.BinOp, ast.Compare):
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                word = _OPERATORS[type(op)]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                word = _COMPARISONS[type(op)]
            case _:
                continue
        if draft.is_tensor(left) and (draft.is_tensor(right) or draft.is_number(right)):
            yield node, word, left, right


def as_operator(draft: Draft) -> Iterator[Change]:
    """`torch.mul(a, b)` and `a.mul(b)` are `a * b`."""
    operators = {w: op for op, w in _OPERATORS.items()}
    for node in draft.expressions(ast.Call):
        found = _method_or_function(draft, node)
        if found is None or found[0] not in operators or len(found[1]) != 2 or node.keywords:
            continue
        new = ast.BinOp(found[1][0], operators[found[0]](), found[1][1])
        yield lambda node=node, new=new: draft.replace(node, new)


def method_as_function(draft: Draft) -> Iterator[Change]:
    """`x.softmax(-1)` is `torch.softmax(x, -1)`."""
    for node in draft.expressions(ast.Call):
        match node.func:
            case ast.Attribute(value=owner, attr=word) if word in _BOTH and draft.is_tensor(owner):
                pass
            case _:
                continue
        given = list(node.args)
        if word in ("reshape", "permute") and len(given) > 1:
            given = [ast.Tuple(given, ast.Load())]

        def change(
            node: ast.Call = node, word: str = word, owner: ast.expr = owner, given: list[ast.expr] = given
        ) -> None:
            function = draft.of_name(f"torch.{word}")
            draft.replace(node, ast.Call(function, [owner, *given], node.keywords))

        yield change


def function_as_method(draft: Draft) -> Iterator[Change]:
    """`torch.softmax(x, -1)` is `x.softmax(-1)`."""
    for node in draft.expressions(ast.Call):
        meaning = draft.qualified(node.func)
        word = meaning.rpartition(".")[2]
        tensor = node.args and draft.is_tensor(node.args[0])
        if tensor and word in _BOTH and meaning in (f"torch.{word}", f"torch.nn.functional.{word}"):
            new = ast.Call(ast.Attribute(node.args[0], word, ast.Load()), node.args[1:], node.keywords)
            yield lambda node=node, new=new: draft.replace(node, new)


def _method_or_function(draft: Draft, node: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """(mul, [a, b]) of `a.mul(b)` and of `torch.mul(a, b)`."""
    meaning = draft.qualified(node.func)
    word = meaning.rpartition(".")[2]
    if word in _BOTH and meaning == f"torch.{word}":
        return word, list(node.args)
    match node.func:
        case ast.Attribute(value=owner, attr=word) if word in _BOTH and draft.is_tensor(owner):
            return word, [owner, *node.args]
    return None


def pass_by_keyword(draft: Draft) -> Iterator[Change]:
    """`F.softmax(x, -1)` is `F.softmax(x, dim=-1)`."""
    for node, names in _with_parameters(draft):
        for count in range(len(node.args)):
            if len(node.args) <= len(names) and not any(isinstance(a, ast.Starred) for a in node.args):

                def change(node: ast.Call = node, names: tuple[str, ...] = names, count: int = count) -> None:
                    named = zip(names[count:], node.args[count:], strict=False)
                    node.keywords = [*(ast.keyword(n, a) for n, a in named), *node.keywords]
                    node.args = node.args[:count]

                yield change


def pass_by_position(draft: Draft) -> Iterator[Change]:
    """`F.softmax(x, dim=-1)` is `F.softmax(x, -1)`."""
    for node, names in _with_parameters(draft):
        left = names[len(node.args) :]
        if node.keywords and left and node.keywords[0].arg == left[0]:

            def change(node: ast.Call = node) -> None:
                node.args.append(node.keywords.pop(0).value)

            yield change


def _with_parameters(draft: Draft) -> Iterator[tuple[ast.Call, tuple[str, ...]]]:
    helpers = {n.name: n for n in draft.tree.body if isinstance(n, ast.FunctionDef)}
    for node in draft.expressions(ast.Call):
        meaning = draft.qualified(node.func)
        if meaning in _FUNCTIONAL:
            yield node, _FUNCTIONAL[meaning]
        elif isinstance(node.func, ast.Name) and node.func.id in helpers:
            yield node, tuple(a.arg for a in helpers[node.func.id].args.args)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _BOTH and draft.is_tensor(node.func.value):
            if node.func.attr not in ("reshape", "permute"):
                yield node, _BOTH[node.func.attr][1:]


def reorder_keywords(draft: Draft) -> Iterator[Change]:
    """`f(x, a=1, b=2)` is `f(x, b=2, a=1)`."""
    for node in draft.expressions(ast.Call):
        if len(node.keywords) > 1 and all(k.arg for k in node.keywords):
            yield lambda node=node: node.keywords.reverse()


def another_softmax(draft: Draft) -> Iterator[Change]:
    """`F.softmax` is `torch.softmax`, and the other way round."""
    other = {
        "torch.softmax": "torch.nn.functional.softmax", "torch.nn.functional.softmax": "torch.softmax",
        "torch.sigmoid": "torch.nn.functional.sigmoid", "torch.tanh": "torch.nn.functional.tanh",
        "torch.bmm": "torch.matmul", "torch.erf": "torch.special.erf",
    }  # fmt: skip
    for node in draft.expressions(ast.Call):
        if new := other.get(draft.qualified(node.func)):
            yield lambda node=node, new=new: draft.replace(node.func, draft.of_name(new))


def another_transpose(draft: Draft) -> Iterator[Change]:
    """`k.transpose(-2, -1)` is `k.mT`, `k.swapaxes(-1, -2)`, or a permutation of its four dimensions."""
    for node in draft.expressions(ast.Call, ast.Attribute):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="transpose"), args=[a, b], keywords=[]):
                dims = tuple(_integer(d) for d in (a, b))
            case ast.Attribute(value=owner, attr="mT"):
                dims = (-2, -1)
            case _:
                continue
        rank = draft.rank(owner)
        if rank is None or None in dims:
            continue
        spelled = [f"x.transpose({dims[1]}, {dims[0]})", f"x.swapaxes({dims[0]}, {dims[1]})"]
        if {d % rank for d in dims if d is not None} == {rank - 2, rank - 1}:
            spelled += ["x.mT", "x.transpose(-1, -2)", "x.swapdims(-2, -1)"]
        order = list(range(rank))
        a_, b_ = (d % rank for d in dims if d is not None)
        order[a_], order[b_] = order[b_], order[a_]
        spelled.append(f"x.permute({', '.join(map(str, order))})")
        for text in spelled:

            def change(node: ast.expr = node, owner: ast.expr = owner, text: str = text) -> None:
                new = expression(text)
                part = new.func if isinstance(new, ast.Call) else new
                assert isinstance(part, ast.Attribute)
                part.value = owner
                draft.replace(node, new)

            yield change


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def another_fill(draft: Draft) -> Iterator[Change]:
    """`s.masked_fill(m, v)` is `torch.where(m, v, s)`."""
    for node in draft.expressions(ast.Call):
        match node:
            case ast.Call(func=ast.Attribute(value=scores, attr="masked_fill"), args=[mask, value], keywords=[]):
                if draft.is_tensor(mask) and not draft.is_tensor(value) and draft.shape(node) == draft.shape(scores):

                    def change(
                        node: ast.Call = node, s: ast.expr = scores, m: ast.expr = mask, v: ast.expr = value
                    ) -> None:
                        draft.replace(node, call(draft.of_name("torch.where"), m, v, s))

                    yield change


def another_minus_infinity(draft: Draft) -> Iterator[Change]:
    """`float("-inf")` is `-float("inf")` or `-math.inf`."""
    for node in draft.expressions(ast.Call):
        if ast.unparse(node) == "float('-inf')":
            yield lambda node=node: draft.replace(node, expression("-float('inf')"))

            def change(node: ast.Call = node) -> None:
                draft.replace(node, ast.UnaryOp(ast.USub(), draft.of_name("math.inf")))

            yield change


def another_comparison(draft: Draft) -> Iterator[Change]:
    """`m == 0` is `m.eq(0)`, `0 == m` or `~m.bool()`."""
    for node in draft.expressions(ast.Compare):
        match node:
            case ast.Compare(left=mask, ops=[ast.Eq()], comparators=[ast.Constant(value=0) as zero]) if draft.is_tensor(
                mask
            ):
                yield lambda node=node, m=mask, z=zero: draft.replace(node, ast.Compare(z, [ast.Eq()], [m]))
                new = ast.UnaryOp(ast.Invert(), call(ast.Attribute(mask, "bool", ast.Load())))
                yield lambda node=node, new=new: draft.replace(node, new)
                turned = call(ast.Attribute(mask, "logical_not", ast.Load()))
                yield lambda node=node, new=turned: draft.replace(node, new)


def another_size(draft: Draft) -> Iterator[Change]:
    """`x.size(-1)` is `x.shape[-1]`, and the other way round."""
    for node in draft.expressions(ast.Call, ast.Subscript):
        match node:
            case ast.Call(func=ast.Attribute(value=x, attr="size"), args=[index], keywords=[]):
                new: ast.expr = ast.Subscript(ast.Attribute(x, "shape", ast.Load()), index, ast.Load())
            case ast.Subscript(
                value=ast.Attribute(value=x, attr="shape"), slice=ast.Constant() | ast.UnaryOp() as index
            ):
                new = call(ast.Attribute(x, "size", ast.Load()), index)
            case _:
                continue
        yield lambda node=node, new=new: draft.replace(node, new)


def another_power(draft: Draft) -> Iterator[Change]:
    """`math.sqrt(d)` is `d ** 0.5`; `x.pow(2)` is `x * x`, `x ** 2` or `x.square()`."""
    for node in draft.expressions(ast.Call, ast.BinOp):
        match node:
            case ast.Call(args=[x], keywords=[]) if draft.qualified(node.func) == "math.sqrt":
                new = ast.BinOp(x, ast.Pow(), ast.Constant(0.5))
                yield lambda node=node, new=new: draft.replace(node, new)
            case (
                ast.Call(func=ast.Attribute(value=x, attr="pow"), args=[ast.Constant(value=2)])
                | ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(value=2))
            ) if draft.is_tensor(x):
                product = ast.BinOp(x, ast.Mult(), copy.deepcopy(x))
                squares = [
                    product,
                    call(ast.Attribute(x, "square", ast.Load())),
                    ast.BinOp(x, ast.Pow(), ast.Constant(2)),
                ]
                for new in squares if isinstance(x, ast.Name) else squares[1:]:
                    yield lambda node=node, new=new: draft.replace(node, new)


def another_division(draft: Draft) -> Iterator[Change]:
    """`x / n` is `x * (1 / n)` for a number n."""
    for node in draft.expressions(ast.BinOp):
        if isinstance(node.op, ast.Div) and draft.is_tensor(node.left) and draft.is_number(node.right):
            inverse = ast.BinOp(ast.Constant(1.0), ast.Div(), node.right)
            products = ast.BinOp(node.left, ast.Mult(), inverse), ast.BinOp(inverse, ast.Mult(), node.left)
            for new in products:
                yield lambda node=node, new=new: draft.replace(node, new)


def scale_earlier(draft: Draft) -> Iterator[Change]:
    """`(q @ k) / s` is `(q / s) @ k`."""
    for node in draft.expressions(ast.BinOp):
        product = node.left
        if not isinstance(node.op, (ast.Div, ast.Mult)) or not draft.is_number(node.right):
            continue
        if isinstance(product, ast.BinOp) and isinstance(product.op, ast.MatMult):
            left = ast.BinOp(ast.BinOp(product.left, node.op, node.right), ast.MatMult(), product.right)
            yield lambda node=node, new=left: draft.replace(node, new)
            right = ast.BinOp(product.left, ast.MatMult(), ast.BinOp(product.right, node.op, node.right))
            yield lambda node=node, new=right: draft.replace(node, new)


def product_as_einsum(draft: Draft) -> Iterator[Change]:
    """`a @ b` is `torch.einsum("...qd,...dk->...qk", a, b)`."""
    for node in draft.expressions(ast.BinOp):
        if isinstance(node.op, ast.MatMult) and (rank := draft.rank(node.left)) and rank == draft.rank(node.right):
            for lead in ("...", "bhxy"[: rank - 2]) if 2 < rank <= 6 else ("...",):
                pattern = ast.Constant(f"{lead}qd,{lead}dk->{lead}qk")

                def change(node: ast.BinOp = node, pattern: ast.Constant = pattern) -> None:
                    draft.replace(node, call(draft.of_name("torch.einsum"), pattern, node.left, node.right))

                if rank - 2 <= 4:
                    yield change


def make_contiguous(draft: Draft) -> Iterator[Change]:
    """`x.contiguous()`, where it changes nothing."""
    for node in draft.expressions(ast.Name, ast.Call, ast.BinOp, ast.Attribute):
        if draft.is_tensor(node):
            new = call(ast.Attribute(node, "contiguous", ast.Load()))
            yield lambda node=node, new=new: draft.replace(node, new)


ALL = (
    swap_commuting_operands, regroup, operator_as_method, operator_as_function, as_operator, method_as_function,
    function_as_method, pass_by_keyword, pass_by_position, reorder_keywords, another_softmax, another_transpose,
    another_fill, another_minus_infinity, another_comparison, another_size, another_power, another_division,
    scale_earlier, product_as_einsum, make_contiguous,
)  # fmt: skip
