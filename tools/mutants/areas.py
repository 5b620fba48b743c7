"""The areas of the code that are mutated, and the tests that must notice: those of the file first, then the area's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Area:
    """Files and folders of one area.

    Attributes:
        sources: relative to autofuse/.
        tests: relative to tests/, the fastest first.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[str]:
        """Every file of the area, relative to the repository."""
        return sorted(str(p.relative_to(ROOT)) for s in self.sources for p in _files(ROOT / "autofuse" / s))

    def tests_of(self, file: str) -> list[str]:
        """The tests to run for a file: its own, then the area's."""
        path = Path(file).relative_to("autofuse")
        own = ROOT / "tests" / path.parent / f"test_{path.name}"
        every = [own, *(ROOT / "tests" / t for t in self.tests)]
        return list(dict.fromkeys(str(p.relative_to(ROOT)) for p in every if p.exists()))


def _files(path: Path) -> Iterator[Path]:
    yield from [p for p in path.glob("*.py") if p.name != "__init__.py"] if path.is_dir() else [path]


_SPELLED = ("loading/test_registry.py", "test_spellings_text.py", "test_spellings_live.py")
AREAS = {
    "matching": Area(
        (
            "match/matcher.py",
            "match/engine.py",
            "match/choice.py",
            "match/pattern.py",
            "canonical/view.py",
            "canonical/choices.py",
        ),
        ("match", "canonical", "ir", *_SPELLED),
    ),
    "legality": Area(
        ("match/legality.py", "canonical/mask_folds.py", "canonical/sizes.py", "canonical/shapes.py"),
        ("match", "canonical", "source/capture/test_capture_state.py", *_SPELLED),
    ),
    "masks": Area(
        ("match/masks.py", "match/mask_kinds.py", "fx/install/mask_contents.py"),
        ("match", "fx/install", *_SPELLED),
    ),
    "guards": Area(
        tuple(f"fx/install/{name}.py" for name in ("conditions", "guard_code", "guarded_reads", "codegen")),
        ("fx/install", "fx/trace", "fx/rewrite", "fx/test_changes.py", "fx/test_models.py", "test_spellings_live.py"),
    ),
    "verification": Area(
        ("verify",),
        ("verify", "fx/session/test_site_checks.py", "fx/session/test_model_check.py", "fx/test_criteria.py"),
    ),
    "backwards": Area(
        ("kernels/triton",),
        ("kernels/triton", "kernels/test_cross_entropy_formula.py", "kernels/test_dropout_bits.py"),
    ),
    "metrics": Area(
        (
            *("profiling/trace/time_shares.py", "profiling/trace/work.py", "profiling/trace/levels.py"),
            *("profiling/trace/flops.py", "profiling/live/roofline.py", "profiling/live/formulas.py"),
            *("results/ladder.py", "results/medians.py", "results/difference.py", "measure/statistics.py"),
        ),
        ("profiling/trace", "results", "measure/test_statistics.py", "profiling/live/test_flops.py"),
    ),
}
