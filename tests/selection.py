"""Selects the tests to run: all but the night tests, unless these are requested."""

from __future__ import annotations

import resource
import zlib
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FAST_SECONDS = 60  # CPU seconds over all processes for the tests marked `fast`


def not_fast() -> frozenset[Path]:
    """The files that the fast loop leaves out. Every other file is in it, including new ones."""
    lines = (HERE / "not_fast.txt").read_text().splitlines()
    return frozenset(HERE / line for line in lines if not line.startswith("#"))


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--night", action="store_true", help="run the variants marked `night` as well")


def left_out(path: Path, config: pytest.Config) -> bool:
    """Whether no test of a file can run. Then it need not be imported, which would take most of the time."""
    if config.option.markexpr != "fast" or not path.name.startswith("test_"):
        return False
    return path in not_fast() and "mark.fast" not in path.read_text()


def mark_fast(items: list[pytest.Item]) -> None:
    """Mark every test of a file that is not left out, unless the test is marked slow or night."""
    left_out = not_fast()
    for item in items:
        if item.path not in left_out and not any(item.get_closest_marker(mark) for mark in ("slow", "night")):
            item.add_marker(pytest.mark.fast)


def sampled_by_day() -> dict[tuple[Path, str], int]:
    """(file, function or "") -> n: one in n of these parametrized tests runs by day."""
    lines = (HERE / "sampled_by_day.txt").read_text().splitlines()
    rows = ((name.partition("::"), int(count)) for name, count in (x.split() for x in lines if not x.startswith("#")))
    return {(HERE / file, function): count for (file, _, function), count in rows}


def by_night() -> frozenset[tuple[Path, str]]:
    """(file, function) of the tests that run by night; "" stands for the whole file."""
    lines = (HERE / "by_night.txt").read_text().splitlines()
    rows = (line.partition("::") for line in lines if not line.startswith("#"))
    return frozenset((HERE / file, function) for file, _, function in rows)


def mark_night(items: list[pytest.Item]) -> None:
    """Mark the tests that run by night, and the cells of large tables that do."""
    tables, whole = sampled_by_day(), by_night()
    cells: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        function, bracket, _ = item.name.partition("[")
        if (item.path, "") in whole or (item.path, function) in whole:
            item.add_marker(pytest.mark.night)
        if bracket:
            cells.setdefault((item.path, function), []).append(item)
    for (path, function), of_table in cells.items():
        count = tables.get((path, function)) or tables.get((path, "")) or 1
        for item in set(of_table) - set(by_day(of_table, count)):
            item.add_marker(pytest.mark.night)


def by_day(cells: list[pytest.Item], count: int) -> list[pytest.Item]:
    """About one in `count` of the cells of a table, and at least one of them."""
    hashes = {item: zlib.crc32(item.nodeid.encode()) for item in cells}
    return [item for item, value in hashes.items() if value % count == 0] or [min(hashes, key=hashes.__getitem__)]


def deselect_night(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `night`, unless an option, a mark, or the name of the test requests them."""
    if config.option.night or any(mark in config.option.markexpr for mark in ("night", "spellings")):
        return
    named = [a for a in config.args if "::" in a]
    night = {i for i in items if i.get_closest_marker("night") and not any(_names(a, i) for a in named)}
    if night:
        config.hook.pytest_deselected(items=[i for i in items if i in night])
        items[:] = [i for i in items if i not in night]


def _names(argument: str, item: pytest.Item) -> bool:
    return item.nodeid == argument or item.nodeid.endswith(f"/{argument}")


def seconds_of_cpu() -> float:
    """The CPU time of this process and of its children, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def print_seconds(reporter: pytest.TerminalReporter) -> None:
    """Print how much of its time the fast loop has used."""
    if reporter.config.option.markexpr != "fast":
        return
    used = seconds_of_cpu()
    advice = f"; unmark the slowest (--durations=20) until it is below {FAST_SECONDS}" if used > FAST_SECONDS else ""
    reporter.write_line(f"{used:.0f} of {FAST_SECONDS} seconds of CPU{advice}")


def print_attack_on_files(reporter: pytest.TerminalReporter, outcomes: list[str]) -> None:
    """Print the outcomes of tests/adversary_text. Each program is rewritten with the safe edits, and with all edits."""
    parts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(Counter(outcomes).items()))
    if outcomes:
        reporter.write_line(f"programs attacked rewrite {len(outcomes)} times: {parts}")


def print_attack(reporter: pytest.TerminalReporter, outcomes: list[str]) -> None:
    """Print the outcomes of tests/adversary. Each program is captured in one or two ways."""
    counted = Counter(outcomes)
    told = {"fused": "fused and right", "refused": "refused and right", "wrong": "wrong"}
    parts = ", ".join(f"{n} {told.get(outcome, outcome)}" for outcome, n in sorted(counted.items()))
    if outcomes:
        reporter.write_line(f"programs attacked optimize {len(outcomes)} times: {parts}")
