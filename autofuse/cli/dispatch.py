"""Runs the command that argv names, and returns its exit code.

The module of a command is imported when the command runs, so that `autofuse --version` is quick. Only `demo`, `tune`,
`plan` and `profile` without --trace need torch.

Exit codes:

- 0: success, or nothing to do.
- 1: findings.
- 2: a usage, configuration or input error, in at least one file.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence

from autofuse.cli.arguments import parser
from autofuse.cli.interruption import ignore_interrupts
from autofuse.cli.output import DONE, FAILED, INTERRUPTED, Output
from autofuse.results.distribution import INSTALL_TORCH, name_clash, own_version, unsupported_torch
from autofuse.results.visible_text import visible

_DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_COMMANDS = {
    "cache": "cache:main", "check": "check:main", "compare": "compare:main", "demo": "demo:main",
    "explain": "rules:explain", "kernels": "kernels:main", "plan": "plan:main", "profile": "profile:main",
    "rewrite": "rewrite:rewrite", "rules": "rules:rules", "server": "server:main", "tune": "tune:main",
}  # fmt: skip
_NEEDS_TORCH = {
    "demo": "`demo` trains a model", "plan": "`plan` runs a model on paper", "profile": "`profile` runs a model",
    "tune": "`tune` times kernels",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Raises:
        SystemExit: A usage error, or --help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a file name that cannot be shown must not end the run
            stream.reconfigure(errors="backslashreplace")
    warnings.simplefilter("ignore", SyntaxWarning)  # Python would print warnings about the files that are read
    try:
        return _parse_and_run(arguments)
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        _discard_output()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if argv is None:  # this is the program itself, and it ends now
            ignore_interrupts()


def _parse_and_run(arguments: Sequence[str]) -> int:
    """Parses `arguments` and runs the command. Raises BrokenPipeError and KeyboardInterrupt."""
    if arguments[:1] == ["demo"]:  # has its own parser
        return _run("demo", arguments[1:])
    options = parser().parse_args(arguments)
    if options.version:
        return _print_version()
    if options.command is None:
        parser().error(f"name a command: {', '.join((*(c for c in _COMMANDS if c != 'demo'), 'demo'))}")
    if file := _option_or_file(arguments):
        parser().error(f"{file} is an option, and a file here has that name: write the file as ./{file}, or rename it")
    try:
        code = _run(_command_name(options), options)
        sys.stdout.flush()  # here, so that a closed pipe raises BrokenPipeError inside of main()
        return code
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno not in _DISK_FULL:
            raise
        _discard_output()
        Output().say(f"autofuse: the results cannot be written: {error.strerror}.")
        return FAILED


def _option_or_file(arguments: Sequence[str]) -> str:
    """Returns an option that is also the name of a file; "" if there is none.

    A shell or pre-commit puts file names on the command line. A file named --unsafe must not act as an option.
    """
    if arguments[:1] not in (["check"], ["rewrite"]):
        return ""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    ambiguous = (o for o in options if o.startswith("-") and o != "-" and os.path.lexists(o))
    return visible(next(ambiguous, ""))


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command_name(options: Namespace) -> str:
    """Returns the name of the command. `profile --trace` is a command of its own, because it needs no torch."""
    return "profile_trace" if options.command == "profile" and options.trace else str(options.command)


def _run(command: str, options: Namespace | Sequence[str]) -> int:
    if problem := name_clash():
        Output().say(f"autofuse: {problem}")
    if command in _NEEDS_TORCH and (problem := unsupported_torch()):
        Output().say(f"autofuse: {problem}")
        return FAILED
    module, _, function = _COMMANDS.get(command, f"{command}:main").partition(":")
    try:
        return int(getattr(importlib.import_module(f"autofuse.cli.{module}"), function)(options))
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        Output().say(
            f"autofuse: {_NEEDS_TORCH.get(command, '')} and needs torch, which is not installed here. {INSTALL_TORCH}"
        )
        return FAILED


def _print_version() -> int:
    sys.stdout.write(f"autofuse {own_version()}\n")
    return DONE
