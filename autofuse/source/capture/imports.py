"""How a file spells a module or function, and which imports it lacks.

Knows a file's imports and the names that hide them. Edits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autofuse.ir.graph import Value
from autofuse.source.capture.capture_state import qualified
from autofuse.source.capture.captured import ValuePosition
from autofuse.source.capture.scope import FileScope

# What to import where a file has nothing to reach a module by: (module, the usual import, the name it binds).
_USUAL = (
    ("torch.nn.functional", "import torch.nn.functional as F", "F"),
    ("torch", "import torch", "torch"),
    ("math", "import math", "math"),
    ("autofuse.ops", "from autofuse import ops", "ops"),
)

# Packages of whose modules functions are imported by name.
_BY_NAME = ("flash_attn", "apex", "liger_kernel")


@dataclass
class Imports:
    """Spells qualified names for one function; `needed` collects the import statements to add."""

    scope: FileScope
    local: frozenset[str] = frozenset()  # what the function binds anywhere, which hides the file's names everywhere
    needed: dict[str, str] = field(default_factory=dict)  # statement -> the name it binds

    def text(self, wanted: str, place: ValuePosition) -> str:
        """How to write `wanted` (torch.nn.functional.gelu) at `place`."""
        best = max(self._reaching(wanted, place), key=lambda b: len(b[1]), default=None)
        if best is not None:
            return best[0] + wanted[len(best[1]) :]
        return self._added(wanted, place)

    def imported(self, name: str, home: str, by_name: bool, place: ValuePosition) -> str:
        """How to write `name` at `place`, importing its part `home` as its author does where the file does not."""
        try:
            return self.text(name, place)
        except KeyError:
            rest = name[len(home) :]
        if by_name:
            return self._by_name(home, place) + rest
        first = home.partition(".")[0]
        if not self._free(first, place):
            alias = "autofuse_" + home.replace(".", "_")
            self.needed[f"import {home} as {alias}"] = alias
            return alias + rest
        self.needed[f"import {home}"] = first
        return name

    def _reaching(self, wanted: str, place: ValuePosition) -> list[tuple[str, str]]:
        """(name, what it means) for each name that leads to `wanted`."""
        found = []
        for name, meaning in self.scope.qualified.items():
            if _leads(meaning, wanted) and self._is_of_file(name, place) and self._bound(name, place):
                found.append((name, meaning))
        for name, held in place.names.items():
            local = _meaning(held)
            if local is not None and _leads(local, wanted):
                found.append((name, local))
        return found

    def _is_of_file(self, name: str, place: ValuePosition) -> bool:
        """Whether the function means the file's name by `name`."""
        return name not in place.names and name not in self.local

    def _bound(self, name: str, place: ValuePosition) -> bool:
        """Whether an imported name is bound at `place` whenever the code there runs."""
        doubt = self.scope.doubtful.get(name)
        return doubt is None or doubt.holds_at(place.node.lineno)

    def _free(self, name: str, place: ValuePosition) -> bool:
        """Whether an import may bind `name`: nothing else does, as far as the text shows."""
        return name not in self.scope.bound and self._is_of_file(name, place) and not self.scope.hides_names

    def _added(self, wanted: str, place: ValuePosition) -> str:
        for module, statement, name in _USUAL:
            if not _leads(module, wanted):
                continue
            if not self._free(name, place):
                name, statement = f"autofuse_{name.lower()}", f"import {module} as autofuse_{name.lower()}"
            self.needed[statement] = name
            return name + wanted[len(module) :]
        if wanted.partition(".")[0] in _BY_NAME:
            return self._by_name(wanted, place)
        raise KeyError(wanted)

    def _by_name(self, wanted: str, place: ValuePosition) -> str:
        module, _, name = wanted.rpartition(".")
        statement = f"from {module} import {name}"
        if not self._free(name, place):
            name, statement = f"autofuse_{name}", f"{statement} as autofuse_{name}"
        self.needed[statement] = name
        return name


def _leads(meaning: str, wanted: str) -> bool:
    return wanted == meaning or wanted.startswith(meaning + ".")


def _meaning(held: Value) -> str | None:
    return qualified(held) if held.op in ("module", "attribute") else None
