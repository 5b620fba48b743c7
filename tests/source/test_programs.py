"""Random programs: the codemod reads all of them without an error, and its edits keep their results."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import hypothesmith
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import deferred

from autofuse.loading.registry import load_rules
from autofuse.source.find.check import proposals
from autofuse.source.write.file_edits import CannotWrite, apply_proposals
from tests.source.programs import HEAD, close, program, run
from tests.source.rewriting import rewritten_bytes

_HINTS = "\n# torch softmax exp( optim DataLoader backward autocast\n"  # the words that rules require
_QUICKLY = settings(
    max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def read(text: str) -> None:
    """Reads a text if Python can parse it, and makes its edits or refuses them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        found = proposals(text.encode(errors="surrogatepass"), "x.py", rules=load_rules())
        with suppress(CannotWrite):
            ast.parse(apply_proposals(text.encode(), found))


@_QUICKLY
@given(deferred(lambda: hypothesmith.from_grammar("file_input", auto_target=False)))
def test_random_texts_of_the_grammar_are_read(text: str) -> None:
    read(text + _HINTS)


@_QUICKLY
@given(deferred(lambda: hypothesmith.from_node(auto_target=False)))
def test_random_syntax_trees_are_read(text: str) -> None:
    read(text + _HINTS)


def test_random_functions_of_tensors_compute_the_same_after_all_edits() -> None:
    seen: Counter[str] = Counter()
    for seed in range(24):
        before = program(Random(seed))
        after = rewritten_bytes(before.encode()).decode()
        compile(after, f"seed {seed}", "exec")
        seen["edited"] += after != before
        for flag, with_mask in ((False, True), (True, True)) if after != before else ():
            expected = run(before, flag, with_mask)
            if isinstance(expected, str):  # the program itself does not run
                continue
            got = run(after, flag, with_mask)
            if got == "RuntimeError" and writes_in_place(before):
                continue
            assert not isinstance(got, str), f"seed {seed}: {got}\n{after}"
            assert close(expected, got), f"seed {seed}\n{before}\n---\n{after}"
            seen["equal"] += 1
    assert seen["edited"] > 12 and seen["equal"] > 12
    print(f"{seen['edited']} of 24 random programs edited, {seen['equal']} runs equal")


def writes_in_place(text: str) -> bool:
    """Whether a result may be written in place, which a fused kernel's backward pass does not allow."""
    return any(word in text for word in ("-=", "+=", "*=", "mul_(", "[0] ="))


def mutate(lines: list[str], rng: Random) -> list[str]:
    """A copy with one line deleted, repeated, moved, or indented differently."""
    lines, at, other = list(lines), rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = "    " + lines[at]
    else:
        lines[at] = lines[at].removeprefix("    ")
    return lines


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_real_files_with_changed_lines_are_read_or_refused(path: Path) -> None:
    original, rng = path.read_text().split("\n"), Random(path.stem)
    for _ in range(6):
        text = "\n".join(mutate(mutate(original, rng), rng))
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        ast.parse(rewritten_bytes(text.encode()))


def test_the_head_of_random_programs_is_valid_python() -> None:
    assert ast.parse(HEAD)
