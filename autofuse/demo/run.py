"""The demo's run: train eager, optimized and control; measure; rewrite the file. Returns data and prints nothing."""

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
from autofuse.demo.training import BATCH, Corpus, harbour_log, losses, model_for
from autofuse.display.findings import diff_of
from autofuse.fx.session.optimize import optimize, report
from autofuse.measure import Comparison, compare
from autofuse.measure.step import Step
from autofuse.profiling.live.before_after import in_turns, timed_in_turns
from autofuse.profiling.live.profile import profile
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile, Trouble
from autofuse.project.run import RewriteRun, Rewritten
from autofuse.results.before_after import BeforeAfter, with_what_was_measured
from autofuse.results.sites import Report

FORMAT_VERSION = 1
_PROFILED = 5  # steps, timed

Advance = Callable[[str, int, int], None]  # the stage, what of it is done, and how much it is


@dataclass(frozen=True)
class DemoSettings:
    """What to run: training steps, seed, characters in a sequence, pairs of timed steps."""

    steps: int = 80
    seed: int = 0
    length: int = 256
    pairs: int = 30


@dataclass(frozen=True)
class DemoResult:
    """All that the demo found; page, terminal and JSON show the same."""

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
        """What was run, in one sentence."""
        return (
            f"A character-level GPT of {self.parameters:,} parameters, trained for {self.plan.steps} steps on "
            f"sequences of {self.plan.length} characters, eager and optimized, from the same seed ({self.plan.seed})."
        )

    @property
    def diff(self) -> str:
        """What `autofuse rewrite --diff` prints for the model's file."""
        return "".join(text for text, _ in self.diff_pieces())

    def diff_pieces(self) -> list[tuple[str, str]]:
        """The same in (text, style) pieces."""
        return list(diff_of("gpt.py", self.before.encode(), self.after.encode()))

    def to_dict(self) -> dict[str, Any]:
        """`version` first, then every part under its own name. Losses are in nats a character."""
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
    """Everything, from the same seed. `advance` hears of every step."""
    start = time.perf_counter()
    corpus = harbour_log()
    original = model_for(corpus, plan.seed, plan.length)
    batch = next(corpus.batches(plan.length, plan.seed))
    fused = _optimized(original, batch[0], advance)
    sites = report(fused)

    def curve(stage: str, model: gpt.GPT, error: float = 0.0) -> tuple[float, ...]:
        return _curve(stage, copy.deepcopy(model), corpus, plan, error, advance)

    error = gradient_error([site.max_error for site in sites.with_status("fused")])
    eager, optimized = curve("training, eager", original), curve("training, optimized", fused)
    control = curve("training, control", original, error)
    comparison = _compared(original, fused, batch, plan, advance)
    profiles = _profiled(original, fused, batch, comparison, advance)
    before, after = rewritten(Path(gpt.__file__))
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


def _optimized(original: gpt.GPT, ids: Tensor, advance: Advance) -> gpt.GPT:
    advance("finding and verifying sites", 0, 1)
    fused = copy.deepcopy(original)
    optimize(fused, (ids,))
    advance("finding and verifying sites", 1, 1)
    return fused


def _curve(
    stage: str, model: gpt.GPT, corpus: Corpus, plan: DemoSettings, error: float, advance: Advance
) -> tuple[float, ...]:
    curve: list[float] = []
    advance(stage, 0, plan.steps)
    for loss in losses(model, corpus, plan.steps, plan.seed, error):
        curve.append(loss)
        advance(stage, len(curve), plan.steps)
    return tuple(curve)


def _compared(
    original: gpt.GPT, fused: gpt.GPT, batch: tuple[Tensor, Tensor], plan: DemoSettings, advance: Advance
) -> Comparison:
    """Whole training steps, each model with an optimizer of its own, both of the same kind."""
    advance("timing pairs of steps", 0, 1)
    step = _step(original, fused)
    comparison = compare(original, fused, batch, step, pairs=plan.pairs, seed=plan.seed, progress=False)
    advance("timing pairs of steps", 1, 1)
    return comparison


def _step(*models: gpt.GPT) -> Step:
    """A whole training step of one of the models, which get an optimizer each, of the same kind."""
    optimizers = {id(model): gpt.configure_optimizer(model) for model in models}
    for model in models:
        model.train()

    def step(model: gpt.GPT, inputs: tuple[Tensor, Tensor]) -> None:
        gpt.train_step(model, optimizers[id(model)], *inputs)

    return step


def _profiled(
    original: gpt.GPT, fused: gpt.GPT, batch: tuple[Tensor, Tensor], comparison: Comparison, advance: Advance
) -> BeforeAfter:
    """Where the time of a step goes, layer by layer, before and after; how long it is the comparison knows better."""
    stage, step = "profiling, layer by layer", _step(original, fused)
    profiles = []
    for done, (model, timed) in enumerate(zip((original, fused), timed_in_turns(comparison), strict=True)):
        advance(stage, done, 3)
        profiles.append(
            profile(
                model, batch, step=step, warmup=1, steps=_PROFILED, traced=2, samples=BATCH, tokens=batch[0].numel(),
                probe=False, timed=timed, name="the demo's GPT", progress=False,
            )
        )  # fmt: skip
    advance(stage, 2, 3)
    now, then = in_turns(lambda: original, lambda: fused, batch, step, rounds=3)
    advance(stage, 3, 3)
    before, after = profiles
    return BeforeAfter(*with_what_was_measured(before, after, now, then), comparison)


def rewritten(path: Path) -> tuple[str, str]:
    """A file as it stands, and as `autofuse rewrite` would leave it. Raises RuntimeError where it cannot."""
    file, door = SourceFile(str(path), FileSettings(path.parent), named=True), RewriteRun()
    checked = door.check(file)
    result = checked if isinstance(checked, Trouble) else door.rewrite(checked, file)
    if not isinstance(result, Rewritten):
        raise RuntimeError(f"The demo's own file could not be rewritten: {result.message}")
    return result.before.decode(), result.after.decode()
