"""Standard output and error, and what an exit code means. Results go to the one, what is said of a run to the other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from autofuse.results.visible_text import harmless

DONE, FINDINGS, FAILED, INTERRUPTED = 0, 1, 2, 130

StyledText = tuple[str, str]  # text, and a rich style or ""


class Output:
    """Standard output and error, with colours where there is a terminal that shows them."""

    def write(self, pieces: Iterable[StyledText]) -> None:
        """Results: exactly the text that they hold, unless they go to a terminal."""
        if not sys.stdout.isatty():
            sys.stdout.writelines(text for text, _ in pieces)
            return
        pieces = [(harmless(piece), style) for piece, style in pieces]  # a diff shows what is in a stranger's file
        console, text = importlib.import_module("rich.console"), importlib.import_module("rich.text")
        console.Console(soft_wrap=True, highlight=False).print(text.Text.assemble(*pieces), end="")

    def say(self, sentence: str) -> None:
        """What is to be said about the run."""
        sys.stdout.flush()  # or it would stand before the results it sums up
        print(harmless(sentence), file=sys.stderr)
