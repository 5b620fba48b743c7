"""A notebook as one program: its code cells in order, and the way back from a place in the program to a cell.

A cell that cannot be read is left out and told. An edit is made in the one cell that it lies in; everything else in
the file keeps its bytes, which is checked. Knows cells; neither JSON (notebook_json.py) nor IPython (magics.py).
"""

from __future__ import annotations

import ast
import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autofuse.project.file_discovery import Trouble, not_python
from autofuse.project.magics import MagicsLost, Plain, plain
from autofuse.project.notebook_json import NotANotebook, NotebookCell, code_cells, with_source
from autofuse.results.findings import Finding
from autofuse.results.visible_text import visible
from autofuse.source.place.edits import Edit, moved
from autofuse.source.write.file_edits import CannotWrite, with_text_edits

_LINE = re.compile(r"\r\n|\r|\n")
_HEAD = "\n\n"  # a comment in a cell's first lines says nothing about the encoding of a notebook
_NAMED_LINE = re.compile(r"\bline (\d+)\b")


@dataclass(frozen=True)
class CellText:
    """One readable cell in the program: it begins after `offset` lines, `skipped` lines of its own come before."""

    cell: NotebookCell
    plain: Plain
    offset: int
    skipped: int

    def line(self, line: int) -> int:
        """The line of the cell at a line of the program."""
        return line - self.offset + self.skipped


@dataclass
class Notebook:
    """`program` is what a rule is shown. `troubles` are the cells that could not be read."""

    path: str
    source: bytes
    text: str = ""
    program: bytes = b""
    parts: list[CellText] = field(default_factory=list)
    troubles: tuple[Trouble, ...] = ()

    def place(self, line: int) -> str:
        part = self._part(line)
        return f"{visible(self.path)}:cell {part.cell.number}:{part.line(line)}"

    def located(self, finding: Finding) -> Finding:
        """A finding in the program, with the cell and the line in it."""
        part = self._part(finding.line)
        within = {
            "line": part.line(finding.line),
            "end_line": part.line(finding.end_line),
            "message": self._told(finding.message),
            "reason": self._told(finding.reason),
            "value_line": finding.value_line and self._part(finding.value_line).line(finding.value_line),
        }
        return replace(finding, cell=part.cell.number, **within)  # type: ignore[arg-type]

    def with_edits(self, edits: Sequence[Edit], comments: bool = True) -> bytes:
        """The file with every edit made. Raises CannotWrite; LosesComments too, if `comments` must all be kept."""
        by_part: dict[int, list[Edit]] = {}
        for edit in edits:
            at = self._index(edit)
            by_part.setdefault(at, []).append(moved(replace(edit, imports=()), -self.parts[at].offset))
            if edit.imports:
                by_part.setdefault(self._imports_at(at), []).append(Edit((), imports=edit.imports))
        text = self.text
        for at in sorted(by_part, reverse=True):  # from the end, so that what comes before keeps its place
            text = with_source(text, self.parts[at].cell, _edited(self.parts[at], by_part[at], comments))
        self._check(text, {self.parts[at].cell.number for at in by_part})
        bom = codecs.BOM_UTF8 if self.source.startswith(codecs.BOM_UTF8) else b""
        return bom + text.encode()

    def texts(self) -> dict[str, bytes]:
        """The source of each code cell, by the file's name and the cell's number."""
        return {f"{self.path}:cell {c.number}": c.text.encode(errors="replace") for c in code_cells(self.text)}

    def _part(self, line: int) -> CellText:
        return self.parts[bisect_right([p.offset for p in self.parts], line - 1) - 1]

    def _index(self, edit: Edit) -> int:
        """The one part that an edit lies in."""
        found = {self.parts.index(self._part(line)) for span in edit.spans for line in (span.line, span.end_line)}
        if len(found) != 1:
            raise CannotWrite("the edit would reach over several cells")
        return found.pop()

    def _imports_at(self, edited: int) -> int:
        """The cell that an import which `edited` needs goes to: one before it that imports torch, else anything."""
        before = [i for i in range(edited + 1) if not self.parts[i].plain.head]
        for wanted in (("torch",), ()):
            for i in before:
                if _imports(self.parts[i].plain.text, wanted):
                    return i
        return edited

    def _told(self, sentence: str) -> str:
        """A sentence that names lines of the program, with those of the cells instead."""

        def named(found: re.Match[str]) -> str:
            part = self._part(int(found[1]))
            return f"line {part.line(int(found[1]))} of cell {part.cell.number}"

        return _NAMED_LINE.sub(named, sentence)

    def _check(self, text: str, edited: set[int]) -> None:
        """Raises CannotWrite unless `text` is the same notebook but for the sources of the edited cells."""
        before, after = code_cells(self.text), code_cells(text)
        others = [[(c.number, c.text) for c in cells if c.number not in edited] for cells in (before, after)]
        if _without_sources(self.text) != _without_sources(text) or others[0] != others[1]:
            raise CannotWrite("the edit would change the notebook elsewhere")


def read_notebook(source: bytes, path: str) -> Notebook:
    """A notebook's program. Raises NotANotebook."""
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotANotebook(f"it is no UTF-8 text, which notebooks are: {error.reason} at byte {error.start}") from error
    notebook, program, troubles = Notebook(path, source, text), _HEAD, list[Trouble]()
    for cell in code_cells(text):
        try:
            readable = _readable(cell.text)
        except SyntaxError as error:
            troubles.append(not_python(f"{visible(path)}:cell {cell.number}:{error.lineno or 1}", error))
            continue
        if readable is not None and readable.text.strip():
            lines = len(_LINE.findall(program))
            notebook.parts.append(CellText(cell, readable, lines, len(_LINE.findall(readable.head))))
            program += readable.text + ("" if readable.text.endswith(("\n", "\r")) else "\n")
    notebook.program, notebook.troubles = program.encode(), tuple(troubles)
    return notebook


def _readable(text: str) -> Plain | None:
    """A cell as Python. Raises SyntaxError, with the line of the cell."""
    try:
        text.encode()
        return plain(text)
    except UnicodeEncodeError as error:
        raise SyntaxError("it holds half of a surrogate pair, which is no character") from error
    except ValueError as error:
        raise SyntaxError("it holds null bytes, so it is not Python source") from error
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("its expressions are nested too deeply to follow") from error


def _edited(part: CellText, edits: Sequence[Edit], comments: bool) -> str:
    """The new source of a cell. Raises CannotWrite."""
    after = with_text_edits(part.plain.text, edits, comments)
    try:
        return part.plain.restored(after)
    except MagicsLost as reason:
        raise CannotWrite(str(reason)) from reason


def _imports(text: str, wanted: tuple[str, ...]) -> bool:
    """Whether a cell imports one of `wanted`, or anything, at its top level."""
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
    """The notebook's data without the sources of its cells."""

    def stripped(found: dict[str, object]) -> dict[str, object]:
        if found.get("cell_type") == "code":
            found = {k: v for k, v in found.items() if k not in ("source", "input")}
        return found

    return json.loads(text, object_hook=stripped)


def is_notebook(path: str) -> bool:
    return path.lower().endswith(".ipynb")


__all__ = ["NotANotebook", "Notebook", "is_notebook", "read_notebook"]
