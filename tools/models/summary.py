"""Writes the measurements as Markdown and as JSON, without dates, times and paths, so that only results change them."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version

from autofuse.results.distribution import own_version
from tools.models.measured import STEPS, Measured

_REASONS = 3  # the number of reasons for each row


def as_markdown(rows: Sequence[Measured], absent: Sequence[str]) -> str:
    """Return the page."""
    return "\n\n".join((_head(rows, absent), _models(rows), _rules(rows), _left_sites(rows))) + "\n"


def _head(rows: Sequence[Measured], absent: Sequence[str]) -> str:
    packages = ", ".join(f"{p} {version(p)}" for p in sorted({r.package for r in rows}))
    count = f"{len(rows)} architecture{'s' if len(rows) != 1 else ''}"
    python = platform.python_version().rpartition(".")[0]
    kept = sum(not any(True for _ in r.broken()) for r in rows)
    lines = (
        "# Public models\n",
        f"autofuse {own_version()} on {count} of public packages, small and with random",
        f"weights, on a CPU in float32: {packages}; torch {version('torch').partition('+')[0]}, Python {python}.",
        f"{kept} of {len(rows)} keep every promise.\n",
        "A command writes this page. It has no date, so that only results change it.\n",
        "```sh\npython -m tools.models --output docs/models.md\n```\n",
        "`--only NAME ...` runs some rows, and `--json FILE` writes all measurements. Each row runs in its own",
        "process. The columns:\n",
        "- **modules**: the number of modules with a forward of their own; **unread**: the number of those that could",
        "  not be captured.",
        "- **fused**: sites by rule. **left**: declined sites, and sites that failed verification.",
        "- **equal**: whether outputs and all gradients of the optimized model, guards included, in training and",
        "  evaluation, are within a bound that follows from the original's own error against float64. The number is",
        "  the error as a share of this bound.",
        f"- **trained**: the losses of {STEPS} steps of SGD against the same steps in float64, with the bound that",
        "  follows from the original's own error. The number is the error as a share of this bound.",
        "- **operators**: the number of operators in a training step, before and after. torch's own composites",
        "  (`rms_norm` on a CPU, attention with a mask that needs a gradient) count as their parts.",
        "- **ran**: the calls of fused operations in one training step and one forward in evaluation, together.",
    )
    missing = [f"Left out, because they are not installed here: {', '.join(absent)}."] if absent else []
    return "\n".join((*lines, *(f"\n{m}" for m in missing)))


def _models(rows: Sequence[Measured]) -> str:
    head = ("model", "package", "modules", "unread", "fused", "left", "equal", "trained", "operators", "ran")
    return "## By model\n\n" + table(head, map(_row, rows))


def _row(r: Measured) -> tuple[object, ...]:
    if r.failure:
        return r.name, r.package, *[""] * 4, f"**{r.failure}**", "", "", ""
    fused = ", ".join(f"{rule} {n}" for rule, n in r.fused.items())
    left = sum(r.refused.values()) + sum(r.rolled_back.values())
    used = r.error / r.bound if r.bound else 0.0
    equal = f"**no**: {r.difference}" if r.difference else f"{used:.2f}"
    trained = f"{r.losses:.2f}" if r.losses <= 1 else f"**no**: {r.losses:.1e}"
    operators = f"{r.operators[0]} → {r.operators[1]}"
    ran = ", ".join(f"{name} {n}" for name, n in r.calls.items())
    unread = sum(r.unread.values())
    return r.name, r.package, r.modules, unread, fused or "nothing", left, equal, trained, operators, ran


def _rules(rows: Sequence[Measured]) -> str:
    sites: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for r in rows:
        sites.update(r.fused)
        models.update(set(r.fused))
    return "## By rule\n\n" + table(("rule", "models", "sites"), ((k, models[k], sites[k]) for k in sorted(sites)))


def _left_sites(rows: Sequence[Measured]) -> str:
    """The reason why sites are left and modules unread, for each model."""
    lines = ["## What was left, and why\n"]
    for r in rows:
        described = [(f"rolled back, {k}", n) for k, n in r.rolled_back.items()]
        described += [*r.refused.items(), *((f"not read: {k}", n) for k, n in r.unread.items())]
        reasons = [f"{reason} ({n} times)" if n > 1 else reason for reason, n in described[:_REASONS]]
        if len(described) > _REASONS:
            reasons.append(f"and {len(described) - _REASONS} more")
        if r.note or reasons:
            lines.append(f"- **{r.name}**: {'; '.join(filter(None, (r.note, *reasons)))}")
    return "\n".join(lines)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def as_json(rows: Sequence[Measured], absent: Sequence[str]) -> str:
    """Everything that was measured."""
    data = [{**asdict(r), "broken": list(r.broken())} for r in rows]
    return json.dumps({"version": 1, "models": data, "absent": list(absent)}, indent=1) + "\n"
