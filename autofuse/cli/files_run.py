"""What `check` and `rewrite` share: which files, what is found in them, and whether something failed.

What an earlier run found is taken from the cache, and then neither rules nor syntax trees are loaded.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from autofuse.cli.arguments import STDIN
from autofuse.cli.interruption import interruptible
from autofuse.cli.output import Output
from autofuse.cli.progress import Progress
from autofuse.cli.sentences import sentences
from autofuse.project.config import Configuration, FileSettings
from autofuse.project.file_discovery import Project, SourceFile, Trouble
from autofuse.project.memory import FileFindings, RunMemory, entries, settings_hold

if TYPE_CHECKING:
    from autofuse.project.run import Checked, RewriteRun

_Done = TypeVar("_Done")


class FilesRun:
    """One run over files: where its output goes, and whether something failed."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.out = options, Output()
        self.failed = False
        self.read = 0  # how many files could be read; where there are none, there is nothing to sum up
        self._memory: RunMemory | None = None

    @cached_property
    def run(self) -> RewriteRun:
        """What reads files. Loads all that it takes."""
        permission = import_module("autofuse.project.rules_permission").RulesPermission(
            self.out.say, self.out.say, self.options.allow_rules
        )
        found: RewriteRun = import_module("autofuse.project.run").RewriteRun(
            *self._codes, self.options.target, self.options.debug, permission, generated=self.options.generated
        )
        return found

    def each(
        self,
        work: Callable[[Checked, SourceFile], _Done],
        prepared: Callable[[list[SourceFile]], list[SourceFile]] = list,
        known: Callable[[FileFindings], bool] = lambda found: True,
    ) -> Iterator[tuple[FileFindings, _Done | None]]:
        """What is found in each file that could be read, and what `work` makes of that.

        Configurations are settled before the first; then `prepared` says which files it is done to. Nothing is done to
        a file of which an earlier run knows all, if what it `found` is enough.
        """
        files: list[SourceFile] = []
        with sentences(self.out) as told:
            files = self._files()
            self._memory = self._settled(files)
        if told:
            self.failed = True
            return
        files = prepared(files)
        remembered = {} if self._memory is None else {p: f for p, f in self._memory.known.items() if known(f)}
        yield from self._in_order(files, remembered, work)
        if self._memory is not None:
            self._memory.write()

    def _in_order(
        self, files: Sequence[SourceFile], known: dict[str, FileFindings], work: Callable[[Checked, SourceFile], _Done]
    ) -> Iterator[tuple[FileFindings, _Done | None]]:
        anew = self._anew([f for f in files if f.path not in known], work)
        progress = Progress(len(files))
        with interruptible() as raise_if_lost:
            for file in files:
                raise_if_lost()
                result = (known[file.path], None) if file.path in known else next(anew)
                progress.step()
                if isinstance(result, Trouble) or result[0].findings or result[0].troubles:
                    progress.clear()
                if isinstance(result, Trouble):
                    self.tell(result)
                    continue
                self.read += 1
                for trouble in result[0].troubles:
                    self.tell(trouble)
                yield result
            progress.clear()

    def _anew(
        self, files: Sequence[SourceFile], work: Callable[[Checked, SourceFile], _Done]
    ) -> Iterator[tuple[FileFindings, _Done] | Trouble]:
        if not files:
            return
        text = sys.stdin.buffer.read() if self.from_stdin else None
        results: Iterator[Any] = import_module("autofuse.project.anew").answers(self.run, files, text, work)
        for file, result in zip(files, results, strict=True):
            if isinstance(result, Trouble):
                yield result
                continue
            answer, done = result
            if self._memory is not None:
                self._memory.keep(file, answer)
            yield answer.found, done

    def _settled(self, files: Sequence[SourceFile]) -> RunMemory | None:
        """What earlier runs found in these files; None without a cache. Raises ConfigError, UnknownCode, RuleError."""
        settings = list(dict.fromkeys(f.settings for f in files))
        kept = None if self.options.no_cache or self.options.debug or self.from_stdin else entries()
        asked = (*self._codes, self.options.target, self.options.generated)
        if kept is not None and settings_hold(kept, settings, asked):
            memory = RunMemory(files, asked, dict.fromkeys(settings, ""), kept)
            if len(memory.known) < len(files):
                self._load(files, settings)
            return memory
        own = self._load(files, settings)
        return None if kept is None else RunMemory(files, asked, own, kept)

    def _load(self, files: Sequence[SourceFile], settings: Sequence[FileSettings]) -> dict[FileSettings, str]:
        run, anew = self.run, import_module("autofuse.project.anew")
        before = set(sys.modules)
        for each in settings:
            run.rules(each)
        run.files = import_module("autofuse.source.evidence.given_files").ProjectFiles(tuple(f.path for f in files))
        found: dict[FileSettings, str] = anew.digest_of_rules(run, settings, before)
        return found

    @property
    def _codes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(self.options.select or ()), tuple(self.options.ignore or ())

    def _files(self) -> list[SourceFile]:
        project = Project(Configuration(), self.options.force_exclude)
        if self.from_stdin:
            return [project.text(self.options.stdin_filename)]
        if STDIN in self.options.paths:
            self.failed = True
            self.out.say("autofuse: `-` reads standard input and stands alone; name files in a run of their own.")
            return []
        files = []
        for found in project.files(self.options.paths):
            if isinstance(found, Trouble):
                self.tell(found)
            else:
                files.append(found)
        return files

    @property
    def from_stdin(self) -> bool:
        return bool(self.options.paths == [STDIN])

    def with_ignores(self, source: bytes, wanted: Sequence[tuple[str, int, int]]) -> tuple[bytes, int]:
        """A file with comments that switch findings off, and how many."""
        made: tuple[bytes, int] = import_module("autofuse.project.suppress").with_ignores(source, wanted)
        return made

    def tell(self, trouble: Trouble) -> None:
        """Says what stands in the way."""
        self.failed |= trouble.error
        self.out.say(trouble.message)
