"""The rows as a page of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autofuse.results.ladder import LEVELS
from benchmarks.gpu.predictions import MODEL, compare_with_measured
from benchmarks.gpu.roofs import COPY, MATMUL, bandwidth, compute
from benchmarks.gpu.store import Results, Row

_OURS = "autofuse.ops"


def as_markdown(results: Results) -> str:
    """Hardware, roofs, correctness, models, predictions, training steps, profiles, operations, and failed rows."""
    sections = (_head, _correctness, _devices, _models, _predictions, _training, _profiles, _operations, _failed_rows)
    parts = [section(results) for section in sections]
    return "\n".join(part for part in parts if part)


def _head(results: Results) -> str:
    facts = [(name, value) for name, value in results.environment.items()]
    for key, figure, unit in (
        (COPY, bandwidth(results), "GB/s copied"),
        (MATMUL, compute(results), "GFLOP/s in bf16 products"),
    ):
        facts += [(f"measured, {key}", f"{figure / 1e9:,.0f} {unit}")] if figure else []
    return "# GPU results\n\nWritten by `python -m benchmarks.gpu`.\n\n" + _table(("", ""), facts)


def _correctness(results: Results) -> str:
    lines = []
    for row in _section(results, "correctness"):
        for name, verdict in row["ways"].items():
            text = verdict.get("refused") or verdict.get("failed") or ("right" if verdict["right"] else "WRONG")
            worst = max((e / a for e, a in zip(verdict.get("errors", ()), row["allowed"], strict=False)), default=None)
            share = "" if worst is None else f"{worst:.2f}"
            lines.append((row["key"].removeprefix("correctness/"), name, text, share))
    columns = ("case", "provider", "against fp64", "error over what is allowed")
    return "## Correctness\n\n" + _table(columns, lines) if lines else ""


def _devices(results: Results) -> str:
    rows, lines = _section(results, "devices"), []
    if rows and all("absent" in row for row in rows):
        return f"## A second device\n\n{rows[0]['absent']}\n"
    for row in rows:
        case = row["key"].removeprefix("devices/")
        wrong = ", ".join(row["wrong"]) or "none"
        lines.append((case, f"on {row['device']} while {row['current']} is current", wrong))
    return "## A second device\n\n" + _table(("case", "where", "providers that are wrong"), lines) if lines else ""


def _models(results: Results) -> str:
    """Behaviour of whole optimized models."""
    lines = []
    for row in _section(results, "models"):
        share = f"{row['share']:.2f} ({row['worst']})" if "share" in row else ""
        sites = ", ".join(f"{count} {status}" for status, count in row.get("sites", {}).items())
        lines.append((row["key"].removeprefix("models/"), ", ".join(row["wrong"]) or "right", share, sites))
    columns = ("check", "result", "error over what is allowed", "sites")
    return "## Optimized models\n\n" + _table(columns, lines) if lines else ""


def _predictions(results: Results) -> str:
    """The prediction for each call next to the measurement, and the error over all calls."""
    found = compare_with_measured(results)
    if not found:
        return ""
    gaps = sorted(abs(row.predicted / row.measured - 1) for row in found)
    model = results.rows[MODEL]
    known = "" if model["known"] else ", the nearest GPU that the model knows"
    text = (
        f"Predicted as {model['predicted_as']}{known}. Median error {gaps[len(gaps) // 2]:.0%}, largest {gaps[-1]:.0%}."
        " A share is of the speed of a copy of as many bytes, measured in the same way."
    )
    lines = [
        (row.case, str(row.width), f"{row.predicted * 1e6:.1f}", f"{row.measured * 1e6:.1f}",
         f"{row.predicted / row.measured:.2f}", row.limit, "" if row.share is None else f"{row.share:.2f}")
        for row in found
    ]  # fmt: skip
    columns = ("call", "width", "predicted, us", "measured, us", "ratio", "predicted limit", "measured share")
    return f"## Predictions\n\n{text}\n\n" + _table(columns, lines)


def _training(results: Results) -> str:
    rows = _section(results, "training")
    eager = {row["model"]: row for row in rows if row["way"] == "eager"}
    lines = []
    for row in rows:
        if "absent" in row:
            lines.append((row["model"], row["way"], row["absent"], "", "", "", "", ""))
            continue
        base = eager.get(row["model"])
        lines.append((
            row["model"], row["way"], f"{row['seconds'] * 1e3:.1f}", f"{row['tokens_per_second']:,.0f}",
            "" if row["mfu"] is None else f"{row['mfu']:.1%}", _gib(row["peak_bytes"]),
            "" if base is None else f"{base['seconds'] / row['seconds']:.2f}x",
            "" if base is None else _agreement(row, base),
        ))  # fmt: skip
    columns = ("model", "way", "step, ms", "tokens/s", "MFU", "peak, GiB", "of eager's speed", "loss, off eager's")
    return "## Training steps\n\n" + _table(columns, lines) if lines else ""


def _profiles(results: Results) -> str:
    """The ladder of each model, before and after."""
    rows = {(row["model"], row["side"]): row for row in _section(results, "profiles")}
    columns = ("", *(f"{model}, {side}" for model, side in rows))
    lines = [("step, ms", *(f"{row['seconds'] * 1e3:.1f}" for row in rows.values()))]
    for kind in LEVELS:
        values = [row["rungs"].get(kind.name) for row in rows.values()]
        lines.append((kind.title, *("n/a" if value is None else f"{value:.1%}" for value in values)))
    return "## Profiles\n\n" + _table(columns, lines) if rows else ""


def _agreement(row: Row, base: Row) -> str:
    """The largest relative difference of the first losses."""
    pairs = zip(row["losses"], base["losses"], strict=True)
    difference = max(abs(a - b) / abs(b) for a, b in pairs)
    return f"{difference:.1e}{' (dropout)' if row['draws'] and difference else ''}"


def _operations(results: Results) -> str:
    lines = []
    for row in sorted(_section(results, "operations"), key=lambda row: row["ratio"]):
        seconds, low_high = row["seconds"], row["interval"]
        others = ", ".join(f"{name} {value * 1e6:.0f}" for name, value in seconds.items() if name != _OURS)
        lines.append((
            row["case"], row["mode"], f"{row['ratio']:.2f} ({low_high[0]:.2f} to {low_high[1]:.2f})", row["best"],
            f"{seconds[_OURS] * 1e6:.0f}", others, str(row["chosen"].get("winner", "")), *_share_of_roof(row, results),
        ))  # fmt: skip
    columns = (
        "case", "mode", "best other / ours", "best other", "ours, us", "others, us", "chosen", "achieved", "of roof",
    )  # fmt: skip
    return "## Operations\n\n" + _table(columns, lines) if lines else ""


def _share_of_roof(row: Row, results: Results) -> tuple[str, str]:
    """The achieved rate, by the kernels' own time if it is known, and its share of the measured roof."""
    seconds = row["kernel_seconds"][_OURS] or row["seconds"][_OURS]
    if row["bound"] == "compute":
        rate, roof, text = row["flops"] / seconds, compute(results), f"{row['flops'] / seconds / 1e12:.0f} TFLOP/s"
    else:
        rate, roof, text = row["bytes"] / seconds, bandwidth(results), f"{row['bytes'] / seconds / 1e9:,.0f} GB/s"
    return text, f"{rate / roof:.2f}" if roof else ""


def _failed_rows(results: Results) -> str:
    lines = [(row["key"], row["failed"]) for row in results.rows.values() if "failed" in row]
    return "## Rows that failed\n\n" + _table(("row", "why"), lines) if lines else ""


def _section(results: Results, name: str) -> list[Row]:
    return [r for key, r in results.rows.items() if key.startswith(f"{name}/") and "failed" not in r]


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.1f}"


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(str(cell) for cell in row)} |\n" for row in rows)
