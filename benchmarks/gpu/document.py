"""Writes docs/gpu.md from committed results.

python -m benchmarks.gpu.document benchmarks/results/gpu-h100 benchmarks/results/gpu-h200 docs/gpu.md
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
_WIDTHS = (768, 1024, 2048, 4096, 5120, 8192, 11008, 16384)
_OURS = "autofuse.ops"


def document(folder: Path, *others: Path) -> str:
    """The page for a folder with results.json, products.json, launches.json, and sweep.json if it exists.

    The other folders are those of other GPUs. They have a results.json, whose training steps follow.
    """
    results = json.loads((folder / "results.json").read_text())
    rows = {row["key"]: row for row in results["rows"]}
    sweep = folder / "sweep.json"
    swept = json.loads(sweep.read_text()) if sweep.exists() else {}
    products, launches = (json.loads((folder / f"{name}.json").read_text()) for name in ("products", "launches"))
    more = [_another(json.loads((other / "results.json").read_text()), other) for other in others]
    parts = (_head(results["environment"], folder, others), _correctness(rows), _models(rows), _training(rows), *more,
             _operations(rows), _products(products), _launches(launches), _kernels(rows, swept), _errors(rows),
             _open())  # fmt: skip
    return "\n".join(parts)


def _head(environment: dict[str, str], folder: Path, others: tuple[Path, ...]) -> str:
    folders = " ".join(map(str, (folder, *others)))
    return (
        "# Measured on a GPU\n\n"
        f"Written by `python -m benchmarks.gpu.document {folders} docs/gpu.md`. `python -m benchmarks.gpu` and "
        f"`python -m benchmarks.gpu.sweep` measured the numbers, which are in `{folder}`. A GPU of this kind was "
        "available twice for a quarter of an hour, and one of another kind once, so many rows of the command are "
        "missing. Nothing else in these documents was measured on a GPU. All sections but one are about this "
        f"machine:\n\n{_facts(environment)}"
    )


def _facts(environment: dict[str, str]) -> str:
    facts = "device", "torch", "cuda", "triton", "transformers", "liger-kernel", "python"
    return _table(("", ""), [(name, environment[name]) for name in facts if name in environment])


def _another(results: dict[str, Any], folder: Path) -> str:
    """The training steps on another GPU, and what was checked there."""
    rows = {row["key"]: row for row in results["rows"]}
    checks = [row for key, row in rows.items() if key.startswith(("correctness/", "models/"))]
    wrong = [row["key"] for row in checks if row.get("wrong") or _is_wrong(row)]
    library = [row for key, row in rows.items() if key.startswith("libraries/") and "seconds" in row]
    return (
        f"## Training steps on another GPU\n\nThe numbers are in `{folder}`.\n\n{_facts(results['environment'])}\n"
        f"Checks of operations and models as above: {len(checks) - len(wrong)} are right, "
        f"{', '.join(wrong) or 'none is wrong'}.\n\n{_steps(rows, 'training/')}\n"
        "With autofuse, the kernels of GPT-2 and BERT take longer than with torch.compile because of their heads, "
        "whose number of classes is no multiple of 8 (see below). GPT-2's loss was given, but autofuse declined the "
        "head: its check compared the gradient of a key's bias, which is zero apart from rounding. Since then that is "
        "corrected, and heads whose loss is computed elsewhere are padded. Neither was measured again. The GPU waits "
        f"for Python in {_waiting(rows, 'llama-1b/autofuse, loss given')} of Llama's step and "
        f"{_waiting(rows, 'bert-base/autofuse')} of BERT's. `compile=True` was not measured.\n"
        + (_library(library) if library else "")
    )


def _waiting(rows: dict[str, Row], way: str) -> str:
    row = rows[f"training/{way}"]
    return f"{1 - sum(each['microseconds'] for each in row['kernels']) / (row['seconds'] * 1e6):.0%}"


def _is_wrong(row: Row) -> bool:
    return any(way.get("right") is False for way in row.get("ways", {}).values())


def _library(rows: list[Row]) -> str:
    lines = [
        (row["model"], row["way"], f"{row['seconds'] * 1e3:.1f}", f"{row['peak_bytes'] / 2**30:.1f}") for row in rows
    ]
    return (
        "\nOf the decoders of transformers (four layers with the widths of a Llama of 1.2B, 2 x 2048 tokens, 128256 "
        "classes, called with `labels`) only these were measured in time:\n\n"
        + _table(("model", "way", "step, ms", "peak, GiB"), lines)
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
    of_models = {key.removeprefix("models/"): row for key, row in rows.items() if key.startswith("models/")}
    lines = [
        (name, ", ".join(row["wrong"]) or "right", f"{row['share']:.2f} ({row['worst']})")
        for name, row in of_models.items() if "share" in row
    ]  # fmt: skip
    others = {name: row for name, row in of_models.items() if "share" not in row}
    right = [name for name, row in others.items() if not row["wrong"]]
    wrong = [name for name in others if name not in right]
    return (
        "## Optimized models against float64\n\n"
        "Models of two layers with the code of `examples/`, optimized without measurements, so that every kernel runs: "
        "logits and all gradients. Allowed is four times the error of the original in the same dtype, plus eight times "
        "its eps. The gradient of a key's bias is zero apart from rounding, so it is compared with its neighbours.\n\n"
        + _table(("model", "result", "largest error over what is allowed"), lines)
        + f"\nOther checks that are right: {'; '.join(right)}. Wrong: {'; '.join(wrong) or 'none'}.\n"
    )


def _steps(rows: dict[str, Row], prefix: str) -> str:
    found = [row for key, row in rows.items() if key.startswith(prefix) and "seconds" in row]
    lines = [
        (
            row["model"], row["way"], f"{row['seconds'] * 1e3:.1f}", _kernel_milliseconds(row),
            f"{row['tokens_per_second']:,.0f}", f"{row['mfu']:.1%}", f"{row['peak_bytes'] / 2**30:.1f}",
            ", ".join(f"{x:.2f}" for x in row["losses"]),
        )
        for row in sorted(found, key=lambda row: row["model"])
    ]  # fmt: skip
    columns = ("model", "way", "step, ms", "kernels, ms", "tokens/s", "MFU", "peak, GiB", "first losses")
    return _table(columns, lines)


def _training(rows: dict[str, Row]) -> str:
    slow = sum(each["microseconds"] for each in rows["training/gpt2-124m/autofuse"]["kernels"] if _is_slow(each))
    return (
        "## Training steps\n\n"
        "Hand-written models of `examples/` at the sizes of GPT-2 124M (16 x 1024 tokens) and Llama 3.2 1B (2 x 2048), "
        "in bfloat16, with AdamW (fused). Medians of up to 40 steps, and the time of the longest 40 kernels. `not "
        "measured` means `AUTOFUSE_MEASURED=0`: every place is fused with the default kernels. The hosts of these GPUs "
        "launch slowly (see below), and GPUs wait for it in Llama's step.\n\n"
        + _steps(rows, "training/")
        + f"\nIn GPT-2's step, {slow / 1e3:.1f} ms are the three products of the head with its 50257 classes, which "
        "torch.compile pads. autofuse pads them if it computes the loss (`loss_fn=`), or if it measures that this is "
        "faster; neither was measured in a whole step. In Llama's step, the loss was not computed in blocks, because a "
        "float64 copy of the model with all its tokens did not fit into memory; since then, autofuse checks a part of "
        "the call instead.\n"
    )


def _is_slow(kernel: Row) -> bool:
    return "align1>" in kernel["name"]


def _kernel_milliseconds(row: Row) -> str:
    return f"{sum(each['microseconds'] for each in row['kernels']) / 1e3:.1f}" if row.get("kernels") else ""


def _operations(rows: dict[str, Row]) -> str:
    found = [row for key, row in rows.items() if key.startswith("operations/training/") and "seconds" in row]
    lines = [
        (row["case"], str(row["chosen"].get("winner", "")), *(_both(row, way) for way in _WAYS))
        for row in found if row["regime"] == "unknown"
    ]  # fmt: skip
    again = [row for row in found if row["regime"] != "unknown"]
    (line,) = (
        f"{row['case']}: {row['chosen']['winner']}, {', '.join(f'{way} {_both(row, way)}' for way in _WAYS)}"
        for row in again
    )
    return (
        "## Operations, forward and backward\n\n"
        "Microseconds of the kernels, and in parentheses those of the wall clock for many calls in a row. Providers "
        "were chosen by samples of 1 ms on the wall clock. These samples had one call of most operations, which tells "
        "more about the host than about the GPU, so torch's functions were chosen too often. Now samples take 5 ms, "
        "`optimize` finds out whether a model's steps wait for the GPU, and providers are then compared by its clock. "
        f"One operation was measured again with this change. {line}.\n\n"
        + _table(("operation", "chosen", *_WAYS), lines)
    )


_WAYS = (_OURS, "torch native", "torch.compile", "eager")


def _both(row: Row, way: str) -> str:
    if way not in row["seconds"]:
        return ""
    return f"{row['kernel_seconds'][way] * 1e6:,.0f} ({row['seconds'][way] * 1e6:,.0f})"


def _products(data: dict[str, Any]) -> str:
    names = [name for name in data["products"][0] if name not in ("classes", "row", "width")]
    lines = [
        (f"{row['classes']:,}", f"{row['row']:,}", f"{row['width']:,}", *(f"{row[name]:,}" for name in names))
        for row in data["products"]
    ]  # fmt: skip
    return (
        "## Matrix products of a head\n\n"
        f"Microseconds of the products of {data['rows']} rows in bfloat16 "
        "(`python -m benchmarks.gpu.products`). cuBLAS has fast kernels for numbers of classes that are multiples of "
        "8; aligned rows alone do not suffice. `ops.linear_cross_entropy` pads the classes to a multiple of 64.\n\n"
        + _table(("classes", "entries from row to row", "width", *names), lines)
    )


def _launches(data: dict[str, Any]) -> str:
    lines = [
        (operation, way, *(f"{times[name]:.0f}" for name in ("forward", "step", "chained")))
        for operation, ways in data["rows"].items() for way, times in ways.items()
    ]  # fmt: skip
    return (
        "## Host time\n\n"
        "Microseconds of a call with tensors of 512 entries, for which the GPU waits for the host "
        "(`python -m benchmarks.launches --device cuda`): forward; with torch.autograd.grad; and one of ten calls in a "
        "row with their backward passes. `engine` is an autograd.Function that does nothing. This host needs about "
        "three times as long as the one of the [measurements without a GPU](kernels.md).\n\n"
        + _table(("operation", "way", "forward", "step", "one of ten"), lines)
    )


def _kernels(rows: dict[str, Row], swept: dict[str, Any]) -> str:
    best: dict[tuple[str, int], float] = {}
    for row in [row for name in ("first", "second", "third", "fourth") for row in swept.get(name, ())]:
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
        "the constants that were chosen without a GPU; then, in bold, with the best configuration of four sweeps, the "
        "last two with loads ahead through shared memory. The kernels now use the best ones, except where these spill "
        "on another GPU (dropout's backward pass of rows longer than 8192 is up to 21 % slower than the best), or gain "
        "less than 9 %: dropout + add + layer norm of rows of 11008 is now even 4 % slower than before.\n\n"
        + _table(("call", *map(str, _WIDTHS)), lines)
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
        "Llama's eager step, a whole step of GPT-2 with its loss in blocks, autofuse with torch.compile, operations in "
        "inference, most operations with providers chosen by the GPU's clock, the profile's ladder, a "
        "second device, most decoders of transformers, and any other GPU.\n"
    )


def _table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    def texts() -> Iterator[str]:
        for cells in (columns, ("---",) * len(columns), *lines):
            yield f"| {' | '.join(cells)} |\n"

    return "".join(texts())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="the folders of the results, one for each GPU")
    parser.add_argument("output", type=Path, help="the page")
    options = parser.parse_args(argv)
    options.output.write_text(document(*options.results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
