"""The run of the demo: trains the eager, the optimized and the control model, measures them, and rewrites the file."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import autofuse.demo.gpt as gpt
from autofuse.demo.agreement import Agreement, agreement, gradient_error
from autofuse.demo.training import BATCH, Corpus, create_model, harbour_log, train_losses
from autofuse.display.findings import diff_of
from autofuse.fx.session.optimize import optimize, report
from autofuse.measure import Comparison, compare
from autofuse.measure.step import Step
from autofuse.profiling.live.before_after import comparison_seconds, interleaved_layer_seconds
from autofuse.profiling.live.profile import profile
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import Problem, SourceFile
from autofuse.project.run import RewriteResult, RewriteRun
from autofuse.results.before_after import BeforeAfter, with_measured_savings
from autofuse.results.comparison import size
from autofuse.results.sites import Report

FORMAT_VERSION = 1
_PROFILED_STEPS = 5

Advance = Callable[[str, int, int], None]  # arguments: the stage, the finished part, the total


@dataclass(frozen=True)
class DemoSettings:
    """The settings of a run.

    Attributes:
        steps: Training steps of each run.
        seed: The seed of weights and batches.
        length: Characters in a sequence.
        pairs: Pairs of steps to time.
    """

    steps: int = 80
    seed: int = 0
    length: int = 256
    pairs: int = 30


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo. The page, the terminal and the JSON file show the same results."""

    plan: DemoSettings
    parameters: int
    characters: int
    sites: Report
    eager: tuple[float, ...]
    optimized: tuple[float, ...]
    control: tuple[float, ...]
    agreement: Agreement
    comparison: Comparison
    profile: BeforeAfter
    before: str
    after: str
    seconds: float

    @property
    def summary(self) -> str:
        """One sentence that describes the run."""
        return (
            f"A character-level GPT of {self.parameters:,} parameters, trained for {self.plan.steps} steps on "
            f"sequences of {self.plan.length} characters, eager and optimized, from the same seed ({self.plan.seed})."
        )

    @property
    def closing_lines(self) -> tuple[str, str, str]:
        """The findings in three lines: the same losses, the time and memory of a step, and what comes next."""
        compared, agree = self.comparison, "the same up to rounding" if self.agreement.agrees else "NOT the same"
        memory = f"{size(compared.before_peak_bytes)} -> {size(compared.after_peak_bytes)}"
        return (
            f"{len(self.sites.with_status('fused'))} places fused; {self.plan.steps} losses {agree}.",
            f"A training step: {compared.ratio:.2f}x ({compared.interval}), {compared.verdict}; peak memory {memory}.",
            "Your code next: `autofuse check FOLDER`, or `model = autofuse.optimize(model, inputs)` in your script.",
        )

    @property
    def diff(self) -> str:
        """The output of `autofuse rewrite --diff` for the model's file."""
        return "".join(text for text, _ in self.diff_pieces())

    def diff_pieces(self) -> list[tuple[str, str]]:
        """Returns the diff as (text, style) pairs."""
        return list(diff_of("gpt.py", self.before.encode(), self.after.encode()))

    def to_dict(self) -> dict[str, Any]:
        """Returns the results as plain data, with `version` as the first key. Losses are in nats a character."""
        return {
            "version": FORMAT_VERSION,
            "plan": asdict(self.plan) | {"batch": BATCH, "parameters": self.parameters, "characters": self.characters},
            "report": self.sites.to_dict(),
            "losses": {"eager": self.eager, "optimized": self.optimized, "control": self.control},
            "agreement": asdict(self.agreement) | {"sentence": self.agreement.sentence},
            "comparison": self.comparison.to_dict(),
            "profile": {"before": self.profile.before.to_dict(), "after": self.profile.after.to_dict()},
            "diff": self.diff,
            "seconds": self.seconds,
        }


def run(plan: DemoSettings, advance: Advance = lambda stage, done, total: None) -> DemoResult:
    """Runs all parts of the demo from the same seed. `advance` is called after every step."""
    start = time.perf_counter()
    corpus = harbour_log()
    original = create_model(corpus, plan.seed, plan.length)
    batch = next(corpus.batches(plan.length, plan.seed))
    fused = _optimize_copy(original, batch[0], advance)
    sites = report(fused)

    def curve(stage: str, model: gpt.GPT, error: float = 0.0) -> tuple[float, ...]:
        return _train(stage, copy.deepcopy(model), corpus, plan, error, advance)

    error = gradient_error([site.max_error for site in sites.with_status("fused")])
    eager, optimized = curve("training, eager", original), curve("training, optimized", fused)
    control = curve("training, control", original, error)
    comparison = _compare_steps(original, fused, batch, plan, advance)
    profiles = _profile_both(original, fused, batch, comparison, advance)
    before, after = rewrite_file(Path(gpt.__file__))
    return DemoResult(
        plan=plan,
        parameters=sum(parameter.numel() for parameter in original.parameters()),
        characters=len(corpus.ids),
        sites=sites,
        eager=eager,
        optimized=optimized,
        control=control,
        agreement=agreement(eager, optimized, control, error),
        comparison=comparison,
        profile=profiles,
        before=before,
        after=after,
        seconds=time.perf_counter() - start,
    )


def _optimize_copy(original: gpt.GPT, ids: Tensor, advance: Advance) -> gpt.GPT:
    advance("finding and verifying sites", 0, 1)
    fused = copy.deepcopy(original)
    optimize(fused, (ids,))
    advance("finding and verifying sites", 1, 1)
    return fused


def _train(
    stage: str, model: gpt.GPT, corpus: Corpus, plan: DemoSettings, error: float, advance: Advance
) -> tuple[float, ...]:
    curve: list[float] = []
    advance(stage, 0, plan.steps)
    for loss in train_losses(model, corpus, plan.steps, plan.seed, error):
        curve.append(loss)
        advance(stage, len(curve), plan.steps)
    return tuple(curve)


def _compare_steps(
    original: gpt.GPT, fused: gpt.GPT, batch: tuple[Tensor, Tensor], plan: DemoSettings, advance: Advance
) -> Comparison:
    """Compares whole training steps. Each model has its own optimizer of the same kind."""
    advance("timing pairs of steps", 0, 1)
    step = _make_step(original, fused)
    comparison = compare(original, fused, batch, step, pairs=plan.pairs, seed=plan.seed, progress=False)
    advance("timing pairs of steps", 1, 1)
    return comparison


def _make_step(*models: gpt.GPT) -> Step:
    """Returns a function that runs a training step of one of the models. Each model gets its own optimizer."""
    optimizers = {id(model): gpt.configure_optimizer(model) for model in models}
    for model in models:
        model.train()

    def step(model: gpt.GPT, inputs: tuple[Tensor, Tensor]) -> None:
        gpt.train_step(model, optimizers[id(model)], *inputs)

    return step


def _profile_both(
    original: gpt.GPT, fused: gpt.GPT, batch: tuple[Tensor, Tensor], comparison: Comparison, advance: Advance
) -> BeforeAfter:
    """Profiles a step by layers, before and after. The step times come from the comparison, which is more exact."""
    stage, step = "profiling, layer by layer", _make_step(original, fused)
    profiles = []
    for done, (model, timed) in enumerate(zip((original, fused), comparison_seconds(comparison), strict=True)):
        advance(stage, done, 3)
        profiles.append(
            profile(
                model, batch, step=step, warmup=1, steps=_PROFILED_STEPS, traced=2, samples=BATCH,
                tokens=batch[0].numel(), probe=False, timed=timed, name="the demo's GPT", progress=False,
            )
        )  # fmt: skip
    advance(stage, 2, 3)
    now, then = interleaved_layer_seconds(lambda: original, lambda: fused, batch, step, rounds=3)
    advance(stage, 3, 3)
    before, after = profiles
    return BeforeAfter(*with_measured_savings(before, after, now, then), comparison)


def rewrite_file(path: Path) -> tuple[str, str]:
    """Returns the text of a file, and the text after `autofuse rewrite`.

    Raises:
        RuntimeError: The file cannot be rewritten.
    """
    file, run = SourceFile(str(path), FileSettings(path.parent), named=True), RewriteRun()
    checked = run.check(file)
    result = checked if isinstance(checked, Problem) else run.rewrite(checked, file)
    if not isinstance(result, RewriteResult):
        raise RuntimeError(f"The demo's own file could not be rewritten: {result.message}")
    return result.before.decode(), result.after.decode()
