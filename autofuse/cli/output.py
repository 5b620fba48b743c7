"""Standard output for results, standard error for messages, and the exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from autofuse.results.visible_text import harmless

DONE, FINDINGS, FAILED, INTERRUPTED = 0, 1, 2, 130

StyledText = tuple[str, str]  # text, and a rich style or ""


class Output:
    """Standard output and error, with colours on a terminal that supports them."""

    def write(self, pieces: Iterable[StyledText]) -> None:
        """Writes results to standard output. Only a terminal gets styles, and no control characters."""
        if not sys.stdout.isatty():
            sys.stdout.writelines(text for text, _ in pieces)
            return
        # A diff may hold control characters of an untrusted file.
        pieces = [(harmless(piece), style) for piece, style in pieces]
        console, text = importlib.import_module("rich.console"), importlib.import_module("rich.text")
        console.Console(soft_wrap=True, highlight=False).print(text.Text.assemble(*pieces), end="")

    def say(self, sentence: str) -> None:
        """Prints a message about the run to standard error."""
        sys.stdout.flush()  # so that the message follows the results
        print(harmless(sentence), file=sys.stderr)
