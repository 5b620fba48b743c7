// Starts `autofuse server` and lets VS Code speak to it. All that is known of Python stands in the server.

"use strict";

const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

const NEEDED = "pip install 'pygls>=2.1'";
let client;

/** What the settings say about how the server is started. */
function serverOptions(settings) {
  const [command, ...before] = settings.get("command", ["autofuse"]);
  return { command, args: [...before, "server"], transport: TransportKind.stdio };
}

/** Which files the server is told of, and what it is told of the settings. */
function clientOptions(settings) {
  return {
    documentSelector: [{ scheme: "file", language: "python" }],
    initializationOptions: { select: settings.get("select", []), ignore: settings.get("ignore", []) },
  };
}

async function start() {
  const settings = vscode.workspace.getConfiguration("autofuse");
  client = new LanguageClient("autofuse", "autofuse", serverOptions(settings), clientOptions(settings));
  try {
    await client.start();
  } catch (error) {
    vscode.window.showErrorMessage(`autofuse could not be started (${error}). It needs: ${NEEDED}`);
  }
}

async function stop() {
  const running = client;
  client = undefined;
  if (running) {
    await running.stop().catch(() => undefined);
  }
}

async function restart() {
  await stop();
  await start();
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("autofuse.restart", restart),
    vscode.workspace.onDidChangeConfiguration((changed) => {
      if (changed.affectsConfiguration("autofuse")) {
        restart();
      }
    }),
  );
  await start();
}

module.exports = { activate, deactivate: stop, serverOptions, clientOptions };
