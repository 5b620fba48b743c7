"""What each name of a function holds, now and at every earlier place.

Snapshots share one history, so that remembering all names at each of ten thousand statements costs no more than the
assignments themselves. Knows nothing of syntax.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autofuse.ir.graph import Value


@dataclass
class NameTable:
    """The names of one function; `None` in the history means that the name is unbound."""

    _now: dict[str, Value] = field(default_factory=dict)
    _times: dict[str, list[int]] = field(default_factory=dict)
    _values: dict[str, list[Value | None]] = field(default_factory=dict)
    _log: list[str] = field(default_factory=list)

    def get(self, name: str) -> Value | None:
        return self._now.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._now

    def held(self) -> list[tuple[str, Value]]:
        """Every bound name and what it holds."""
        return list(self._now.items())

    def set(self, name: str, value: Value | None) -> None:
        """Bind `name`, or unbind it with None."""
        self._times.setdefault(name, []).append(len(self._log))
        self._values.setdefault(name, []).append(value)
        self._log.append(name)
        if value is None:
            self._now.pop(name, None)
        else:
            self._now[name] = value

    @property
    def mark(self) -> int:
        """Now, as a time to come back to."""
        return len(self._log)

    def snapshot(self) -> HeldNames:
        return HeldNames(self, self.mark)

    def at(self, name: str, mark: int) -> Value | None:
        """What `name` held at `mark`."""
        position = bisect_right(self._times.get(name, ()), mark - 1)
        return self._values[name][position - 1] if position else None

    def changed(self, since: int) -> list[str]:
        """Names bound or unbound since `since`, each once."""
        return list(dict.fromkeys(self._log[since:]))

    def held_since(self, name: str, mark: int) -> list[Value]:
        """Everything that `name` has held since `mark`, what it held then included."""
        first = max(bisect_right(self._times.get(name, ()), mark - 1) - 1, 0)
        return [v for v in self._values.get(name, ())[first:] if v is not None]

    def restore(self, mark: int) -> None:
        """Let every name hold again what it held at `mark`."""
        for name in self.changed(mark):
            self.set(name, self.at(name, mark))


@dataclass(frozen=True, eq=False)
class HeldNames(Mapping[str, Value]):
    """What names held at one time."""

    table: NameTable
    time: int

    def __getitem__(self, name: str) -> Value:
        found = self.table.at(name, self.time)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (n for n in self.table._times if self.table.at(n, self.time) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
