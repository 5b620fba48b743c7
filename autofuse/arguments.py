"""What a command line may say. Knows options and their help; runs nothing."""

from __future__ import annotations

import argparse

STDIN = "-"


def parser() -> argparse.ArgumentParser:
    """The parser of everything but `demo`, whose options are its own. `command` is the name of the command."""
    main = argparse.ArgumentParser(
        "autofuse",
        description="Finds layers of PyTorch models that are spelled out op by op and swaps in fused ones.",
        epilog="`autofuse COMMAND --help` tells what a command takes.",
    )
    main.add_argument("--version", action="store_true", help="print the version and exit")
    commands = main.add_subparsers(dest="command", metavar="COMMAND")

    rewrite = commands.add_parser("rewrite", help="write the safe edits into the files")
    _add_file_options(rewrite)
    rewrite.add_argument("--diff", action="store_true", help="show the edits and write nothing")
    rewrite.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    rewrite.add_argument("--unsafe", action="store_true", help="include edits that rest on a stated assumption")

    check = commands.add_parser("check", help="report what could be fused, and write nothing")
    _add_file_options(check)
    check.add_argument("--format", choices=("text", "json", "github"), default="text", help="default: text")
    check.add_argument("--declined", action="store_true", help="also places that nearly matched, and why they do not")

    explain = commands.add_parser("explain", help="say what a rule does, with examples")
    explain.add_argument("codes", nargs="+", metavar="CODE", type=str.upper, help="such as AF101, or AF1 for a family")

    rules = commands.add_parser("rules", help="list the rules")
    rules.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    commands.add_parser("demo", help="train a small GPT eager and optimized, and compare (needs torch)", add_help=False)
    return main


def _add_file_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", metavar="PATH", help="files and folders; - reads standard input")
    command.add_argument("--select", action="extend", type=_codes, metavar="CODES", help="only these rules, as AF1,AF2")
    command.add_argument("--ignore", action="extend", type=_codes, metavar="CODES", help="not these rules")
    command.add_argument(
        "--target", choices=("auto", "torch", "autofuse"),
        help="what new code calls: torch, or autofuse.ops where torch has no such operation (auto, the default); "
        "torch alone; or autofuse.ops alone",
    )  # fmt: skip
    command.add_argument("--stdin-filename", metavar="PATH", help="the name that standard input goes by")
    command.add_argument("--force-exclude", action="store_true", help="apply `exclude` to files that are named, too")
    command.add_argument("--debug", action="store_true", help="show the traceback of an internal error")


def _codes(text: str) -> list[str]:
    return [c.strip().upper() for c in text.split(",") if c.strip()]
