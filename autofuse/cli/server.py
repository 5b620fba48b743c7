"""`autofuse server`: findings while one types, for editors that speak the language server protocol. Needs no torch."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec

from autofuse.cli.output import DONE, FAILED, Output


def main(options: Namespace) -> int:
    """Serves one editor over standard input and output until it says that it is done."""
    if find_spec("pygls") is None:
        Output().say(
            "autofuse: `server` speaks to editors by pygls, which is not installed here. "
            "Install it with `pip install 'pygls>=2.1'`."
        )
        return FAILED
    import_module("autofuse.cli.language_server").serve(options.allow_rules)
    return DONE
