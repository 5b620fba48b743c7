"""`autofuse demo`: runs the demo, and writes its results to the terminal, an HTML page and a JSON file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

import autofuse.demo.page as page
import autofuse.demo.terminal as terminal
from autofuse.demo.run import DemoSettings, run
from autofuse.results.atomic_files import put
from autofuse.results.data import dumped

_DONE, _FAILED = 0, 2
_QUIET = "6"  # at any lower level torch's profiler writes to stderr, between the progress bars
PAGE, DATA = "demo.html", "demo.json"


def main(argv: Sequence[str], console: Console | None = None) -> int:
    """Runs the demo. Results go to `console` (stdout), progress to stderr.

    Returns:
        0, or 2 if the output folder cannot be written.

    Raises:
        SystemExit: 0 after --help, 2 for unknown options.
    """
    options = _parser().parse_args(argv)
    console = console or Console()
    errors = Console(stderr=True)
    if (reason := _why_unwritable(options.output)) is not None:
        errors.print(f"autofuse demo: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
    with terminal.progress(errors) as advance:
        result = run(DemoSettings(options.steps, options.seed, options.length, options.pairs), advance)
    data = json.dumps(dumped(result.to_dict()), indent=2, allow_nan=False) + "\n"
    put(str(options.output / DATA), data.encode())
    put(str(options.output / PAGE), page.html(result).encode())
    if options.json:
        console.file.write(data)
    else:
        terminal.show(result, console)
        console.print(f"Written: {options.output / PAGE} and {options.output / DATA}", markup=False, soft_wrap=True)
        terminal.heading(console, "In three lines")
        console.print(*result.closing_lines, sep="\n", markup=False, highlight=False, soft_wrap=True)
    return _DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "autofuse demo",
        description="Trains a small character-level GPT with hand-written layers twice from the same seed: unchanged "
        "and optimized. Compares loss, time, memory and operators, and shows what `autofuse rewrite` would change.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    at_least = _integer_parser
    parser.add_argument(
        "--steps", type=at_least(1), default=DemoSettings.steps, metavar="N", help="training steps of each run"
    )
    parser.add_argument(
        "--seed", type=int, default=DemoSettings.seed, metavar="S", help="seed of the weights and the batches"
    )
    parser.add_argument(
        "--length", type=at_least(2), default=DemoSettings.length, metavar="T", help="characters in a sequence"
    )
    parser.add_argument(
        "--pairs", type=at_least(2), default=DemoSettings.pairs, metavar="P", help="pairs of steps to time"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("autofuse-demo"),
        metavar="DIR",
        help="folder for the page and the JSON file",
    )
    parser.add_argument("--json", action="store_true", help="print the JSON instead of tables")
    return parser


def _integer_parser(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of {minimum} or more")
        return int(text)

    return number


def _why_unwritable(folder: Path) -> str | None:
    """Returns why results cannot be written to `folder`; None if they can. Called before minutes of training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (DATA, PAGE):
            with (folder / name).open("a", encoding="utf-8"):
                pass
    except OSError as error:
        return f"the results cannot be written to {folder} ({error.strerror or error}). Name a folder with --output."
    return None
