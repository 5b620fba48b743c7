"""What was found in files before, kept in the user's cache folder by the contents of everything that it rests on.

The key of a file: its text and name, the configuration, the rules, autofuse's own code, Python. What asked nothing of
other files rests on that alone. All else rests on every file of the run as well, and on every place beside the run
where another file was looked for: a bound that is coarse and sound. A file that changed while it was read, one with
errors and one that a rule failed on are not kept. Loads neither rules nor syntax trees.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile, Trouble
from autofuse.project.survey import Surveyed, own_code, settled, state_of_places, surveyed, unchanged
from autofuse.results.cache_folder import folder
from autofuse.results.entries import Entries, digest
from autofuse.results.findings import Finding
from autofuse.source.capture.looked_at import LOOKED_AT

FORMAT = 1
_VERSIONS = 4  # of one file that are kept: under several settings, on several branches


@dataclass(frozen=True)
class FileFindings:
    """What reading one file came to. `editable` are the findings that have an edit."""

    path: str
    findings: tuple[Finding, ...]
    editable: frozenset[int] = frozenset()  # places in `findings`
    troubles: tuple[Trouble, ...] = ()

    def edits(self, unsafe: bool) -> bool:
        """Whether `rewrite` would edit something."""
        statuses = ("safe", "unsafe") if unsafe else ("safe",)
        return any(self.findings[i].status in statuses for i in self.editable)


@dataclass(frozen=True)
class Answer:
    """What was found anew, whether nothing was asked of other files, and where others were looked for."""

    found: FileFindings
    alone: bool
    places: tuple[str, ...]


def entries() -> Entries | None:
    """Where findings are kept; None for lack of a home."""
    here = folder()
    return None if here is None else Entries(here / "files")


@dataclass
class RunMemory:
    """The findings of earlier runs that hold for this one. `asked`: what the command line says of rules and target."""

    files: Sequence[SourceFile]
    asked: tuple[object, ...]
    rules: Mapping[FileSettings, str]  # a digest of what rules there are that are not autofuse's own
    kept: Entries
    started: int = field(default_factory=time.time_ns)
    known: dict[str, FileFindings] = field(default_factory=dict)
    concerned: list[Surveyed] = field(default_factory=list)
    _all: list[Surveyed] = field(default_factory=list)
    _answers: list[tuple[Surveyed, Answer]] = field(default_factory=list)
    _places: dict[str, str] = field(default_factory=dict)
    _valid: bool = False
    _world: str = ""  # a digest of all that a file may rest on which asked for others

    def __post_init__(self) -> None:
        self._all = [surveyed(f) for f in self.files]
        for one in self._all:
            if one.concerned:
                self.concerned.append(one)
            else:
                self.known[one.file.path] = FileFindings(one.file.path, ())
        self._common = digest(FORMAT, own_code(), os.getcwd(), self.asked)
        texts = [(s.file.path, s.text) for s in self._all] if self.concerned else []
        self._given = digest(self._common, texts)
        self._places = self._as_they_are(self.kept.get(f"w-{self._given}").get("places", {}))
        self._by_path = {s.file.path: s for s in self.concerned}
        self._look_up()

    def keep(self, file: SourceFile, answer: Answer) -> None:
        """Remembers what was found anew, once the run is over."""
        one = self._by_path.get(file.path)
        if one is not None and one.text and not any(t.error for t in answer.found.troubles):
            self._answers.append((one, answer))
        self._places.update(dict.fromkeys(answer.places, ""))

    def write(self) -> None:
        """Puts what was found anew into the cache, unless a file changed meanwhile."""
        places = list(dict.fromkeys((*self._places, *LOOKED_AT.places)))
        if not unchanged(self._all) or not settled(places, self.started):
            return
        self._places = state_of_places(places)
        self._world = self._of_world(self._places)
        if not any(self.rules.values()):
            for settings in self.rules:
                self.kept.put(_settings(settings, self.asked), {"holds": True})
        if not self._answers:
            return
        self.kept.put(f"w-{self._given}", {"places": self._places})
        packs: dict[str, list[tuple[Surveyed, Answer]]] = defaultdict(list)
        for one, answer in self._answers:
            packs[self._pack(one)].append((one, answer))
        for name, answers in packs.items():
            pack = self.kept.get(name)
            for one, answer in answers:
                pack |= self._entry(one, answer)
            self.kept.put(name, _latest(pack))
        self.kept.trim()

    def _as_they_are(self, places: object) -> dict[str, str]:
        """The places beside the run if nothing changed there; else none, and `_valid` says that nothing is known."""
        if not isinstance(places, dict):
            return {}
        self._valid = state_of_places(list(places)) == places
        self._world = self._of_world(places)
        return places if self._valid else {}

    def _of_world(self, places: Mapping[str, str]) -> str:
        return digest(self._given, sorted(places.items()))

    def _look_up(self) -> None:
        packs: dict[str, dict[str, Any]] = {}
        for one in self.concerned:
            name = self._pack(one)
            if name not in packs:
                packs[name] = self.kept.get(name)
            entry = packs[name].get(self._alone(one)) or self._valid and packs[name].get(self._among(one))
            found = _found(one.file.path, entry) if entry and one.text else None
            if found is not None:
                self.known[one.file.path] = found

    def _pack(self, one: Surveyed) -> str:
        """Files of one folder are kept together."""
        return f"d-{digest(os.getcwd(), os.path.dirname(one.file.path))}"

    def _alone(self, one: Surveyed) -> str:
        file = one.file
        return digest(self._common, file.path, file.named, file.settings, self.rules[file.settings], one.text)

    def _among(self, one: Surveyed) -> str:
        return digest(self._alone(one), self._world)

    def _entry(self, one: Surveyed, answer: Answer) -> dict[str, Any]:
        found = answer.found
        return {
            self._alone(one) if answer.alone else self._among(one): {
                "file": Path(found.path).name,
                "findings": [asdict(f) for f in found.findings],
                "editable": sorted(found.editable),
                "troubles": [t.message for t in found.troubles],
            }
        }


def _latest(pack: dict[str, Any]) -> dict[str, Any]:
    """The last few entries of each file, in the order in which they were written."""
    kept: dict[str, Any] = {}
    count: dict[str, int] = defaultdict(int)
    for key, entry in reversed(pack.items()):
        count[entry["file"]] += 1
        if count[entry["file"]] <= _VERSIONS:
            kept[key] = entry
    return dict(reversed(kept.items()))


def _found(path: str, entry: Mapping[str, Any]) -> FileFindings | None:
    try:
        return FileFindings(
            path,
            tuple(Finding(**f) for f in entry["findings"]),
            frozenset(entry["editable"]),
            tuple(Trouble(message, error=False) for message in entry["troubles"]),
        )
    except (TypeError, KeyError):
        return None


def settings_hold(kept: Entries, settings: Iterable[FileSettings], asked: tuple[object, ...]) -> bool:
    """Whether an earlier run found nothing wrong with these settings, with autofuse's own rules alone."""
    return all(not s.rules and kept.get(_settings(s, asked)) for s in settings)


def _settings(settings: FileSettings, asked: tuple[object, ...]) -> str:
    return f"s-{digest(FORMAT, own_code(), settings, asked)}"
