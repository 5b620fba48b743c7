"""`autofuse tune`: measures sample calls of operations on this machine, so that later calls go to what was best.

Knows options, how to write and to draw a bar; must not know how a call is measured.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autofuse.display import terminal
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.policy import Changes, named, using
from autofuse.kernels.tuning import tune
from autofuse.ops.sample_calls import SAMPLES, Maker, Model, Shape, maker_of, sampled
from autofuse.results.comparison import milliseconds
from autofuse.results.table import Cell, Column, Table
from autofuse.results.tuning import FORMAT_VERSION, TuningResult

_DONE, _FAILED = 0, 2
_FEW = 3  # results that are shown with all their candidates


def main(options: Namespace) -> int:
    """Results go to stdout, progress to stderr. Returns 0, or 2 for options that do not fit together."""
    console, aside = terminal.stdout(), Console(stderr=True)
    try:
        maker, calls = maker_of(options.device, options.dtype, training=not options.inference), _calls(options)
        with using(**_wishes(options)):
            results = list(_measured(calls, maker, options, aside))
    except (ValueError, RuntimeError) as error:
        aside.print(f"autofuse: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    if options.format == "json":
        content = {"version": FORMAT_VERSION, "results": [r.to_dict() for r in results]}
        console.file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        return _DONE
    for result in results if len(results) <= _FEW or options.all else ():
        console.print(result)
    if len(results) > 1:
        console.print(terminal.drawn(_summary(results)))
    return _DONE


def _calls(options: Namespace) -> list[tuple[str, Shape]]:
    """Operations with shapes: those that are named, or all of them at the sizes of a model."""
    operations = options.op or [name for name in SAMPLES if name in OPERATIONS and OPERATIONS[name].has_choice]
    if unknown := [name for name in operations if name not in SAMPLES]:
        raise ValueError(f"No sample call of {unknown[0]!r} is known. There are some of {', '.join(sorted(SAMPLES))}.")
    if options.shape and len(operations) != 1:
        raise ValueError("--shape goes with one --op: operations differ in what their sizes mean.")
    if options.shape:
        return [(operations[0], shape) for shape in options.shape]
    model = Model(options.batch, options.length, options.width, options.heads, options.hidden or 0, options.vocabulary)
    if model.width % model.heads:
        raise ValueError(f"A width of {model.width} does not divide into {model.heads} heads.")
    return [(name, SAMPLES[name].of_model(model)) for name in operations]


def _wishes(options: Namespace) -> Changes:
    """What the options change of the settings that hold."""
    wishes = Changes()
    if options.policy:
        wishes["policy"] = options.policy
    if options.deterministic:
        wishes["deterministic"] = True
    if options.providers:
        wishes["providers"] = named(options.providers)
    return wishes


def _measured(
    calls: Sequence[tuple[str, Shape]], maker: Maker, options: Namespace, aside: Console
) -> Iterator[TuningResult]:
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=aside, transient=True, disable=not aside.is_terminal) as bar:
        task = bar.add_task("", total=len(calls))
        for operation, shape in calls:
            bar.update(task, description=f"{operation} {'x'.join(map(str, shape))}")
            made = sampled(operation, shape, maker)
            yield tune(
                made.operation, made.args, made.kwargs,
                training=maker.training, seconds=options.seconds, again=not options.keep,
            )  # fmt: skip
            bar.advance(task)


def _summary(results: Sequence[TuningResult]) -> Table:
    columns = (
        Column("operation"),
        Column("first argument"),
        Column("goes to"),
        Column("a call", align="right"),
        Column("torch", align="right"),
        Column("why", wraps=True),
    )
    return Table("", columns, tuple(map(_row, results)))


def _row(result: TuningResult) -> tuple[Cell, ...]:
    times = {t.name: milliseconds(t.seconds) for t in result.trials if t.seconds is not None}
    return (
        Cell(result.operation),
        Cell(result.arguments.partition(")")[0] + ")", "quiet"),
        Cell(result.winner, "good" if result.measured else "quiet"),
        Cell(times.get(result.winner, "")),
        Cell(times.get("torch", "")),
        Cell(result.why, "quiet"),
    )
