"""A headless Chromium that a test controls through the DevTools protocol, on two pipes.

`--dump-dom` with a virtual time is not an alternative: the time passes while the page has no open request,
which on a busy machine includes the moment before its script is requested. Then a page is dumped that has not run.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from eventually import DEADLINE_S, eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
START_DEADLINE_S = 3 * DEADLINE_S
"""Chromium reads 200 MB of files before its first response."""
_IN, _OUT = 3, 4
"""File descriptors of the protocol in the browser (--remote-debugging-pipe)."""
_READ_BYTES = 1 << 16


class Chromium:
    """A browser from `with` to its end."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        requests, self._requests = os.pipe()
        self._responses, responses = os.pipe()
        # Above the numbers that they get in the browser.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (requests, responses)]
        log = os.fspath(profile.parent / f"{profile.name}.log")
        arguments = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={profile}", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank"),
        ]
        actions = [
            (os.POSIX_SPAWN_DUP2, ends[0], _IN),
            (os.POSIX_SPAWN_DUP2, ends[1], _OUT),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self._process = os.posix_spawn(CHROMIUM, arguments, os.environ, file_actions=actions, setpgroup=0)
        for end in (requests, responses, *ends):
            os.close(end)
        self._log = Path(log)
        self._received = b""
        self._last = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, AssertionError):
            self.call("Browser.close")
        for end in (self._requests, self._responses):
            os.close(end)
        try:
            eventually(lambda: os.waitpid(self._process, os.WNOHANG)[0])
        except AssertionError:
            os.killpg(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            raise

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True) -> Page:
        """Return a page after its load event: its style and its script were loaded, and the script has run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
        failed = page.call("Page.navigate", url=url).get("errorText")
        assert not failed, failed
        page.event("Page.loadEventFired")
        return page

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Return the result of a method."""
        self._last += 1
        request: dict[str, object] = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            request["sessionId"] = session
        line = json.dumps(request).encode() + b"\0"
        while line:
            line = line[os.write(self._requests, line) :]
        while True:
            message = self._receive()
            if message.get("id") == self._last:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._events.append(message)

    def events(self, session: str, method: str) -> list[dict[str, Any]]:
        """Return what was reported so far."""
        return [
            event["params"]
            for event in self._events
            if event.get("sessionId") == session and event.get("method") == method
        ]

    def wait(self, session: str, method: str) -> dict[str, Any]:
        """Return the first event of this method, which may already have been reported."""
        while not (found := self.events(session, method)):
            self._events.append(self._receive())
        return found[0]

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + START_DEADLINE_S
        while b"\0" not in self._received:
            readable, _, _ = select.select([self._responses], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._responses, _READ_BYTES) if readable else b""
            assert part, f"Chromium {'ended' if readable else 'does not respond'}: {self._log.read_text()}"
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


class Page:
    """A page that was loaded."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Return the result of a method for this page."""
        return self._browser.call(method, self._session, **parameters)

    def event(self, method: str) -> dict[str, Any]:
        """Wait for an event of this page."""
        return self._browser.wait(self._session, method)

    def value(self, expression: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def html(self) -> str:
        """Return the present document, without running anything in it."""
        root = self.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        text: str = self.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]
        return text

    def eventually(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        return eventually(lambda: self.value(expression), self.html)

    def close(self) -> None:
        """Close the page."""
        self.call("Page.close")

    def picture(self, *, whole: bool = True) -> bytes:
        """Return a PNG of the whole page, or of its visible part."""
        shown = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shown["data"])

    def complaints(self) -> list[str]:
        """Return errors of scripts and violations of the policy; failed requests are not errors of the page."""
        self.call("Log.enable")  # its response follows what was reported before
        thrown = [
            str(one["exceptionDetails"]) for one in self._browser.events(self._session, "Runtime.exceptionThrown")
        ]
        printed = [str(one["args"]) for one in self._browser.events(self._session, "Runtime.consoleAPICalled")]
        logged = [one["entry"] for one in self._browser.events(self._session, "Log.entryAdded")]
        return thrown + printed + [str(entry) for entry in logged if entry["source"] != "network"]
