"""Predicts the speed of autofuse's kernels on GPUs that are not present, and compares with published figures.

    python -m tools.ahead --predict                      the tables on stdout
    python -m tools.ahead --predict docs/predictions.md  into a file

All results are predictions. Nothing was measured. The model is in predict_model.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tools.ahead import predict_published
from tools.ahead.predict_cases import WIDTHS, cases
from tools.ahead.predict_gpus import FIXED, GPUS, Gpu
from tools.ahead.predict_launches import works
from tools.ahead.predict_model import predicted
from tools.ahead.predict_products import BEFORE, NOW, NOW_IN_256_MIB, seconds

GOAL = 0.9
_HEAD = """# Predicted speed of our kernels

Written by `python -m tools.ahead --predict docs/predictions.md`. **No number of ours on this page was measured**: each
is predicted from the tensors of a launch, its machine code (compiled for a GPU that was not there), and data sheets.
A share is of the speed of a copy of as many bytes. The model: `tools/ahead/predict_model.py`; what it is set by:
`tools/ahead/predict_gpus.py`; `python -m benchmarks.gpu` measures the same calls on a GPU and prints the error.
[Measured on a GPU](gpu.md) has the error on an H100.
"""


def table(gpu: Gpu, widths: tuple[int, ...] = WIDTHS) -> Iterator[str]:
    """Yield a line for each call: the predicted share of a copy's speed at each width, for all launches together."""
    yield f"| predicted on {gpu.name} | {' | '.join(map(str, widths))} |"
    yield "| --- " * (len(widths) + 1) + "|"
    by_width = {width: cases(width) for width in widths}
    for name in by_width[widths[0]]:
        cells = [_cell(gpu, by_width[width][name]) for width in widths]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(gpu: Gpu, call: object) -> str:
    """The share; below the goal, also the limit of the slowest launch."""
    done = [(work, predicted(work, gpu)) for _, work in works(call, gpu)]  # type: ignore[arg-type]
    total = sum(p.seconds for _, p in done)
    ideal = sum(FIXED + w.moved / gpu.copy for w, _ in done)
    limit = max((p for _, p in done), key=lambda p: p.seconds).limit
    share = ideal / total
    return f"{share:.2f}" + (f" ({limit})" if share < GOAL else "")


def page() -> str:
    """Return the page, in Markdown."""
    h100 = next(gpu for gpu in GPUS if gpu.name == "H100")
    parts = [_HEAD, f"## Rows of 768 to 16384 in bfloat16 on an H100\n\nThe goal is {GOAL}. In brackets what binds.\n"]
    parts += ["\n".join(table(h100)), "\n## Other GPUs, rows of 1024, 4096 and 16384\n"]
    for gpu in GPUS:
        if gpu is not h100:
            note = f"Assumed, not published: {gpu.assumed}.\n\n" if gpu.assumed else ""
            parts.append(note + "\n".join(table(gpu, (1024, 4096, 16384))) + "\n")
    parts += ["## Linear + cross entropy, 8192 rows of 4096, 128256 classes, bfloat16, loss and gradients\n"]
    parts += ["\n".join(_products())]
    parts += ["\n## The same model against published figures\n"]
    parts += ["Bytes once, arithmetic and the fixed part of a launch: a ratio well under 1 is a kernel that does not"]
    parts += ["reach memory's speed (backward passes with sums over rows above all), which a model without its machine"]
    parts += ["code cannot see.\n", predict_published.as_markdown()]
    return "\n".join(parts).rstrip() + "\n"


def _products() -> Iterator[str]:
    yield "| predicted, ms | before: 523 rows | 1024 rows | 4096 rows | before / 4096 rows |"
    yield "| --- " * 5 + "|"
    for gpu in GPUS:
        before, small, now = (seconds(8192, 4096, 128256, w, gpu) * 1e3 for w in (BEFORE, NOW_IN_256_MIB, NOW))
        yield f"| {gpu.name} | {before:.1f} | {small:.1f} | {now:.1f} | {before / now:.2f} |"


def write(output: Path | None) -> int:
    """Write the page to a file, or print it."""
    if output is None:
        sys.stdout.write(page())
    else:
        output.write_text(page())
    return 0
