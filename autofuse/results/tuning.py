"""The result of timing the candidates for one operation. Plain data and its forms, without torch."""

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
    """One candidate: its measurements, or why it was not measured.

    Attributes:
        name: the provider's name, or "original" for the code that the operation replaces.
        refused: the reason why it was not timed; "" if it was.
        seconds: of one call, forward and backward together (in inference the forward only): the lower quartile of all
            runs.
        interval: its 95 % bootstrap interval.
        runs: the number of runs.
        peak_bytes: the most memory that one call holds in addition to what existed before; None if it is unknown.
        held_bytes: what its forward keeps until the backward, including the result (0 in inference); None if unknown.
        host_seconds: the host's time until a call was launched, if `seconds` are from a GPU's clock.
        error: of the output or gradient that is nearest its bound, relative to the largest entry of that tensor; None
            if it was not compared.
        bound: the largest allowed error. It follows from the error of torch's own code.
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
        """The bytes by which candidates are compared: the peak of one call plus what it keeps until its backward.

        Memory that is kept until the backward counts twice, because all layers of a model keep theirs at the same time.
        """
        return None if self.peak_bytes is None else self.peak_bytes + (self.held_bytes or 0)

    @property
    def inexactness(self) -> float:
        """The error as a fraction of its bound; 0 if either is unknown."""
        return self.error / self.bound if self.error and self.bound else 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """The inverse of dataclasses.asdict. Raises TypeError for fields of another kind."""
        ends = data.get("interval")
        return cls(**{**data, "interval": None if ends is None else Interval(*ends)})


@dataclass(frozen=True)
class TuningResult(Shown):
    """The candidate that computes an operation for such arguments, and why. Prints as a table, also in notebooks.

    Attributes:
        operation: the name of the operation.
        arguments: a description of its arguments.
        device: where it runs.
        winner: the chosen candidate.
        ranking: all candidates that may run, the best first.
        why: a sentence.
        measured: False if nothing was (or could be) timed, so that the default is used.
        policy: the policy that was requested; `deterministic` and `training` too.
        control: the ratio of identical runs of one candidate with its interval: how much this machine's times differ by
            chance.
        trials: all candidates, including those that were not timed.
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
        """The candidate of this name.

        Raises:
            KeyError: There is none.
        """
        found = next((t for t in self.trials if t.name == name), None)
        if found is None:
            raise KeyError(
                f"No candidate is called {name!r}. The candidates are {', '.join(t.name for t in self.trials)}."
            )
        return found

    @property
    def summary(self) -> str:
        """One line, for example "rms_norm: compiled. It is the fastest: 0.48 ms against 1.24 ms of torch."."""
        return f"{self.operation}: {self.winner}. {self.why}"

    def table(self) -> Table:
        """The candidates that were timed, the best first.

        A time is the lower quartile of all runs. "kept" is what a forward keeps until its backward. The error is a
        fraction of its bound.
        """
        mode = "forward and backward" if self.training else "forward"
        title = f"{self.operation} ({mode}; {self.policy}{', deterministic' if self.deterministic else ''})"
        order = {name: i for i, name in enumerate(self.ranking)}
        trials = sorted((t for t in self.trials if not t.refused), key=lambda t: order.get(t.name, len(order)))
        rows = tuple(_row(t, t.name == self.winner) for t in trials)
        caption = "\n".join(part for part in (self.arguments, f"{self.winner}: {self.why}", self._control()) if part)
        return without_empty_columns(Table(title, _COLUMNS, rows, caption))

    def refusals(self) -> Table | None:
        """The candidates that were not timed, and why; None if all were."""
        rows = tuple((Cell(t.name, "quiet"), Cell(t.refused, "quiet")) for t in self.trials if t.refused)
        return Table("", (Column("took no part"), Column("why", wraps=True)), rows) if rows else None

    def tables(self) -> tuple[Table, ...]:
        """All tables."""
        refusals = self.refusals()
        return (self.table(),) if refusals is None else (self.table(), refusals)

    def to_dict(self) -> dict[str, Any]:
        """Each field under its own name, after `version`. See docs/json.md."""
        fields = {**asdict(self), "ranking": list(self.ranking), "trials": [asdict(t) for t in self.trials]}
        fields["control"] = self.control and {"ratio": self.control.ratio, "interval": list(self.control.interval)}
        found: dict[str, Any] = dumped({"version": FORMAT_VERSION, **fields})
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TuningResult:
        """The inverse of to_dict.

        Raises:
            ValueError: The data has another format version, or other values.
            KeyError: A field is missing.
            TypeError: A field has another type.
        """
        if data["version"] != FORMAT_VERSION:
            raise ValueError(
                f"This is version {data['version']!r} of the format, but only {FORMAT_VERSION} is supported."
            )
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
