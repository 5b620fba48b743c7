"""The tables of a profile, the same on a terminal, in a notebook and on a page. Other files draw them.

Every table takes sides: one profile under "", or two under "before" and "after".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from autofuse.results import units
from autofuse.results.ladder import LEVELS, Level
from autofuse.results.profile_parts import Memory, Rank, Share
from autofuse.results.table import Cell, Column, Table, without_empty_columns

if TYPE_CHECKING:
    from autofuse.results.profile import Profile

Sides = Mapping[str, "Profile"]

MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "temporaries", "inputs", "buffers", "others")
BESIDE = ("host", "communication", "exposed communication")  # the parts of a step that overlap with other parts


def ladder_table(sides: Sides) -> Table:
    """Each level in order: its value, its loss, and its source, or how to get it."""
    columns = [Column("utilisation", wraps=True)]
    for side in sides:
        columns += [Column(_column_title(side, "value"), "right"), Column(_column_title(side, "lost"), "right")]
    columns.append(Column("source, or why it is missing and how to get it", wraps=True))
    return Table("", tuple(columns), tuple(_level_row(levels) for levels in levels_of(sides)))


def levels_of(sides: Sides) -> list[dict[str, Level]]:
    """The levels in order, by side. A level that a side does not have has no value."""
    known = {side: {level.name: level for level in profile.ladder} for side, profile in sides.items()}
    order = dict.fromkeys([kind.name for kind in LEVELS] + [name for levels in known.values() for name in levels])
    return [
        {side: levels.get(name) or Level(name, reason="the profile does not have it") for side, levels in known.items()}
        for name in order
    ]


def loss_in_words(levels: Mapping[str, Level]) -> str:
    """A loss as text: "5.9 % of the step lost", "77 % → 66.7 % below busy"; "" if the level has no loss."""
    losses = [level for level in levels.values() if level.loss is not None]
    if not losses:
        return ""
    above = losses[0].kind.above or ""
    words = {"": "of the step lost", "busy": "below busy time", "hfu": "below HFU"}.get(above, "lost")
    return f"{' → '.join(units.percent(level.loss) for level in losses)} {words}"


def value_of(level: Level) -> str:
    """A level as text: "45 %", "≤ 45 %" for an upper bound, "n/a"."""
    return f"{'≤ ' if level.at_most and level.value is not None else ''}{units.percent(level.value)}"


def missing(level: Level) -> str:
    """The reason why a level has no value, and what to do: "n/a, because ...; get it: ..."."""
    return missing_in_words(level.reason, level.kind.get)


def missing_in_words(reason: str, get: str) -> str:
    """The reason why a value is missing, then the instruction to get it, unless the reason contains it."""
    why = units.because(reason)
    return why if not get or get in reason else f"{why}; to get it, {get}"


def formulas_table() -> Table:
    """The formula and the source of each level."""
    columns = (Column("utilisation"), Column("formula", wraps=True), Column("source", wraps=True))
    return Table("", columns, tuple((Cell(k.title), Cell(k.formula), Cell(k.source)) for k in LEVELS))


def shares_table(sides: Sides) -> Table:
    """The parts of a step; those that overlap with the others come last."""
    columns = [Column("part of the step")]
    for side in sides:
        columns += [Column(_column_title(side, "time"), "right"), Column(_column_title(side, "share"), "right")]
    columns.append(Column("how it was measured", wraps=True))
    return Table("", tuple(columns), tuple(_share_row(name, sides) for name in share_names(sides)))


def share_names(sides: Sides) -> list[str]:
    """The parts that any side has, those that overlap with the others last."""
    names = dict.fromkeys(share.name for profile in sides.values() for share in profile.shares)
    return sorted(names, key=lambda name: name in BESIDE)


def memory_table(sides: Sides) -> Table:
    """The bytes at the step's peak, by purpose."""
    columns = [Column("memory at the peak")]
    for side in sides:
        columns += [Column(_column_title(side, "bytes"), "right"), Column(_column_title(side, "share"), "right")]
    known = {side: profile.memory for side, profile in sides.items()}
    rows = [(Cell(part), *_memory_cells(part, known)) for part in MEMORY_PARTS]
    peak = [cell for memory in known.values() for cell in (Cell(units.size(memory.peak_bytes)), Cell(""))]
    sources = dict.fromkeys(m.source or m.reason for m in known.values() if m.source or m.reason)
    return Table("", tuple(columns), (*rows, (Cell("together"), *peak)), "; ".join(sources))


def categories_table(sides: Sides) -> Table:
    """The operators or kernels of one step by category, the longest first."""
    columns = [Column("category")]
    for side in sides:
        columns += [Column(_column_title(side, "count"), "right"), Column(_column_title(side, "time"), "right")]
    columns.append(Column("most frequent", wraps=True))
    return Table("", tuple(columns), tuple(_category_row(name, sides) for name in category_names(sides)))


def category_names(sides: Sides) -> list[str]:
    """The categories, sorted by their time on the side where it is longer."""
    seconds: dict[str, float] = {}
    for profile in sides.values():
        for name, category in profile.categories.items():
            seconds[name] = max(seconds.get(name, 0.0), category.seconds)
    return sorted(seconds, key=lambda name: -seconds[name])


def ranks_table(profile: Profile) -> Table:
    """The processes of a job. The slowest is marked if it differs by more than noise. Empty columns are left out."""
    slowest = max((rank.seconds for rank in profile.ranks), default=0.0)
    equal = slowest - min((rank.seconds for rank in profile.ranks), default=0.0) <= NOISE * slowest
    rows = tuple(
        (
            Cell(str(rank.rank)),
            Cell(units.duration(rank.seconds)),
            Cell(units.percent(rank.busy)),
            Cell(units.duration(rank.communication)),
            Cell(units.duration(rank.exposed)),
            Cell(units.duration(rank.waiting)),
            *(Cell("" if value is None else units.duration(value)) for value in _parts_of(rank)),
            Cell("slowest" if rank.seconds == slowest and not equal else ""),
        )
        for rank in profile.ranks
    )
    names = ("rank", "step", "busy", "communication", "exposed", "waits for ranks", *_PARTS_OF_RANK, "")
    table = Table("", tuple(Column(name, "right" if name else "left") for name in names), rows)
    return without_empty_columns(table)


NOISE = 0.02  # a fraction of the step; ranks that differ by less count as equal
_PARTS_OF_RANK = ("exposed waits", "computes", "waits for data", "waits for the host", "waits for copies")


def _parts_of(rank: Rank) -> tuple[float | None, ...]:
    return rank.waiting_exposed, rank.computing, rank.data, rank.host, rank.copies


def collectives_table(profile: Profile) -> Table:
    """Each kind of collective: count, bytes, bandwidths, and how long ranks wait in it for the last rank."""
    names = ("ranks", "per step", "bytes", "time", "algorithm", "bus", "least wait", "longest wait")
    columns = (Column("collective"), *(Column(name, "right") for name in names))
    rows = tuple(
        (
            Cell(rate.name),
            Cell("" if rate.ranks is None else str(rate.ranks)),
            Cell(units.digits(rate.count)),
            Cell(units.size(rate.bytes)),
            Cell(units.duration(rate.seconds)),
            Cell(units.amount(rate.algorithm_bandwidth, "B/s")),
            Cell(units.amount(rate.bus_bandwidth, "B/s")),
            *(Cell(_wait_in_words(end, rate.waiting, profile.ranks)) for end in (min, max)),
        )
        for rate in profile.collectives
    )
    caption = "Bandwidths as nccl-tests define them, from the time of the last rank that joins."
    return without_empty_columns(Table("", columns, rows, caption))


def _wait_in_words(end: Callable[[Sequence[float]], float], waiting: Sequence[float], ranks: Sequence[Rank]) -> str:
    """A wait as text: "12.3 ms, rank 2". The rank is left out if all wait equally long, or if only some take part."""
    if not waiting:
        return ""
    seconds = end(waiting)
    if min(waiting) == max(waiting) or len(waiting) != len(ranks):
        return units.duration(seconds)
    return f"{units.duration(seconds)}, rank {ranks[waiting.index(seconds)].rank}"


def _column_title(side: str, name: str) -> str:
    return f"{side} {name}".strip()


def _level_row(levels: Mapping[str, Level]) -> tuple[Cell, ...]:
    cells, described = [], []
    for level in levels.values():
        known = level.value is not None
        cells.append(Cell(value_of(level), "plain" if known else "quiet"))
        cells.append(Cell("" if level.loss is None else units.percent(level.loss), "quiet"))
        described.append(level.basis or level.kind.source if known else missing(level))
    first = next(iter(levels.values()))
    return (Cell(first.kind.title), *cells, Cell("; ".join(dict.fromkeys(described)), "quiet"))


def _share_row(name: str, sides: Sides) -> tuple[Cell, ...]:
    shares = [share_of(profile, name) for profile in sides.values()]
    cells = [
        cell
        for share in shares
        for cell in (Cell(units.duration(share.seconds)), Cell(units.percent_within(share.share, share.interval)))
    ]
    described = dict.fromkeys(share.basis if share.seconds is not None else share.reason for share in shares)
    return (Cell(share_title(name)), *cells, Cell("; ".join(filter(None, described)), "quiet"))


def share_of(profile: Profile, name: str) -> Share:
    """The share of that name; an unknown one if the profile has none."""
    return next((share for share in profile.shares if share.name == name), Share(name, None, None))


def share_title(name: str) -> str:
    """The name of a part for people."""
    return "host overhead" if name == "host" else name


def _memory_cells(part: str, known: Mapping[str, Memory]) -> list[Cell]:
    cells = []
    for memory in known.values():
        count = getattr(memory, part) if memory.peak_bytes is not None else None
        share = count / memory.peak_bytes if memory.peak_bytes and count is not None else None
        cells += [Cell(units.size(count)), Cell("" if share is None else units.percent(share), "quiet")]
    return cells


def _category_row(name: str, sides: Sides) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    operators: dict[str, int] = {}
    for profile in sides.values():
        category = profile.categories.get(name)
        cells += [
            Cell(str(category.count) if category else "0"), Cell(units.duration(category.seconds if category else 0.0))
        ]  # fmt: skip
        operators.update(category.operators if category else {})
    most = sorted(operators, key=lambda operator: -operators[operator])[:4]
    return (Cell(name), *cells, Cell(", ".join(f"{o} ×{operators[o]}" for o in most), "quiet"))
