"""Equivalent structure: helpers, branches, contexts, and unrelated statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.metamorphic.draft import (
    Change,
    Draft,
    Function,
    Scope,
    assignment,
    binds,
    call,
    expression,
    name,
    reads,
    statement,
    writes,
)
from tests.spellings.harness import MASKS

_SIMPLE = (ast.Assign, ast.Return, ast.Expr)


def _movable(draft: Draft) -> Iterator[tuple[Function, list[ast.stmt], int, ast.expr, list[str]]]:
    """Yield expressions that a separate function can compute, and the variables that it needs."""
    for function, block, i in draft.statements():
        if not isinstance(block[i], _SIMPLE) or writes(block[i]):
            continue
        local = binds(function) | {a.arg for a in function.args.args}
        local |= {n.name for n in ast.walk(function) if isinstance(n, Function) and n is not function}
        for part in draft.unconditional(block[i]):
            if isinstance(part, (ast.Call, ast.BinOp)) and draft.kind(part) is not None:
                ordered = dict.fromkeys(n.id for n in ast.walk(part) if isinstance(n, ast.Name) and n.id in local)
                if not any(isinstance(n, Scope) for n in ast.walk(part)):
                    yield function, block, i, part, list(ordered)


def _definition(new: str, arguments: list[str], body: list[ast.stmt], decorators: tuple[str, ...] = ()) -> Function:
    made = statement("".join(f"@{d}\n" for d in decorators) + f"def {new}({', '.join(arguments)}):\n    pass")
    assert isinstance(made, Function)
    made.body = body
    return made


def compute_in_a_helper(draft: Draft) -> Iterator[Change]:
    """Compute a part of an expression in a function of the file."""
    for _, _, _, part, given in _movable(draft):
        if "self" in given:
            continue

        def change(part: ast.expr = part, given: list[str] = given) -> None:
            new = draft.fresh("helper")
            draft.replace(part, call(new, *map(name, given)))
            last = max(i for i, n in enumerate(draft.tree.body) if isinstance(n, (ast.Import, ast.ImportFrom)))
            draft.tree.body.insert(last + 1, _definition(new, given, [ast.Return(part)]))

        yield change


def compute_in_a_method(draft: Draft) -> Iterator[Change]:
    """Compute a part of an expression in a method of the class."""
    for function, _, _, part, given in _movable(draft):
        owner = draft.owner(function)
        if owner is None or not function.args.args or function.args.args[0].arg != "self":
            continue

        def change(owner: ast.ClassDef = owner, part: ast.expr = part, given: list[str] = given) -> None:
            new, others = draft.fresh("_helper"), [n for n in given if n != "self"]
            draft.replace(part, call(ast.Attribute(name("self"), new, ast.Load()), *map(name, others)))
            owner.body.append(_definition(new, ["self", *others], [ast.Return(part)]))

        yield change


def compute_in_a_static_method(draft: Draft) -> Iterator[Change]:
    """Compute a part of an expression in a static method of the class."""
    for function, _, _, part, given in _movable(draft):
        owner = draft.owner(function)
        if owner is None or "self" in given or not function.args.args or function.args.args[0].arg != "self":
            continue

        def change(owner: ast.ClassDef = owner, part: ast.expr = part, given: list[str] = given) -> None:
            new = draft.fresh("_helper")
            draft.replace(part, call(ast.Attribute(name("self"), new, ast.Load()), *map(name, given)))
            owner.body.append(_definition(new, given, [ast.Return(part)], ("staticmethod",)))

        yield change


def compute_in_a_nested_function(draft: Draft) -> Iterator[Change]:
    """Compute a part of an expression in a nested function."""
    for function, _, _, part, given in _movable(draft):

        def change(function: Function = function, part: ast.expr = part, given: list[str] = given) -> None:
            new, others = draft.fresh("inner_helper"), [n for n in given if n != "self"]
            draft.replace(part, call(new, *map(name, others)))
            function.body.insert(_after_docstring(function), _definition(new, others, [ast.Return(part)]))

        yield change


def _after_docstring(function: Function) -> int:
    first = function.body[0]
    return int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))


def call_the_body(draft: Draft) -> Iterator[Change]:
    """Move the body of forward to `self._forward`, and call that."""
    for function in draft.functions():
        owner, arguments = draft.owner(function), [a.arg for a in function.args.args]
        if function.args.vararg or function.args.kwarg or function.args.kwonlyargs or function.decorator_list:
            continue
        if owner is None and function not in draft.tree.body:
            continue

        def change(
            function: Function = function, owner: ast.ClassDef | None = owner, given: list[str] = arguments
        ) -> None:
            body = owner.body if owner else draft.tree.body
            new = draft.fresh("_inner")
            method = owner is not None and given[:1] == ["self"]
            target = ast.Attribute(name("self"), new, ast.Load()) if method else name(new)
            outer = _definition(function.name, [], [ast.Return(call(target, *map(name, given[method:])))])
            outer.args = function.args
            function.args = _definition("f", given, []).args
            function.name = new
            body.insert(body.index(function) + 1, outer)

        if owner is None or arguments[:1] == ["self"]:
            yield change


def ask_for_none(draft: Draft) -> Iterator[Change]:
    """`if mask is not None: s = f(s, mask)`."""
    for function, block, i in draft.statements():
        arguments = [a.arg for a in function.args.args]
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target in reads(value):
                pass
            case _:
                continue
        masks = _masks(draft, function)
        for mask in sorted(reads(value) & set(arguments) & masks - {target}):
            test = expression(f"{mask} is not None")
            guarded = ast.If(test, [block[i]], [])
            yield lambda block=block, i=i, guarded=guarded: block.__setitem__(i, guarded)
            chosen = ast.IfExp(test, value, name(target))
            yield lambda s=block[i], chosen=chosen: setattr(s, "value", chosen)


def _masks(draft: Draft, function: Function) -> set[str]:
    """Arguments of the program that are masks."""
    if function.name not in (draft.program.entry, "forward"):
        return set()
    arguments = [a.arg for a in function.args.args if a.arg != "self"]
    return {a for a, kind in zip(arguments, draft.program.kinds, strict=False) if kind in MASKS}


def exchange_branches(draft: Draft) -> Iterator[Change]:
    """Exchange the branches: `if c: a else: b` becomes `if not c: b else: a`."""
    for _, block, i in draft.statements():
        match block[i]:
            case ast.If(orelse=otherwise) as s:

                def change(s: ast.If = s, otherwise: list[ast.stmt] = otherwise) -> None:
                    s.test = _negate(s.test)
                    s.body, s.orelse = otherwise or [ast.Pass()], s.body

                yield change
    for node in draft.expressions(ast.IfExp):

        def turn(node: ast.IfExp = node) -> None:
            node.test, node.body, node.orelse = _negate(node.test), node.orelse, node.body

        yield turn


def _negate(test: ast.expr) -> ast.expr:
    match test:
        case ast.Compare(left=left, ops=[ast.Is()], comparators=right):
            return ast.Compare(left, [ast.IsNot()], right)
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=right):
            return ast.Compare(left, [ast.Is()], right)
    return ast.UnaryOp(ast.Not(), test)


def choose_by_statement(draft: Draft) -> Iterator[Change]:
    """`y = a if c else b` is a branch."""
    for _, block, i in draft.statements():
        match block[i]:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.IfExp(test=test, body=yes, orelse=no)):
                made = ast.If(test, [assignment(target, yes)], [assignment(target, no)])
                yield lambda block=block, i=i, made=made: block.__setitem__(i, made)
            case ast.Return(value=ast.IfExp(test=test, body=yes, orelse=no)):
                early = ast.If(test, [ast.Return(yes)], [])
                yield lambda block=block, i=i, made=early, no=no: block.__setitem__(
                    slice(i, i + 1), [made, ast.Return(no)]
                )


def leave_early(draft: Draft) -> Iterator[Change]:
    """Exchange an early return with an else branch."""
    for _, block, i in draft.statements():
        match block[i]:
            case ast.If(body=[*_, ast.Return()], orelse=[]) as s if len(block) > i + 1:

                def change(block: list[ast.stmt] = block, i: int = i, s: ast.If = s) -> None:
                    s.orelse = block[i + 1 :]
                    del block[i + 1 :]

                yield change
            case ast.If(body=[*_, ast.Return()], orelse=[*rest]) as s if rest and i == len(block) - 1:

                def flatten(block: list[ast.stmt] = block, s: ast.If = s, rest: list[ast.stmt] = rest) -> None:
                    s.orelse = []
                    block += rest

                yield flatten


def record(draft: Draft) -> Iterator[Change]:
    """Put statements inside `with torch.profiler.record_function(...)`."""
    for _, block, i in draft.statements():
        for end in range(i + 1, len(block) + 1):
            if any(isinstance(s, (*Scope, ast.Import, ast.ImportFrom)) for s in block[i:end]):
                continue
            if i == 0 and isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant):
                continue

            def change(block: list[ast.stmt] = block, i: int = i, end: int = end) -> None:
                manager = call(draft.of_name("torch.profiler.record_function"), ast.Constant("block"))
                block[i:end] = [ast.With([ast.withitem(manager)], block[i:end], lineno=0)]

            if end == len(block) or end == i + 1:
                yield change


def do_something_else(draft: Draft) -> Iterator[Change]:
    """Insert an unrelated statement."""
    for function, block, i in draft.statements():
        if i == 0 and isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant):
            continue
        names = [
            n.id for n in ast.walk(block[i]) if isinstance(n, ast.Name) and draft.is_tensor(n) and n in draft.observed
        ]
        spare, arguments = draft.fresh("spare"), {a.arg for a in function.args.args}
        texts = [
            f"{spare} = 1",
            "pass",
            "assert True",
            f"{spare} = 'attention'",
            "if False:\n    raise ValueError('never')",
        ]
        if draft.owner(function) is not None and function.args.args[:1] and function.args.args[0].arg == "self":
            texts += ["if self.training:\n    pass", f"{spare} = self.training"]
        for n in dict.fromkeys(names):
            if n in _bound_at(function, block, i) and n in arguments - binds(function):
                texts += [
                    f"{spare} = {n}.shape[0]", f"assert {n}.dim() > 1",
                    f"assert {n}.shape[-1] > 0, f'shape of {{{n}.shape}}'",
                    f"{spare} = {n}.device", f"if {n}.dtype == 'int':\n    raise TypeError(f'{{{n}.dtype}}')",
                    f"{spare} = len({n})", f"*_, {spare} = {n}.shape", f"{spare} = {n}.new_zeros(1)",
                ]  # fmt: skip
        for text in texts:
            yield lambda block=block, i=i, text=text: block.insert(i, statement(text))


def _bound_at(function: Function, block: list[ast.stmt], i: int) -> set[str]:
    always = {a.arg for a in function.args.args}
    return always | {t.id for s in block[:i] if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)}


def follow_with_dead_code(draft: Draft) -> Iterator[Change]:
    """Add statements after `return`."""
    for _, block, i in draft.statements():
        if isinstance(block[i], ast.Return) and i == len(block) - 1:
            yield lambda block=block: block.append(statement("unreachable = 1"))


def document(draft: Draft) -> Iterator[Change]:
    """Add a docstring."""
    for function in draft.functions():
        if not _after_docstring(function):
            yield lambda f=function: f.body.insert(0, statement("'''What it does.\n\n    At some length.'''"))


def annotate(draft: Draft) -> Iterator[Change]:
    """Annotate arguments and the result."""
    for function in draft.functions():

        def change(function: Function = function) -> None:
            for a in function.args.args:
                a.annotation = ast.Constant("torch.Tensor") if a.arg != "self" and not a.annotation else a.annotation
            function.returns = ast.Constant("torch.Tensor | None")

        yield change


def allow_more_arguments(draft: Draft) -> Iterator[Change]:
    """Add an optional argument that no caller passes."""
    for function in draft.functions():
        if function.args.vararg is None and not function.args.kwonlyargs and not function.args.kwarg:
            yield (
                lambda f=function: (
                    f.args.kwonlyargs.append(ast.arg("verbose")) or f.args.kw_defaults.append(ast.Constant(False))
                )
            )
            yield lambda f=function: setattr(f.args, "kwarg", ast.arg("others"))


def take_the_layers_part(draft: Draft) -> Iterator[Change]:
    """`self.drop(x)` is `drop = self.drop` and `drop(x)`."""
    for _, block, i in draft.statements():
        if not isinstance(block[i], _SIMPLE) or writes(block[i]):
            continue
        for part in draft.unconditional(block[i]):
            match part:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attribute) as layer):
                    methods = {f.name for f in draft.functions()}
                    if attribute in methods:
                        continue

                    def change(
                        block: list[ast.stmt] = block, i: int = i, part: ast.Call = part, layer: ast.Attribute = layer
                    ) -> None:
                        new = draft.fresh()
                        part.func = name(new)
                        block.insert(i, assignment(new, layer))

                    yield change


ALL = (
    compute_in_a_helper, compute_in_a_method, compute_in_a_static_method, compute_in_a_nested_function, call_the_body,
    ask_for_none, exchange_branches, choose_by_statement, leave_early, record, do_something_else, do_something_else,
    follow_with_dead_code, document, annotate, allow_more_arguments, take_the_layers_part,
)  # fmt: skip
