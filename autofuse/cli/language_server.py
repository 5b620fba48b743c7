"""The language server: diagnostics, quick fixes and hovers over standard input and output, by pygls.

One thread reads texts, one after the other; a text that has changed meanwhile is read again. Knows the protocol; what
is found is the business of project/open_file.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import ServerTextPosition, ServerTextRange, TextDocument

from autofuse.cli.hover_text import hover_text
from autofuse.project.open_file import OpenFiles, TextReading
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import RewriteRun
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange

_PAUSE = 0.3  # seconds without a key before a text is read
_SEVERITIES = {
    "safe": lsp.DiagnosticSeverity.Warning,
    "unsafe": lsp.DiagnosticSeverity.Information,
    "report": lsp.DiagnosticSeverity.Hint,
}
_FIX_ALL = "source.fixAll.autofuse"


def serve(allow_rules: bool) -> None:
    """Serves one editor until it says that it is done. What else is printed goes to standard error."""
    pipes = (
        os.fdopen(os.dup(sys.stdin.fileno()), "rb"),
        os.fdopen(os.dup(sys.stdout.fileno()), "wb"),
    )  # pygls closes them
    with redirect_stdout(sys.stderr):
        Server(allow_rules).start_io(*pipes)


def _version() -> str:
    try:
        return version("autofuse")
    except PackageNotFoundError:  # run from a source tree
        return "0"


class Server(LanguageServer):
    """What is known of the open files."""

    def __init__(self, allow_rules: bool) -> None:
        super().__init__("autofuse", _version(), text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental)
        self.permission = RulesPermission(_say, _say, allow_rules)
        self.files = OpenFiles(RewriteRun(permission=self.permission))
        self.readings: dict[str, tuple[int | None, TextReading]] = {}
        self.waiting: dict[str, asyncio.Task[None]] = {}
        self.reader = ThreadPoolExecutor(1, "autofuse")
        for name, handler in (
            (lsp.INITIALIZE, self.on_initialize),
            (lsp.TEXT_DOCUMENT_DID_OPEN, self.on_open),
            (lsp.TEXT_DOCUMENT_DID_CHANGE, self.on_change),
            (lsp.TEXT_DOCUMENT_DID_SAVE, self.on_save),
            (lsp.TEXT_DOCUMENT_DID_CLOSE, self.on_close),
            (lsp.TEXT_DOCUMENT_HOVER, self.on_hover),
        ):
            self.feature(name)(partial(handler))  # pygls notes things on what it is given: no method takes them
        kinds = lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix, _FIX_ALL])
        self.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, kinds)(partial(self.on_code_action))

    def on_initialize(self, given: lsp.InitializeParams) -> None:
        folders = given.workspace_folders or []
        root = folders[0].uri if folders else given.root_uri
        folder = to_fs_path(root) if root else None
        options = given.initialization_options if isinstance(given.initialization_options, dict) else {}
        run = RewriteRun(
            _codes(options.get("select")), _codes(options.get("ignore")), options.get("target") or None,
            permission=self.permission,
        )  # fmt: skip
        self.files = OpenFiles(run, Path(folder) if folder else None)

    async def on_open(self, given: lsp.DidOpenTextDocumentParams) -> None:
        self.soon(given.text_document.uri, 0.0)

    async def on_change(self, given: lsp.DidChangeTextDocumentParams) -> None:
        self.soon(given.text_document.uri, _PAUSE)

    async def on_save(self, given: lsp.DidSaveTextDocumentParams) -> None:
        self.reader.submit(self.files.forget)
        for uri in list(self.readings):
            self.soon(uri, 0.0)

    async def on_close(self, given: lsp.DidCloseTextDocumentParams) -> None:
        uri = given.text_document.uri
        self.readings.pop(uri, None)
        if (task := self.waiting.pop(uri, None)) is not None:
            task.cancel()
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def soon(self, uri: str, pause: float) -> None:
        """Reads a text after a pause, unless it changes until then."""
        if (task := self.waiting.pop(uri, None)) is not None:
            task.cancel()
        self.waiting[uri] = asyncio.get_running_loop().create_task(self.tell(uri, pause))

    async def tell(self, uri: str, pause: float) -> None:
        """Tells the editor what is found in a text."""
        await asyncio.sleep(pause)
        reading = await self.reading(uri)
        if reading is None:
            return
        document = self.workspace.get_text_document(uri)
        found = [_diagnostic(f, document) for f in reading.findings]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, document.version))
        if reading.wrong:
            self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Warning, reading.wrong))

    async def reading(self, uri: str) -> TextReading | None:
        """What is found in a text as it is now; None where it is no file, or changes all the time."""
        path = to_fs_path(uri) if urlsplit(uri).scheme == "file" else None
        if path is None or not path.endswith((".py", ".pyw")):
            return None
        for _ in range(3):
            document = self.workspace.get_text_document(uri)
            now, text = document.version, document.source
            known = self.readings.get(uri)
            if known is not None and known[1].text == text and known[0] == now:
                return known[1]
            found = await asyncio.get_running_loop().run_in_executor(self.reader, self.files.read, path, text)
            if self.workspace.get_text_document(uri).version == now:
                self.readings[uri] = now, found
                return found
        return None

    async def on_code_action(self, given: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = given.text_document.uri
        reading = await self.reading(uri)
        if reading is None:
            return []
        document = self.workspace.get_text_document(uri)
        only = given.context.only
        actions = []
        if only is None or any(lsp.CodeActionKind.QuickFix.value.startswith(str(_value(k))) for k in only):
            for f in reading.on_lines(given.range.start.line + 1, given.range.end.line + 1):
                actions += _quick_fixes(f, reading, document)
        if reading.all_safe and (only is None or any(_FIX_ALL.startswith(str(_value(k))) for k in only)):
            title = "autofuse: make every safe edit of this file"
            actions.append(lsp.CodeAction(title, kind=_FIX_ALL, edit=_edit(document, reading.all_safe)))
        return actions

    async def on_hover(self, given: lsp.HoverParams) -> lsp.Hover | None:
        reading = await self.reading(given.text_document.uri)
        line = given.position.line + 1
        found = reading.on_lines(line, line) if reading is not None else []
        if reading is None or not found:
            return None
        text = "\n\n---\n\n".join(hover_text(f, reading.rules) for f in found)
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text))


def _quick_fixes(f: Finding, reading: TextReading, document: TextDocument) -> list[lsp.CodeAction]:
    """The edit of a finding, and the comment that switches it off."""
    about, actions = [_diagnostic(f, document)], []
    if made := reading.fixes.get(f):
        kind = "unsafe" if f.status == "unsafe" else "safe"
        actions.append(
            lsp.CodeAction(
                f"autofuse: {f.code}: {_short(f.message)} ({kind})", kind=lsp.CodeActionKind.QuickFix,
                diagnostics=about, is_preferred=kind == "safe", edit=_edit(document, made),
            )
        )  # fmt: skip
    if made := reading.ignoring(f):
        actions.append(
            lsp.CodeAction(
                f"autofuse: ignore {f.code} here", kind=lsp.CodeActionKind.QuickFix, diagnostics=about,
                edit=_edit(document, made),
            )
        )  # fmt: skip
    return actions


def _short(message: str) -> str:
    becomes = message.partition(": ")[2].partition(" (")[0]
    return becomes or message


def _diagnostic(f: Finding, document: TextDocument) -> lsp.Diagnostic:
    lines = document.lines
    first, last = min(f.line, len(lines)) - 1, min(f.end_line, len(lines)) - 1
    start, end = len(lines[first]) - len(lines[first].lstrip()), len(lines[last].rstrip("\r\n"))
    where = ServerTextRange(ServerTextPosition(first, start), ServerTextPosition(last, end))
    reason = f" ({f.reason})" if f.reason and f.reason not in f.message else ""
    return lsp.Diagnostic(
        document.range_to_client_units(where), f.message + reason + (f"; {f.advice}" if f.advice else ""),
        severity=_SEVERITIES.get(f.status), code=f.code, source="autofuse",
    )  # fmt: skip


def _edit(document: TextDocument, made: tuple[LineChange, ...]) -> lsp.WorkspaceEdit:
    edits = [lsp.TextEdit(_lines(document, r.first, r.end), r.text) for r in made]
    return lsp.WorkspaceEdit(changes={document.uri: edits})


def _lines(document: TextDocument, first: int, end: int) -> lsp.Range:
    """The lines from `first` up to but not including `end`, counted from 1; the last one may have no end."""
    return document.range_to_client_units(ServerTextRange(_start(document.lines, first), _start(document.lines, end)))


def _start(lines: Sequence[str], line: int) -> ServerTextPosition:
    if line <= len(lines) or not lines:
        return ServerTextPosition(max(line - 1, 0), 0)
    if lines[-1].endswith("\n"):
        return ServerTextPosition(len(lines), 0)
    return ServerTextPosition(len(lines) - 1, len(lines[-1]))


def _value(kind: object) -> object:
    return getattr(kind, "value", kind)


def _codes(given: object) -> tuple[str, ...]:
    return tuple(str(c).upper() for c in given) if isinstance(given, list) else ()


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
