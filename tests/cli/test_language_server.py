"""Tests of `autofuse server` by a client that runs it in another process, over standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("pygls")

TEXT = """\
import torch


def attend(q, k, v):
    weights = "ü𝄞"; return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""
# The text does not show that x is floating-point, so the edit is unsafe.
UNSAFE = "import torch\n\n\ndef f(x):\n    return x * torch.sigmoid(x)"


class Editor:
    """A client that implements the protocol itself, without pygls."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "autofuse", "server", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self.notifications: list[dict[str, Any]] = []
        self.number = 0
        self.folder = folder

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def send(self, method: str, params: object, **more: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.pipes[0].write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.pipes[0].flush()

    def receive(self) -> dict[str, Any]:
        length = 0
        while line := self.pipes[1].readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the server has ended"
        message: dict[str, Any] = json.loads(self.pipes[1].read(length))
        return message

    def ask(self, method: str, params: object) -> Any:
        self.number += 1
        self.send(method, params, id=self.number)
        while (got := self.receive()).get("id") != self.number or "method" in got:
            self.notifications.append(got)
        assert "error" not in got, got
        return got["result"]

    def diagnostics(self) -> dict[str, Any]:
        """Returns the next diagnostics from the server."""
        while True:
            got = self.notifications.pop(0) if self.notifications else self.receive()
            if got.get("method") == "textDocument/publishDiagnostics":
                params: dict[str, Any] = got["params"]
                return params

    def start(self, **options: object) -> Any:
        return self.ask(
            "initialize",
            {
                "processId": os.getpid(), "rootUri": self.folder.as_uri(), "initializationOptions": options,
                "capabilities": {"general": {"positionEncodings": ["utf-16"]}},
            },
        )  # fmt: skip

    def open(self, name: str, text: str) -> str:
        uri = (self.folder / name).as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.send("textDocument/didOpen", {"textDocument": document})
        return uri

    def change(self, uri: str, version: int, text: str) -> None:
        self.send(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]},
        )

    def actions(self, uri: str, line: int, only: list[str] | None = None) -> list[dict[str, Any]]:
        place = {"line": line, "character": 0}
        context: dict[str, object] = {"diagnostics": []} | ({"only": only} if only else {})
        result: list[dict[str, Any]] = self.ask(
            "textDocument/codeAction",
            {"textDocument": {"uri": uri}, "range": {"start": place, "end": place}, "context": context},
        )
        return result


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text("[tool.autofuse]\n")
    editor = Editor(folder)
    capabilities = editor.start()["capabilities"]
    assert capabilities["hoverProvider"] and capabilities["codeActionProvider"]
    editor.send("initialized", {})
    yield editor
    editor.ask("shutdown", None)
    editor.send("exit", None)
    assert editor.process.wait(20) == 0


def apply_edits(text: str, action: dict[str, Any]) -> str:
    """Applies the edits of an action to a text, as an editor does. Positions count UTF-16 units."""
    ((_, edits),) = action["edit"]["changes"].items()
    units = text.encode("utf-16-le")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode("utf-16-le")))
    for edit in sorted(edits, key=lambda e: -e["range"]["start"]["line"]):
        first, last = (starts[edit["range"][k]["line"]] + 2 * edit["range"][k]["character"] for k in ("start", "end"))
        units = units[:first] + edit["newText"].encode("utf-16-le") + units[last:]
    return units.decode("utf-16-le")


def test_findings_appear_while_typing_and_disappear_with_their_code(editor: Editor) -> None:
    uri = editor.open("typed.py", TEXT)
    published = editor.diagnostics()
    (diagnostic,) = published["diagnostics"]
    assert (published["uri"], published["version"], diagnostic["code"], diagnostic["source"]) == (
        uri,
        1,
        "AF101",
        "autofuse",
    )
    assert diagnostic["range"]["start"] == {"line": 4, "character": 4}
    assert diagnostic["range"]["end"]["character"] == len(TEXT.splitlines()[4].encode("utf-16-le")) // 2
    for version in (2, 3, 4):  # faster than the server reads: only the last version is reported
        editor.change(uri, version, TEXT if version < 4 else "import torch\n")
    published = editor.diagnostics()
    assert (published["version"], published["diagnostics"]) == (4, [])
    editor.change(uri, 5, "import torch\ndef f(:\n    x.softmax(-1) @ v\n")
    assert editor.diagnostics()["diagnostics"] == []


@pytest.mark.parametrize(("name", "text", "kind"), [("safe.py", TEXT, "safe"), ("unsafe.py", UNSAFE, "unsafe")])
def test_quick_fixes_equal_the_edits_of_rewrite(editor: Editor, name: str, text: str, kind: str) -> None:
    uri = editor.open(name, text)
    line = len(text.rstrip().splitlines()) - 1
    actions = editor.actions(uri, line)
    (fix,) = [a for a in actions if a["title"].endswith(f"({kind})")]
    assert fix.get("isPreferred") == (kind == "safe") and fix["kind"] == "quickfix"
    (editor.folder / name).write_text(text)
    more = ["--unsafe"] if kind == "unsafe" else []
    subprocess.run([sys.executable, "-m", "autofuse", "rewrite", *more, name], cwd=editor.folder, check=True,
                   capture_output=True)  # fmt: skip
    assert apply_edits(text, fix) == (editor.folder / name).read_text()
    (ignore,) = [a for a in actions if a["title"].startswith("autofuse: ignore")]
    assert f"# autofuse: ignore[{'AF101' if kind == 'safe' else 'AF305'}"[:-2] in apply_edits(text, ignore)
    every = editor.actions(uri, 0, ["source.fixAll"])
    assert [apply_edits(text, a) for a in every] == ([apply_edits(text, fix)] if kind == "safe" else [])
    assert editor.actions(uri, 0, ["quickfix"]) == []


def test_a_hover_explains_the_rule_and_the_mask(editor: Editor) -> None:
    text = (
        "import torch\n\n\ndef attend(q, k, v, n: int):\n    scores = q @ k.transpose(-2, -1)\n"
        "    hidden = torch.ones(n, n).triu(1).bool()\n"
        "    return torch.softmax(scores.masked_fill(hidden, float('-inf')), dim=-1) @ v\n"
    )
    uri = editor.open("hover.py", text)
    at = {"textDocument": {"uri": uri}, "position": {"line": 6, "character": 8}}
    text_of_hover = editor.ask("textDocument/hover", at)["contents"]["value"]
    assert "AF101" in text_of_hover and "```python" in text_of_hover and "Mask: causal" in text_of_hover
    at["position"] = {"line": 0, "character": 0}
    assert editor.ask("textDocument/hover", at) is None


def test_other_files_and_settings_count_like_for_check(editor: Editor) -> None:
    (editor.folder / "pyproject.toml").write_text('[tool.autofuse]\nignore = ["AF1"]\n')
    uri = editor.open("ignored.py", TEXT)
    assert editor.diagnostics()["uri"]
    assert editor.actions(uri, 4) == []
    (editor.folder / "pyproject.toml").write_text("[tool.autofuse]\n")


def test_without_pygls_there_is_a_message_and_exit_code_2(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pygls'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'pygls' else find(n, *a)\n"
        "from autofuse.cli import main; sys.exit(main(['server']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "pygls>=2.1" in done.stderr and "Traceback" not in done.stderr


def test_only_the_server_loads_pygls() -> None:
    package = Path(__file__).parents[2] / "autofuse"
    loading = [
        f.name for f in package.rglob("*.py") if "import pygls" in f.read_text() or "from pygls" in f.read_text()
    ]
    assert loading == ["language_server.py"]
