"""A headless Chromium, driven through chromedriver's HTTP interface (W3C WebDriver, and Chromium's additions): no package is needed."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # W3C WebDriver, section 12.1


def missing() -> str:
    """Why there is no browser; empty where there is one."""
    if not any(shutil.which(name) for name in CHROMIUM):
        return "needs chromium"
    return "" if shutil.which("chromedriver") else "needs chromedriver"


class Browser:
    """One window. Everything that the console says, and every request, is kept."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log = (folder / "chromedriver.log").open("wb")
        self.process = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        self.url = f"http://127.0.0.1:{port}"
        self._wait()
        binary = next(path for path in map(shutil.which, CHROMIUM) if path)
        arguments = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
            "--no-first-run", f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900",
        ]  # fmt: skip
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": binary, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"

    def _wait(self) -> None:
        for _ in range(100):
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise TimeoutError("chromedriver did not start")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, header, method=method)  # noqa: S310 - our own driver
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def _post(self, path: str, body: Any) -> Any:
        return self._call("POST", self.session + path, body)

    def open(self, page: Path, *, width: int = 1200, dark: bool = False, paper: bool = False) -> None:
        """Load a file as a window of some width shows it."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.chromium("Emulation.setDeviceMetricsOverride", metrics)
        self.scheme(dark=dark, paper=paper)
        self._post("/url", {"url": page.resolve().as_uri()})

    def scheme(self, *, dark: bool, paper: bool = False) -> None:
        """What the reader's system prefers, and whether it prints."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.chromium("Emulation.setEmulatedMedia", {"media": "print" if paper else "screen", "features": features})

    def chromium(self, command: str, parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """The same, as soon as it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def find(self, selector: str) -> str:
        """The first element of a CSS selector."""
        return str(self._post("/element", {"using": "css selector", "value": selector})[_ELEMENT])

    def click(self, selector: str) -> None:
        """A click of the mouse, on what can be seen."""
        self._post(f"/element/{self.find(selector)}/click", {})

    def keys(self, selector: str, text: str) -> None:
        """Keys while an element has the focus."""
        self._post(f"/element/{self.find(selector)}/value", {"text": text})

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window, in two steps: a page is told of moves."""
        moves = [
            {"type": "pointerMove", "duration": 20, "x": round(x) - 2, "y": round(y)},
            {"type": "pointerMove", "duration": 40, "x": round(x), "y": round(y)},
        ]
        self._post("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})

    def console(self) -> list[str]:
        """Warnings and errors since the last time."""
        entries = self._post("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page, all of it or what the window shows."""
        options: dict[str, Any] = {"captureBeyondViewport": whole}
        if whole:
            size = self.run("return [document.documentElement.scrollWidth,document.documentElement.scrollHeight]")
            options["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        path.write_bytes(base64.b64decode(self.chromium("Page.captureScreenshot", options)["data"]))

    def close(self) -> None:
        """End the window and its driver."""
        try:
            self._call("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.log.close()
