"""A headless Chromium, steered through its pipe by the standard library alone."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find():
    """The program; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One tab. `events` holds what was told meanwhile, as (method, parameters)."""

    def __init__(self, wait, width=800, height=600):
        self.wait, self.number, self.kept, self.events = wait, 0, b"", []
        self.directory = tempfile.mkdtemp(prefix="kakeya-browser-")
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
        for fd in (theirs_in, theirs_out):
            os.close(fd)

        def give():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
             f"--window-size={width},{height}", f"--user-data-dir={self.directory}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=give)
        for fd in high:
            os.close(fd)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(part + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def message(self):
        end = time.monotonic() + self.wait
        while b"\0" not in self.kept:
            ready, _, _ = select.select([self.back], [], [], max(0, end - time.monotonic()))
            data = os.read(self.back, 1 << 16) if ready else b""
            if not data:
                raise AssertionError("the browser says nothing")
            self.kept += data
        text, self.kept = self.kept.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while True:
            m = self.message()
            if m.get("id") == self.number:
                if "error" in m:
                    raise AssertionError(f"{method}: {m['error']}")
                return m["result"]
            if "method" in m:
                self.events.append((m["method"], m["params"]))

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'", "the page is there")

    def evaluate(self, script):
        """The value of an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script, what):
        end = time.monotonic() + self.wait
        while time.monotonic() < end:
            value = self.evaluate(script)
            if value:
                return value
            time.sleep(0.02)
        shown = self.evaluate("document.documentElement.innerText")
        raise AssertionError(f"{what}: not within {self.wait} s; the page shows {shown!r:.500}")

    def write(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code, text="", modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text, modifiers=modifiers)

    def press_enter(self):
        self.press("Enter", 13, "\r")

    def scheme(self, name):
        """"light" or "dark", as the system of who reads would have it."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def requests(self):
        """URLs that the page has asked for."""
        return [p["request"]["url"] for m, p in self.events if m == "Network.requestWillBeSent"]

    def complaints(self):
        """What the console says, violations of the page's policy among it."""
        said = [p["entry"]["text"] for m, p in self.events if m == "Log.entryAdded"]
        return said + [str(p["exceptionDetails"]) for m, p in self.events if m == "Runtime.exceptionThrown"]

    def picture(self):
        """The window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.directory, ignore_errors=True)
