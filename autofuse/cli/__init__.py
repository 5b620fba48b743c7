"""The command line. `dispatch.py` takes the arguments apart; each command is one file, imported when it is given."""

from autofuse.cli.dispatch import main

__all__ = ["main"]
