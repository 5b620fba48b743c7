"""The VS Code extension: it declares the settings that it reads, and it starts the existing server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from autofuse.cli.arguments import parser

REPOSITORY = Path(__file__).parents[2]
EXTENSION = REPOSITORY / "editors" / "vscode"
MANIFEST = json.loads((EXTENSION / "package.json").read_text())
SOURCE = (EXTENSION / "src" / "extension.js").read_text()

# Loads the extension with replacements for the two modules that only an editor has, and prints the calls to them.
LOAD = """
const Module = require("module"), load = Module._load, said = [], changed = [];
const settings = JSON.parse(process.argv[2]);
const vscode = {
  workspace: {
    getConfiguration: () => ({ get: (name, otherwise) => settings[name] ?? otherwise }),
    onDidChangeConfiguration: (f) => changed.push(f),
  },
  commands: { registerCommand: (name, f) => ({ name, f }) },
  window: { showErrorMessage: (text) => said.push(["error", text]) },
};
class LanguageClient {
  constructor(id, name, server, client) { this.given = [server, client]; }
  async start() { said.push(["start", ...this.given]); if (settings.fails) throw new Error("no such command"); }
  async stop() { said.push(["stop"]); }
}
Module._load = (name, ...more) =>
  name === "vscode" ? vscode
  : name === "vscode-languageclient/node" ? { LanguageClient, TransportKind: { stdio: 0 } }
  : load(name, ...more);
const extension = require(process.argv[1]), context = { subscriptions: [] };
(async () => {
  await extension.activate(context);
  changed[0]({ affectsConfiguration: (name) => name === "autofuse" });
  await new Promise(setImmediate);
  await extension.deactivate();
  console.log(JSON.stringify(said));
})();
"""


def start_extension(**settings: object) -> list[list[object]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed here")
    command = [node, "-e", LOAD, str(EXTENSION / "src" / "extension.js"), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[list[object]] = json.loads(done.stdout)
    return found


def test_the_extension_declares_exactly_the_settings_and_commands_that_it_uses() -> None:
    declared = set(MANIFEST["contributes"]["configuration"]["properties"])
    assert declared == {f"autofuse.{name}" for name in re.findall(r'settings\.get\("(\w+)"', SOURCE)}
    commands = {c["command"] for c in MANIFEST["contributes"]["commands"]}
    assert commands == set(re.findall(r'registerCommand\("([\w.]+)"', SOURCE))


def test_the_extension_has_the_version_and_the_licence_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (MANIFEST["version"], MANIFEST["license"]) == (project["version"], project["license"])
    assert (EXTENSION / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()
    assert MANIFEST["main"] == "./dist/extension.js" and "dist/extension.js" in MANIFEST["scripts"]["build"]


def test_the_extension_starts_the_server_and_restarts_it_when_settings_change() -> None:
    said = start_extension(command=["python", "-m", "autofuse"], select=["AF1"])
    assert [s[0] for s in said] == ["start", "stop", "start", "stop"]
    _, server, client = said[0]
    assert isinstance(server, dict) and isinstance(client, dict)
    assert [server["command"], *server["args"]] == ["python", "-m", "autofuse", "server"]
    assert parser().parse_args(server["args"][2:]).command == "server"
    assert client["initializationOptions"] == {"select": ["AF1"], "ignore": []}
    assert client["documentSelector"] == [{"scheme": "file", "language": "python"}]


def test_the_error_for_a_server_that_does_not_start_names_the_required_package() -> None:
    assert any(s[0] == "error" and "pygls>=2.1" in str(s[1]) for s in start_extension(fails=True))


@pytest.mark.parametrize("editor", ["VS Code", "Neovim", "Zed"])
def test_the_documentation_has_every_editor_and_the_command(editor: str) -> None:
    section = (REPOSITORY / "docs" / "editors.md").read_text().partition(f"## {editor}")[2].partition("\n## ")[0]
    assert "server" in section and "autofuse" in section
