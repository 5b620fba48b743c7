"""Scores the findings against places that people have labelled.

The file is a list of objects with `source` (pypi:NAME==VERSION or gh:OWNER/NAME), `file`, `lines`, `kind`, `grade` and
`fusable` ("yes", or "no:" and the reason). A safe edit of a place that must not be fused is wrong.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from autofuse.results.findings import Finding
from tools.ecosystem.rewriting import check_files

_FAMILY = {
    "attention": "AF1", "softmax": "AF1", "norm": "AF2", "dropout_add_norm": "AF2", "mlp_gelu": "AF3", "glu": "AF3",
    "activation": "AF3", "rope": "AF4", "cross_entropy": "AF5", "optimizer": "AF6", "dataloader": "AF6",
}  # fmt: skip
Scores = dict[
    tuple[str, str], Counter[str]
]  # (kind, grade) -> counts of: to fuse, fixed, seen, not to fuse, wrong, absent


def score_labels(truth: Path, sources: Path) -> Scores:
    """Count the labelled places by kind and grade. A place without its source counts as `absent`."""
    places = [p for p in json.loads(truth.read_text()) if p["grade"] != "debatable"]
    files = sorted({f for p in places if (f := _file(sources, p)).exists()})
    found = {looked.file: looked.findings for looked in check_files(files)}
    scores: Scores = {}
    for place in places:
        row = scores.setdefault((place["kind"], place["grade"]), Counter())
        file = _file(sources, place)
        if file not in found:
            row["absent"] += 1
            continue
        here = {f.status for f in found[file] if _overlaps(f, place)}
        if place["fusable"] == "yes":
            row.update({"to fuse": 1, "fixed": int(bool(here & {"safe", "unsafe"})), "seen": int("report" in here)})
        else:
            row.update({"not to fuse": 1, "wrong": int("safe" in here)})
    return dict(sorted(scores.items()))


def _overlaps(f: Finding, place: dict[str, Any]) -> bool:
    first, last = place["lines"]
    return f.code.startswith(_FAMILY[place["kind"]]) and f.line <= last and f.end_line >= first


def _file(sources: Path, place: dict[str, Any]) -> Path:
    kind, _, name = place["source"].partition(":")
    if kind == "pypi":
        package, version = name.split("==")
        return sources.joinpath("pypi", f"{package.replace('-', '_')}=={version}", str(place["file"]))
    return sources.joinpath("gh", name.partition("@")[0].replace("/", "+"), str(place["file"]))
