"""The language server: diagnostics, quick fixes and hovers over standard input and output, with pygls.

One thread reads the open files in turn. A file that changes during that is read again. project/open_file.py finds the
findings.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import ServerTextPosition, ServerTextRange, TextDocument

from autofuse.cli.hover_text import hover_text
from autofuse.project.open_file import CheckedText, OpenFiles
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import RewriteRun
from autofuse.results.distribution import own_version
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange

_PAUSE = 0.3  # seconds without a change before a file is read
_SEVERITIES = {
    "safe": lsp.DiagnosticSeverity.Warning,
    "unsafe": lsp.DiagnosticSeverity.Information,
    "report": lsp.DiagnosticSeverity.Hint,
}
_FIX_ALL = "source.fixAll.autofuse"


def serve(allow_rules: bool) -> None:
    """Serves one editor until it ends the session. Other output goes to standard error."""
    # Duplicates, because pygls closes the files.
    pipes = os.fdopen(os.dup(sys.stdin.fileno()), "rb"), os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with redirect_stdout(sys.stderr):
        Server(allow_rules).start_io(*pipes)


class Server(LanguageServer):
    """The server, with the findings of the open files."""

    def __init__(self, allow_rules: bool) -> None:
        super().__init__("autofuse", own_version(), text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental)
        self.permission = RulesPermission(_say, _say, allow_rules)
        self.files = OpenFiles(RewriteRun(permission=self.permission))
        self.readings: dict[str, tuple[int | None, CheckedText]] = {}
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
            self.feature(name)(partial(handler))  # pygls sets attributes on a handler, and a bound method has none
        kinds = lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix, _FIX_ALL])
        self.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, kinds)(partial(self.on_code_action))

    def on_initialize(self, params: lsp.InitializeParams) -> None:
        folders = params.workspace_folders or []
        root = folders[0].uri if folders else params.root_uri
        folder = to_fs_path(root) if root else None
        options = params.initialization_options if isinstance(params.initialization_options, dict) else {}
        run = RewriteRun(
            _codes(options.get("select")), _codes(options.get("ignore")), options.get("target") or None,
            permission=self.permission,
        )  # fmt: skip
        self.files = OpenFiles(run, Path(folder) if folder else None)

    async def on_open(self, params: lsp.DidOpenTextDocumentParams) -> None:
        self.schedule(params.text_document.uri, 0.0)

    async def on_change(self, params: lsp.DidChangeTextDocumentParams) -> None:
        self.schedule(params.text_document.uri, _PAUSE)

    async def on_save(self, params: lsp.DidSaveTextDocumentParams) -> None:
        self.reader.submit(self.files.forget)
        for uri in list(self.readings):
            self.schedule(uri, 0.0)

    async def on_close(self, params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self.readings.pop(uri, None)
        if (task := self.waiting.pop(uri, None)) is not None:
            task.cancel()
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def schedule(self, uri: str, pause: float) -> None:
        """Schedules the reading of a file after a pause, and cancels an earlier schedule."""
        if (task := self.waiting.pop(uri, None)) is not None:
            task.cancel()
        self.waiting[uri] = asyncio.get_running_loop().create_task(self.send_findings(uri, pause))

    async def send_findings(self, uri: str, pause: float) -> None:
        """Waits for `pause` seconds, then sends the findings of a file to the editor."""
        await asyncio.sleep(pause)
        reading = await self.reading(uri)
        if reading is None:
            return
        document = self.workspace.get_text_document(uri)
        diagnostics = [_diagnostic(f, document) for f in reading.findings]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, diagnostics, document.version))
        if reading.error:
            self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Warning, reading.error))

    async def reading(self, uri: str) -> CheckedText | None:
        """Returns the findings in the current text; None if it is no Python file, or changes during each attempt."""
        path = to_fs_path(uri) if urlsplit(uri).scheme == "file" else None
        if path is None or not path.endswith((".py", ".pyw")):
            return None
        for _ in range(3):
            document = self.workspace.get_text_document(uri)
            version, text = document.version, document.source
            previous = self.readings.get(uri)
            if previous is not None and previous[1].text == text and previous[0] == version:
                return previous[1]
            result = await asyncio.get_running_loop().run_in_executor(self.reader, self.files.read, path, text)
            if self.workspace.get_text_document(uri).version == version:
                self.readings[uri] = version, result
                return result
        return None

    async def on_code_action(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        reading = await self.reading(uri)
        if reading is None:
            return []
        document = self.workspace.get_text_document(uri)
        only = params.context.only
        actions = []
        if only is None or any(lsp.CodeActionKind.QuickFix.value.startswith(str(_value(k))) for k in only):
            for f in reading.findings_on_lines(params.range.start.line + 1, params.range.end.line + 1):
                actions += _quick_fixes(f, reading, document)
        if reading.all_safe and (only is None or any(_FIX_ALL.startswith(str(_value(k))) for k in only)):
            title = "autofuse: make every safe edit of this file"
            actions.append(lsp.CodeAction(title, kind=_FIX_ALL, edit=_edit(document, reading.all_safe)))
        return actions

    async def on_hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        reading = await self.reading(params.text_document.uri)
        line = params.position.line + 1
        findings = reading.findings_on_lines(line, line) if reading is not None else []
        if reading is None or not findings:
            return None
        text = "\n\n---\n\n".join(hover_text(f, reading.rules) for f in findings)
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text))


def _quick_fixes(f: Finding, reading: CheckedText, document: TextDocument) -> list[lsp.CodeAction]:
    """Returns the edit of a finding, and an edit that adds the comment to ignore it."""
    diagnostics, actions = [_diagnostic(f, document)], []
    if changes := reading.fixes.get(f):
        kind = "unsafe" if f.status == "unsafe" else "safe"
        actions.append(
            lsp.CodeAction(
                f"autofuse: {f.code}: {_shorten_message(f.message)} ({kind})", kind=lsp.CodeActionKind.QuickFix,
                diagnostics=diagnostics, is_preferred=kind == "safe", edit=_edit(document, changes),
            )
        )  # fmt: skip
    if changes := reading.ignore_comment_edits(f):
        actions.append(
            lsp.CodeAction(
                f"autofuse: ignore {f.code} here", kind=lsp.CodeActionKind.QuickFix, diagnostics=diagnostics,
                edit=_edit(document, changes),
            )
        )  # fmt: skip
    return actions


def _shorten_message(message: str) -> str:
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


def _edit(document: TextDocument, changes: tuple[LineChange, ...]) -> lsp.WorkspaceEdit:
    edits = [lsp.TextEdit(_lines(document, r.first, r.end), r.text) for r in changes]
    return lsp.WorkspaceEdit(changes={document.uri: edits})


def _lines(document: TextDocument, first: int, end: int) -> lsp.Range:
    """Returns the range of the lines from `first` up to but not including `end`, counted from 1.

    The last line of the document may have no line break.
    """
    return document.range_to_client_units(ServerTextRange(_start(document.lines, first), _start(document.lines, end)))


def _start(lines: Sequence[str], line: int) -> ServerTextPosition:
    if line <= len(lines) or not lines:
        return ServerTextPosition(max(line - 1, 0), 0)
    if lines[-1].endswith("\n"):
        return ServerTextPosition(len(lines), 0)
    return ServerTextPosition(len(lines) - 1, len(lines[-1]))


def _value(kind: object) -> object:
    return getattr(kind, "value", kind)


def _codes(option: object) -> tuple[str, ...]:
    return tuple(str(c).upper() for c in option) if isinstance(option, list) else ()


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
