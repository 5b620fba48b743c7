"""The demo's result as one HTML page."""

from __future__ import annotations

from autofuse.demo.run import DemoResult
from autofuse.demo.terminal import NO_DROPOUT, sides
from autofuse.display.charts import LineChart, StripChart
from autofuse.display.html import CodeBlock, Figure, Section, page
from autofuse.display.layer_tables import places_table
from autofuse.display.profile_tables import ladder_table
from autofuse.results.comparison import TONES, Comparison, size


def html(result: DemoResult) -> str:
    """Returns the page, to be written as UTF-8. It loads no other file."""
    sections = (
        Section("What was fused", (result.sites.table(),)),
        Section("The loss", (_loss_chart(result), result.agreement.sentence, NO_DROPOUT)),
        Section("What a whole training step costs", (result.comparison.table(), _times_chart(result.comparison))),
        Section("Predicted and measured savings, by layer", (places_table(result.profile.before),)),
        Section("How much of the machine a step uses", (ladder_table(sides(result)),)),
        Section("Which operators run", (result.comparison.operators_table(),)),
        Section("What autofuse rewrite would change in the model's file", (CodeBlock(result.diff, is_diff=True),)),
        Section("Where this was measured", tuple(f"{k}: {v}" for k, v in result.comparison.environment.items())),
    )
    return page("autofuse demo", result.summary, sections, _leading_figures(result))


def _leading_figures(result: DemoResult) -> tuple[Figure, ...]:
    comparison, agreement = result.comparison, result.agreement
    ratio = f"95 % interval {comparison.interval}, control {comparison.control}"
    curves = Figure(
        "Loss curves",
        "agree" if agreement.agrees else "differ",
        f"by {agreement.difference:.1e} nats; the bound there is {agreement.bound:.1e}",
        "good" if agreement.agrees else "bad",
    )
    peaks = size(comparison.before_peak_bytes), size(comparison.after_peak_bytes)
    return (
        Figure("Training step", f"{comparison.ratio:.2f}x", ratio, TONES[comparison.verdict]),
        Figure("Verdict", comparison.verdict, comparison.reason, TONES[comparison.verdict]),
        Figure("Peak memory", peaks[1] or "n/a", f"of one step, without the parameters; before: {peaks[0]}"),
        curves,
    )


def _loss_chart(result: DemoResult) -> LineChart:
    series = {"eager": result.eager, "optimized": result.optimized}
    return LineChart("Loss by training step", "step", "nats a character", series)


def _times_chart(comparison: Comparison) -> StripChart:
    samples = {
        "eager": [seconds * 1e3 for seconds in comparison.before_seconds],
        "optimized": [seconds * 1e3 for seconds in comparison.after_seconds],
    }
    return StripChart("Every timed step", "milliseconds", samples)
