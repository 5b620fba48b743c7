"""A file as autofuse sees it: a program to check, and a way to apply edits of the program to the file.

The program of a Python file is the file itself. The program of a notebook consists of its cells; see notebook.py. This
module opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autofuse.project.file_discovery import Problem
from autofuse.project.notebook import is_notebook, read_notebook
from autofuse.results.findings import Finding
from autofuse.results.visible_text import visible
from autofuse.source.place.edits import Edit
from autofuse.source.write.file_edits import apply_edits


class Document(Protocol):
    """A Python file or a notebook."""

    @property
    def program(self) -> bytes:
        """The Python code of the file."""
        ...

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The parts of the file that could not be read."""
        ...

    def place(self, line: int) -> str:
        """Return where a line of the program is in the file: `model.py:12` or `model.ipynb:cell 3:12`."""
        ...

    def locate(self, finding: Finding) -> Finding:
        """Return a finding in the program with the lines, and the cell, that it has in the file."""
        ...

    def with_edits(self, edits: Sequence[Edit], comments: bool = True) -> bytes:
        """Return the file with all edits.

        Args:
            edits: Edits of the program.
            comments: Whether every comment must be kept.

        Raises:
            CannotWrite: An edit is not possible.
            LosesComments: An edit would remove a comment, and `comments` is true.
        """
        ...

    def texts(self) -> Mapping[str, bytes]:
        """Return the parts of the file that a diff compares, by the names that the diff shows."""
        ...


@dataclass(frozen=True)
class Script:
    """A Python file."""

    path: str
    program: bytes
    problems: tuple[Problem, ...] = ()

    def place(self, line: int) -> str:
        return f"{visible(self.path)}:{line}"

    def locate(self, finding: Finding) -> Finding:
        return finding

    def with_edits(self, edits: Sequence[Edit], comments: bool = True) -> bytes:
        return apply_edits(self.program, edits, comments, Path(self.path))

    def texts(self) -> Mapping[str, bytes]:
        return {self.path: self.program}


def read_document(source: bytes, path: str) -> Document:
    """Return the document with the content `source`. Raises NotANotebook if a notebook is malformed."""
    return read_notebook(source, path) if is_notebook(path) else Script(path, source)
