"""The run over files that `check` and `rewrite` share: the files, their findings, and whether something failed.

If the cache has the findings of an earlier run, neither rules nor syntax trees are loaded.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from autofuse.cli.arguments import STDIN
from autofuse.cli.error_reports import report_errors
from autofuse.cli.interruption import handle_interrupts
from autofuse.cli.output import Output
from autofuse.cli.progress import Progress
from autofuse.project.config import Configuration, FileSettings
from autofuse.project.file_discovery import Problem, Project, SourceFile
from autofuse.project.findings_cache import FileFindings, FindingsCache, are_settings_known_valid, open_cache

if TYPE_CHECKING:
    from autofuse.project.run import CheckedFile, RewriteRun

_Result = TypeVar("_Result")


class FilesRun:
    """One run over files: where its output goes, and whether something failed."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.out = options, Output()
        self.failed = False
        self.read = 0  # how many files could be read; without any there is no summary
        self._memory: FindingsCache | None = None

    @cached_property
    def run(self) -> RewriteRun:
        """The object that reads and rewrites files. The first access imports the modules that it needs."""
        permission = import_module("autofuse.project.rules_permission").RulesPermission(
            self.out.say, self.out.say, self.options.allow_rules
        )
        rewrite_run: RewriteRun = import_module("autofuse.project.run").RewriteRun(
            *self._codes, self.options.target, self.options.debug, permission, generated=self.options.generated,
            declined=self._wants_declined,
        )  # fmt: skip
        return rewrite_run

    def process_files(
        self,
        work: Callable[[CheckedFile, SourceFile], _Result],
        prepare: Callable[[list[SourceFile]], list[SourceFile]] = list,
        is_enough: Callable[[FileFindings], bool] = lambda cached: True,
    ) -> Iterator[tuple[FileFindings, _Result | None]]:
        """Yields the findings of each file that could be read, and the result of `work`.

        All configurations are read before the first file.

        Args:
            work: Processes the reading of a file.
            prepare: Returns the files to process, from all files.
            is_enough: Whether the cached findings of a file are enough. If so, `work` is not called, and its result is
                None.
        """
        files: list[SourceFile] = []
        with report_errors(self.out) as errors:
            files = self._files()
            self._memory = self._open_memory(files)
        if errors:
            self.failed = True
            return
        files = prepare(files)
        cached = {} if self._memory is None else {p: f for p, f in self._memory.known.items() if is_enough(f)}
        yield from self._yield_in_order(files, cached, work)
        if self._memory is not None:
            self._memory.write()

    def _yield_in_order(
        self,
        files: Sequence[SourceFile],
        cached: dict[str, FileFindings],
        work: Callable[[CheckedFile, SourceFile], _Result],
    ) -> Iterator[tuple[FileFindings, _Result | None]]:
        results = self._read_files([f for f in files if f.path not in cached], work)
        progress = Progress(len(files))
        with handle_interrupts() as raise_if_lost:
            for file in files:
                raise_if_lost()
                result = (cached[file.path], None) if file.path in cached else next(results)
                progress.step()
                if isinstance(result, Problem) or result[0].findings or result[0].problems:
                    progress.clear()
                if isinstance(result, Problem):
                    self.report(result)
                    continue
                self.read += 1
                for problem in result[0].problems:
                    self.report(problem)
                yield result
            progress.clear()

    def _read_files(
        self, files: Sequence[SourceFile], work: Callable[[CheckedFile, SourceFile], _Result]
    ) -> Iterator[tuple[FileFindings, _Result] | Problem]:
        if not files:
            return
        text = sys.stdin.buffer.read() if self.from_stdin else None
        results: Iterator[Any] = import_module("autofuse.project.check_files").check_files(self.run, files, text, work)
        for file, result in zip(files, results, strict=True):
            if isinstance(result, Problem):
                yield result
                continue
            answer, done = result
            if self._memory is not None:
                self._memory.keep(file, answer)
            yield answer.findings, done

    def _open_memory(self, files: Sequence[SourceFile]) -> FindingsCache | None:
        """Returns the cached findings of these files; None without a cache. Loads rules if a file needs them.

        Raises:
            ConfigError, UnknownCode, RuleError: A configuration or a rule is invalid.
        """
        settings = list(dict.fromkeys(f.settings for f in files))
        cache = None if self.options.no_cache or self.options.debug or self.from_stdin else open_cache()
        settings_of_run = (*self._codes, self.options.target, self.options.generated, self._wants_declined)
        if cache is not None and are_settings_known_valid(cache, settings, settings_of_run):
            memory = FindingsCache(files, settings_of_run, dict.fromkeys(settings, ""), cache)
            if len(memory.known) < len(files):
                self._load_rules(files, settings)
            return memory
        digests = self._load_rules(files, settings)
        return None if cache is None else FindingsCache(files, settings_of_run, digests, cache)

    def _load_rules(self, files: Sequence[SourceFile], settings: Sequence[FileSettings]) -> dict[FileSettings, str]:
        run, module = self.run, import_module("autofuse.project.check_files")
        before = set(sys.modules)
        for file_settings in settings:
            run.rules(file_settings)
        run.files = import_module("autofuse.source.evidence.other_files").ProjectFiles(tuple(f.path for f in files))
        digests: dict[FileSettings, str] = module.digest_user_rules(run, settings, before)
        return digests

    @property
    def _wants_declined(self) -> bool:
        """Whether the command shows declined findings. Only `check` can."""
        return bool(getattr(self.options, "declined", False))

    @property
    def _codes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(self.options.select or ()), tuple(self.options.ignore or ())

    def _files(self) -> list[SourceFile]:
        project = Project(Configuration(), self.options.force_exclude)
        if self.from_stdin:
            return [project.text(self.options.stdin_filename)]
        if STDIN in self.options.paths:
            self.failed = True
            self.out.say("autofuse: `-` reads standard input and cannot be combined with files: use two runs.")
            return []
        files = []
        for file in project.files(self.options.paths):
            if isinstance(file, Problem):
                self.report(file)
            else:
                files.append(file)
        return files

    @property
    def from_stdin(self) -> bool:
        return bool(self.options.paths == [STDIN])

    def with_ignores(self, source: bytes, ignores: Sequence[tuple[str, int, int]]) -> tuple[bytes, int]:
        """Returns a file's text with comments that switch findings off, and the number of comments."""
        result: tuple[bytes, int] = import_module("autofuse.project.suppress").add_ignore_comments(source, ignores)
        return result

    def report(self, problem: Problem) -> None:
        """Reports a problem. An error makes the run fail."""
        self.failed |= problem.error
        self.out.say(problem.message)
