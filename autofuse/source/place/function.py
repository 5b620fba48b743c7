"""One function of a file, with all that the edits of its sites need."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from autofuse.canonical import View
from autofuse.ir.graph import Value
from autofuse.match.site import Site
from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.captured import CapturedFunction, ValuePosition
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.capture.symbolic_lengths import GraphSizes
from autofuse.source.place.dead_statements import DeadStatements
from autofuse.source.place.names import FunctionNames
from autofuse.source.place.statements import Statements
from autofuse.source.targets.printing import SourceText
from autofuse.source.targets.speller import Speller


@dataclass(eq=False)
class EditedFunction:
    """One function, and how its text is organised.

    Attributes:
        text: the text of the file.
        captured: the function.
        view: the canonical form of its graph.
        sizes: the symbolic sizes of its tensors.
        scope: the names of the file.
        target: the library for which calls are written.
        owner: the class, if the function is a method.
        importing: returns the files that import from this one and depend on layouts.
        names: how the function uses its names.
        statements: its statements.
        dead: finds the statements that an edit makes unnecessary.
    """

    text: SourceText
    captured: CapturedFunction
    view: View
    sizes: GraphSizes
    scope: FileScope
    target: str
    owner: ClassScope | None = None
    importing: Callable[[], tuple[FileScope, ...]] = tuple[FileScope, ...]
    names: FunctionNames = field(init=False)
    statements: Statements = field(init=False)
    dead: DeadStatements = field(init=False)

    def __post_init__(self) -> None:
        self.names = FunctionNames(self.captured)
        self.statements = Statements(self.text, self.captured)
        self.dead = DeadStatements(self.captured, self.view, self.names)

    @cached_property
    def local_names(self) -> frozenset[str]:
        """The local names of the function. In module code, imported names do not count."""
        names = bindings(self.captured.function.body)
        return frozenset(n for n, binding in names if not isinstance(binding, (ast.Import, ast.ImportFrom)))

    def make_speller(
        self, site: Site, place: ValuePosition, root: ValuePosition, imports: Imports, bound: dict[Value, str]
    ) -> Speller:
        """A Speller that writes operands for one position."""
        removed = self.dead.removed_values(site)
        result = Speller(self.text, self.captured, self.view, place, root, removed, imports, self.sizes, bound)
        result.result, result.owner = site.root, self.owner
        result.may_insert = self.statements.starts_line(place.statement)
        result.taken = self.used_names(bound)
        return result

    def used_names(self, bound: dict[Value, str]) -> set[str]:
        """The names in use in the function or around it."""
        return {*self.names.used, *self.scope.bound, *bound.values()}
