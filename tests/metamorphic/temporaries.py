"""Equivalent temporaries: names for parts of expressions, and expressions instead of names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.metamorphic.draft import Change, Draft, Scope, assignment, binds, name, reads, writes

_SIMPLE = (ast.Assign, ast.Return, ast.Expr, ast.AnnAssign)


def name_a_part(draft: Draft) -> Iterator[Change]:
    """`return f(g(x))` is `y = g(x)` and `return f(y)`."""
    for block, i, part in _parts(draft):
        new = draft.fresh()

        def change(block: list[ast.stmt] = block, i: int = i, part: ast.expr = part, new: str = new) -> None:
            draft.replace(part, name(new))
            block.insert(i, assignment(new, part))

        yield change


def name_a_part_with_its_type(draft: Draft) -> Iterator[Change]:
    """`y: torch.Tensor = g(x)`."""
    for block, i, part in _parts(draft):
        if not draft.is_tensor(part):
            continue
        new = draft.fresh()

        def change(block: list[ast.stmt] = block, i: int = i, part: ast.expr = part, new: str = new) -> None:
            draft.replace(part, name(new))
            annotated = ast.AnnAssign(ast.Name(new, ast.Store()), ast.Constant("Tensor"), part, simple=1)
            block.insert(i, annotated)

        yield change


def name_a_part_in_passing(draft: Draft) -> Iterator[Change]:
    """`f((y := g(x)))`."""
    for _, _, part in _parts(draft):
        new = draft.fresh()
        yield lambda part=part, new=new: draft.replace(part, ast.NamedExpr(ast.Name(new, ast.Store()), part))


def name_two_parts_at_once(draft: Draft) -> Iterator[Change]:
    """`a, b = f(x), g(x)`, where `return f(x) @ g(x)` was."""
    for _, block, i in draft.statements():
        if not isinstance(block[i], _SIMPLE) or writes(block[i]):
            continue
        for part in draft.unconditional(block[i]):
            if isinstance(part, ast.BinOp) and all(
                isinstance(p, (ast.Call, ast.BinOp)) for p in (part.left, part.right)
            ):

                def change(block: list[ast.stmt] = block, i: int = i, part: ast.BinOp = part) -> None:
                    first = draft.fresh()
                    second = f"{first}_2"
                    targets = ast.Tuple([ast.Name(n, ast.Store()) for n in (first, second)], ast.Store())
                    made = ast.Assign([targets], ast.Tuple([part.left, part.right], ast.Load()), lineno=0)
                    part.left, part.right = name(first), name(second)
                    block.insert(i, made)

                yield change


def _parts(draft: Draft) -> Iterator[tuple[list[ast.stmt], int, ast.expr]]:
    """Yield parts of simple statements that can be computed before the statement."""
    for _, block, i in draft.statements():
        s = block[i]
        if not isinstance(s, (*_SIMPLE, ast.If)) or writes(s.test if isinstance(s, ast.If) else s):
            continue
        for part in draft.unconditional(s):
            values = not any(map(callable, draft.observed.get(part, ())))
            if values and draft.kind(part) and isinstance(part, (ast.Call, ast.BinOp, ast.Attribute, ast.Compare)):
                yield block, i, part


def inline_a_name(draft: Draft) -> Iterator[Change]:
    """`y = g(x)` and `f(y)` are `f(g(x))`."""
    for function, block, i in draft.statements():
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                pass
            case _:
                continue
        uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target]
        if len(uses) != 2 or len(block) <= i + 1 or writes(value):
            continue
        later = [j for j in range(i + 1, len(block)) if any(u in ast.walk(block[j]) for u in uses)]
        if len(later) != 1 or hasattr(block[later[0]], "body"):
            continue
        between = block[i + 1 : later[0] + 1]
        if any(writes(s) for s in between) or any(binds(s) & reads(value) for s in between[:-1]):
            continue
        use = next(u for u in uses if isinstance(u.ctx, ast.Load))
        if use in draft.unconditional(block[later[0]]):

            def change(block: list[ast.stmt] = block, i: int = i, use: ast.Name = use, value: ast.expr = value) -> None:
                draft.replace(use, value)
                del block[i]

            yield change


def reuse_a_name(draft: Draft) -> Iterator[Change]:
    """Reuse a name: `y = f(x)` becomes `x = f(x)` if x is not used later."""
    for function, block, i in draft.statements():
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=new)], value=value) if block is function.body:
                pass
            case _:
                continue
        after = set[str]().union(*map(reads, block[i + 1 :]), *map(binds, block[i + 1 :]))
        if _has_closure(function) or any(new in binds(s) | reads(s) for s in block[:i]) or new in reads(value):
            continue
        for old in sorted(reads(value) - after - set(draft.imports) - {"self"}):
            local = old in binds(function) | {a.arg for a in function.args.args}

            def change(
                block: list[ast.stmt] = block, i: int = i, old: str = old, new: str = new, t: ast.stmt = block[i]
            ) -> None:
                assert isinstance(t, ast.Assign)
                t.targets = [ast.Name(old, ast.Store())]
                for n in (n for s in block[i + 1 :] for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == new):
                    n.id = old

            if local:
                yield change


def split_a_name(draft: Draft) -> Iterator[Change]:
    """Split a name: `x = f(x)` becomes `y = f(x)`, and later uses change too."""
    for function, block, i in draft.statements():
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=old)]) if block is function.body and not _has_closure(function):
                pass
            case _:
                continue
        new = draft.fresh()

        def change(
            block: list[ast.stmt] = block, i: int = i, old: str = old, new: str = new, t: ast.stmt = block[i]
        ) -> None:
            assert isinstance(t, ast.Assign)
            t.targets = [ast.Name(new, ast.Store())]
            for n in (n for s in block[i + 1 :] for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == old):
                n.id = new

        yield change


def _has_closure(function: ast.FunctionDef) -> bool:
    return any(isinstance(n, Scope) for s in function.body for n in ast.walk(s))


def give_a_second_name(draft: Draft) -> Iterator[Change]:
    """Add `y = x` and use y."""
    for _, block, i in draft.statements():
        if isinstance(block[i], _SIMPLE) and not writes(block[i]):
            for part in draft.unconditional(block[i]):
                if isinstance(part, ast.Name) and draft.is_tensor(part):
                    new = draft.fresh()

                    def change(
                        block: list[ast.stmt] = block, i: int = i, part: ast.Name = part, new: str = new
                    ) -> None:
                        draft.replace(part, name(new))
                        block.insert(i, assignment(new, name(part.id)))

                    yield change


def assign_two_at_once(draft: Draft) -> Iterator[Change]:
    """`a = f(x)` and `b = g(x)` are `a, b = f(x), g(x)`."""
    for _, block, i in draft.statements():
        match block[i : i + 2]:
            case [ast.Assign(targets=[ast.Name() as a], value=x), ast.Assign(targets=[ast.Name() as b], value=y)]:
                if a.id in reads(y) or a.id == b.id or writes(x) or writes(y):
                    continue

                def change(
                    block: list[ast.stmt] = block,
                    i: int = i,
                    a: ast.Name = a,
                    b: ast.Name = b,
                    x: ast.expr = x,
                    y: ast.expr = y,
                ) -> None:
                    both = ast.Tuple([x, y], ast.Load())
                    block[i : i + 2] = [ast.Assign([ast.Tuple([a, b], ast.Store())], both, lineno=0)]

                yield change


def name_the_result(draft: Draft) -> Iterator[Change]:
    """`return f(x)` is `y = f(x)` and `return y`."""
    for _, block, i in draft.statements():
        s = block[i]
        if isinstance(s, ast.Return) and s.value is not None and not isinstance(s.value, ast.Name):

            def change(block: list[ast.stmt] = block, i: int = i, s: ast.Return = s) -> None:
                assert s.value is not None
                new = draft.fresh()
                block.insert(i, assignment(new, s.value))
                s.value = name(new)

            yield change


def forget_a_name(draft: Draft) -> Iterator[Change]:
    """Add `del x` after the last use of x."""
    for function, block, i in draft.statements():
        if block is not function.body or _has_closure(function) or isinstance(block[i], (ast.Return, ast.Raise)):
            continue
        later = set[str]().union(*map(reads, block[i + 1 :]), *map(binds, block[i + 1 :]))
        match block[i]:
            case ast.Assign(value=value, targets=[ast.Name() as target]):
                for old in sorted((reads(value) & _bound_before(function, block[:i])) - later - {target.id}):
                    deleted = ast.Delete([ast.Name(old, ast.Del())])
                    yield lambda block=block, i=i, deleted=deleted: block.insert(i + 1, deleted)


def _bound_before(function: ast.FunctionDef, block: list[ast.stmt]) -> set[str]:
    always = {t.id for s in block if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)}
    return always | {a.arg for a in function.args.args if a.arg != "self"}


def assign_in_place(draft: Draft) -> Iterator[Change]:
    """Write in place: `x = x + y` becomes `x += y` if nothing else uses x."""
    for _, block, i in draft.statements():
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp(left=ast.Name(id=read), op=op, right=right)):
                made = [s for s in block[:i] if isinstance(s, ast.Assign) and target in binds(s)]
                own = made and isinstance(made[-1].value, (ast.BinOp, ast.Call)) and target == read
                if not own or not draft.is_floating(made[-1].value) or not isinstance(op, (ast.Add, ast.Mult, ast.Div)):
                    continue
                product = isinstance(made[-1].value, ast.BinOp) and isinstance(made[-1].value.op, ast.MatMult)
                between = block[block.index(made[-1]) + 1 : i]
                if product and not any(target in reads(s) for s in between):
                    augmented = ast.AugAssign(ast.Name(target, ast.Store()), op, right)
                    yield lambda block=block, i=i, augmented=augmented: block.__setitem__(i, augmented)


ALL = (
    name_a_part, name_a_part, name_a_part_with_its_type, name_a_part_in_passing, name_two_parts_at_once, inline_a_name,
    inline_a_name, reuse_a_name, reuse_a_name, split_a_name, give_a_second_name, assign_two_at_once, name_the_result,
    forget_a_name, assign_in_place,
)  # fmt: skip
