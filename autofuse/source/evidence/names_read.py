"""What a function reads through: the methods, children and attributes of its class, and the helpers of its file.

An edit of `self.softmax(self.scores(q, k)) @ v` is right if `self.softmax` and `self.scores` are what the class says.
Follows the helpers and children that the capture may read in their place. Knows syntax and scopes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.children import child_of
from autofuse.source.capture.scope import ClassScope, Defined, FileScope, self_name
from autofuse.source.capture.syntax import walk


@dataclass(frozen=True, eq=False)
class NameUse:
    """`name` of an instance of `owner`, or of the file of `scope` where `owner` is None.

    `via` is the name that the function itself reads on the way there: `drop`, where `self.drop` is a module of the
    project's own that reads `name`. `inner`: it is read in that module.
    """

    owner: ClassScope | None
    scope: FileScope
    name: str
    via: str
    inner: bool = False


@dataclass(eq=False)
class NamesRead:
    """Everything that one function reads through, by what it may be changed."""

    names: list[NameUse] = field(default_factory=list)
    torch: dict[str, set[str]] = field(default_factory=dict)  # names of torch's -> the `via` of children made with them
    methods: set[str] = field(default_factory=set)  # `softmax` of `x.softmax(-1)`


@dataclass(frozen=True, eq=False)
class _Text:
    """A function that is read, in its class and file."""

    node: Function
    owner: ClassScope | None
    me: str | None
    scope: FileScope
    via: str = ""
    inner: bool = False


def names_read(d: Defined) -> NamesRead:
    """What `d` reads through."""
    found, seen = NamesRead(), set[tuple[int, str]]()
    me = d.me or (self_name(d.function) if d.owner else None)
    todo = [_Text(d.function, d.owner, me, d.scope)]
    while todo:
        text = todo.pop()
        if (id(text.node), text.via) in seen:
            continue
        seen.add((id(text.node), text.via))
        todo += _followed(text, found)
    return found


def _followed(text: _Text, found: NamesRead) -> Iterator[_Text]:
    """Puts what `text` reads into `found`; gives the functions that it may be read together with."""
    for n in walk(text.node):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == text.me:
            yield from _of_instance(text, n.attr, found)
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            yield from _of_file(text, n.id, found)
        if isinstance(n, (ast.Name, ast.Attribute)) and (name := text.scope.name_of(n)):
            found.torch.setdefault(name, set())
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            found.methods.add(n.func.attr)


def _of_instance(text: _Text, name: str, found: NamesRead) -> Iterator[_Text]:
    via, scope, owner = text.via or name, text.scope, text.owner
    if owner is None:
        return
    if not any(r.name == name and r.via == via and r.owner is owner for r in found.names):
        found.names.append(NameUse(owner, scope, name, via, text.inner))
    method = scope.method(owner, name)
    if method is not None:
        yield _Text(method, owner, self_name(method), scope, via, text.inner)
    for made in _calls(scope.attribute(owner, name)):
        found.torch.setdefault(scope.name_of(made.func) or "", set()).add(via)
        if (child := child_of(scope, made)) is not None:
            yield _Text(child.forward, child.owner, self_name(child.forward), child.scope, via, True)


def _of_file(text: _Text, name: str, found: NamesRead) -> Iterator[_Text]:
    scope, via = text.scope, text.via or name
    if name not in scope.functions and name not in scope.variables:
        return
    if not any(r.name == name and r.owner is None for r in found.names):
        found.names.append(NameUse(None, scope, name, via, text.inner))
    if name in scope.functions:
        yield _Text(scope.functions[name], None, None, scope, via, text.inner)


def _calls(assigned: ast.expr | None) -> Iterator[ast.Call]:
    return (n for n in walk(assigned) if isinstance(n, ast.Call)) if assigned is not None else iter(())
