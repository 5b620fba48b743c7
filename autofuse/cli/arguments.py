"""Defines the commands and options of the command line, with their help."""

from __future__ import annotations

import argparse
from typing import NoReturn

from autofuse.cli.profile_arguments import add_profile_commands

STDIN = "-"
# The names of display/formats.py, repeated here so that `--version` need not import that file. A test compares them.
NAMES = (
    "text", "concise", "full", "azure", "github", "gitlab", "grouped", "json", "json-lines", "junit", "pylint",
    "rdjson", "sarif",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """A parser whose errors say where the options are listed."""

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, and exits with 2."""
        command = self.prog if " " in self.prog else f"{self.prog} COMMAND"
        super().error(f"{message}. `{command} --help` lists the options.")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands except `demo`, which has its own. `command` holds the name of the command."""
    main: argparse.ArgumentParser = _Parser(
        "autofuse",
        description="Finds layers of PyTorch models that are written op by op, and replaces them by fused operations.",
        epilog="`autofuse COMMAND --help` lists the options of a command.",
    )
    main.add_argument("--version", action="store_true", help="print the version and exit")
    commands = main.add_subparsers(dest="command", metavar="COMMAND")

    rewrite = commands.add_parser("rewrite", help="write the safe edits into the files")
    _add_file_options(rewrite)
    rewrite.add_argument("--diff", action="store_true", help="show the edits and write nothing")
    rewrite.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    rewrite.add_argument("--unsafe", action="store_true", help="also make edits that depend on a stated assumption")

    check = commands.add_parser("check", help="report what could be fused, and write nothing")
    _add_file_options(check)
    check.add_argument(
        "--output-format", "--format", dest="format", choices=NAMES, default="text", metavar="FORMAT",
        help=f"one of {', '.join(NAMES)} (default: text)",
    )  # fmt: skip
    check.add_argument("--statistics", action="store_true", help="count the findings of each rule instead")
    check.add_argument(
        "--baseline", metavar="FILE", help="leave out the findings that are recorded in FILE; only new ones fail"
    )
    check.add_argument("--write-baseline", action="store_true", help="record all findings in the file of --baseline")
    check.add_argument(
        "--add-ignore", action="store_true", help="write a comment `# autofuse: ignore[...]` for each finding"
    )
    check.add_argument("--exit-zero", action="store_true", help="exit with 0 even if something was found")
    check.add_argument("--declined", action="store_true", help="also report places that nearly match, with the reason")

    explain = commands.add_parser("explain", help="explain a rule, with examples")
    _add_rules_option(explain)
    explain.add_argument("codes", nargs="+", metavar="CODE", type=str.upper, help="such as AF101, or AF1 for a family")

    rules = commands.add_parser("rules", help="list the rules, or test your own rules")
    rules.add_argument("folders", nargs="*", metavar="FOLDER", help="with --check: only the rules in these folders")
    rules.add_argument("--check", action="store_true", help="test your own rules by their examples")
    rules.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    _add_rules_option(rules)

    server = commands.add_parser("server", help="report findings to an editor while you type (needs pygls)")
    _add_rules_option(server)
    server.add_argument("--stdio", action="store_true", help="use standard input and output (always the case)")

    _add_kernel_commands(commands)
    add_profile_commands(commands)
    commands.add_parser("demo", help="train a small GPT eager and optimized, and compare (needs torch)", add_help=False)
    return main


def _add_kernel_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    kernels = commands.add_parser("kernels", help="list the kernels of each operation on this machine")
    kernels.add_argument("operations", nargs="*", metavar="OPERATION", help="such as rms_norm (default: all)")
    kernels.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    tune = commands.add_parser("tune", help="measure which kernels are best on this machine (needs torch)")
    tune.add_argument(
        "--op", action="append", metavar="OPERATION", help="such as rms_norm; may be repeated (default: all)"
    )
    tune.add_argument(
        "--shape", action="append", type=_shape, metavar="SIZES", help="such as 2048x768; needs exactly one --op"
    )
    tune.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16", "float64"), help="default: float32; bfloat16 on cuda"
    )
    tune.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if it is available")
    modes = tune.add_mutually_exclusive_group()
    modes.add_argument("--training", action="store_true", help="time forward and backward together (the default)")
    modes.add_argument("--inference", action="store_true", help="time the forward alone")
    for name, size, what in _MODEL:
        tune.add_argument(f"--{name}", type=_size, default=size, metavar="N", help=f"{what} (default: {size})")
    tune.add_argument("--hidden", type=_size, metavar="N", help="width inside of an MLP (default: 4 times --width)")
    tune.add_argument("--policy", choices=("speed", "memory", "accuracy"), help="what to optimize for (default: speed)")
    tune.add_argument(
        "--deterministic", action="store_true", help="leave out kernels whose results differ between runs"
    )
    tune.add_argument("--providers", metavar="NAMES", help="only these, such as torch,triton")
    tune.add_argument(
        "--seconds", type=float, default=0.3, metavar="S", help="seconds for each candidate (default: 0.3)"
    )
    tune.add_argument("--keep", action="store_true", help="keep earlier decisions, and measure only the rest")
    tune.add_argument("--all", action="store_true", help="show every candidate of every call")
    tune.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    cache = commands.add_parser("cache", help="show, list or clear the measurements of this machine")
    cache.add_argument(
        "action", nargs="?", choices=("show", "path", "list", "clear"), default="show",
        help="show: folder and size (default); path: the folder alone; list: every decision; clear: remove the cache",
    )  # fmt: skip
    cache.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


_MODEL = (
    ("batch", 4, "sequences in a batch"),
    ("length", 512, "tokens in a sequence"),
    ("width", 768, "width of a token"),
    ("heads", 12, "heads of attention"),
    ("vocabulary", 32000, "tokens in the vocabulary"),
)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write sizes with an x between them, such as 2048x768")
    return tuple(map(int, sizes))


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _add_file_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", metavar="PATH", help="files and folders; - reads standard input")
    command.add_argument(
        "--select", action="extend", type=_codes, metavar="CODES", help="only these rules, such as AF1,AF2"
    )
    command.add_argument("--ignore", action="extend", type=_codes, metavar="CODES", help="not these rules")
    command.add_argument(
        "--target", choices=("auto", "torch", "autofuse", "flash-attn", "apex", "liger"),
        help="the library that new code calls: torch, and autofuse.ops for operations that torch does not have (auto, "
        "the default); only torch; only autofuse.ops; or the named library",
    )  # fmt: skip
    _add_rules_option(command)
    command.add_argument("--stdin-filename", metavar="PATH", help="the file name to use for standard input")
    command.add_argument("--generated", action="store_true", help="also edit files that are marked as generated")
    command.add_argument(
        "--force-exclude", action="store_true", help="apply `exclude` also to files on the command line"
    )
    command.add_argument(
        "--no-cache", action="store_true", help="read every file, without reading or writing the cache"
    )
    command.add_argument("--debug", action="store_true", help="show the traceback of an internal error")


def _add_rules_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--allow-rules", action="store_true",
        help="also execute rules that other projects name in their pyproject.toml (this project's rules always run)",
    )  # fmt: skip


def _codes(text: str) -> list[str]:
    return [c.strip().upper() for c in text.split(",") if c.strip()]
