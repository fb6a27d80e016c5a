"""Conversations that outlive a server: saved at the end, after kill -9, shared by replicas behind HAProxy; the service manager."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile

from harness import *  # noqa: F403

TEXT = open("examples/needle-60.txt").read()
folder = tempfile.mkdtemp(prefix="kakeya-restarts-")


def ask(server, messages, **more):
    reply = server.post("/v1/chat/completions",
                        {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24, **more})
    equal(reply.status, 200, reply.body[:300])
    answer = reply.json
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def user(text):
    return {"role": "user", "content": text}


def model(text):
    return {"role": "assistant", "content": text}


def directory(name):
    path = os.path.join(folder, name)
    os.mkdir(path, 0o700)
    return path


def files(path):
    return sorted(f for f in os.listdir(path) if f.endswith(".kkc") and not f.startswith("."))


second = None  # what a server that nobody disturbs answers to the second question


@test("57: the next server continues conversations that the last one saved, with the same tokens")
def _():
    global second
    path = directory("saved")
    s = Server("--session-dir", path)
    first, cached = ask(s, [user(TEXT)])
    equal(cached, 0)
    talk = [user(TEXT), model(first), user("Say it again.")]
    second, cached = ask(s, talk)
    holds(cached > 1000, f"{cached} cached")
    equal(s.stop(), 0)
    holds(files(path), "the directory has files")
    equal(oct(os.stat(os.path.join(path, files(path)[0])).st_mode & 0o777), "0o600")
    s = Server("--session-dir", path)
    answer, cached = ask(s, talk)
    equal(answer, second)
    holds(cached > 1000, f"{cached} cached")
    s.stop()


@test("F10: kill -9 loses what was not saved, and nothing else")
def _():
    path = directory("killed")
    s = Server("--session-dir", path)
    first, _ = ask(s, [user(TEXT)])
    eventually(lambda: files(path), "the checkpoint is saved")
    s.process.kill()
    s.stop()
    s = Server("--session-dir", path)
    answer, cached = ask(s, [user(TEXT), model(first), user("Say it again.")])
    equal(answer, second)
    holds(cached > 1000, f"{cached} cached")
    s.stop()


@test("F9: a damaged directory costs time, never an answer")
def _():
    path = directory("damaged")
    for name in files(os.path.join(folder, "saved")):
        data = bytearray(open(os.path.join(folder, "saved", name), "rb").read())
        data[len(data) // 2] ^= 1
        open(os.path.join(path, name), "wb").write(data)
    s = Server("--session-dir", path)
    first, _ = ask(s, [user(TEXT)])
    equal(ask(s, [user(TEXT), model(first), user("Say it again.")])[0], second)
    s.stop()


@test("F11: a directory that two servers have at once, that goes away, or that nothing can be written to: serving goes on")
def _():
    path = directory("two")
    first, other = Server("--session-dir", path), Server("--session-dir", path)
    answer, _ = ask(first, [user(TEXT)])
    eventually(lambda: files(path), "the first server has saved")
    talk = [user(TEXT), model(answer), user("Say it again.")]
    equal(ask(other, talk)[0], second, "the second server")
    equal(ask(first, talk)[0], second, "the first server")
    shutil.rmtree(path)
    text = "".join(reversed(TEXT))
    gone, _ = ask(first, [user(text)])
    eventually(lambda: first.metric("kakeya_store_errors_total", kind="io") > 0, "the loss is counted")
    holds(path in first.log(), "the log names the directory that has gone")
    for server in (first, other):
        equal(ask(server, [user(text)])[0], gone, "the directory has gone")
        equal(server.stop(), 0)
    read_only = "/proc/sys"  # nobody can write there, the superuser included
    server = Server("--session-dir", read_only)
    holds(read_only in server.log(), "the log names the directory that cannot be written to")
    equal(ask(server, [user(text)])[0], gone, "nothing can be written")
    equal(server.stop(), 0)


def shipped(name, replicas, port):
    """The configuration that the project ships, with the addresses of this test."""
    with open(os.path.join("packaging", name)) as f:
        lines = f.read().splitlines()
    text, placed = [], False
    for line in lines:
        if line.strip().startswith("server ") and "127.0.0.1:" in line:
            if not placed:
                text += replicas
            placed = True
        else:
            text.append(line.replace("bind :8080", f"bind 127.0.0.1:{port}").replace("listen 8080", f"listen 127.0.0.1:{port}"))
    holds(placed, f"{name} names its servers")
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write("\n".join(text) + "\n")
    return path


def haproxy(servers, port):
    # A replica that is slow to answer is not gone; one that is gone refuses connections.
    path = shipped("haproxy.cfg", ["    timeout check 60s",
                                   *(f"    server replica{i} 127.0.0.1:{s.port} check inter 100ms fall 1 rise 1"
                                     for i, s in enumerate(servers))], port)
    check = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True)
    equal(check.returncode, 0, check.stdout + check.stderr)
    return ["haproxy", "-db", "-f", path]


def nginx(servers, port):
    path = shipped("nginx.conf", [f"    server 127.0.0.1:{s.port} max_fails=1 fail_timeout=5s;" for s in servers], port)
    main = os.path.join(folder, "main.conf")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(main, "w") as f:
        f.write(f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
                f"events {{}} http {{ access_log off; {places} include {path}; }}\n")
    check = subprocess.run(["nginx", "-t", "-c", main], capture_output=True, text=True)
    equal(check.returncode, 0, check.stderr)
    return ["nginx", "-c", main]


@contextlib.contextmanager
def balanced(command, *options):
    """Two replicas, and the balancer in front of them, which is asked as a server is."""
    replicas = [Server(*options) for _ in range(2)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    proxy = subprocess.Popen(command(replicas, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        front = object.__new__(Server)
        front.port, front.host = port, "127.0.0.1"
        eventually(lambda: reachable(front), "the balancer answers")
        yield front, replicas
    finally:
        proxy.terminate()
        proxy.wait()
        for r in replicas:
            r.stop()


session = {"x-session-affinity": "conversation-1"}


def conversation_goes_on(name, command):
    path = directory(name)
    with balanced(command, "--session-dir", path) as (front, replicas):

        def through(messages):
            reply = front.post("/v1/chat/completions", {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24},
                               headers=session)
            equal(reply.status, 200, reply.body[:300])
            return reply.json["choices"][0]["message"]["content"], reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

        first, _ = through([user(TEXT)])
        served = [r for r in replicas if r.metric("kakeya_generation_tokens_total") > 0]
        equal(len(served), 1, "replicas that served the first question")
        again, cached = through([user(TEXT)])
        holds(cached > 1000, f"the same replica answers again: {cached} cached")
        equal(again, first)
        eventually(lambda: files(path), "the checkpoint is saved")
        served[0].process.kill()
        served[0].process.wait()

        def goes_on():
            try:
                return through([user(TEXT), model(first), user("Say it again.")])
            except (AssertionError, OSError, http.client.HTTPException):
                return None  # until the balancer has noticed

        answer, cached = eventually(goes_on, "the other replica answers")
        equal(answer, second)
        holds(cached > 1000, f"{cached} cached")


def stream_survives_a_drain(command):
    """A replica is told to end while a stream runs. The balancer turns to the other one, and the stream ends as it would have."""
    body = {"model": "demo", "messages": [user("Count.")], "temperature": 2, "seed": 7, "ignore_eos": True, "max_tokens": 6000,
            "stream": True, "return_token_ids": True}
    short = {**body, "max_tokens": 1, "stream": False}
    with balanced(command, "--drain", str(4 * WAIT)) as (front, replicas):
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT)
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json", "Authorization": "Bearer any", **session})
        reply = connection.getresponse()
        equal(reply.status, 200)
        events = [json.loads(reply.readline()[6:])]
        drained = next(r for r in replicas if r.metric("kakeya_requests_running") > 0)
        other = next(r for r in replicas if r is not drained)
        drained.signal(signal.SIGTERM)
        before = other.metric("kakeya_request_total", route="/v1/chat/completions", status="200")
        for _ in range(20):  # none of them is lost meanwhile
            equal(front.post("/v1/chat/completions", short, headers=session).status, 200, "a new request")
        eventually(lambda: front.post("/v1/chat/completions", short, headers=session).status == 200 and
                   other.metric("kakeya_request_total", route="/v1/chat/completions", status="200") >= before + 21, "they go to the other")
        holds(drained.process.poll() is None, "the stream still runs")
        for line in reply:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
            elif line.startswith(b"data: "):
                equal(line, b"data: [DONE]\n")
                break
        else:
            raise AssertionError(f"the stream ends behind {len(events)} events: {events[-1]}")
        equal([e["choices"][0]["finish_reason"] for e in events][-1], "length")
        tokens = [t for e in events for t in e["choices"][0].get("token_ids") or []]
        equal(len(tokens), 6000)
        connection.close()
        equal(drained.wait(), 0, "and then the replica ends")


@test("two replicas behind HAProxy: one is killed in mid-conversation, and the conversation goes on with the same tokens")
def _():
    if not shutil.which("haproxy"):
        raise Skip("there is no haproxy")
    conversation_goes_on("haproxy", haproxy)


@test("the same behind nginx")
def _():
    if not shutil.which("nginx"):
        raise Skip("there is no nginx")
    conversation_goes_on("nginx", nginx)


@test("a stream behind HAProxy survives the drain of its replica")
def _():
    if not shutil.which("haproxy"):
        raise Skip("there is no haproxy")
    stream_survives_a_drain(haproxy)


@test("a stream behind nginx survives the drain of its replica")
def _():
    if not shutil.which("nginx"):
        raise Skip("there is no nginx")
    stream_survives_a_drain(nginx)


@test("the dashboard asks for metrics that the server has")
def _():
    s = Server()
    known = {name.split("|")[0] for name in metrics(s.get("/metrics").body.decode())}
    with open("packaging/grafana.json") as f:
        asked = set(re.findall(r"kakeya_[a-z0-9_]+", " ".join(t["expr"] for p in json.load(f)["panels"] for t in p["targets"])))
    holds(len(asked) > 15, f"{len(asked)} metrics")
    equal(sorted(asked - known), [])
    s.stop()


def reachable(front):
    try:
        return front.get("/health").status == 200
    except OSError:
        return False


@test("the service manager hears when the server is ready, and when it ends")
def _():
    path = os.path.join(folder, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(WAIT)
        s = Server(environment={"NOTIFY_SOCKET": path})
        equal(manager.recv(100), b"READY=1")
        s.signal(signal.SIGTERM)
        equal(manager.recv(100), b"STOPPING=1")
        s.stop()


try:
    run_tests()
finally:
    shutil.rmtree(folder, ignore_errors=True)
