"""The functions that differ between two versions of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tools.clean_diffs.rewriting import RewrittenFile

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ChangedFunction:
    """A function before and after, as whole lines. `file` is the file that contains it."""

    path: str
    name: str
    before: str
    after: str
    file: RewrittenFile

    @property
    def trees(self) -> tuple[ast.AST, ast.AST]:
        return _parse(self.before), _parse(self.after)


def changed_functions(file: RewrittenFile) -> Iterator[ChangedFunction]:
    """Yield the outermost functions and methods whose text changed. Code outside of all of them is `<module>`."""
    before, after = (_functions(text) for text in (file.before, file.after))
    for name, old in before.items():
        new = after.get(name, "")
        if old != new:
            yield ChangedFunction(file.path, name, old, new, file)


def _functions(source: bytes) -> dict[str, str]:
    """Qualified name -> text. A name that is defined again gets a number."""
    text = source.decode("utf-8", errors="replace").replace("\r\n", "\n")
    lines = text.split("\n")
    found: dict[str, str] = {}
    rest = list(lines)

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for s in body:
            if isinstance(s, ast.ClassDef):
                visit(s.body, f"{prefix}{s.name}.")
            elif isinstance(s, Function):
                first = min([s.lineno, *(d.lineno for d in s.decorator_list)])
                last = s.end_lineno or s.lineno
                name, n = f"{prefix}{s.name}", 1
                while name in found:
                    n += 1
                    name = f"{prefix}{s.name}#{n}"
                found[name] = "\n".join(lines[first - 1 : last]) + "\n"
                rest[first - 1 : last] = [""] * (last - first + 1)
            elif isinstance(s, (ast.If, ast.Try)):
                visit(s.body, prefix)

    visit(ast.parse(text).body, "")
    found["<module>"] = "\n".join(line for line in rest if line) + "\n"
    return found


def _parse(text: str) -> ast.AST:
    """The syntax tree of a function's text, which may be indented."""
    if text[:1] in " \t":
        text = "if True:\n" + text
    return ast.parse(text)
