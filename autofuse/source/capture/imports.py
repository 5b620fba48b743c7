"""Writes the name of a module or function for new code, and collects the imports that the file needs for it.

A name is written as the file already imports it, if possible. This module edits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autofuse.ir.graph import Value
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.capture.captured import ValuePosition
from autofuse.source.capture.scope import FileScope

# The imports to add if a file does not import a module: the module, the usual import, and the name that it binds).
_USUAL_IMPORTS = (
    ("torch.nn.functional", "import torch.nn.functional as F", "F"),
    ("torch", "import torch", "torch"),
    ("math", "import math", "math"),
    ("autofuse.ops", "from autofuse import ops", "ops"),
)

# Packages from which functions are imported by name.
_IMPORTED_BY_NAME = ("flash_attn", "apex", "liger_kernel")


@dataclass
class Imports:
    """Writes full names in one function.

    Attributes:
        scope: The scope of the file.
        local: The local names of the function. They hide names of the file.
        needed: The import statements to add, with the name that each binds.
    """

    scope: FileScope
    local: frozenset[str] = frozenset()
    needed: dict[str, str] = field(default_factory=dict)

    def text(self, wanted: str, place: ValuePosition) -> str:
        """Return how to write the full name `wanted`, such as `torch.nn.functional.gelu`, at `place`.

        Raises:
            KeyError: The file does not import the name, and there is no usual import for it.
        """
        best = max(self._names_leading_to(wanted, place), key=lambda b: len(b[1]), default=None)
        if best is not None:
            return best[0] + wanted[len(best[1]) :]
        return self._add_import(wanted, place)

    def text_with_import(self, name: str, home: str, by_name: bool, place: ValuePosition) -> str:
        """Return how to write `name` at `place`, and add an import if the file has none.

        Args:
            name: The full name.
            home: The part of `name` that the import names.
            by_name: Whether to add `from package import name` instead of `import package.name`.
            place: The position of the new code.
        """
        try:
            return self.text(name, place)
        except KeyError:
            rest = name[len(home) :]
        if by_name:
            return self._import_by_name(home, place) + rest
        first = home.partition(".")[0]
        if not self._can_bind(first, place):
            alias = "autofuse_" + home.replace(".", "_")
            self.needed[f"import {home} as {alias}"] = alias
            return alias + rest
        self.needed[f"import {home}"] = first
        return name

    def _names_leading_to(self, wanted: str, place: ValuePosition) -> list[tuple[str, str]]:
        """Return the names at `place` that mean a prefix of `wanted`, each with its meaning."""
        names = []
        for name, meaning in self.scope.qualified_names.items():
            if _is_prefix(meaning, wanted) and self._means_module_name(name, place) and self._is_bound_at(name, place):
                names.append((name, meaning))
        for name, value in place.names.items():
            local = _imported_name(value)
            if local is not None and _is_prefix(local, wanted):
                names.append((name, local))
        return names

    def _means_module_name(self, name: str, place: ValuePosition) -> bool:
        """Whether `name` in the function refers to the name of the module."""
        return name not in place.names and name not in self.local

    def _is_bound_at(self, name: str, place: ValuePosition) -> bool:
        """Whether an imported name is certainly bound when the code at `place` runs."""
        doubt = self.scope.doubtful_imports.get(name)
        return doubt is None or doubt.holds_at(place.node.lineno)

    def _can_bind(self, name: str, place: ValuePosition) -> bool:
        """Whether a new import can bind `name`, because nothing else binds it."""
        return name not in self.scope.bound and self._means_module_name(name, place) and not self.scope.hides_names

    def _add_import(self, wanted: str, place: ValuePosition) -> str:
        """Add the usual import for `wanted`, and return how to write it. Raises KeyError if there is none."""
        for module, statement, name in _USUAL_IMPORTS:
            if not _is_prefix(module, wanted):
                continue
            if not self._can_bind(name, place):
                name, statement = f"autofuse_{name.lower()}", f"import {module} as autofuse_{name.lower()}"
            self.needed[statement] = name
            return name + wanted[len(module) :]
        if wanted.partition(".")[0] in _IMPORTED_BY_NAME:
            return self._import_by_name(wanted, place)
        raise KeyError(wanted)

    def _import_by_name(self, wanted: str, place: ValuePosition) -> str:
        """Add `from module import name` for `wanted`, and return the name that it binds."""
        module, _, name = wanted.rpartition(".")
        statement = f"from {module} import {name}"
        if not self._can_bind(name, place):
            name, statement = f"autofuse_{name}", f"{statement} as autofuse_{name}"
        self.needed[statement] = name
        return name


def _is_prefix(meaning: str, wanted: str) -> bool:
    """Whether the full name `wanted` is `meaning` or an attribute of it."""
    return wanted == meaning or wanted.startswith(meaning + ".")


def _imported_name(value: Value) -> str | None:
    return qualified_name(value) if value.op in ("module", "attribute") else None
