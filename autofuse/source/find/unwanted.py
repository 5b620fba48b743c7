"""Edits that are right and that nobody would keep: declined with a reason, or made with `--unsafe` only.

A generated file is made anew from its source. Where the other branch calls a fused operation already, both would be
the same. A layer of two classes has no logits worth saving. A loss that gets longer runs no faster. Reference code in
a test is there to be written out. Knows text and syntax; knows nothing of graphs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import Defined, blocks_of
from autofuse.source.capture.syntax import walk
from autofuse.source.place.edits import Edit, TextSpan
from autofuse.source.targets.printing import SourceText

_HEAD = 4000  # bytes at the start of a file, in which a generator says that it made it
_GENERATED = re.compile(
    r"@generated\b|\b(automatically|auto)[ -]?generated\b|\bgenerated (by|from)\b.*\bdo not (edit|modify)\b"
    r"|\bdo not edit (this|the) file\b|\bdo not edit manually\b|\bthis (file|code) (is|was) generated\b",
    re.IGNORECASE,
)
_SOURCE = re.compile(r"\bfrom ([\w./-]+\.\w+)")
_FUSED = re.compile(r"scaled_dot_product_attention|memory_efficient_attention|flash_attn|flash_attention")
IN_TESTS = "assumes that no test compares with this code as its reference"
_FEW_CLASSES = 4  # no vocabulary: the logits of a batch are next to nothing
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})


@dataclass(frozen=True)
class FileOfEdits:
    """What is asked of a file once. `generated`: its maker, or "" where people write it."""

    path: str
    generated: str = ""

    @cached_property
    def of_tests(self) -> bool:
        """Whether the file holds tests, or what they compare with."""
        path = PurePath(self.path)
        if path.is_relative_to(Path.cwd()):  # where the project lies says nothing about its files
            path = path.relative_to(Path.cwd())
        name = path.stem
        return bool(_TEST_FOLDERS & set(path.parts[:-1])) or name.startswith("test_") or name.endswith("_test")


def generator_of(source: bytes) -> str:
    """What made a file, by the comments before its code: the file it is made from, else "a generator"; "" for none."""
    said = []
    for line in source[:_HEAD].decode(errors="replace").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        said.append(line.strip("# \t"))
    text = " ".join(said)
    if _GENERATED.search(text) is None:
        return ""
    made_from = _SOURCE.search(text)
    return made_from[1] if made_from else "a generator"


def unwanted(
    file: FileOfEdits, edit: Edit, d: Defined, operation: str, text: SourceText, unused: tuple[str, ...]
) -> Fails | None:
    """Why an edit of a function that puts `operation` there is not made; None where nothing speaks against it.

    `unused` is what the edit leaves without a use in the file.
    """
    function = d.function
    for name in unused:
        helper = helper_of(name, d)
        if helper is not None and _calls(helper, edit.becomes):
            return Fails(because(writing.HELPER_UNCALLED, name=name), enables=False)
    if file.generated:
        return Fails(because(writing.GENERATED_FILE, name=file.generated), enables=False)
    if operation == "attention" and (fused := _fused_beside(edit, function)) is not None:
        return Fails(because(writing.FUSED_BESIDE, name=fused), enables=False)
    if operation == "linear_cross_entropy" and (few := _classes(edit, d)) is not None and few < _FEW_CLASSES:
        return Fails(because(writing.FEW_CLASSES, classes=few), enables=False)
    if operation in ("cross_entropy", "log_likelihood") and _longer(edit, text):
        return Fails(because(writing.LONGER))
    return None


def _classes(edit: Edit, d: Defined) -> int | None:
    """The number of classes that the layer of a loss is made for, where `nn.Linear(dim, 2)` says it."""
    given = (a for _, new in edit.replacements if new.call is not None for a in new.call.arguments)
    names = [a.removeprefix("self.").removesuffix(".weight") for a in given if re.fullmatch(r"self\.\w+\.weight", a)]
    made = d.scope.attribute(d.owner, names[0]) if names else None
    if not isinstance(made, ast.Call) or d.scope.name_of(made.func) != "torch.nn.Linear":
        return None
    out = [*made.args[1:2], *(k.value for k in made.keywords if k.arg == "out_features")]
    return out[0].value if out and isinstance(out[0], ast.Constant) and isinstance(out[0].value, int) else None


def helper_of(name: str, d: Defined) -> Function | None:
    """The method or function of the file that an edit of `d` calls by `name`: `self._norm`, `normed`."""
    if name.startswith("self."):
        return d.owner.methods.get(name.removeprefix("self.")) if d.owner is not None else None
    return d.scope.functions.get(name)


def _calls(helper: Function, function: str) -> bool:
    """Whether a helper calls a function of that name, however it is reached."""
    last = function.rpartition(".")[2]
    calls = (n.func for n in walk(helper) if isinstance(n, ast.Call))
    return any(getattr(f, "attr", getattr(f, "id", "")) == last for f in calls)


def _fused_beside(edit: Edit, function: Function) -> str | None:
    """The fused function that another branch calls: of an `if` around the edit, or of one before it that returns."""
    at = edit.replacements[0][0].line if edit.replacements else 0
    for statement in walk(function):
        if not isinstance(statement, ast.If):
            continue
        arms = [statement.body, statement.orelse]
        inside = [_lies_in(arm, at) for arm in arms]
        others = [arm for arm, own in zip(arms, inside, strict=True) if not own]
        before = (statement.end_lineno or 0) < at
        if any(inside) or before:
            wanted = others if any(inside) else [arm for arm in arms if arm and isinstance(arm[-1], ast.Return)]
            fused = next((name for arm in wanted for name in _fused_calls(arm)), None)
            if fused is not None and (any(inside) or _follows(function.body, statement, at)):
                return fused
    return None


def _follows(body: list[ast.stmt], statement: ast.stmt, at: int) -> bool:
    """Whether line `at` stands in the block of `statement`, or deeper in one behind it."""
    for i, s in enumerate(body):
        if s is statement:
            return _lies_in(body[i + 1 :], at)
        found = [_follows(block, statement, at) for block in blocks_of(s)]
        if any(found):
            return True
    return False


def _lies_in(arm: list[ast.stmt], line: int) -> bool:
    return any(s.lineno <= line <= (s.end_lineno or s.lineno) for s in arm)


def _fused_calls(arm: list[ast.stmt]) -> Iterator[str]:
    for s in arm:
        for n in walk(s):
            if isinstance(n, ast.Call) and _FUSED.search(name := ast.unparse(n.func)):
                yield name


def _longer(edit: Edit, text: SourceText) -> bool:
    """Whether a loss that is laid out as its targets has more characters than what it stands for."""
    if not any(t.call is not None and t.call.tail for _, t in edit.replacements):
        return False
    new = sum(len(t.text) for _, t in edit.replacements) + sum(len(t) for _, t in edit.insertions)
    return new > sum(_length(span, text) for span in (*edit.removals, *(s for s, _ in edit.replacements)))


def _length(span: TextSpan, text: SourceText) -> int:
    lines = text.lines[span.line - 1 : span.end_line]
    lines = [*lines[:-1], lines[-1][: span.end_column]]
    lines[0] = lines[0][span.column :]
    return sum(len(line.strip()) for line in lines)
