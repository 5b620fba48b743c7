"""`autofuse tune`: times the kernels of operations on sample calls, so that later calls use the best kernel."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autofuse.display import terminal
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.policy import Changes, parse_providers, using
from autofuse.kernels.tuning import tune
from autofuse.ops.sample_calls import SAMPLES, Maker, Model, Shape, maker_of, sample_call
from autofuse.results.comparison import milliseconds
from autofuse.results.table import Cell, Column, Table
from autofuse.results.tuning import FORMAT_VERSION, TuningResult

_DONE, _FAILED = 0, 2
_FEW = 3  # up to this many results are shown with all candidates


def main(options: Namespace) -> int:
    """Prints results to stdout and progress to stderr. Returns 0, or 2 for invalid options."""
    console, errors = terminal.stdout(), Console(stderr=True)
    try:
        maker, calls = maker_of(options.device, options.dtype, training=not options.inference), _sample_calls(options)
        with using(**_changed_settings(options)):
            results = list(_measure(calls, maker, options, errors))
    except (ValueError, RuntimeError) as error:
        errors.print(f"autofuse: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    if options.format == "json":
        content = {"version": FORMAT_VERSION, "results": [r.to_dict() for r in results]}
        console.file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        return _DONE
    for result in results if len(results) <= _FEW or options.all else ():
        console.print(result)
    if len(results) > 1:
        console.print(terminal.as_rich(_summary(results)))
    return _DONE


def _sample_calls(options: Namespace) -> list[tuple[str, Shape]]:
    """Returns the operations of --op with their shapes; by default all operations, with the sizes of a model."""
    operations = options.op or [name for name in SAMPLES if name in OPERATIONS and OPERATIONS[name].has_choice]
    if unknown := [name for name in operations if name not in SAMPLES]:
        raise ValueError(f"There is no sample call of {unknown[0]!r}. Choose one of {', '.join(sorted(SAMPLES))}.")
    if options.shape and len(operations) != 1:
        raise ValueError("--shape needs exactly one --op, because sizes differ in meaning between operations.")
    if options.shape:
        return [(operations[0], shape) for shape in options.shape]
    model = Model(options.batch, options.length, options.width, options.heads, options.hidden or 0, options.vocabulary)
    if model.width % model.heads:
        raise ValueError(f"The width {model.width} is not divisible by the number of heads, {model.heads}.")
    return [(name, SAMPLES[name].of_model(model)) for name in operations]


def _changed_settings(options: Namespace) -> Changes:
    """Returns the kernel settings that the options change."""
    changes = Changes()
    if options.policy:
        changes["policy"] = options.policy
    if options.deterministic:
        changes["deterministic"] = True
    if options.providers:
        changes["providers"] = parse_providers(options.providers)
    return changes


def _measure(
    calls: Sequence[tuple[str, Shape]], maker: Maker, options: Namespace, errors: Console
) -> Iterator[TuningResult]:
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=len(calls))
        for operation, shape in calls:
            bar.update(task, description=f"{operation} {'x'.join(map(str, shape))}")
            sample = sample_call(operation, shape, maker)
            yield tune(
                sample.operation, sample.args, sample.kwargs,
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
