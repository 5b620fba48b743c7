"""Writes docs/gpu.md from committed results.

python -m benchmarks.gpu.document benchmarks/results/gpu-h100 docs/gpu.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.predictions import copy_seconds

Row = dict[str, Any]
_WIDTHS = (768, 1024, 4096, 5120, 8192, 11008, 16384)


def document(folder: Path) -> str:
    """The page for the results in a folder: results.json, and sweep.json if launch configurations were timed."""
    results = json.loads((folder / "results.json").read_text())
    rows = {row["key"]: row for row in results["rows"]}
    sweep = folder / "sweep.json"
    swept = json.loads(sweep.read_text()) if sweep.exists() else {}
    parts = (_head(results["environment"], folder), _correctness(rows), _models(rows), _training(rows),
             _kernels(rows, swept), _errors(rows), _open())  # fmt: skip
    return "\n".join(parts)


def _head(environment: dict[str, str], folder: Path) -> str:
    facts = "device", "torch", "cuda", "triton", "liger-kernel", "python"
    table = _table(("", ""), [(name, environment[name]) for name in facts if name in environment])
    return (
        "# Measured on a GPU\n\n"
        f"Written by `python -m benchmarks.gpu.document {folder} docs/gpu.md`. `python -m benchmarks.gpu` and "
        f"`python -m benchmarks.gpu.sweep` measured the numbers, which are in `{folder}`. The GPU was available for a "
        "quarter of an hour, so many rows of the command are missing. Nothing else in these documents was measured on "
        f"a GPU.\n\n{table}"
    )


def _correctness(rows: dict[str, Row]) -> str:
    found = [row for key, row in rows.items() if key.startswith("correctness/")]
    verdicts = Counter(
        "refused" if "refused" in way else "right" if way["right"] else "wrong"
        for row in found for way in row["ways"].values()
    )  # fmt: skip
    worst = max(
        max((e / a for e, a in zip(way.get("errors", ()), row["allowed"], strict=False)), default=0.0)
        for row in found for way in row["ways"].values()
    )  # fmt: skip
    return (
        "## Operations against float64\n\n"
        f"{len(found)} calls (every operation without dropout, in float32, bfloat16 and float16; sizes that no block "
        "size divides; results and all gradients) with every provider that was installed: "
        f"{verdicts['right']} right, {verdicts['wrong']} wrong, {verdicts['refused']} refused with a reason. The "
        f"largest error is {worst:.2f} of what is allowed: four times the error of the hand-written code in the same "
        "dtype, plus four times the dtype's eps.\n"
    )


def _models(rows: dict[str, Row]) -> str:
    lines = [
        (key.removeprefix("models/"), ", ".join(row["wrong"]) or "right", f"{row['share']:.2f} ({row['worst']})")
        for key, row in rows.items() if key.startswith("models/") and "share" in row
    ]  # fmt: skip
    return (
        "## Optimized models against float64\n\n"
        "Models of two layers with the code of `examples/`, optimized without measurements, so that every kernel runs: "
        "logits and all gradients. Allowed is four times the error of the original in the same dtype, plus eight times "
        "its eps. The gradient of a key's bias is zero but for rounding. In two rows its rounding errors are larger "
        "than allowed, probably because flash attention subtracts the product of the rounded output.\n\n"
        + _table(("model", "result", "largest error over what is allowed"), lines)
    )


def _training(rows: dict[str, Row]) -> str:
    lines = []
    for key, row in rows.items():
        if key.startswith("training/") and "seconds" in row:
            lines.append((
                row["model"], row["way"], f"{row['seconds'] * 1e3:.1f}", f"{row['tokens_per_second']:,.0f}",
                f"{row['mfu']:.1%}", f"{row['peak_bytes'] / 2**30:.1f}", ", ".join(f"{x:.2f}" for x in row["losses"]),
            ))  # fmt: skip
    columns = ("model", "way", "step, ms", "tokens/s", "MFU", "peak, GiB", "first losses")
    return (
        "## Training steps\n\n"
        "Hand-written models of `examples/` at the sizes of GPT-2 124M (16 x 1024 tokens) and Llama 3.2 1B (2 x 2048), "
        "in bfloat16, with AdamW (fused). Medians of up to 40 steps. `not measured` means `AUTOFUSE_MEASURED=0`: every "
        f"place is fused with the default kernels. {_time_in_kernels(rows['training/llama-1b/autofuse, not measured'])}"
        "\n\n" + _table(columns, lines)
    )


def _time_in_kernels(row: Row) -> str:
    kernels = sum(each["microseconds"] for each in row["kernels"]) / 1e3
    step = f"{row['seconds'] * 1e3:.0f} ms of a step of {row['model']} with autofuse"
    return f"The {len(row['kernels'])} longest kernels take {kernels:.0f} of the {step}."


def _kernels(rows: dict[str, Row], swept: dict[str, Any]) -> str:
    best: dict[tuple[str, int], float] = {}
    for row in [*swept.get("first", ()), *swept.get("second", ())]:
        if row.get("equal") and "seconds" in row:
            key = row["case"], row["width"]
            best[key] = min(best.get(key, row["seconds"]), row["seconds"])
    moved = rows["predictions/model"]["seconds"]
    lines = []
    for case in dict.fromkeys(key.rpartition("/")[0] for key in moved):
        cells = []
        for width in _WIDTHS:
            measured = rows[f"predictions/{case}/{width}"]["seconds"]
            copied = copy_seconds(rows, moved[f"{case}/{width}"]["moved"]) or 0.0
            least = min(best.get((case, width), measured), measured)
            first, after = copied / measured, copied / least
            cells.append(f"{first:.2f}" if after - first < 0.015 else f"{first:.2f}, **{after:.2f}**")
        lines.append((case, *cells))
    return (
        "## Row kernels: the share of the speed of a copy\n\n"
        "Tensors of 2^26 entries in bfloat16, a cold cache, the GPU's clock. The goal is 0.9. First, the share with "
        "the constants that were chosen without a GPU; then, in bold, with the best configuration of two sweeps. The "
        "kernels now use the best ones, except where these spill on another GPU (dropout's backward pass of rows "
        "longer than 8192 is up to 21 % slower than the best), or gain less than 9 %: dropout + add + layer norm of "
        "rows of 11008 is now even 4 % slower than before.\n\n" + _table(("call", *map(str, _WIDTHS)), lines)
    )


def _errors(rows: dict[str, Row]) -> str:
    guesses = rows["predictions/model"]["seconds"]
    gaps = sorted(
        abs(guess["seconds"] / rows[f"predictions/{key}"]["seconds"] - 1) for key, guess in guesses.items()
    )  # fmt: skip
    signed = sorted(guess["seconds"] / rows[f"predictions/{key}"]["seconds"] for key, guess in guesses.items())
    return (
        "## The performance model\n\n"
        f"Of {len(gaps)} calls, predicted before the sweeps ([predictions](predictions.md)), the median error was "
        f"{gaps[len(gaps) // 2]:.0%}, nine in ten were within {gaps[9 * len(gaps) // 10]:.0%}, and the largest error "
        f"was {gaps[-1]:.0%}. Predicted over measured time goes from {signed[0]:.2f} to {signed[-1]:.2f}. The model "
        "expected too little of the cost of a program of 1024 threads.\n"
    )


def _open() -> str:
    return (
        "## What was not measured\n\n"
        "Whole models of BERT, Llama's eager step, measured choices on Llama, autofuse with torch.compile, single "
        "operations against torch.compile and Liger, the profile's ladder, dropout's repetition, CUDA graphs, other "
        "streams, a second device, and any other GPU.\n"
    )


def _table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    def texts() -> Iterator[str]:
        for cells in (columns, ("---",) * len(columns), *lines):
            yield f"| {' | '.join(cells)} |\n"

    return "".join(texts())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder of the results")
    parser.add_argument("output", type=Path, help="the page")
    options = parser.parse_args(argv)
    options.output.write_text(document(options.results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
