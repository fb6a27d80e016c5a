"""What the tests of `kakeya remote` share: a bus, ends with keys of their own, programs that misbehave when they are told to."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from harness import SHORT, Skip, equal, eventually, holds, run_tests, test  # noqa: F401,E402

PROGRAM = os.path.abspath(os.environ.get("KAKEYA", "build/kakeya"))
MODEL = os.path.abspath("models/demo")
GIT = shutil.which("git")
KEYGEN = shutil.which("ssh-keygen")
NAMESPACE = "kakeya-remote@v1"
root = tempfile.mkdtemp(prefix="kakeya-remote-")


def finish():
    try:
        run_tests()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(text, bytes) else "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


def sha256(data):
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


class World:
    """A bus with a worker, mini, and somebody who asks, alice."""

    count = 0

    def __init__(self, worker=True, **limits):
        World.count += 1
        self.folder = os.path.join(root, str(World.count))
        self.bus = os.path.join(self.folder, "bus.git")
        os.makedirs(self.folder)
        subprocess.run([GIT, "init", "-q", "--bare", self.bus], check=True)
        self.alice = End(self, "alice")
        self.alice.ok("init", "--bus", self.bus, "--name", "alice")
        self.mini = self.add_worker("mini", **limits) if worker else None

    def add_worker(self, name, **limits):
        end = End(self, name)
        end.ok("init", "--bus", self.bus, "--name", name, "--worker", "--model", f"demo={MODEL}")
        end.ok("allow", "requester", "alice", self.alice.key + ".pub")
        self.alice.ok("allow", "worker", name, end.key + ".pub")
        end.change(limits={"reject_after_seconds": 0, "grace_seconds": 1, **limits})
        return end

    def git(self, *words, data=None):
        done = subprocess.run([GIT, "--git-dir", self.bus, *words], input=data, capture_output=True, check=True)
        return done.stdout

    def refs(self, kind=None):
        lines = self.git("for-each-ref", "--format=%(refname)").decode().split()
        return sorted(r.split("/")[-1] for r in lines if kind is None or f"/{kind}/" in r)

    def put(self, kind, nonce, files):
        """Anything as a commit behind a ref, as whoever can write to the bus could do it."""
        script = b""
        for i, data in enumerate(files.values()):
            data = data if isinstance(data, bytes) else data.encode()
            script += b"blob\nmark :%d\ndata %d\n%s\n" % (i + 1, len(data), data)
        script += b"commit refs/heads/kakeya/%s/%s\ncommitter x <x@x> 0 +0000\ndata 0\ndeleteall\n" % (kind.encode(), nonce.encode())
        for i, name in enumerate(files):
            script += b"M 100644 :%d %s\n" % (i + 1, name.encode())
        self.git("fast-import", "--quiet", "--force", data=script + b"\ndone\n")

    def get(self, kind, nonce, name):
        return self.git("show", f"refs/heads/kakeya/{kind}/{nonce}:{name}").decode()

    def result(self, nonce):
        return json.loads(self.get("results", nonce, "result.json"))

    def request(self, nonce=None, **changes):
        """The text of a request of alice; nonce of now unless one is given."""
        now = time.time() + changes.pop("shift", 0)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        nonce = nonce or time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime(now)) + os.urandom(4).hex()
        fields = {"version": 1, "kind": "request", "nonce": nonce, "preset": "env", "params": {}, "inputs": {}, "model": "demo",
                  "worker": "any", "bus": sha256(f"refs/heads/kakeya\n{self.bus}"), "requested_by": "alice", "created": stamp,
                  "expires": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + 3600)), **changes}
        return nonce, json.dumps(fields)

    def forge(self, text, nonce, key=None, namespace=NAMESPACE, **more):
        """Puts a request on the bus as if by `kakeya remote run`."""
        self.put("requests", nonce, {"request.json": text, "request.json.sig": sign(key or self.alice.key, text, namespace), **more})
        return nonce


class End:
    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.folder = os.path.join(world.folder, name)
        self.home = os.path.join(self.folder, "home")
        self.config = os.path.join(self.home, ".config", "kakeya", "remote")
        self.state = os.path.join(self.home, ".local", "state", "kakeya", "remote")
        self.key = os.path.join(self.config, "key")
        self.tools = os.path.join(self.folder, "tools")
        os.makedirs(self.home)
        os.makedirs(self.tools)

    def environment(self, **more):
        return {"HOME": self.home, "PATH": self.tools + ":" + os.environ["PATH"], "TMPDIR": self.folder, **more}

    def start(self, *words, environment=None, wrapper=()):
        return subprocess.Popen([*wrapper, PROGRAM, "remote", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, env=self.environment(**(environment or {})), cwd=self.folder, text=True,
                                errors="replace")

    def call(self, *words, **more):
        process = self.start(*words, **more)
        process.out, process.err = process.communicate(timeout=500)
        return process

    def ok(self, *words, **more):
        done = self.call(*words, **more)
        equal(done.returncode, 0, f"{words}: {done.out} {done.err}")
        return done.out

    def fails(self, text, *words, status=1, **more):
        done = self.call(*words, **more)
        equal(done.returncode, status, f"{words}: {done.out} {done.err}")
        lines = [line for line in done.err.splitlines() if line.startswith("kakeya")]
        equal(len(lines), 1, done.err)
        holds(text in lines[0], f"{text!r} is not in {lines[0]!r}")

    def ask(self, preset="env", *more):
        return self.ok("run", preset, *more).split()[0]

    def serve(self, **more):
        return self.ok("serve", "--once", **more)

    def change(self, **fields):
        path = os.path.join(self.config, "remote.json")
        settings = json.loads(read(path))
        for key, value in fields.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
        write(path, json.dumps(settings))

    def program(self, script="echo '{}'"):
        """The worker runs this instead; every run leaves a line in self.ran()."""
        path = os.path.join(self.tools, "evaluation")
        write(path, f'#!/bin/sh\n[ "$1" != gate ] || exec "{PROGRAM}" "$@"\nbasename "$PWD" >>"{self.folder}/ran"\n{script}\n', 0o755)
        self.change(program=path)

    def ran(self):
        path = os.path.join(self.folder, "ran")
        return read(path).split() if os.path.exists(path) else []

    def tool(self, name, script):
        """A program in front of the real one, $REAL; None takes it away."""
        path = os.path.join(self.tools, name)
        if script is None:
            os.unlink(path)
        else:
            write(path, f'#!/bin/sh\nREAL="{shutil.which(name)}"\n{script}\n', 0o755)

    def files(self):
        """What the end has outside its state folder: names, sizes, times."""
        found = {}
        for folder, names, files in os.walk(self.home):
            names[:] = [n for n in names if not os.path.join(folder, n).startswith(self.state)]
            for name in files + names:
                about = os.lstat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = (about.st_size, about.st_mtime_ns if name in files else 0)
        return found


def race(requests):
    w = World()
    other = w.add_worker("big")
    w.mini.program()
    other.program()
    nonces = [w.request()[0] for _ in range(requests)]
    for nonce in nonces:
        w.forge(w.request(nonce)[1], nonce)
    servers = [end.start("serve", "--poll", "1") for end in (w.mini, other)]
    eventually(lambda: len(w.refs("results")) == len(nonces) and not w.refs("claims"), "all are answered", 550)
    logs = [stop(server) for server in servers]
    equal(sorted(w.mini.ran() + other.ran()), sorted(nonces), logs)
    for nonce in nonces[:: 1 + requests // 20]:
        equal((w.result(nonce)["outcome"], w.result(nonce)["attempt"]), ("done", 1))
    holds(requests < 50 or (w.mini.ran() and other.ran()), "both took part")


def whole(name):
    """A test that `make check` leaves out."""

    def register(function):
        return test(name)(function) if not SHORT else function

    return register


def sign(key, text, namespace=NAMESPACE):
    data = text if isinstance(text, bytes) else text.encode()
    return subprocess.run([KEYGEN, "-q", "-Y", "sign", "-f", key, "-n", namespace], input=data, capture_output=True, check=True).stdout


def make_key(path):
    subprocess.run([KEYGEN, "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()


def stop(process):
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    return out
