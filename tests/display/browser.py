"""A headless Chromium that renders pages for the tests, over its DevTools pipe: no port, no package, no network."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_SECONDS = 40.0
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


def executable() -> str | None:
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)


class Browser:
    """One running browser. Use it as a context manager."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="browser-")
        read_here, written_there = os.pipe()
        read_there, written_here = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (read_there, written_there)]
        self._process = subprocess.Popen(
            [path, *_ARGUMENTS, f"--user-data-dir={self._folder}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[1], 4)),
        )  # fmt: skip
        for end in (read_there, written_there, *ends):
            os.close(end)
        self._out, self._in, self._rest, self._number = written_here, read_here, b"", 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)

    def looked_at(self, page: Path, script: str, width: int, dark: bool, media: str = "") -> tuple[Any, list[str]]:
        """Returns the result of `script` on the page, and the faults: console messages and requests to other addresses.

        media: "print", or "" for a screen.
        """
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable", session)
        self._ask(
            "Emulation.setDeviceMetricsOverride", session, width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", session, media=media, features=features)
        self._events.clear()
        self._ask("Page.navigate", session, url=page.as_uri())
        self._until(lambda e: e["method"] == "Page.loadEventFired")
        answer = self._ask("Runtime.evaluate", session, expression=script, returnByValue=True)
        wrong = [told for event in self._events if (told := _wrong(event, page.as_uri()))]
        self._ask("Target.closeTarget", targetId=target)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"], wrong

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        data = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        os.write(self._out, data)
        while "id" not in (answer := self._next()) or answer["id"] != self._number:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _until(self, awaited: Any) -> None:
        while not any(awaited(event) for event in self._events):
            self._events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._in, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("The browser says nothing more.")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        result: dict[str, Any] = json.loads(message)
        return result


def _wrong(event: dict[str, Any], page: str) -> str:
    parameters = event.get("params", {})
    if event.get("method") == "Network.requestWillBeSent" and parameters["request"]["url"] != page:
        return f"a request: {parameters['request']['url']}"
    if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
        return json.dumps(parameters)
    return ""
