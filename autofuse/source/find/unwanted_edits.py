"""Refuses edits that are correct but that users would not keep. Some are made with `--unsafe` only.

- If the other branch calls a fused operation already, both branches would become the same.
- The loss of a layer with two classes has hardly any logits to save.
- A longer spelling of a loss is no faster.
- Reference code in a test spells the operation out on purpose.

This module looks at text and syntax, not at graphs.
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
from autofuse.source.capture.scope import DefinedFunction, blocks_of
from autofuse.source.capture.syntax import walk
from autofuse.source.place.edits import Edit, TextSpan
from autofuse.source.targets.printing import SourceText

_HEAD = 4000  # bytes at the start of a file where a generator leaves its mark
_GENERATED = re.compile(
    r"@generated\b|\b(automatically|auto)[ -]?generated\b|\bgenerated (by|from)\b.*\bdo not (edit|modify)\b"
    r"|\bdo not edit (this|the) file\b|\bdo not edit manually\b|\bthis (file|code) (is|was) generated\b",
    re.IGNORECASE,
)
_SOURCE = re.compile(r"\bfrom ([\w./-]+\.\w+)")
_FUSED = re.compile(r"scaled_dot_product_attention|memory_efficient_attention|flash_attn|flash_attention")
IN_TESTS = "assumes that no test compares with this code as its reference"
_OF_LAYERS = ("linear_cross_entropy",)
_FEW_CLASSES = 4  # fewer classes are no vocabulary: their logits take hardly any memory
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})


@dataclass(frozen=True)
class EditedFile:
    """A file, with what is computed once for all its edits.

    `generated` is the file it was generated from, "another file" if that is unknown, or "" if people write the file.
    """

    path: str
    generated: str = ""

    @cached_property
    def is_test(self) -> bool:
        """Whether the file contains tests, or code that tests compare with."""
        path = PurePath(self.path)
        if path.is_relative_to(Path.cwd()):  # folders above the project do not count
            path = path.relative_to(Path.cwd())
        name = path.stem
        return bool(_TEST_FOLDERS & set(path.parts[:-1])) or name.startswith("test_") or name.endswith("_test")


def assumption_about_text(edit: Edit, function: Function, text: SourceText) -> str:
    """The assumption of an edit if a comment or the docstring names the function that the edit calls; or "".

    Such a text usually explains why the function is not called: "Using F.gelu yields subtly wrong results".
    """
    last = edit.becomes.rpartition(".")[2]
    if any(last in (getattr(n, "attr", ""), getattr(n, "id", "")) for n in walk(function)):
        return ""
    found = re.search(rf"\b(F|functional|torch|nn)\.{last}\b", text.lines_of(function))
    return f"assumes that the text about `{found[0]}` here does not advise against it" if found else ""


def generator_of(source: bytes) -> str:
    """The source of a generated file, read from its first comments; "another file" if unknown, "" if not generated."""
    comments = []
    for line in source[:_HEAD].decode(errors="replace").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        comments.append(line.strip("# \t"))
    text = " ".join(comments)
    if _GENERATED.search(text) is None:
        return ""
    source_file = _SOURCE.search(text)
    return source_file[1] if source_file else "another file"


def refuse_unwanted(
    edit: Edit, defined: DefinedFunction, operation: str, text: SourceText, unused: tuple[str, ...]
) -> Fails | None:
    """Explains why an edit is not wanted.

    Args:
        edit: an edit that inserts a call of `operation` into the function `defined`.
        text: the text of the file.
        unused: the names that the edit leaves without a use in the file.

    Returns:
        The refusal, or None if the edit is wanted.
    """
    function = defined.function
    for name in unused:
        helper = helper_of(name, defined)
        if helper is not None and _calls_function(helper, edit.becomes):
            return Fails(because(writing.HELPER_UNCALLED, name=name), enables=False)
    if operation == "attention" and (fused := _fused_in_other_branch(edit, function)) is not None:
        return Fails(because(writing.FUSED_BESIDE, name=fused), enables=False)
    classes = _class_count(edit, defined) if operation in _OF_LAYERS else None
    if classes is not None and classes < _FEW_CLASSES:
        return Fails(because(writing.FEW_CLASSES, classes=classes), enables=False)
    if operation == "cross_entropy" and _is_longer(edit, text):
        return Fails(because(writing.LONGER))
    return None


def _class_count(edit: Edit, defined: DefinedFunction) -> int | None:
    """The number of classes of the linear layer of a loss, from `nn.Linear(dim, 2)`; None if unknown."""
    arguments = (a for _, new in edit.replacements if new.call is not None for a in new.call.arguments)
    names = [
        a.removeprefix("self.").removesuffix(".weight") for a in arguments if re.fullmatch(r"self\.\w+\.weight", a)
    ]
    layer = defined.scope.attribute(defined.owner, names[0]) if names else None
    if not isinstance(layer, ast.Call) or defined.scope.name_of(layer.func) != "torch.nn.Linear":
        return None
    out_features = [*layer.args[1:2], *(k.value for k in layer.keywords if k.arg == "out_features")]
    count = out_features[0].value if out_features and isinstance(out_features[0], ast.Constant) else None
    return count if isinstance(count, int) else None


def helper_of(name: str, defined: DefinedFunction) -> Function | None:
    """The method or function in the file that `name` refers to: `self._norm`, `normed`."""
    if name.startswith("self."):
        return defined.owner.methods.get(name.removeprefix("self.")) if defined.owner is not None else None
    return defined.scope.functions.get(name)


def _calls_function(helper: Function, function: str) -> bool:
    """Whether a helper calls a function of this name, under any prefix."""
    last = function.rpartition(".")[2]
    calls = (n.func for n in walk(helper) if isinstance(n, ast.Call))
    return any(getattr(f, "attr", getattr(f, "id", "")) == last for f in calls)


def _fused_in_other_branch(edit: Edit, function: Function) -> str | None:
    """The fused function in the other branch of an `if` around the edit, or in an earlier `if` that returns."""
    line = edit.replacements[0][0].line if edit.replacements else 0
    for statement in walk(function):
        if not isinstance(statement, ast.If):
            continue
        branches = [statement.body, statement.orelse]
        contains_edit = [_contains_line(branch, line) for branch in branches]
        others = [branch for branch, contains in zip(branches, contains_edit, strict=True) if not contains]
        is_before = (statement.end_lineno or 0) < line
        if any(contains_edit) or is_before:
            candidates = (
                others
                if any(contains_edit)
                else [branch for branch in branches if branch and isinstance(branch[-1], ast.Return)]
            )
            fused = next((name for branch in candidates for name in _fused_calls(branch)), None)
            if fused is not None and (any(contains_edit) or _is_line_after(function.body, statement, line)):
                return fused
    return None


def _is_line_after(body: list[ast.stmt], statement: ast.stmt, line: int) -> bool:
    """Whether `line` is after `statement` in the same block, or in a block nested there."""
    for i, s in enumerate(body):
        if s is statement:
            return _contains_line(body[i + 1 :], line)
        nested = [_is_line_after(block, statement, line) for block in blocks_of(s)]
        if any(nested):
            return True
    return False


def _contains_line(body: list[ast.stmt], line: int) -> bool:
    return any(s.lineno <= line <= (s.end_lineno or s.lineno) for s in body)


def _fused_calls(body: list[ast.stmt]) -> Iterator[str]:
    for s in body:
        for n in walk(s):
            if isinstance(n, ast.Call) and _FUSED.search(name := ast.unparse(n.func)):
                yield name


def _is_longer(edit: Edit, text: SourceText) -> bool:
    """Whether a call that is formatted like its targets has more characters than the code it replaces."""
    if not any(t.call is not None and t.call.tail for _, t in edit.replacements):
        return False
    new_length = sum(len(t.text) for _, t in edit.replacements) + sum(len(t) for _, t in edit.insertions)
    return new_length > sum(_code_length(span, text) for span in (*edit.removals, *(s for s, _ in edit.replacements)))


def _code_length(span: TextSpan, text: SourceText) -> int:
    lines = text.lines[span.line - 1 : span.end_line]
    lines = [*lines[:-1], lines[-1][: span.end_column]]
    lines[0] = lines[0][span.column :]
    return sum(len(line.strip()) for line in lines)
