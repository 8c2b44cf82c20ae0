"""A real browser for page tests: headless Chromium, driven through its DevTools protocol.

Every wait has a deadline. Console messages and network requests are recorded, so that a test can
assert that there were none.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

DEADLINE_S = 600.0
# A name that would run a script, were it not shown as text.
HOSTILE = "</script><img src=x onerror=alert(1)>"
# An expression: the number of drawn (not transparent) pixels of each canvas.
DRAWN_PIXELS = """[...document.querySelectorAll("canvas")].map((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let i = 0; i < pixels.length; i += 4) drawn += pixels[i + 3] > 0;
  return drawn;
})"""
_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Tab:
    """One page, with its console messages and exceptions (`errors`) and requested URLs."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Navigate to a URL and wait until the page has loaded."""
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; raises AssertionError if it throws."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true; raises AssertionError at the deadline."""
        until = time.monotonic() + DEADLINE_S
        while not self.evaluate(script):
            assert time.monotonic() < until, f"not within {DEADLINE_S:g} s: {script}; {self.errors}"
            time.sleep(0.02)

    def set_viewport(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Set the window's size and the preferred colour scheme, `light` or `dark`."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])
        two_frames = "requestAnimationFrame(() => requestAnimationFrame(() => done(true)))"
        self.evaluate(f"new Promise((done) => {two_frames})")

    def screenshot(self, path: Path | None = None) -> bytes:
        """The whole page as PNG, also written to `path` if given."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        picture = base64.b64decode(answer["data"])
        if path is not None:
            path.write_bytes(picture)
        return picture

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        number = self._last
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        until = time.monotonic() + DEADLINE_S
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.0, until - time.monotonic())))
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._record(message.get("method", ""), message.get("params", {}))

    def _record(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(" ".join(str(arg.get("value")) for arg in params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


def open_file(tabs: Callable[[], Tab], path: Path) -> Tab:
    """A tab with a page from a file, in a window of usual width."""
    tab = tabs()
    tab.set_viewport(1280)
    tab.open(path.as_uri())
    return tab


def assert_no_errors_or_requests(tab: Tab, path: Path) -> None:
    """The page of a file printed no errors and requested nothing but itself."""
    assert tab.errors == []
    assert set(tab.requests) == {path.as_uri()}


@contextmanager
def browser() -> Iterator[Callable[[], Tab]]:
    """Yields a function that opens tabs; skips the test if Chromium is not installed."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(_NAMES)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        log = Path(profile) / "log"
        command = [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-dev-shm-usage", "--hide-scrollbars", "--disable-component-update"]
        command += ["--disable-background-networking", "--remote-debugging-port=0"]
        command += [f"--user-data-dir={profile}", "about:blank"]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        sockets: list[ClientConnection] = []

        def tab() -> Tab:
            address = _address(log, process)
            root = connect(address, max_size=None, open_timeout=DEADLINE_S)
            sockets.append(root)
            root.send(
                json.dumps(
                    {"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}
                )
            )
            answer = json.loads(root.recv(timeout=DEADLINE_S))
            target = answer["result"]["targetId"]
            page_address = re.sub(r"/devtools/.*", f"/devtools/page/{target}", address)
            socket = connect(page_address, max_size=None, open_timeout=DEADLINE_S)
            sockets.append(socket)
            return Tab(socket)

        try:
            yield tab
        finally:
            for socket in sockets:
                socket.close()
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(DEADLINE_S)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The browser's DevTools address, once it has printed it."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        found = re.search(r"DevTools listening on (ws://\S+)", log.read_text(errors="replace"))
        if found:
            return found[1]
        assert process.poll() is None, log.read_text(errors="replace")
        time.sleep(0.02)
    raise AssertionError(f"no browser within {DEADLINE_S:g} s: {log.read_text(errors='replace')}")
