"""A Chromium without a window, told what to do over its DevTools protocol; nothing but the browser itself is needed."""

from __future__ import annotations

import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
import unittest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_SECONDS = 120  # only to end what hangs
FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--disable-background-networking", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1"]  # fmt: skip


class Browser:
    """Shows one page at a time; its `events` are what the browser told since it was opened."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if not program:
            raise unittest.SkipTest("there is no browser: install Debian's package chromium (Ubuntu has it as a snap)")
        self.events: list[dict] = []
        self.number, self.rest = 0, b""
        self.folder = tempfile.TemporaryDirectory(prefix="titan-browser-", ignore_cleanup_errors=True)
        theirs_in, self.ours_out = os.pipe()
        self.ours_in, theirs_out = os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={self.folder.name}"]
        self.log = pathlib.Path(self.folder.name, "log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
                                            pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log)  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.session = {}
        self.target = None

    def close(self) -> None:
        os.close(self.ours_out)  # which ends it
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.ours_in)
        self.folder.cleanup()

    def message(self, limit: float) -> dict:
        while b"\0" not in self.rest:
            ready = select.select([self.ours_in], [], [], max(0, limit - time.monotonic()))[0]
            part = os.read(self.ours_in, 1 << 20) if ready else b""
            if not part:
                raise AssertionError("the browser is silent:\n" + self.log.read_text(errors="replace")[-2000:])
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method: str, **parameters) -> dict:
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters, **self.session}
        os.write(self.ours_out, json.dumps(request).encode() + b"\0")
        limit = time.monotonic() + LIMIT_SECONDS
        while (message := self.message(limit)).get("id") != self.number:
            self.events.append(message)
        if "error" in message:
            raise AssertionError(f"{method}: {message['error']}")
        return message["result"]

    def wait_for(self, method: str) -> None:
        """Until the browser tells this, from now on."""
        limit = time.monotonic() + LIMIT_SECONDS
        while (message := self.message(limit)).get("method") != method:
            self.events.append(message)
        self.events.append(message)

    def open(self, path: pathlib.Path, width: int = 1280, scheme: str = "light", at_once: str = "") -> None:
        """`at_once`: a script that runs before the page's own."""
        self.session = {}  # a tab of its own: it knows nothing of what was open before, and that tells nothing any more
        if self.target:
            self.call("Target.closeTarget", targetId=self.target)
        self.target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.addScriptToEvaluateOnNewDocument", source=at_once)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def run(self, script: str):
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"])
        return done["result"].get("value")
