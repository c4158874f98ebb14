# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pair of pipes (--remote-debugging-pipe): no driver, no port.

Use as a context. Messages are JSON with a zero byte behind; events are kept until asked for.
"""

import base64
import json
import os
import pathlib
import selectors
import shutil
import subprocess
import tempfile
import time
from typing import Any

PATIENCE_S = 30
PROGRAM = shutil.which("chromium")
# Quiet: nothing but the page may use the network, and the sandbox refuses root.
ARGUMENTS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run
    --disable-background-networking --disable-component-update --disable-sync
    --disable-dev-shm-usage --remote-debugging-pipe""".split()


class Browser:
    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-browser-", dir="/var/tmp"))
        self.events: list[dict[str, Any]] = []
        self.buffer = b""
        self.last = 0
        self.session = ""

    def __enter__(self) -> "Browser":
        theirs, self.output = os.pipe()
        self.input, answers = os.pipe()
        # It reads commands from 3 and answers on 4.
        moves = f'exec 3<&{theirs} 4>&{answers}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", moves, "sh", PROGRAM or "chromium", *ARGUMENTS,
             f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(theirs, answers), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(theirs)
        os.close(answers)
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"]
                      if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"],
                                flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.output)  # it ends with its pipe
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        shutil.rmtree(self.folder, ignore_errors=True)

    def receive(self, end: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self.input, selectors.EVENT_READ)
            while b"\0" not in self.buffer:
                if not selector.select(max(0, end - time.monotonic())):
                    raise AssertionError(f"the browser said nothing in {PATIENCE_S} s")
                more = os.read(self.input, 1 << 20)
                if not more:
                    raise AssertionError("the browser has ended")
                self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self.receive(end)
            if answer.get("id") != self.last:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            result: dict[str, Any] = answer["result"]
            return result

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_until(self, script: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self.run(script):
            if time.monotonic() > end:
                raise AssertionError(f"it never was: {script}")
            time.sleep(0.05)

    def be(self, width: int, height: int, scheme: str) -> None:
        """A window of that size, of a user who wants "light" or "dark"."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.wait_until(f"document.readyState === 'complete' && location.href === '{url}'")

    def picture(self, path: pathlib.Path) -> None:
        """Of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True,
                        clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"],
                              "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and what the policy refused."""
        texts = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                texts.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled":
                texts.append(str(parameters["args"]))
            elif event.get("method") == "Log.entryAdded":
                texts.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
        return texts

    def requested(self) -> list[str]:
        """Every address that was asked for."""
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]
