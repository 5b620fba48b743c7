"""The same function read as another program would have it: as a method of a subclass, or with a name unknown.

Whether an edit rests on what a name holds is found out by reading the function without that: if the same edit comes
out, and is as safe, it does not. Makes what capture reads; reads nothing itself.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace

from autofuse.source.capture.scope import ClassScope, Defined, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.families import Subclass, bases_of, defines


def without(d: Defined, name: str) -> Defined:
    """`d` where nothing is known of `self.name`."""
    return _given(d, name, None)


def with_value(d: Defined, scope: FileScope, name: str, value: ast.expr | None) -> Defined:
    """`d` where `self.name` is assigned `value` of the file of `scope`; unknown where that means another thing here."""
    return _given(d, name, value if value is not None and _portable(value, scope, d.scope) else None)


def without_helper(d: Defined, name: str) -> Defined:
    """`d` where nothing is known of the function, class or constant `name` of the file."""
    scope = replace(
        d.scope,
        functions={k: v for k, v in d.scope.functions.items() if k != name},
        classes={k: v for k, v in d.scope.classes.items() if k != name},
        variables={k: v for k, v in d.scope.variables.items() if k != name},
        qualified={k: v for k, v in d.scope.qualified.items() if k != name},
        bound=d.scope.bound | {name},
        local=d.scope.local | {name},
    )
    return replace(d, scope=scope)


def as_method_of(d: Defined, found: Subclass) -> Defined:
    """`d` where the instance is one of a subclass."""
    assert d.owner is not None, "a function that has no class has no subclasses"
    if found.scope.tree is not d.scope.tree:
        return _as_method_abroad(d, found)
    scope = replace(d.scope, classes={**d.scope.classes, d.owner.node.name: d.owner})
    known = [b for b in found.owner.node.bases if _name_of(b) in scope.classes]
    for base in scope.lineage(d.owner):
        for c, _ in _anew(found, d):
            scope.classes[base.node.name] = _less(scope.classes[base.node.name], c)
    node = ast.copy_location(ast.ClassDef(found.name, known, [], found.owner.node.body, []), found.owner.node)
    foreign = [b for b in bases_of(found) if b.scope.tree is not d.scope.tree]
    unknown = {n for b in foreign for n in defines(b.owner)} - defines(d.owner) - {"__init__", "forward"}
    attributes = dict(found.owner.attributes) | {n: _unknown() for n in unknown}
    return replace(d, scope=scope, owner=replace(found.owner, node=node, attributes=attributes))


def _as_method_abroad(d: Defined, found: Subclass) -> Defined:
    """The same for a subclass of another file, whose names mean other things: what it defines anew is not known."""
    assert d.owner is not None
    for c, scope in _anew(found, d):
        for name in sorted(defines(c) - {"__init__", d.function.name}):
            values = [v for kind in (c.attributes, c.defaults) for v in kind.get(name, ())]
            value = values[0] if len(values) == 1 and name not in c.methods else None
            if not name.startswith("__"):
                d = with_value(d, scope, name, value)
    return d


def _anew(found: Subclass, d: Defined) -> list[tuple[ClassScope, FileScope]]:
    """The subclass and its other bases, with their files, without the class of `d` and its bases."""
    own = {c.node.name for c in d.scope.lineage(d.owner)}
    return [(c.owner, c.scope) for c in found.lineage() if c.name not in own]


def _less(c: ClassScope, over: ClassScope) -> ClassScope:
    """A class without what `over`, which comes before it, gives its instances anew."""
    assigned = {*over.attributes, *over.buffers, *over.methods}
    return _assigning_less(c, assigned, assigned | over.defaults.keys())


def _assigning_less(c: ClassScope, names: Collection[str], defaults: Collection[str] = ()) -> ClassScope:
    """A class whose own methods assign none of `names`, and whose body none of `defaults`."""
    return replace(
        c,
        attributes={k: v for k, v in c.attributes.items() if k not in names},
        buffers={k: v for k, v in c.buffers.items() if k not in names},
        defaults={k: v for k, v in c.defaults.items() if k not in defaults},
    )


def _given(d: Defined, name: str, value: ast.expr | None) -> Defined:
    owner = d.owner
    if owner is None:
        return d
    values: list[ast.expr | None] = [value] if value is not None else _unknown()
    scope = replace(d.scope, classes=dict(d.scope.classes))
    for c in list(d.scope.lineage(owner)):
        if c is not owner and c.node.name in scope.classes:
            scope.classes[c.node.name] = _assigning_less(c, {name})
    return replace(
        d, scope=scope, owner=replace(_assigning_less(owner, {name}), attributes={**owner.attributes, name: values})
    )


def _unknown() -> list[ast.expr | None]:
    """What an attribute is assigned that may be anything: two things, of which no expression gives either."""
    return [None, None]


def _portable(value: ast.expr, home: FileScope, other: FileScope) -> bool:
    """Whether an expression of one file says the same in another: it names what both import, and locals."""
    if home.tree is other.tree:
        return True
    names = [n.id for n in walk(value) if isinstance(n, ast.Name)]
    return all(_meaning(n, home) == _meaning(n, other) for n in names)


def _meaning(name: str, scope: FileScope) -> object:
    return scope.qualified.get(name, name in scope.bound)


def _name_of(base: ast.expr) -> str:
    node = base.value if isinstance(base, ast.Subscript) else base
    return node.id if isinstance(node, ast.Name) else ""
