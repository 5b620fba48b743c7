"""What a file holds for autofuse: a program to read, and how edits in the program become the file's new bytes.

A script is its own program; a notebook is that of its cells (notebook.py). Knows no rules and opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autofuse.project.file_discovery import Trouble
from autofuse.project.notebook import is_notebook, read_notebook
from autofuse.results.findings import Finding
from autofuse.results.visible_text import visible
from autofuse.source.place.edits import Edit
from autofuse.source.write.file_edits import with_edits


class Document(Protocol):
    """`troubles` are parts of the file that could not be read."""

    @property
    def program(self) -> bytes: ...

    @property
    def troubles(self) -> tuple[Trouble, ...]: ...

    def place(self, line: int) -> str:
        """Where a line of the program stands: `model.py:12`, `model.ipynb:cell 3:12`."""
        ...

    def located(self, finding: Finding) -> Finding:
        """A finding in the program, where it stands in the file."""
        ...

    def with_edits(self, edits: Sequence[Edit], comments: bool = True) -> bytes:
        """The file with every edit made. Raises CannotWrite; LosesComments too, if `comments` must all be kept."""
        ...

    def texts(self) -> Mapping[str, bytes]:
        """The parts of the file that a diff compares, by what they are called there."""
        ...


@dataclass(frozen=True)
class Script:
    """A Python file."""

    path: str
    program: bytes
    troubles: tuple[Trouble, ...] = ()

    def place(self, line: int) -> str:
        return f"{visible(self.path)}:{line}"

    def located(self, finding: Finding) -> Finding:
        return finding

    def with_edits(self, edits: Sequence[Edit], comments: bool = True) -> bytes:
        return with_edits(self.program, edits, comments, Path(self.path))

    def texts(self) -> Mapping[str, bytes]:
        return {self.path: self.program}


def document(source: bytes, path: str) -> Document:
    """What a file of that name holds. Raises NotANotebook."""
    return read_notebook(source, path) if is_notebook(path) else Script(path, source)
