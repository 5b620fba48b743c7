"""docs/versions.md: which versions of Python and torch were tested, and how that went."""

from __future__ import annotations

from collections.abc import Sequence

from tools.matrix.cells import Result

_HEAD = """\
# Versions

`python -m tools.matrix CACHE` makes an environment for each row, runs the fast tests (`pytest -m fast`) in it, and
trains a small GPT for 20 steps, as it is written and optimized. The training holds if places are fused, the state dict
has the same keys, the first losses agree within 1e-5 of the loss and all losses within 1e-3, and the optimized model
can be called by `torch.compile(backend="eager")`. `+cu` is a build of torch for CUDA, which ran on a CPU. A version
that is not in the table was not tested. An older torch is refused with one sentence.

| Python | torch | tests passed | skipped | failed | training | largest difference of losses |
| --- | --- | --- | --- | --- | --- | --- |
"""


def as_markdown(results: Sequence[Result]) -> str:
    """The page."""
    rows = "".join(_row(r) for r in results)
    failures = [f"- Python {r.cell.python}, torch {r.cell.torch}: `{name}`" for r in results for name in r.failed]
    errors = [f"- Python {r.cell.python}, torch {r.cell.torch}: {r.smoke_error}" for r in results if r.smoke_error]
    text = _HEAD + rows
    if failures:
        text += "\n## Tests that failed\n\n" + "\n".join(failures) + "\n"
    if errors:
        text += "\n## Trainings that did not run\n\n" + "\n".join(errors) + "\n"
    return text


def _row(result: Result) -> str:
    cell = result.cell
    if result.absent:
        return f"| {cell.python} | {cell.torch} | not tested: {result.absent} | | | | |\n"
    training = "did not run" if result.smoke is None else "equal" if result.training_is_equal else "differs"
    tests = f"{result.passed:,} | {result.skipped} | {len(result.failed)}" if result.tests_ran else "not run yet | |"
    worst = "" if result.smoke is None else f"{result.smoke['worst']:.1e}"
    return f"| {cell.python} | {result.torch} | {tests} | {training} | {worst} |\n"
