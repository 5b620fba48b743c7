"""Reads a notebook as one program, which consists of its code cells in order, and applies edits to the cells.

A cell that cannot be read is left out and reported. An edit changes the source of one cell; a check ensures that all
other bytes of the file stay the same. See notebook_json.py for the JSON of the file, and magics.py for IPython syntax.
"""

from __future__ import annotations

import ast
import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autofuse.project.file_discovery import Problem, syntax_problem
from autofuse.project.magics import MagicsLost, PlainCell, to_plain_python
from autofuse.project.notebook_json import NotANotebook, NotebookCell, code_cells, replace_source
from autofuse.results.findings import Finding
from autofuse.results.visible_text import visible
from autofuse.source.place.edits import Edit, shift_lines
from autofuse.source.write.file_edits import CannotWrite, apply_edits_to_text

_LINE = re.compile(r"\r\n|\r|\n")
_HEAD = "\n\n"  # Python reads an encoding from the first two lines of a file, but a cell must not set one
_NAMED_LINE = re.compile(r"\bline (\d+)\b")


@dataclass(frozen=True)
class CellText:
    """One cell of the program.

    Attributes:
        cell: The cell in the file.
        code: The cell as Python.
        offset: The number of lines of the program before the cell.
        skipped: The number of lines of the cell that the program leaves out, namely its cell magic.
    """

    cell: NotebookCell
    code: PlainCell
    offset: int
    skipped: int

    def line(self, line: int) -> int:
        """Return the line in the cell for a line of the program."""
        return line - self.offset + self.skipped


@dataclass
class Notebook:
    """A notebook.

    Attributes:
        path: The path of the file.
        source: Its content.
        text: Its content as text.
        program: The code of the readable cells. The rules see this text.
        cells: The readable cells.
        problems: The cells that could not be read.
    """

    path: str
    source: bytes
    text: str = ""
    program: bytes = b""
    cells: list[CellText] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()

    def place(self, line: int) -> str:
        """Return where a line of the program is: the file, the cell and the line in the cell."""
        cell_text = self._cell_at(line)
        return f"{visible(self.path)}:cell {cell_text.cell.number}:{cell_text.line(line)}"

    def locate(self, finding: Finding) -> Finding:
        """Return a finding in the program with its cell and its lines in the cell."""
        cell_text = self._cell_at(finding.line)
        fields = {
            "line": cell_text.line(finding.line),
            "end_line": cell_text.line(finding.end_line),
            "message": self._replace_line_numbers(finding.message),
            "reason": self._replace_line_numbers(finding.reason),
            "value_line": finding.value_line and self._cell_at(finding.value_line).line(finding.value_line),
        }
        return replace(finding, cell=cell_text.cell.number, **fields)  # type: ignore[arg-type]

    def with_edits(self, edits: Sequence[Edit], comments: bool = True) -> bytes:
        """Return the file with all edits.

        Args:
            edits: Edits of the program.
            comments: Whether every comment must be kept.

        Raises:
            CannotWrite: An edit is not possible.
            LosesComments: An edit would remove a comment, and `comments` is true.
        """
        by_cell: dict[int, list[Edit]] = {}
        for edit in edits:
            index = self._cell_index(edit)
            by_cell.setdefault(index, []).append(shift_lines(replace(edit, imports=()), -self.cells[index].offset))
            if edit.imports:
                by_cell.setdefault(self._find_import_cell(index), []).append(Edit((), imports=edit.imports))
        text = self.text
        for index in sorted(by_cell, reverse=True):  # from the last cell, so that earlier cells keep their positions
            text = replace_source(text, self.cells[index].cell, _edit_cell(self.cells[index], by_cell[index], comments))
        self._check(text, {self.cells[index].cell.number for index in by_cell})
        bom = codecs.BOM_UTF8 if self.source.startswith(codecs.BOM_UTF8) else b""
        return bom + text.encode()

    def texts(self) -> dict[str, bytes]:
        """Return the source of each code cell, by the path of the file and the number of the cell."""
        return {f"{self.path}:cell {c.number}": c.text.encode(errors="replace") for c in code_cells(self.text)}

    def _cell_at(self, line: int) -> CellText:
        return self.cells[bisect_right([p.offset for p in self.cells], line - 1) - 1]

    def _cell_index(self, edit: Edit) -> int:
        """Return the index of the cell that contains an edit."""
        indexes = {self.cells.index(self._cell_at(line)) for span in edit.spans for line in (span.line, span.end_line)}
        if len(indexes) != 1:
            raise CannotWrite("the edit would change several cells")
        return indexes.pop()

    def _find_import_cell(self, edited: int) -> int:
        """Return the index of the cell that receives an import for the cell `edited`.

        This is the first cell up to `edited` that imports torch, or else the first that imports anything.
        """
        before = [i for i in range(edited + 1) if not self.cells[i].code.magic]
        for wanted in (("torch",), ()):
            for i in before:
                if _has_import(self.cells[i].code.text, wanted):
                    return i
        return edited

    def _replace_line_numbers(self, sentence: str) -> str:
        """Replace the line numbers of the program in a message by lines and numbers of cells."""

        def in_cell(match: re.Match[str]) -> str:
            cell_text = self._cell_at(int(match[1]))
            return f"line {cell_text.line(int(match[1]))} of cell {cell_text.cell.number}"

        return _NAMED_LINE.sub(in_cell, sentence)

    def _check(self, text: str, edited: set[int]) -> None:
        """Raise CannotWrite if `text` differs from the notebook in more than the sources of the edited cells."""
        before, after = code_cells(self.text), code_cells(text)
        others = [[(c.number, c.text) for c in cells if c.number not in edited] for cells in (before, after)]
        if _without_sources(self.text) != _without_sources(text) or others[0] != others[1]:
            raise CannotWrite("the edit would change other parts of the notebook")


def read_notebook(source: bytes, path: str) -> Notebook:
    """Read a notebook. Raises NotANotebook if the file is malformed."""
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotANotebook(f"a notebook must be UTF-8 text: {error.reason} at byte {error.start}") from error
    notebook, program, problems = Notebook(path, source, text), _HEAD, list[Problem]()
    for cell in code_cells(text):
        try:
            plain = _read_cell(cell.text)
        except SyntaxError as error:
            problems.append(syntax_problem(f"{visible(path)}:cell {cell.number}:{error.lineno or 1}", error))
            continue
        if plain is not None and plain.text.strip():
            lines = len(_LINE.findall(program))
            notebook.cells.append(CellText(cell, plain, lines, len(_LINE.findall(plain.magic))))
            program += plain.text + ("" if plain.text.endswith(("\n", "\r")) else "\n")
    notebook.program, notebook.problems = program.encode(), tuple(problems)
    return notebook


def _read_cell(text: str) -> PlainCell | None:
    """Translate a cell to Python. Raises SyntaxError with the line in the cell."""
    try:
        text.encode()
        return to_plain_python(text)
    except UnicodeEncodeError as error:
        raise SyntaxError("it contains half of a surrogate pair, which is not a character") from error
    except ValueError as error:
        raise SyntaxError("it contains null bytes, so it is not Python source") from error
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("its expressions are nested too deeply to follow") from error


def _edit_cell(cell_text: CellText, edits: Sequence[Edit], comments: bool) -> str:
    """Return the new source of a cell. Raises CannotWrite."""
    after = apply_edits_to_text(cell_text.code.text, edits, comments)
    try:
        return cell_text.code.restore_magics(after)
    except MagicsLost as reason:
        raise CannotWrite(str(reason)) from reason


def _has_import(text: str, wanted: tuple[str, ...]) -> bool:
    """Whether a cell imports one of `wanted` at its top level; any import counts if `wanted` is empty."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Import):
            names = [a.name for a in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        else:
            continue
        if not wanted or any(n.partition(".")[0] in wanted for n in names):
            return True
    return False


def _without_sources(text: str) -> object:
    """Return the data of a notebook without the sources of its code cells."""

    def remove_source(content: dict[str, object]) -> dict[str, object]:
        if content.get("cell_type") == "code":
            content = {k: v for k, v in content.items() if k not in ("source", "input")}
        return content

    return json.loads(text, object_hook=remove_source)


def is_notebook(path: str) -> bool:
    """Whether the name of a file is that of a notebook."""
    return path.lower().endswith(".ipynb")


__all__ = ["NotANotebook", "Notebook", "is_notebook", "read_notebook"]
