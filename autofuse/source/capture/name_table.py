"""Records which value each name of a function holds, now and at every earlier time.

All snapshots share one history. Its size is proportional to the number of bindings, even if every one of ten thousand
statements has its own snapshot. This module uses no syntax.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autofuse.ir.graph import Value


@dataclass
class NameTable:
    """The names of one function and their values.

    A time is the number of bindings before it. None in the history marks a name that is unbound.
    """

    _current: dict[str, Value] = field(default_factory=dict)
    _times: dict[str, list[int]] = field(default_factory=dict)
    _values: dict[str, list[Value | None]] = field(default_factory=dict)
    _log: list[str] = field(default_factory=list)

    def get(self, name: str) -> Value | None:
        """Return the current value of `name`, or None if it is unbound."""
        return self._current.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._current

    def items(self) -> list[tuple[str, Value]]:
        """Return every bound name with its current value."""
        return list(self._current.items())

    def set(self, name: str, value: Value | None) -> None:
        """Bind `name` to `value`, or unbind it if `value` is None."""
        self._times.setdefault(name, []).append(len(self._log))
        self._values.setdefault(name, []).append(value)
        self._log.append(name)
        if value is None:
            self._current.pop(name, None)
        else:
            self._current[name] = value

    @property
    def mark(self) -> int:
        """The current time, for `restore` and the other methods that take a time."""
        return len(self._log)

    def snapshot(self) -> NameSnapshot:
        """Return the current values of all names."""
        return NameSnapshot(self, self.mark)

    def value_at(self, name: str, mark: int) -> Value | None:
        """Return the value of `name` at the time `mark`."""
        position = bisect_right(self._times.get(name, ()), mark - 1)
        return self._values[name][position - 1] if position else None

    def changed_since(self, mark: int) -> list[str]:
        """Return the names that were bound or unbound after the time `mark`, each once."""
        return list(dict.fromkeys(self._log[mark:]))

    def values_since(self, name: str, mark: int) -> list[Value]:
        """Return every value of `name` from the time `mark` on, including its value at `mark`."""
        first = max(bisect_right(self._times.get(name, ()), mark - 1) - 1, 0)
        return [v for v in self._values.get(name, ())[first:] if v is not None]

    def restore(self, mark: int) -> None:
        """Give every name the value that it had at the time `mark`."""
        for name in self.changed_since(mark):
            self.set(name, self.value_at(name, mark))


@dataclass(frozen=True, eq=False)
class NameSnapshot(Mapping[str, Value]):
    """The values of all names at one time."""

    table: NameTable
    mark: int

    def __getitem__(self, name: str) -> Value:
        value = self.table.value_at(name, self.mark)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (n for n in self.table._times if self.table.value_at(n, self.mark) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
