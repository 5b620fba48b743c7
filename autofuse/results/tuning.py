"""What timing the candidates for one operation found. Plain data and its forms; it knows neither torch nor clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autofuse.results.comparison import Estimate, Interval, milliseconds, size
from autofuse.results.data import dumped
from autofuse.results.shown import Shown
from autofuse.results.table import Cell, Column, Table, without_empty_columns

FORMAT_VERSION = 1
_COLUMNS = (
    Column("candidate"),
    Column("a call", align="right"),
    Column("95 % interval", align="right"),
    Column("host", align="right"),
    Column("peak", align="right"),
    Column("kept", align="right"),
    Column("error", align="right"),
)


@dataclass(frozen=True)
class Trial:
    """One candidate: what was measured of it, or why it took no part.

    name: the provider's, or "original" for the code that the operation stands for.
    refused: the reason why it was not timed; "" where it was.
    seconds: of one call, forward and backward together (the forward alone in inference), the lower quartile of all
        runs; interval: its 95 % bootstrap interval; runs: how many there were.
    peak_bytes: the most that one call holds above what stood before; held_bytes: what its forward keeps until the
        backward, the result included (0 in inference). None where nothing could tell.
    host_seconds: of the host until a call was launched, where `seconds` are those of a GPU's own clock.
    error: of the output or gradient nearest its bound, relative to that tensor's largest entry; bound: how large it may
        be, which follows from the error of torch's own code. None where it was not compared.
    """

    name: str
    refused: str = ""
    seconds: float | None = None
    interval: Interval | None = None
    runs: int = 0
    peak_bytes: int | None = None
    held_bytes: int | None = None
    error: float | None = None
    bound: float | None = None
    host_seconds: float | None = None

    @property
    def memory(self) -> int | None:
        """Bytes to compare candidates by: the peak of one call, and once more what it keeps until its backward.

        What is kept counts twice because the calls of a model's other layers keep theirs at the same time.
        """
        return None if self.peak_bytes is None else self.peak_bytes + (self.held_bytes or 0)

    @property
    def inexactness(self) -> float:
        """How much of its bound the error uses up; 0 where either is unknown."""
        return self.error / self.bound if self.error and self.bound else 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """The inverse of dataclasses.asdict. Raises TypeError for fields of another kind."""
        ends = data.get("interval")
        return cls(**{**data, "interval": None if ends is None else Interval(*ends)})


@dataclass(frozen=True)
class TuningResult(Shown):
    """Which candidate runs an operation with such arguments, and why. Prints as a table, in notebooks too.

    operation: its name; arguments: what it was given, in words; device: where.
    winner: the candidate that is chosen; ranking: all that may be, best first; why: a sentence.
    measured: False where the default holds because nothing was (or could be) timed.
    policy, deterministic, training: what was asked for.
    control: the ratio of identical runs of one candidate with its interval: what this machine makes of no difference.
    trials: every candidate, those that took no part included.
    """

    operation: str
    winner: str
    why: str
    arguments: str = ""
    device: str = ""
    training: bool = False
    policy: str = "speed"
    deterministic: bool = False
    measured: bool = False
    ranking: tuple[str, ...] = ()
    control: Estimate | None = None
    trials: tuple[Trial, ...] = ()

    def trial(self, name: str) -> Trial:
        """The candidate of that name. Raises KeyError where there is none."""
        found = next((t for t in self.trials if t.name == name), None)
        if found is None:
            raise KeyError(f"No candidate is called {name!r}; there are {', '.join(t.name for t in self.trials)}.")
        return found

    @property
    def summary(self) -> str:
        """One line, e.g. "rms_norm: compiled. It is the fastest: 0.48 ms against 1.24 ms of torch."."""
        return f"{self.operation}: {self.winner}. {self.why}"

    def table(self) -> Table:
        """The candidates that took part, the best first.

        A time is the lower quartile of all runs; "kept" is what a forward keeps until its backward; the error is given
        as its share of the bound.
        """
        mode = "forward and backward" if self.training else "forward"
        title = f"{self.operation} ({mode}; {self.policy}{', deterministic' if self.deterministic else ''})"
        order = {name: i for i, name in enumerate(self.ranking)}
        trials = sorted((t for t in self.trials if not t.refused), key=lambda t: order.get(t.name, len(order)))
        rows = tuple(_row(t, t.name == self.winner) for t in trials)
        caption = "\n".join(part for part in (self.arguments, f"{self.winner}: {self.why}", self._control()) if part)
        return without_empty_columns(Table(title, _COLUMNS, rows, caption))

    def refusals(self) -> Table | None:
        """The candidates that took no part, and why; None where all did."""
        rows = tuple((Cell(t.name, "quiet"), Cell(t.refused, "quiet")) for t in self.trials if t.refused)
        return Table("", (Column("took no part"), Column("why", wraps=True)), rows) if rows else None

    def tables(self) -> tuple[Table, ...]:
        """All there is to see."""
        refusals = self.refusals()
        return (self.table(),) if refusals is None else (self.table(), refusals)

    def to_dict(self) -> dict[str, Any]:
        """Every field under its own name, `version` first. See docs/json.md."""
        fields = {**asdict(self), "ranking": list(self.ranking), "trials": [asdict(t) for t in self.trials]}
        fields["control"] = self.control and {"ratio": self.control.ratio, "interval": list(self.control.interval)}
        found: dict[str, Any] = dumped({"version": FORMAT_VERSION, **fields})
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TuningResult:
        """The inverse of to_dict. Raises TypeError, KeyError or ValueError for anything else."""
        if data["version"] != FORMAT_VERSION:
            raise ValueError(f"This is version {data['version']!r} of the format, and {FORMAT_VERSION} is known here.")
        control = data["control"]
        given = {name: value for name, value in data.items() if name != "version"}
        given["control"] = control and Estimate(control["ratio"], Interval(*control["interval"]))
        given["ranking"] = tuple(data["ranking"])
        given["trials"] = tuple(Trial.from_dict(t) for t in data["trials"])
        return cls(**given)

    def _control(self) -> str:
        return f"identical runs: {self.control}" if self.control else ""


def _row(trial: Trial, is_winner: bool) -> tuple[Cell, ...]:
    """The cells of one candidate, as wide as _COLUMNS."""
    spread = trial.interval and f"{milliseconds(trial.interval.low).split()[0]} to {milliseconds(trial.interval.high)}"
    known = trial.error is not None
    return (
        Cell(trial.name, "good" if is_winner else "plain"),
        Cell("" if trial.seconds is None else milliseconds(trial.seconds)),
        Cell(spread or "", "quiet"),
        Cell("" if trial.host_seconds is None else milliseconds(trial.host_seconds), "quiet"),
        Cell(size(trial.peak_bytes)),
        Cell(size(trial.held_bytes) if trial.held_bytes else ""),
        Cell(f"{trial.inexactness:.0%}" if known else ""),
    )
