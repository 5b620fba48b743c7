"""The command line. dispatch.py parses the arguments. Each command is one file, which is imported when it runs."""

from autofuse.cli.dispatch import main

__all__ = ["main"]
