"""The options of `autofuse profile`, `compare` and `plan`, with their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from autofuse.cli.export_kinds import EXPORT_KINDS

Commands = argparse._SubParsersAction
OUTPUT = Path("autofuse-profile")

_EPILOG = """\
examples:
  autofuse profile train.py --lr 3e-4          a few steps of a script that trains, or only infers
  autofuse profile --steps 50 -m package.train --config small
  autofuse profile package.module:factory      what the function returns: a model and its inputs, or a step
  autofuse profile --trace trace.json.gz       a trace that was taken elsewhere, on any device; without torch
  torchrun --nproc-per-node 2 -m autofuse profile train.py
"""


def add_profile_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds the commands profile, compare and plan to the parser."""
    _add_profile(commands)
    _add_compare(commands)
    _add_plan(commands)


def _add_profile(commands: Commands[argparse.ArgumentParser]) -> None:
    profile = commands.add_parser(
        "profile", help="show where the time of a training step goes (needs torch, except with --trace)",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EPILOG,
        usage="autofuse profile [options] (SCRIPT.py | MODULE:FACTORY | -m MODULE | --trace FILE ...) [arguments ...]",
        description="Profile a script, the model that a function returns, or a trace.\n"
        "Write options of autofuse before the script. Arguments after it belong to the script.",
    )  # fmt: skip
    profile.add_argument("target", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    profile.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module as a script, as python -m"
    )
    profile.add_argument(
        "--trace", nargs="+", type=Path, metavar="FILE", help="Chrome traces, one for each rank, or a folder"
    )
    profile.add_argument("--ncu", type=Path, metavar="FILE", help="with --trace: a report of Nsight Compute, as CSV")
    profile.add_argument(
        "--peak-flops", type=_rate, metavar="RATE", help="with --trace: the device's peak FLOP/s, such as 989T"
    )
    profile.add_argument(
        "--peak-bandwidth",
        type=_rate,
        metavar="RATE",
        help="with --trace: bytes per second of the device's memory, such as 3.35T",
    )
    profile.add_argument("--warmup", type=_number, default=5, metavar="N", help="untimed steps first (default: 5)")
    profile.add_argument("--steps", type=_counting, default=20, metavar="N", help="timed steps (default: 20)")
    profile.add_argument(
        "--trace-steps",
        type=_counting,
        metavar="N",
        help="recorded steps after the timed ones (default: as many as run in 2 seconds, 3 to 20)",
    )
    profile.add_argument("--samples", type=_counting, metavar="N", help="in a step (default: from the model's inputs)")
    profile.add_argument("--tokens", type=_counting, metavar="N", help="in a step (default: from the model's inputs)")
    profile.add_argument(
        "--inference",
        action="store_true",
        help="calls of the model are the steps, even if the program has an optimizer",
    )
    profile.add_argument("--to-the-end", action="store_true", help="let the script run to its end after the profile")
    profile.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR",
        help=f"for profile.json, profile.html and the trace (default: {OUTPUT})",
    )  # fmt: skip
    profile.add_argument(
        "--export", action="append", default=[], choices=EXPORT_KINDS, metavar="KIND",
        help=f"a further file in the folder; may be repeated: {', '.join(EXPORT_KINDS)}",
    )  # fmt: skip
    _add_format(profile)
    _add_conditions(profile)
    profile.add_argument("--baseline", type=Path, metavar="FILE", help="an earlier profile.json to compare with")


def _add_compare(commands: Commands[argparse.ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare", help="show two profiles side by side, and whether the difference is clear",
        description="Compare two files that `autofuse profile` or torch.profiler wrote, or show one comparison of "
        "interleaved pairs. "
        "Exit codes: 0, also if a condition is undecided; 1 if a condition of --fail-if holds; 2 for bad input.",
    )  # fmt: skip
    compare.add_argument("before", type=Path, metavar="BEFORE", help="a profile.json, or a trace")
    compare.add_argument("after", type=Path, nargs="?", metavar="AFTER", help="another profile.json or trace")
    _add_format(compare)
    _add_conditions(compare)
    compare.add_argument("--junit", type=Path, metavar="FILE", help="write the conditions as a JUnit report")
    compare.add_argument(
        "--github", action="store_true", help="append the verdict and the conditions to $GITHUB_STEP_SUMMARY"
    )


def _add_plan(commands: Commands[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan", help="estimate whether a step fits into memory, and how it scales (needs torch)",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_PLAN_EPILOG,
        description="Simulate a training step without running it or allocating its memory.",
    )  # fmt: skip
    plan.add_argument("target", metavar="MODULE:FACTORY", help="a function that returns a model and its inputs")
    plan.add_argument("--batch", type=_counting, metavar="N", help="samples on a device (default: from the inputs)")
    plan.add_argument("--sequence", type=_counting, metavar="T", help="tokens in a sample (default: from the inputs)")
    plan.add_argument(
        "--dtype", type=_dtype, default="", help="of parameters and inputs: float32, bfloat16 (bf16), float16, float64"
    )
    plan.add_argument("--autocast", type=_dtype, default="", metavar="DTYPE", help="the dtype of autocast")
    plan.add_argument(
        "--checkpointing", default="none", metavar="WHAT",
        help="none (the default), block (each repeated block), or names of modules, such as 'layers.*'",
    )  # fmt: skip
    plan.add_argument(
        "--optimizer", choices=("none", "adamw", "adam", "sgd", "momentum", "adagrad"), default="adamw",
        help="default: adamw",
    )  # fmt: skip
    plan.add_argument("--shard", type=_counting, default=1, metavar="N", help="distribute over N devices (default: 1)")
    plan.add_argument(
        "--strategy", choices=("ddp", "zero1", "zero2", "fsdp", "hsdp", "tp"), help="with --shard (default: fsdp)"
    )
    plan.add_argument(
        "--fp32-master",
        action="store_true",
        help="the optimizer keeps float32 parameters; needs --dtype with half precision",
    )
    plan.add_argument("--tensor", type=_counting, default=1, metavar="N", help="tensor and sequence parallelism over N")
    plan.add_argument("--pipeline", type=_counting, default=1, metavar="N", help="N pipeline stages; plan the first")
    plan.add_argument("--microbatches", type=_counting, default=8, metavar="N", help="of the pipeline (default: 8)")
    plan.add_argument("--context", type=_counting, default=1, metavar="N", help="divide the sequence over N devices")
    plan.add_argument(
        "--offload",
        choices=("none", "optimizer", "parameters"),
        default="none",
        help="keep these in the host's memory (default: none)",
    )
    room = plan.add_mutually_exclusive_group()
    room.add_argument("--device", metavar="NAME", help='the device that the step must fit, such as "NVIDIA H100"')
    room.add_argument("--memory", metavar="SIZE", help="the memory that the step must fit, such as 80GiB")
    plan.add_argument(
        "--scale", type=_counting, metavar="N", help="also simulate how the step scales over 2, 4, ... N devices"
    )
    plan.add_argument("--link", metavar="SIZE", help="with --scale: bytes that a device sends per second, such as 50GB")
    plan.add_argument("--link-across", metavar="SIZE", help="the same between groups of 8 devices, if it is less")
    plan.add_argument(
        "--latency", type=float, default=10.0, metavar="US", help="of a message, in microseconds (default: 10)"
    )
    plan.add_argument("--profile", type=Path, metavar="FILE", help="with --scale: a profile.json, for the step's time")
    plan.add_argument("--step-seconds", type=float, metavar="S", help="with --scale: the step's time on one device")
    plan.add_argument("--no-fusion", action="store_true", help="plan only the original model, without fusion")
    _add_format(plan)


def _rate(text: str) -> float:
    """Returns a positive number, which may have a decimal prefix: 989T, 3.35e12."""
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1:], 0.0)
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: write a positive number, such as 989T or 3.35e12")
    return value


def _dtype(text: str) -> str:
    name = _DTYPES.get(text.lower(), text.lower())
    if name and name not in _DTYPES.values():  # argparse converts the default, too
        raise argparse.ArgumentTypeError(f"{text!r} is not a dtype: use one of {', '.join(_DTYPES.values())}")
    return name


_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_PLAN_EPILOG = """\
examples:
  autofuse plan package.module:factory --batch 16 --memory 24GiB
  autofuse plan package.module:factory --dtype bf16 --checkpointing block --shard 64 --device "NVIDIA H100"
exit codes: 0 planned; 1 it does not fit, fused or not; 2 it cannot be planned
"""


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def _add_conditions(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION",
        help="exit with 1 if this certainly holds, such as 'time_ratio>1.02' or 'layer_share[h.*.attn]>0.4'; "
        "may be repeated",
    )  # fmt: skip
    command.add_argument("--strict", action="store_true", help="with --fail-if: an undecided condition fails too")
    command.add_argument(
        "--anyway", action="store_true", help="give a verdict even if the two were measured under different conditions"
    )


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number: write 0 or more")
    return int(text)


def _counting(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number: write 1 or more")
    return int(text)
