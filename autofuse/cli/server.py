"""`autofuse server`: reports findings to an editor by the language server protocol. Works without torch."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec

from autofuse.cli.output import DONE, FAILED, Output


def main(options: Namespace) -> int:
    """Serves one editor over standard input and output until it ends the session."""
    if find_spec("pygls") is None:
        Output().say(
            "autofuse: `server` needs pygls, which is not installed here. Install it with `pip install 'pygls>=2.1'`."
        )
        return FAILED
    import_module("autofuse.cli.language_server").serve(options.allow_rules)
    return DONE
