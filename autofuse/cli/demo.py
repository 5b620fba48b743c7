"""`autofuse demo`: options -> a run -> terminal, HTML page and JSON file. Knows nothing of training or measuring."""

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
_QUIET = "6"  # torch's profiler writes lines of its own to stderr, between the bars, at any lower level
PAGE, DATA = "demo.html", "demo.json"


def main(argv: Sequence[str], console: Console | None = None) -> int:
    """Run the demo; results go to `console` (stdout), progress to stderr. Returns 0, or 2 if nothing can be written.

    Raises SystemExit as argparse does: 0 after --help, 2 for options that it does not understand.
    """
    options = _parser().parse_args(argv)
    console = console or Console()
    aside = Console(stderr=True)
    if (trouble := _unwritable(options.output)) is not None:
        aside.print(f"autofuse demo: {trouble}", style="red", markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
    with terminal.progress(aside) as advance:
        result = run(DemoSettings(options.steps, options.seed, options.length, options.pairs), advance)
    data = json.dumps(dumped(result.to_dict()), indent=2, allow_nan=False) + "\n"
    put(str(options.output / DATA), data.encode())
    put(str(options.output / PAGE), page.html(result).encode())
    if options.json:
        console.file.write(data)
    else:
        terminal.show(result, console)
        console.print(f"Written: {options.output / PAGE} and {options.output / DATA}", markup=False, soft_wrap=True)
    return _DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "autofuse demo",
        description="Train a small character-level GPT with hand-written layers, as it stands and optimized, from the "
        "same seed; compare loss, time, memory and operators; show what `autofuse rewrite` would change in its file.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    at_least = _number_from
    parser.add_argument(
        "--steps", type=at_least(1), default=DemoSettings.steps, metavar="N", help="training steps of each run"
    )
    parser.add_argument(
        "--seed", type=int, default=DemoSettings.seed, metavar="S", help="of the weights and the batches"
    )
    parser.add_argument(
        "--length", type=at_least(2), default=DemoSettings.length, metavar="T", help="characters in a sequence"
    )
    parser.add_argument(
        "--pairs", type=at_least(2), default=DemoSettings.pairs, metavar="P", help="pairs of steps to time"
    )
    parser.add_argument("--output", type=Path, default=Path("autofuse-demo"), metavar="DIR", help="for page and JSON")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of tables")
    return parser


def _number_from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return number


def _unwritable(folder: Path) -> str | None:
    """Why the results cannot be written there, asked before minutes of training; None if they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (DATA, PAGE):
            with (folder / name).open("a", encoding="utf-8"):
                pass
    except OSError as error:
        return f"the results cannot be written to {folder} ({error.strerror or error}). Name a folder with --output."
    return None
