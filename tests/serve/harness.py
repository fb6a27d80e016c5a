"""What the tests of `kakeya serve` share: TAP lines, a server of their own, plain HTTP without a client library."""

import atexit
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

KAKEYA = os.environ.get("KAKEYA", "build/kakeya")
BUILD = os.environ.get("BUILD", "build")
MODELS = os.path.abspath("models")
WAIT = float(os.environ.get("SERVE_TEST_WAIT", "60"))  # for what must happen; never for what must not
SHORT = bool(os.environ.get("KAKEYA_SHORT_SWEEPS"))
WHOLE = bool(os.environ.get("WHOLE_SWEEPS"))  # with every repetition

_tests = []


def test(name):
    """Registers a test; it passes when it raises nothing."""

    def register(function):
        _tests.append((name, function))
        return function

    return register


class Skip(Exception):
    pass


def text_model():
    """The demo without its vision tower, in a folder called demo."""
    directory = os.path.join(tempfile.mkdtemp(), "demo")
    atexit.register(shutil.rmtree, os.path.dirname(directory), True)
    os.mkdir(directory)
    for name in os.listdir(f"{MODELS}/demo"):
        if name != "config.json":
            os.symlink(f"{MODELS}/demo/{name}", f"{directory}/{name}")
    with open(f"{MODELS}/demo/config.json") as file:
        config = json.load(file)
    del config["vision_config"]
    with open(f"{directory}/config.json", "w") as file:
        json.dump(config, file)
    return directory


def run_tests():
    wanted = sys.argv[1:]
    failed = number = 0
    for name, function in _tests:
        if wanted and not any(w in name for w in wanted):
            continue
        number += 1
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except Skip as reason:
            print(f"ok {number} - {name} # SKIP {reason}", flush=True)
        except Exception:  # noqa: BLE001  a test may fail in any way
            failed += 1
            print(f"not ok {number} - {name}", flush=True)
            for line in traceback.format_exc().rstrip().splitlines():
                print(f"# {line}", flush=True)
    Server.stop_all()
    print(f"1..{number}", flush=True)
    if failed:  # what a failed test left waiting does not hold up the others
        atexit._run_exitfuncs()
        os._exit(1)


def equal(actual, expected, what=""):
    if actual != expected:
        raise AssertionError(f"{what}: {actual!r:.300}, expected {expected!r:.300}")


def holds(condition, what=""):
    if not condition:
        raise AssertionError(what or "does not hold")


def eventually(condition, what, seconds=None):
    end = time.monotonic() + (seconds or WAIT)
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {seconds or WAIT} s")


# What Codex declares for apply_patch.
APPLY_PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def text_of(file):
    """What a process has written there. It goes on writing at the file's position, which must not be moved."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Server:
    """A running `kakeya serve` on a free port. It computes on one thread, unless it is told how many or is to have the default
    (threads=None): two take a third more of the processors, which other tests want."""

    running = []

    def __init__(self, *options, model=None, ready=True, environment=None, wrapper=(), program=KAKEYA, threads=1):
        self.log_file = tempfile.TemporaryFile()
        command = [*wrapper, program, "serve", "--port", "0", *options]
        if "--grpc" not in options:
            command += ["--grpc", "off"]
        if "--threads" not in options and threads:
            command += ["--threads", str(threads)]
        if model:
            command += ["--model", model]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KAKEYA_") and "proxy" not in k.lower()}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log_file, stdin=subprocess.DEVNULL,
            env={**clean, **(environment or {})})
        Server.running.append(self)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no first line; stderr: {self.log()}")
        self.addresses = json.loads(line)
        self.url = self.addresses["http"]
        self.host, port = self.url.split("//")[1].rsplit(":", 1)
        self.port = int(port)
        if ready:
            self.wait_ready()

    def wait_ready(self):
        eventually(lambda: self.process.poll() is not None or self.get("/health").status == 200, "the server is ready")
        holds(self.process.poll() is None, f"the server ended: {self.log()}")

    def log(self):
        return text_of(self.log_file)

    def said(self, pattern):
        """What of its log matches. A line about a state comes just after the state."""
        eventually(lambda: re.search(pattern, self.log()), f"the log says {pattern}")
        return re.search(pattern, self.log())

    def request(self, method, path, body=None, headers=None, timeout=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout or WAIT)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body).encode()
            if body is not None:
                headers = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def connect(self, timeout=None):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout or WAIT)

    def raw(self, data, timeout=None, half_close=False):
        """Sends bytes and returns everything that comes until the server closes."""
        with self.connect(timeout) as s:
            try:
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it may have said no already
            return read_all(s)

    def metric(self, name, **labels):
        return metrics(self.get("/metrics").body.decode()).get(series(name, labels), 0.0)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=None):
        return self.process.wait(seconds or WAIT)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(WAIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        if self in Server.running:
            Server.running.remove(self)
        return self.process.returncode

    @staticmethod
    def stop_all():
        for server in list(Server.running):
            server.stop()


def read_all(s):
    data = bytearray()  # which grows where it is
    try:
        while piece := s.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return bytes(data)


def dechunk(reply):
    """The body of a raw reply in chunks."""
    at, body = reply.index(b"\r\n\r\n") + 4, []
    while True:
        line = reply.index(b"\r\n", at)
        size = int(reply[at:line], 16)
        if size == 0:
            return b"".join(body)
        body.append(reply[line + 2:line + 2 + size])
        at = line + 2 + size + 2


_scripted = {}


def scripted_model(*script, tokenizer=None):
    """The directory of a model that says what it is told at temperature 0, control tokens included; a second text is said behind the
    result of a tool. Its tokens are those of the directory `tokenizer`, or else the demo model's."""
    key = (*script, tokenizer)
    if key not in _scripted:
        directory = tempfile.mkdtemp()
        command = [f"{BUILD}/tools/scripted_model", tokenizer or f"{MODELS}/demo", directory, *script]
        made = subprocess.run(command, capture_output=True)
        equal(made.returncode, 0, made.stderr)
        _scripted[key] = directory
    return _scripted[key]


def series(name, labels):
    return name + "".join(sorted(f"|{k}={v}" for k, v in labels.items()))


def metrics(text):
    """The exposition format as {name|label=value...: number}, without the label `model`; checks its form."""
    values, typed = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            holds(name not in typed, f"{name} has one TYPE line")
            typed[name] = kind
        elif line and not line.startswith("#"):
            left, number = line.rsplit(" ", 1)
            name, _, rest = left.partition("{")
            labels = {}
            for pair in filter(None, rest.rstrip("}").split(",")):
                key, value = pair.split("=", 1)
                holds(value[0] == value[-1] == '"', line)
                labels[key] = value[1:-1]
            labels.pop("model", None)
            base = name
            for suffix in ("_bucket", "_sum", "_count"):
                if name.endswith(suffix) and name[: -len(suffix)] in typed:
                    base = name[: -len(suffix)]
            holds(base in typed, f"{name} has a TYPE line")
            key = series(name, labels)
            holds(key not in values, f"{key} appears once")
            values[key] = float(number)
    return values


def in_threads(functions):
    """Runs functions at the same time; returns their results in order, raises the first exception."""
    results, errors = [None] * len(functions), []

    def run(i, function):
        try:
            results[i] = function()
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i, f)) for i, f in enumerate(functions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results
