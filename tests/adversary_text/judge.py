"""Judges one program: rewrites it as a user would, and runs it before and after in every context."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from autofuse.cli import main
from tests.adversary.compare import differences
from tests.adversary.values import Numbers
from tests.adversary_text.program import LEVELS, Program
from tests.adversary_text.world import CONTEXTS, RAISES, Context, RunRecord, record_run, tolerance_of

MOST = 4  # differences reported for one program
SECONDS = 5.0  # of CPU that autofuse may use for one of these small programs
_OPTIONS: dict[str, list[str]] = {"safe": [], "unsafe": ["--unsafe"]}
_COARSER = (
    (re.compile(r"\b(?:bfloat16|half|float16)\b"), torch.bfloat16),
    (
        re.compile(r"\bfloat32\b|\.float\(\)|torch\.(?:randn|rand|ones|zeros|linspace|arange|tensor|full)\(|np\."),
        torch.float32,
    ),
)
_MORE_TERMS = 4  # a gradient is a sum of more terms than an output


@dataclass(frozen=True)
class Verdict:
    """The outcome of the edits of one level. wrong: what is wrong, empty if the program still does the same."""

    level: str
    outcome: str  # edited; left; wrong; as safe: no further edit; excused: the program breaks a stated assumption
    wrong: tuple[str, ...]
    text: str
    told: tuple[str, ...]  # the messages of all edits that were offered

    @property
    def only_results(self) -> bool:
        """Whether only results of the program are wrong, and nothing about the rewrite itself."""
        return _only_results(self.wrong)


@dataclass(frozen=True)
class BrokenProgram(Exception):
    """The program does not run unchanged, so it tests nothing."""

    why: str

    def __str__(self) -> str:
        return self.why


def verdicts(program: Program) -> list[Verdict]:
    """Returns one verdict for each level. Raises BrokenProgram if the program does not run unchanged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(program, folder)
        original = [record_run(folder, program.drive, c) for c in CONTEXTS]
        if original[0].error and not program.raises:
            raise BrokenProgram(f"{program}: raises {original[0].error}")
        found, done = [], {_texts(folder): original}
        for level in LEVELS:
            _write(program, folder)
            found.append(_verdict(program, folder, level, done))
            if level == "unsafe" and found[0].text == found[1].text:
                found[1] = replace(found[1], outcome="as safe", wrong=())  # the safe level reports it
        return found


def offered_edits(program: Program) -> tuple[str, ...]:
    """`status code: message` for each finding in a program."""
    with tempfile.TemporaryDirectory() as folder:
        _write(program, Path(folder))
        return tuple(_find_edits(Path(folder)))


def _write(program: Program, folder: Path) -> None:
    for name, text in program.files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def _texts(folder: Path) -> tuple[str, ...]:
    return tuple(file.read_text() for file in sorted(folder.rglob("*.py")))


def _verdict(program: Program, folder: Path, level: str, done: dict[tuple[str, ...], list[RunRecord]]) -> Verdict:
    given = folder / "model.py" if program.alone else folder
    original = next(iter(done.values()))
    before, told = _texts(folder), ()
    wrong = []
    try:
        with _limit_cpu_time(SECONDS):
            told = tuple(_find_edits(given))
            wrong += _rewrite(given, level)
            after = _texts(folder)
            if after != before:
                wrong += [f"second run: {w}" for w in _rewrite(given, level)]
                wrong += ["a second run changes it again"] * (_texts(folder) != after)
    except TimeoutError:
        wrong += [f"autofuse uses more than {SECONDS} s of CPU"]
    after = _texts(folder)
    for text in after:
        wrong += _syntax_errors(text)
    if not wrong and after != before:
        if after not in done:
            done[after] = [record_run(folder, program.drive, c) for c in CONTEXTS]
        wrong += changes_of(program, original, done[after])
    excused = level == "unsafe" and bool(wrong) and _only_results(wrong) and _states_assumption(program, told)
    if level == "safe" and program.safe and after == before and not wrong:
        wrong = ["an edit must be safe, but no safe edit is made"]
    outcome = "excused" if excused else "wrong" if wrong else "left" if after == before else "edited"
    return Verdict(level, outcome, () if excused else tuple(wrong[:MOST]), "\n".join(after), told)


_LABELS = tuple(f"{c.name}:" for c in CONTEXTS)


def _only_results(wrong: Sequence[str]) -> bool:
    return all(w.startswith(_LABELS) for w in wrong)


def _states_assumption(program: Program, told: tuple[str, ...]) -> bool:
    """Whether the message of an edit names what the program breaks."""
    return any(re.search(pattern, message) for pattern in program.breaks for message in told)


def _run(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


def _find_edits(given: Path) -> Iterator[str]:
    """Yields `status code: message` for each finding."""
    code, out, _ = _run(["check", "--format", "json", "--declined", str(given)])
    if code not in (0, 1):
        return
    for finding in json.loads(out)["findings"]:
        yield f"{finding['status']} {finding['code']}: {finding['message']}"


def _rewrite(given: Path, level: str) -> list[str]:
    """Runs `autofuse rewrite`, which writes the files, and returns its errors."""
    try:
        code, _, err = _run(["rewrite", *_OPTIONS[level], str(given)])
    except TimeoutError:
        raise
    except Exception as error:
        return [f"rewrite raises {type(error).__name__}: {str(error)[:100]}"]
    told = next((line for line in err.splitlines() if re.search("internal|Traceback|went wrong|bug", line)), "")
    return [f"rewrite exits with {code}: {err.strip()[-160:]}"] * (code != 0) + [told[:160]] * (
        code == 0 and bool(told)
    )


def _syntax_errors(text: str) -> list[str]:
    try:
        compile(text, "model.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"does not parse after the edits: {error}"]
    return []


def changes_of(program: Program, original: list[RunRecord], now: list[RunRecord]) -> list[str]:
    """The differences between the runs of a program before and after its edits, one line each, by context."""
    both = zip(CONTEXTS, original, now, strict=True)
    named = [tolerance_of(dtype) for pattern, dtype in _COARSER if pattern.search(f"{program.text}\n{program.drive}")]
    return [w for c, b, a in both for w in islice(_differences_in_context(c, b, a, named), MOST)]


def _tolerance(context: Context, outcome: Any, named: list[float]) -> float:
    """The tolerance of the coarsest dtype that the text or the outcome shows."""
    return max([context.tolerance, *named, *(tolerance_of(n.values.dtype) for n in _numbers(outcome))])


def _skip_failed_parts(before: Any, after: Any) -> Any:
    """`after` without the parts that raised an error of torch before the edits: those are not compared."""
    if isinstance(before, str) and before.startswith(RAISES):
        return before
    if isinstance(before, list | tuple) and type(before) is type(after) and len(before) == len(after):
        return type(before)(map(_skip_failed_parts, before, after)) if not isinstance(before, torch.Size) else after
    return after


def _numbers(value: Any) -> Iterator[Numbers]:
    if isinstance(value, Numbers) and value.values.is_floating_point():
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _numbers(part)


def _differences_in_context(context: Context, before: RunRecord, after: RunRecord, named: list[float]) -> Iterator[str]:
    """Yields the differences. A context in which the original raises an error of torch is not compared."""
    if before.error and ":" not in before.error and before.error != after.error:
        return
    if before.error != after.error:
        yield f"{context.name}: {f'raises {before.error}' if before.error else 'runs'}, now {after.error or 'runs'}"
        return
    if before.printed != after.printed:
        yield f"{context.name}: prints {before.printed[-60:]!r}, now {after.printed[-60:]!r}"
    for warned in sorted(set(after.warned) - set(before.warned)):
        yield f"{context.name}: warns {warned[:100]}"
    allowed = _tolerance(context, before.outcome, named)
    outcome = _skip_failed_parts(before.outcome, after.outcome)
    yield from differences(before.outcome, outcome, allowed, f"{context.name}: outcome")
    yield from differences(before.gradients, after.gradients, allowed * _MORE_TERMS, f"{context.name}: gradient")


@contextlib.contextmanager
def _limit_cpu_time(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after `seconds` of CPU time."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
