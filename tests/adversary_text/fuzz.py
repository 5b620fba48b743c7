"""Random programs: a form, its place, types, contexts, the statements in between, and what is read afterwards.

`python -m tests.adversary_text.fuzz [SECONDS] [--all]` runs them by hand. --all also uses the options that
fuzz_known.txt lists as wrong, to show whether they still are.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.adversary_text.forms import Form, every_form, form_named
from tests.adversary_text.judge import BrokenProgram, Verdict, verdicts
from tests.adversary_text.program import IMPORTS, Program

KNOWN = Path(__file__).parent / "fuzz_known.txt"  # options "kind: name" whose programs are known to be wrong

PLACES = {
    "a function": "def f(ARGS_):\n    CODE\n    return RESULT_",
    "a forward": (
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        SETUP\n\n"
        "    def forward(self, ARGS_):\n        CODE\n        return RESULT_\n\n\nf = M()"
    ),
    "a function in a function": (
        "def outer(n=1):\n    def f(ARGS_):\n        CODE\n        return RESULT_\n\n    return f\n\n\nf = outer()"
    ),
    "a static method": (
        "class Ops:\n    @staticmethod\n    def f(ARGS_):\n        CODE\n        return RESULT_\n\n\nf = Ops.f"
    ),
    "a generator": "def g(ARGS_):\n    CODE\n    yield RESULT_\n\n\ndef f(*args):\n    return list(g(*args))",
    "a branch": "def f(ARGS_):\n    if len(LOG) < 9:\n        CODE\n        return RESULT_\n    return None",
    "a loop": "def f(ARGS_):\n    for i in range(2):\n        LOG.append(i)\n        CODE\n    return RESULT_",
    "a try": "def f(ARGS_):\n    try:\n        CODE\n    finally:\n        LOG.append('done')\n    return RESULT_",
    "no_grad": "@torch.no_grad()\ndef f(ARGS_):\n    CODE\n    return RESULT_",
    "a subclass": (
        "class Base(nn.Module):\n    def __init__(self):\n        super().__init__()\n        SETUP\n\n\n"
        "class M(Base):\n    def forward(self, ARGS_):\n        CODE\n        return RESULT_\n\n\nf = M()"
    ),
}
BETWEEN = {
    "nothing": "pass",
    "a print": "print('between', tuple(OPERAND.shape))",
    "a log": "LOG.append(OPERAND.numel())",
    "a count": "count()",
    "a comment": "# between",
    "an assert": "assert OPERAND.numel() > 0",
    "a branch": "if OPERAND.dim() > 9:\n    MIDDLE = MIDDLE * 2",
    "a new value": "other = OPERAND.detach().sum() + 1",
    "the operand is computed again": "OPERAND = OPERAND * 1.5",
    "a write into the operand": "with torch.no_grad():\n    OPERAND.mul_(1.5)",
    "the middle is kept": "LOG.append(MIDDLE.detach())",
    "a hook on the middle": "MIDDLE.register_hook(lambda g: g * 2) if MIDDLE.requires_grad else None",
    "the middle's shape is printed": "print(MIDDLE.shape)",
    "the middle's last size": "LOG.append(MIDDLE.shape[-1])",
    "an inner function": "def summed():\n    return MIDDLE.sum()",
    "locals": "LOG.append(sorted(locals()))",
    "a with": "with warnings.catch_warnings():\n    LOG.append(1)",
    "grad mode": "torch.set_grad_enabled(torch.is_grad_enabled())",
    "an exception that is caught": "try:\n    raise ValueError\nexcept ValueError:\n    LOG.append('caught')",
}
AFTER = {
    "the result": "OUT",
    "the result twice": "OUT, OUT",
    "the middle too": "OUT, MIDDLE",
    "the middle's shape": "OUT, MIDDLE.shape",
    "the middle's dtype": "OUT, str(MIDDLE.dtype)",
    "the middle's last size": "OUT, MIDDLE.shape[-1]",
    "the result's dtype": "OUT, str(OUT.dtype)",
    "the result's strides": "OUT, OUT.stride()",
    "the operand": "OUT, OPERAND",
    "a view of the result": "OUT.reshape(-1)",
    "the result in place": "OUT.mul(2).add_(1)",
    "what requires a gradient": "OUT, OUT.requires_grad",
}
ANNOTATIONS = {
    "none": "",
    "Tensor": ": Tensor",
    "torch.Tensor": ": torch.Tensor",
    "text": ': "Tensor"',
    "object": ": object",
}
_RENAMED = IMPORTS.replace("functional as F", "functional as functional")
IMPORTED = {
    "as usual": IMPORTS,
    "F for the type checker": _RENAMED.replace(
        "\n\n\n", "\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch.nn.functional as F\n\n\n"
    ),
    "functions under another name": _RENAMED,
}
DTYPES = {
    "all alike": "{0}",
    "the first in bfloat16": "{0}.bfloat16()",
    "all in float32": "{0}.float()",
    "the first an integer": "({0} * 4).long()",
    "the last in float32": "{0}.float()",
    "the last in bfloat16": "{0}.bfloat16()",
}
SHAPES = {
    "as usual": "{0}",
    "of one row": "{0}[:1]",
    "the first of fewer dimensions": "{0}[0]",
    "all of fewer dimensions": "{0}[0]",
    "all of more dimensions": "{0}[None]",
    "laid out the other way": "{0}.transpose(0, -1).contiguous().transpose(0, -1)",
    "expanded": "{0}[:1].expand_as({0})",
}
OPTIONS: dict[str, dict[str, str]] = {
    "place": PLACES,
    "between": BETWEEN,
    "after": AFTER,
    "annotation": ANNOTATIONS,
    "imports": IMPORTED,
    "dtype": DTYPES,
    "shape": SHAPES,
    "form": {name: name for name in every_form()},
}


@dataclass(frozen=True)
class RandomProgram:
    """A program, and the options that it combines."""

    program: Program
    chosen: tuple[str, ...]


def random_programs(left_out: frozenset[str]) -> st.SearchStrategy[RandomProgram]:
    """A strategy for programs without the options in `left_out`."""
    kinds = ["form", "place", "between", "between", "after", "annotation", "imports", "dtype", "shape"]
    usual = {kind: next(iter(options)) for kind, options in OPTIONS.items()}

    def names(kind: str) -> st.SearchStrategy[str]:
        free = [name for name in OPTIONS[kind] if f"{kind}: {name}" not in left_out]
        # Half of all choices are the usual option, so most programs have few unusual options.
        return st.sampled_from(free) if kind == "form" else st.one_of(st.just(usual[kind]), st.sampled_from(free))

    return st.tuples(*map(names, kinds)).map(lambda found: _build_program(*found))


def _build_program(
    form: str, place: str, first: str, second: str, after: str, annotation: str, imports: str, dtype: str, shape: str
) -> RandomProgram:
    chosen = [("form", form), ("place", place), ("between", first), ("between", second), ("after", after)]
    chosen += [("annotation", annotation), ("imports", imports), ("dtype", dtype), ("shape", shape)]
    template, in_module = PLACES[place], "SETUP" in PLACES[place]
    of = form_named(form)
    given = of.parameters(in_module)
    code = ["FIRST", *BETWEEN[first].splitlines(), *BETWEEN[second].splitlines(), "LAST"]
    template = re.sub(r"^( *)CODE$", lambda m: "\n".join(m[1] + line for line in code), template, flags=re.MULTILINE)
    arguments = ", ".join(f"{n}{ANNOTATIONS[annotation]}" for n, _ in given)
    template = template.replace("ARGS_", arguments).replace("RESULT_", AFTER[after])
    text = "import warnings\n" + IMPORTED[imports] + "LOG = []\n\n\ndef count():\n    LOG.append(len(LOG))\n\n\n"
    text += of.put_into(template, in_module) + "\n"
    if "another name" in imports or "type checker" in imports:
        text = re.sub(r"(?<![\w.])F\.", "functional.", text)
    name = "; ".join(f"{kind}: {option}" for kind, option in chosen)
    program = Program(f"fuzz/{name}", (("model.py", text),), _drive(of, in_module, dtype, shape))
    return RandomProgram(program, tuple(f"{kind}: {option}" for kind, option in chosen))


def _drive(form: Form, in_module: bool, dtype: str, shape: str) -> str:
    """The drive of a program: it makes the arguments, varies them, and calls `f`. `made` prepares a module."""
    given = form.parameters(in_module)
    calls = []
    for i, (_, call) in enumerate(given):
        if call.startswith("t("):
            call = _vary(call, i, len(given), dtype, DTYPES)
            call = _vary(call, i, len(given), shape, SHAPES)
        calls.append(call)
    head = "f = made(f)" if in_module else "f"
    return f"{head}\n[f({', '.join(calls)}), LOG]"


def _vary(call: str, i: int, count: int, option: str, options: dict[str, str]) -> str:
    if option.startswith("the first") and i > 0 or option.startswith("the last") and i < count - 1:
        return call
    return f"(lambda x: {options[option].format('x')})({call})" if options[option] != "{0}" else call


def known_options() -> frozenset[str]:
    return frozenset(line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#"))


def judge_program(one: RandomProgram) -> list[Verdict] | None:
    """The verdicts; None if the program does not run unchanged.

    Results that an unsafe edit changes do not count, because the program may break the assumption of the edit.
    """
    try:
        found = verdicts(one.program)
    except BrokenProgram:
        return None
    return [v for v in found if v.level == "safe" or not v.only_results]


def errors_of(found: list[Verdict]) -> list[str]:
    return [f"[{v.level}] {w}" for v in found for w in v.wrong]


_QUIETLY = settings(
    max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
)


def hunt(seconds: float, left_out: frozenset[str]) -> Counter[str]:
    """Draws programs for `seconds` of CPU time, and prints what is wrong. Counts the failures of each option."""
    counts: Counter[str] = Counter()
    ends = time.process_time() + seconds

    def one(found: RandomProgram) -> None:
        result = judge_program(found)
        counts["broken" if result is None else "judged"] += 1
        for why in errors_of(result or [])[:1]:
            counts["wrong"] += 1
            counts.update(c for c in set(found.chosen) if c not in _USUAL)
            print(f"{found.program.name}: {why[:160]}", flush=True)

    while time.process_time() < ends:
        seed(time.time_ns())(_QUIETLY(given(random_programs(left_out))(one)))()
    return counts


_USUAL = frozenset(f"{kind}: {next(iter(options))}" for kind, options in OPTIONS.items() if kind != "form")


if __name__ == "__main__":
    numbers = [float(a) for a in sys.argv[1:] if a.replace(".", "").isdigit()]
    excluded = frozenset[str]() if "--all" in sys.argv else known_options()
    for what, count in hunt(*(numbers or [60.0]), excluded).most_common():
        print(f"{count:6} {what}")
