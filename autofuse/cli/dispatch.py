"""argv -> one command -> exit code.

Each command's module is imported when the command is given, so that `autofuse --version` is quick; only `demo`, `tune`,
`plan` and `profile` without --trace need torch.

Exit codes: 0 nothing to do, or done; 1 findings; 2 a usage, configuration or input error, in one of the files at least.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from autofuse.cli.arguments import parser
from autofuse.cli.interruption import uninterrupted_end
from autofuse.cli.output import DONE, FAILED, INTERRUPTED, Output
from autofuse.results.visible_text import visible

_GET_TORCH = "Install it with `pip install 'torch>=2.6'`."
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
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
    """Runs one command and returns its exit code. Raises SystemExit only for usage errors and --help."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a file name that cannot be shown must not end the run
            stream.reconfigure(errors="backslashreplace")
    warnings.simplefilter("ignore", SyntaxWarning)  # about the files that are read: not what was asked for
    try:
        return _done(arguments)
    except BrokenPipeError:  # the reader has seen enough, as with `| head`
        _write_no_more()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if argv is None:  # called by the process, which ends now
            uninterrupted_end()


def _done(arguments: Sequence[str]) -> int:
    """Runs the command that `arguments` say. Raises BrokenPipeError and KeyboardInterrupt."""
    if arguments[:1] == ["demo"]:  # it has options of its own
        return _run("demo", arguments[1:])
    options = parser().parse_args(arguments)
    if options.version:
        return _version()
    if options.command is None:
        parser().error(f"say what to do: {', '.join((*(c for c in _COMMANDS if c != 'demo'), 'demo'))}")
    if file := _option_or_file(arguments):
        parser().error(f"{file} is an option, and a file here has that name: write the file as ./{file}, or rename it")
    try:
        code = _run(_of_traces(options), options)
        sys.stdout.flush()  # here, where a reader that is gone can be met
        return code
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno not in _FULL:
            raise
        _write_no_more()
        Output().say(f"autofuse: the results cannot be written: {error.strerror}.")
        return FAILED


def _option_or_file(arguments: Sequence[str]) -> str:
    """An option that may have been meant as a file; "" if there is none.

    A shell, or pre-commit, puts the names of a stranger's files on the command line: one may be called --unsafe.
    """
    if arguments[:1] not in (["check"], ["rewrite"]):
        return ""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    found = (o for o in options if o.startswith("-") and o != "-" and os.path.lexists(o))
    return visible(next(found, ""))


def _write_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_traces(options: Namespace) -> str:
    """The command that `options` ask for; profiling files needs no torch, and is one of its own."""
    return "profile_trace" if options.command == "profile" and options.trace else str(options.command)


def _run(command: str, given: Namespace | Sequence[str]) -> int:
    module, _, function = _COMMANDS.get(command, f"{command}:main").partition(":")
    try:
        return int(getattr(importlib.import_module(f"autofuse.cli.{module}"), function)(given))
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        Output().say(
            f"autofuse: {_NEEDS_TORCH.get(command, '')} and needs torch, which is not installed here. {_GET_TORCH}"
        )
        return FAILED


def _version() -> int:
    try:
        found = version("autofuse")
    except PackageNotFoundError:  # run from a source tree
        found = "0"
    sys.stdout.write(f"autofuse {found}\n")
    return DONE
