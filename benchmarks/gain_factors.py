"""Computes the table of prediction factors from benchmarks/results/gains.json.

    python -m benchmarks.gain_factors           # prints the table and how well ranges hold
    python -m benchmarks.gain_factors --write   # also writes autofuse/profiling/live/prediction_factors.json

For each rule and size: the 10th percentile, the median and the 90th percentile of measured / predicted saving over
kinds of places. With fewer than five kinds there is no entry. Coverage is computed without the
model that is judged: the range for a model's places comes from the other models.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autofuse.profiling.live import prediction_factors
from autofuse.profiling.live.prediction_factors import PredictionClass, saving_range, size_class_of

RESULTS = Path(__file__).parent / "results" / "gains.json"
TABLE = Path(prediction_factors.__file__).with_suffix(".json")
LEAST_KINDS = 5
MATTERS = 0.01  # of the step: less is not judged, and not learned from


@dataclass(frozen=True)
class Kind:
    """Equal places of one model. seconds, predicted, measured: of one of them in a step."""

    model: str
    tuned: bool
    rule: str
    seconds: float
    predicted: float
    measured: float


def kinds_of(rows: Iterable[Mapping[str, Any]]) -> list[Kind]:
    """The kinds of places whose predicted or measured saving matters in the step."""
    return [
        Kind(row["name"], row["tuned"], place["rule"], *(place[name] / place["places"] for name in _NUMBERS))
        for row in rows
        for place in row["places"]
        if max(abs(place["predicted_saving"]), abs(place["measured_saving"])) >= MATTERS * row["step"]["before"]
    ]


_NUMBERS = ("seconds", "predicted_saving", "measured_saving")


def classes_of(kinds: Sequence[Kind]) -> list[PredictionClass]:
    """One entry for each size and rule, and for each size over all rules, if there are enough kinds."""
    groups: dict[tuple[str, str], list[Kind]] = {}
    for kind in kinds:
        size = size_class_of(kind.seconds, kind.predicted)
        groups.setdefault(("", size), []).append(kind)
        groups.setdefault((kind.rule, size), []).append(kind)
    return [_class(*key, groups[key]) for key in sorted(groups) if len(groups[key]) >= LEAST_KINDS]


def _class(rule: str, size: str, kinds: Sequence[Kind]) -> PredictionClass:
    ratios = sorted(k.measured / (k.seconds if size == "small" else k.predicted) for k in kinds)
    models = {k.model for k in kinds}
    untuned = {k.model for k in kinds if not k.tuned}
    ends = (round(_quantile(ratios, share), 3) for share in (0.1, 0.5, 0.9))
    return PredictionClass(rule, size, len(kinds), len(models), len(untuned), *ends)


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True)
class Coverage:
    """Kinds of untuned models. point: predictions within a factor of 2. inside: measurements inside of the range.
    within_2x: measurements inside of the range or within a factor of 2 of an end."""

    kinds: int
    point: int
    inside: int
    within_2x: int


def coverage_of(kinds: Sequence[Kind]) -> Coverage:
    """Counts the kinds of places in untuned models whose measured saving is within the range from the other models."""
    point = inside = within = total = 0
    for kind in (k for k in kinds if not k.tuned):
        others = classes_of([k for k in kinds if k.model != kind.model])
        found = saving_range(kind.rule, kind.seconds, kind.predicted, others)
        total += 1
        point += kind.predicted > 0 and kind.predicted / 2 <= kind.measured <= kind.predicted * 2
        if found is not None:
            inside += kind.measured in found
            within += min(found.low / 2, found.low * 2) <= kind.measured <= max(found.high / 2, found.high * 2)
    return Coverage(total, point, inside, within)


def table_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The table as it is packaged, from the results of benchmarks.gains."""
    kinds = kinds_of(data["rows"])
    return {
        "source": "benchmarks/results/gains.json", "environment": data["environment"],
        "untuned_models": len({row["name"] for row in data["rows"] if not row["tuned"]}),
        "coverage": asdict(coverage_of(kinds)), "classes": [asdict(entry) for entry in classes_of(kinds)],
    }  # fmt: skip


def as_text(table: Mapping[str, Any]) -> str:
    """The table in Markdown, and a sentence about coverage."""
    lines = [
        "| rule | places | kinds | models (untuned) | 10 % | median | 90 % |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for entry in prediction_factors.classes_from(table):
        models = f"{entry.models} ({entry.untuned})"
        ends = f"{entry.low:.2f} | {entry.middle:.2f} | {entry.high:.2f}"
        lines.append(f"| {entry.rule or 'all'} | {entry.size} | {entry.kinds} | {models} | {ends} |")
    found = Coverage(**table["coverage"])
    lines += [
        "",
        f"Of {found.kinds} kinds of places in {table['untuned_models']} untuned models, {found.inside} were measured "
        f"inside of the range, {found.within_2x} inside of it or within a factor of 2 of an end, and {found.point} "
        "within a factor of 2 of the point.",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="results of benchmarks.gains")
    parser.add_argument("--write", action="store_true", help="write the packaged table")
    options = parser.parse_args(argv)
    table = table_of(json.loads(options.results.read_text(encoding="utf-8")))
    print(as_text(table))
    if options.write:
        TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
