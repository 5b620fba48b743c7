"""Variants of a function, to find out whether an edit relies on a name.

A variant is the function as a method of a subclass, or with an unknown value for one name. If the variant gives the
same edit, equally safe, the edit does not rely on the name. This file builds the scopes that the capture reads; it
captures nothing itself.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace

from autofuse.source.capture.scope import ClassScope, DefinedFunction, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.subclasses import Subclass, base_classes, defined_names


def with_unknown_attribute(defined: DefinedFunction, name: str) -> DefinedFunction:
    """Return the function with an unknown value for `self.name`."""
    return _with_attribute(defined, name, None)


def with_attribute_value(
    defined: DefinedFunction, scope: FileScope, name: str, value: ast.expr | None
) -> DefinedFunction:
    """Return the function with `value` assigned to `self.name`.

    Args:
        defined: the function.
        scope: the scope of the file that contains `value`.
        name: the attribute.
        value: the expression; the attribute is unknown if its names have another meaning in the function's file.
    """
    return _with_attribute(
        defined, name, value if value is not None and _has_same_meaning(value, scope, defined.scope) else None
    )


def with_unknown_helper(defined: DefinedFunction, name: str) -> DefinedFunction:
    """Return the function with an unknown value for the function, class or constant `name` of its file."""
    scope = replace(
        defined.scope,
        functions={k: v for k, v in defined.scope.functions.items() if k != name},
        classes={k: v for k, v in defined.scope.classes.items() if k != name},
        variables={k: v for k, v in defined.scope.variables.items() if k != name},
        qualified_names={k: v for k, v in defined.scope.qualified_names.items() if k != name},
        bound=defined.scope.bound | {name},
        local=defined.scope.local | {name},
    )
    return replace(defined, scope=scope)


def as_subclass_method(defined: DefinedFunction, subclass: Subclass) -> DefinedFunction:
    """Return the function as a method of `subclass`."""
    assert defined.owner is not None, "a function that has no class has no subclasses"
    if subclass.scope.tree is not defined.scope.tree:
        return _as_method_of_imported_subclass(defined, subclass)
    scope = replace(defined.scope, classes={**defined.scope.classes, defined.owner.node.name: defined.owner})
    known = [b for b in subclass.owner.node.bases if _name_of(b) in scope.classes]
    # What the subclass overrides must no longer be found in the base classes.
    for base in scope.lineage(defined.owner):
        for c, _ in _overriding_classes(subclass, defined):
            scope.classes[base.node.name] = _without_overridden(scope.classes[base.node.name], c)
    node = ast.copy_location(ast.ClassDef(subclass.name, known, [], subclass.owner.node.body, []), subclass.owner.node)
    foreign = [b for b in base_classes(subclass) if b.scope.tree is not defined.scope.tree]
    # The scope has no entry for a base class of another file, so the names that it defines are unknown.
    unknown = (
        {n for b in foreign for n in defined_names(b.owner)} - defined_names(defined.owner) - {"__init__", "forward"}
    )
    attributes = dict(subclass.owner.attributes) | {n: _unknown_values() for n in unknown}
    return replace(defined, scope=scope, owner=replace(subclass.owner, node=node, attributes=attributes))


def _as_method_of_imported_subclass(defined: DefinedFunction, subclass: Subclass) -> DefinedFunction:
    """Return the function as a method of a subclass in another file.

    Names may have another meaning in that file. An overridden attribute is unknown unless its value means the same
    here.
    """
    assert defined.owner is not None
    for c, scope in _overriding_classes(subclass, defined):
        for name in sorted(defined_names(c) - {"__init__", defined.function.name}):
            values = [v for kind in (c.attributes, c.defaults) for v in kind.get(name, ())]
            value = values[0] if len(values) == 1 and name not in c.methods else None  # else it is uncertain
            if not name.startswith("__"):
                defined = with_attribute_value(defined, scope, name, value)
    return defined


def _overriding_classes(subclass: Subclass, defined: DefinedFunction) -> list[tuple[ClassScope, FileScope]]:
    """The subclass and its base classes with their files, except for the class of the function and its base classes."""
    own = {c.node.name for c in defined.scope.lineage(defined.owner)}
    return [(c.owner, c.scope) for c in subclass.lineage() if c.name not in own]


def _without_overridden(c: ClassScope, over: ClassScope) -> ClassScope:
    """The class `c` without the attributes that `over` overrides; `over` comes first in the method resolution order."""
    assigned = {*over.attributes, *over.buffers, *over.methods}
    without = _without_assignments(c, assigned, assigned | over.defaults.keys())
    # An attribute of the instance, or one that `__init_subclass__` assigns, hides a method of any class.
    return replace(without, methods={k: v for k, v in c.methods.items() if k not in over.attributes})


def _without_assignments(c: ClassScope, names: Collection[str], defaults: Collection[str] = ()) -> ClassScope:
    """The class `c` without the assignments to `names` in its methods and to `defaults` in its body."""
    return replace(
        c,
        attributes={k: v for k, v in c.attributes.items() if k not in names},
        buffers={k: v for k, v in c.buffers.items() if k not in names},
        defaults={k: v for k, v in c.defaults.items() if k not in defaults},
    )


def _with_attribute(defined: DefinedFunction, name: str, value: ast.expr | None) -> DefinedFunction:
    owner = defined.owner
    if owner is None:
        return defined
    values: list[ast.expr | None] = [value] if value is not None else _unknown_values()
    scope = replace(defined.scope, classes=dict(defined.scope.classes))
    for c in list(defined.scope.lineage(owner)):
        if c is not owner and c.node.name in scope.classes:
            scope.classes[c.node.name] = _without_assignments(c, {name})
    return replace(
        defined,
        scope=scope,
        owner=replace(_without_assignments(owner, {name}), attributes={**owner.attributes, name: values}),
    )


def _unknown_values() -> list[ast.expr | None]:
    """The values of an unknown attribute: with two assignments, none of them an expression, no value is certain."""
    return [None, None]


def _has_same_meaning(value: ast.expr, home: FileScope, other: FileScope) -> bool:
    """Whether an expression means the same in both files: the names in it are locals, or both files import them."""
    if home.tree is other.tree:
        return True
    names = [n.id for n in walk(value) if isinstance(n, ast.Name)]
    return all(_meaning(n, home) == _meaning(n, other) for n in names)


def _meaning(name: str, scope: FileScope) -> object:
    return scope.qualified_names.get(name, name in scope.bound)


def _name_of(base: ast.expr) -> str:
    node = base.value if isinstance(base, ast.Subscript) else base
    return node.id if isinstance(node, ast.Name) else ""
