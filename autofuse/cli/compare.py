"""`autofuse compare`: shows two result files or traces and the difference between them. Works without torch."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from autofuse.cli.gate import Gate
from autofuse.cli.profile_exports import append_to_github
from autofuse.cli.profile_results import FAILED, say
from autofuse.display import terminal
from autofuse.display.changes import changes, kernel_changes
from autofuse.display.difference_terminal import of_both, verdict_of
from autofuse.display.export_ci import conditions_summary, junit
from autofuse.profiling.trace.inputs.files import inputs_of
from autofuse.profiling.trace.profile import profile_of_inputs
from autofuse.profiling.trace.trace import Unreadable
from autofuse.results import atomic_files as files
from autofuse.results import quantities
from autofuse.results.comparison import FORMAT_VERSION, Comparison
from autofuse.results.conditions import ConditionOutcome, NotACondition, Quantity, condition
from autofuse.results.data import dumped
from autofuse.results.difference import Difference, of_comparison, of_comparisons, of_profiles
from autofuse.results.profile import Profile
from autofuse.results.profile_parts import Memory
from autofuse.results.reading import NotOurs, read


def main(options: Namespace) -> int:
    """Prints results to stdout and messages to stderr.

    Returns 0, 1 if a condition of --fail-if holds, or 2 for files that cannot be compared and invalid conditions.
    """
    try:
        gate = Gate(tuple(condition(text) for text in options.fail_if), options.strict)
        before = _read(options.before)
        after = _read(options.after) if options.after else None
        difference, quantities_by_name = _compute_difference(before, after, options.anyway)
        outcomes = gate.outcomes(quantities_by_name)
    except (NotOurs, NotACondition) as error:
        say(str(error))
        return FAILED
    if options.format == "json":
        print_json(_as_dict(before, after, difference, outcomes))
    else:
        print_text(_render(before, after, difference))
    written = _write_reports(options, difference, outcomes)
    return gate.exit_code(outcomes, say) if written else FAILED


def _read(path: Path) -> Profile | Comparison:
    """Returns what a result file holds, or the profile of a raw trace.

    Raises:
        NotOurs: The file holds none of them.
    """
    try:
        return read(path)
    except NotOurs as error:
        try:
            return profile_of_inputs(inputs_of([path]))
        except (Unreadable, OSError):
            raise error from None


def _write_reports(options: Namespace, difference: Difference, outcomes: Sequence[ConditionOutcome]) -> bool:
    """Writes the files of --junit and --github, and returns whether that worked."""
    name = "autofuse compare"
    try:
        if options.junit:
            files.put(str(options.junit), junit(name, outcomes, options.strict).encode())
        if options.github:
            sentence = f"{difference.summary}. {difference.reason}"
            if not append_to_github(conditions_summary(name, sentence, outcomes)):
                say("--github: $GITHUB_STEP_SUMMARY is not set, so nothing is written.")
    except OSError as error:
        say(f"{error.filename} cannot be written: {error.strerror or error}.")
        return False
    return True


def print_json(data: Mapping[str, Any]) -> None:
    """Prints data to stdout as strict JSON."""
    Console().file.write(json.dumps(dumped(data), indent=2, allow_nan=False) + "\n")


def print_text(renderable: RenderableType) -> None:
    """Prints a renderable object to stdout."""
    terminal.stdout().print(renderable)


def _compute_difference(
    before: Profile | Comparison, after: Profile | Comparison | None, anyway: bool
) -> tuple[Difference, Mapping[str, Quantity]]:
    """Returns the difference, and the quantities for conditions.

    Raises:
        NotOurs: One file is a profile, and the other is a comparison or missing.
    """
    if isinstance(before, Comparison) and after is None:
        return of_comparison(before), quantities.of_comparison(before)
    if after is None:
        raise NotOurs("There is only one profile: pass BEFORE.json and AFTER.json.")
    if isinstance(before, Profile) and isinstance(after, Profile):
        difference = of_profiles(before, after, anyway=anyway)
        return difference, quantities.of_both(before, after, difference.ratio)
    if isinstance(before, Comparison) and isinstance(after, Comparison):
        difference = of_comparisons(before, after, anyway=anyway)
        return difference, quantities.of_comparisons(before, after, difference.ratio)
    raise NotOurs("One file is a profile, the other a comparison: pass two profiles, or one or two comparisons.")


def _render(before: Profile | Comparison, after: Profile | Comparison | None, difference: Difference) -> RenderableType:
    if isinstance(before, Profile) and isinstance(after, Profile):
        return of_both(before, after, difference)
    if after is None:
        return Group(verdict_of(difference), Text(), before)
    return verdict_of(difference)


def _as_dict(
    before: Profile | Comparison, after: Profile | Comparison | None, difference: Difference,
    outcomes: tuple[ConditionOutcome, ...],
) -> dict[str, Any]:  # fmt: skip
    """Returns the JSON object. docs/json.md describes it."""
    ratio = difference.ratio
    data: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "type": "difference",
        "verdict": difference.verdict,
        "reason": difference.reason,
        "interleaved": difference.interleaved,
        "ratio": ratio.ratio if ratio else None,
        "interval": list(ratio.interval) if ratio else None,
        "caveats": list(difference.caveats),
        "conditions": [asdict(outcome) for outcome in outcomes],
    }
    if isinstance(before, Profile) and isinstance(after, Profile):
        data |= _profile_parts(before, after)
    return data


def _profile_parts(before: Profile, after: Profile) -> dict[str, Any]:
    sides = {"before": before, "after": after}
    names = [level.name for level in before.ladder] or [level.name for level in after.ladder]
    levels = {side: {level.name: level.value for level in profile.ladder} for side, profile in sides.items()}
    categories = dict.fromkeys([*before.categories, *after.categories])
    return {
        "step_seconds": {side: p.timing.median if p.timing.seconds else None for side, p in sides.items()},
        "memory": {side: _memory_sizes(p.memory) for side, p in sides.items()},
        "ladder": [{"name": name, **{side: levels[side].get(name) for side in sides}} for name in names],
        "layers": [asdict(change) for change in changes(before, after)],
        "kernels": [asdict(change) for change in kernel_changes(before, after)],
        "categories": {
            name: {
                side: asdict(p.categories[name]) if name in p.categories else None for side, p in sides.items()
            }
            for name in categories
        },
    }  # fmt: skip


def _memory_sizes(memory: Memory) -> dict[str, Any]:
    return {k: v for k, v in asdict(memory).items() if k != "reason"}
