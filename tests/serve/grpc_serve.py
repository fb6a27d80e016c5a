"""`kakeya serve` over gRPC: its option, first line, keys, metrics, log and end."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile

import grpc
from grpc_harness import CHANNEL, fails, health_pb, health_pb2_grpc, pb, runtime_pb2_grpc
from harness import (BUILD, MODELS, WAIT, WHOLE, Server, Skip, equal, eventually, holds, in_threads, read_all, run_tests,
                     scripted_model,
                     test)

Code = grpc.StatusCode
PROMPT = [2, 4528, 110, 111, 112, 113, 114]


class Runtime:
    def __init__(self, server, key=None):
        self.channel = grpc.insecure_channel(server.addresses["grpc"], options=CHANNEL)
        self.stub = runtime_pb2_grpc.RuntimeServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.more = {"timeout": WAIT, "metadata": (("authorization", f"Bearer {key}"),) if key else ()}

    def start(self):
        session = self.stub.CreateSession(pb.CreateSessionRequest(client_label="a \"label\"\n"), **self.more).session_id
        request = pb.AppendTokensRequest(session_id=session, token_ids=PROMPT)
        equal(self.stub.AppendTokens(request, **self.more).history_length, len(PROMPT))
        return session

    def generate(self, session, max_tokens):
        return self.stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=max_tokens), **self.more)


@test("the first line has the address; answers, counters and log lines")
def whole():
    server = Server("--grpc", "127.0.0.1:0", "--log-json")
    runtime = Runtime(server)
    equal(runtime.health.Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 1)
    before = server.metric("kakeya_generation_tokens_total"), server.metric("kakeya_prompt_tokens_total")
    session = runtime.start()
    frames = list(runtime.generate(session, 20))
    equal((len(frames), frames[-1].done.generated_token_count), (21, 20))
    eventually(lambda: server.metric("kakeya_generation_tokens_total") == before[0] + 20, "tokens are counted")
    equal(server.metric("kakeya_prompt_tokens_total"), before[1] + len(PROMPT))
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith('{"rpc"')]
    equal([(line["rpc"], line["code"]) for line in lines], [("CreateSession", 0), ("AppendTokens", 0), ("Generate", 0)])
    equal((lines[0]["label"], lines[2]["session"], lines[2]["generated_tokens"]), ("a \"label\"\n", session, 20))
    equal(server.stop(), 0)


def has_loaded(server, library):
    with open(f"/proc/{server.process.pid}/maps") as maps:
        return any(library in line for line in maps)


@test("a connection without calls is closed after --keep-alive, whatever it has said; one with a call stays, and clients come back")
def idle():
    server = Server("--grpc", "127.0.0.1:0", "--keep-alive", "1")
    host, port = server.addresses["grpc"].rsplit(":", 1)
    runtime = Runtime(server)
    session = runtime.start()
    answer = runtime.generate(session, 4000)
    next(answer)
    said = (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    silent = [socket.create_connection((host, int(port)), timeout=WAIT) for _ in said]
    for connection, text in zip(silent, said):
        connection.sendall(text)
    for connection in silent:
        read_all(connection)  # comes to its end
        connection.close()
    holds(len(list(answer)) > 1, "the call that was under way ends as it would")
    session = runtime.start()
    holds(established(int(port)) > 0, "it is known where connections are seen")
    eventually(lambda: established(int(port)) == 0, "the client's own connection is closed, too")
    equal(len(list(runtime.generate(session, 5))), 6, "it comes back")
    equal(server.stop(), 0)


def established(port):
    """Connections to a port of this machine, on the server's side."""
    found = 0
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name) as table:
            rows = [line.split() for line in table][1:]
        found += sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)
    return found


@test("grpc is loaded by a server that offers it and by no other; where it is not installed, the start says so")
def loading():
    server = Server("--grpc", "127.0.0.1:0")
    holds(has_loaded(server, "libgrpc"), "a server with gRPC has loaded it")
    equal(server.stop(), 0)
    with tempfile.TemporaryDirectory() as directory:
        broken = {"LD_LIBRARY_PATH": directory}
        for name in installed_names():
            open(os.path.join(directory, name), "w").close()
        server = Server("--grpc", "off", environment=broken)
        holds(not has_loaded(server, "libgrpc"), "a server without gRPC has not")
        equal(server.stop(), 0)
        try:
            Server("--grpc", "127.0.0.1:0", environment=broken).stop()
        except AssertionError as error:
            holds("gRPC does not load: " in str(error), str(error))
        else:
            raise AssertionError("an empty file was taken for grpc")


def installed_names():
    """libgrpc.so.29, and whatever else ldconfig knows of that kind: one of them is the one that was built against."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^\s*(libgrpc\.so\S*)", known, re.M))
    holds(names, "ldconfig knows libgrpc")
    return names


@test("off, an address that is taken, one that is none")
def addresses():
    server = Server("--grpc", "off")
    equal(server.addresses["grpc"], None)
    equal(server.stop(), 0)
    server = Server("--grpc", "127.0.0.1:0")
    for address, words in ((server.addresses["grpc"], server.addresses["grpc"]), ("nowhere", "HOST:PORT")):
        try:
            Server("--grpc", address).stop()
        except AssertionError as error:
            holds(words in str(error) and "gRPC" in str(error), str(error))
        else:
            raise AssertionError(f"{address} was taken twice")
    server.stop()


@test("keys are those of HTTP; health needs none")
def keys():
    server = Server("--grpc", "127.0.0.1:0", "--api-key", "one", "--api-key", "two")
    for key in (None, "three"):
        fails(Code.UNAUTHENTICATED, Runtime(server, key).start)
    for key in ("one", "two"):
        Runtime(server, key).start()
    both = Runtime(server, "one")
    both.more["metadata"] += (("authorization", "Bearer two"),)
    fails(Code.UNAUTHENTICATED, both.start)
    equal(Runtime(server).health.Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 1)
    server.stop()


@test("sessions end when nobody uses them for --session-ttl")
def expiry():
    server = Server("--grpc", "127.0.0.1:0", "--session-ttl", "1")
    runtime = Runtime(server)

    def begun():  # where the machine stands still it is gone between its making and its tokens
        try:
            return runtime.start()
        except grpc.RpcError as error:
            equal(error.code(), Code.NOT_FOUND)

    session = eventually(begun, "a session")

    def gone():
        try:
            runtime.stub.GetSessionInfo(pb.GetSessionInfoRequest(session_id=session), **runtime.more)
            return False
        except grpc.RpcError as error:
            return error.code() == Code.NOT_FOUND
    eventually(gone, "the session ends")
    server.stop()


@test("a session goes on after a restart where there is a directory")
def restart():
    with tempfile.TemporaryDirectory() as directory:
        server = Server("--grpc", "127.0.0.1:0", "--session-dir", directory)
        whole = Runtime(server)
        session, other = whole.start(), whole.start()
        expected = [frame.token_id for frame in whole.generate(other, 12)][:12]
        first = [frame.token_id for frame in whole.generate(session, 5)][:5]
        equal(server.stop(), 0)
        server = Server("--grpc", "127.0.0.1:0", "--session-dir", directory)
        second = [frame.token_id for frame in Runtime(server).generate(session, 7)][:7]
        equal(first + second, expected)
        equal(server.stop(), 0)


@test("a session that was not closed outlives kill -9 once it was idle for a moment")
def killed():
    with tempfile.TemporaryDirectory() as directory:
        server = Server("--grpc", "127.0.0.1:0", "--session-dir", directory)
        runtime = Runtime(server)
        sessions = [runtime.start() for _ in range(28)]
        files = {f"{s}.kkc" for s in sessions}
        eventually(lambda: files <= set(os.listdir(directory)), "all are saved")
        server.process.kill()
        server.process.wait()
        server = Server("--grpc", "127.0.0.1:0", "--session-dir", directory)
        runtime = Runtime(server)
        for session in sessions:
            info = runtime.stub.GetSessionInfo(pb.GetSessionInfoRequest(session_id=session), **runtime.more)
            equal(info.history_length, len(PROMPT))
        equal(server.stop(), 0)


@test("sessions that nobody closes count for --cache-ram, with a directory and without, and none of them is lost")
def many():
    with tempfile.TemporaryDirectory() as directory:
        for options in (["--session-dir", directory], []):
            server = Server("--grpc", "127.0.0.1:0", "--cache-ram", "20M", *options)
            runtime = Runtime(server)
            expected = [frame.token_id for frame in runtime.generate(runtime.start(), 6)][:6]
            sessions = [runtime.start() for _ in range(30)]
            eventually(lambda: server.metric("kakeya_store_bytes", tier="ram") <= 20 << 20, "they leave memory")
            kinds = ("full", "sliding", "latent", "draft")
            held = sum(server.metric("kakeya_kv_bytes", kind=k) for k in kinds)
            holds(held <= 24 << 20, f"{held} bytes of K/V memory")
            for session in sessions:
                equal([frame.token_id for frame in runtime.generate(session, 6)][:6], expected)
            eventually(lambda: server.metric("kakeya_store_bytes", tier="ram") <= 20 << 20, "they leave memory again")
            equal(server.stop(), 0)


@test("SIGTERM: health says so, new work is refused, what runs ends, and the exit status is 0")
def drain():
    server = Server("--grpc", "127.0.0.1:0", "--drain", "60")
    runtime = Runtime(server)
    call = runtime.generate(runtime.start(), 400)
    next(call)
    watch = runtime.health.Watch(health_pb.HealthCheckRequest(), timeout=WAIT)
    equal(next(watch).status, 1)
    server.signal(signal.SIGTERM)
    equal(next(watch).status, 2)
    fails(Code.UNAVAILABLE, runtime.start)
    frames = list(call)
    equal((len(frames), frames[-1].done.generated_token_count), (400, 400), "the running answer ends")
    equal(server.wait(), 0)
    server = Server("--grpc", "127.0.0.1:0", "--drain", "0")
    runtime = Runtime(server)
    call = runtime.generate(runtime.start(), 8000)
    next(call)
    server.signal(signal.SIGTERM)
    fails(Code.UNAVAILABLE, lambda: list(call))
    equal(server.wait(), 0)


def asleep(server):
    return server.log().count("sleeping: ") > server.log().count("awake after ")


@test("--idle-unload: calls that need the model wake it, others and polls do not; sessions keep ids, tokens and answers")
def sleep():
    with tempfile.TemporaryDirectory() as directory:
        server = Server("--grpc", "127.0.0.1:0", "--idle-unload", "1", "--session-dir", directory)
        runtime = Runtime(server)
        session, empty = runtime.start(), runtime.stub.CreateSession(pb.CreateSessionRequest(eos_token_ids=[7, 9])).session_id
        whole = [frame.token_id for frame in runtime.generate(session, 40)][:40]
        one, two = runtime.start(), runtime.start()
        list(runtime.generate(one, 20))

        def info(name):
            return runtime.stub.GetSessionInfo(pb.GetSessionInfoRequest(session_id=name), **runtime.more)

        def check():
            equal(runtime.health.Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 1)
            equal(info(one).history_length, len(PROMPT) + 20)
            return asleep(server)

        eventually(check, "it sleeps although it is asked about sessions")
        equal((info(one).kv_live_bytes, info(empty).history_length), (0, 0))
        equal(runtime.stub.CloseSession(pb.CloseSessionRequest(session_id=two), **runtime.more).final_history_length, len(PROMPT))
        fails(Code.NOT_FOUND, lambda: info(two))
        holds(asleep(server), "none of these wakes it")
        frames = list(runtime.generate(one, 20))  # goes on where it was
        equal([frame.token_id for frame in frames[:20]], whole[20:])
        eventually(lambda: asleep(server), "it sleeps again")
        request = pb.AppendTokensRequest(session_id=empty, token_ids=PROMPT)
        equal(runtime.stub.AppendTokens(request, **runtime.more).history_length, len(PROMPT))
        eventually(lambda: asleep(server), "and again")
        holds(runtime.stub.CreateSession(pb.CreateSessionRequest(), **runtime.more).session_id, "a new one")
        equal(server.stop(), 0)


@test("--idle-unload without --session-dir: sessions that hold tokens keep the model in memory, empty ones do not")
def wakeful():
    server = Server("--grpc", "127.0.0.1:0", "--idle-unload", "0.5")
    runtime = Runtime(server)
    empty = runtime.stub.CreateSession(pb.CreateSessionRequest(), **runtime.more).session_id
    eventually(lambda: asleep(server), "it sleeps")
    session = runtime.start()
    expected = [frame.token_id for frame in runtime.generate(session, 10)][:10]
    eventually(lambda: "the model stays in memory: " in server.log(), "it says why it does not")
    other = runtime.start()
    equal([frame.token_id for frame in runtime.generate(other, 10)][:10], expected)
    equal(server.get("/health").json["status"], "ok")
    for name in (session, other):
        equal(runtime.stub.CloseSession(pb.CloseSessionRequest(session_id=name), **runtime.more).final_history_length, len(PROMPT) + 10)
    eventually(lambda: asleep(server), "nothing holds it now")
    request = pb.AppendTokensRequest(session_id=empty, token_ids=PROMPT)
    equal(runtime.stub.AppendTokens(request, **runtime.more).history_length, len(PROMPT))
    equal(server.stop(), 0)


@test("--idle-unload: a model that has gone is UNAVAILABLE, to everybody who waits")
def gone():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model")
        shutil.copytree(os.path.join(MODELS, "demo"), path)
        server = Server("--grpc", "127.0.0.1:0", "--idle-unload", "0.5", model=path)
        runtime = Runtime(server)
        eventually(lambda: asleep(server), "it sleeps")
        os.rename(path, path + ".away")
        calls = [runtime.stub.CreateSession.future(pb.CreateSessionRequest(), **runtime.more) for _ in range(3)]
        for call in calls:
            fails(Code.UNAVAILABLE, call.result, "the model cannot be loaded again: " + path)
        equal(runtime.health.Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 1)
        os.rename(path + ".away", path)
        holds(runtime.stub.CreateSession(pb.CreateSessionRequest(), **runtime.more).session_id, "it is back")
        equal(server.stop(), 0)


class Losing:
    """A server whose next forward fails as a whole when it is told to; its model is a link."""

    def __init__(self):
        program = os.path.join(BUILD, "tools/failing_kakeya")
        if not os.path.exists(program):
            raise Skip("this build has no program whose device fails")
        self.directory = tempfile.mkdtemp()
        self.model, self.order = os.path.join(self.directory, "model"), os.path.join(self.directory, "lose")
        os.symlink(os.path.join(MODELS, "demo"), self.model)
        self.server = Server("--grpc", "127.0.0.1:0", "--name", "m", "--threads", "1", program=program, model=self.model,
                             environment={"LOSE_DEVICE": self.order})

    def lose(self):
        open(self.order, "w").close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()
        shutil.rmtree(self.directory)


@test("F12: a forward that fails as a whole: calls under way end INTERNAL, their sessions are lost, and the next ones are served")
def lost():
    with Losing() as losing:
        runtime = Runtime(losing.server)
        expected = [frame.token_id for frame in runtime.generate(runtime.start(), 20)][:20]
        times = 40 if WHOLE else 4  # a session on its way back to the store once met the next engine, in one of twenty
        for time in range(1, times + 1):
            one, two = runtime.start(), runtime.start()
            calls = [runtime.generate(session, 8000) for session in (one, two)]
            for call in calls:
                next(call)
            losing.lose()
            for call in calls:
                fails(Code.INTERNAL, lambda: list(call))
            eventually(lambda: losing.server.log().count("awake after ") == time, "the model is loaded again")
            equal([frame.token_id for frame in runtime.generate(runtime.start(), 20)][:20], expected)
            for session in (one, two):
                fails(Code.NOT_FOUND, lambda: runtime.generate(session, 1))
        equal(losing.server.log().count("the computation has failed; the model is loaded again"), times)
        equal(losing.server.stop(), 0)


@test("... and where the model has gone, too, everybody hears why, and the program ends with status 1 and one line")
def lost_for_good():
    with Losing() as losing:
        runtime = Runtime(losing.server)
        call, other = runtime.generate(runtime.start(), 8000), runtime.start()
        next(call)
        os.unlink(losing.model)
        losing.lose()
        fails(Code.INTERNAL, lambda: list(call))
        fails(Code.UNAVAILABLE, lambda: runtime.generate(other, 5))  # it waits, or meets a server that ends
        equal(losing.server.wait(), 1)
        lines = losing.server.log().splitlines()
        last = [line for line in lines if "cannot be loaded again" in line]
        equal(last, [lines[-1]])
        holds(losing.model in lines[-1], lines[-1])


@test("answers of gRPC and of HTTP that do not fit together wait for each other, and have the tokens that they have alone")
def little_memory():
    model, tokens = scripted_model("The quick brown fox jumps over it."), 1600
    plain = Server("--grpc", "127.0.0.1:0", "--threads", "1", "--name", "m", model=model)
    workspace = int(float(plain.said(r"([\d.]+) MB for workspace").group(1)) * 1e6 + 1e6)  # and what sampling takes
    each = tokens * (2 * 2 * 16 * 4 + 8)  # keys and values of the model's one layer, and what a session keeps beside them

    def ask(server, seed):
        body = {"model": "m", "messages": [{"role": "user", "content": "Say something."}], "temperature": 1, "seed": seed,
                "max_tokens": tokens, "ignore_eos": True}
        reply = server.post("/v1/chat/completions", body)
        equal(reply.status, 200, reply.body[:300])
        return reply.json["choices"][0]["message"]["content"]

    def generate(runtime, seed):
        session = runtime.start()
        request = pb.GenerateRequest(session_id=session, max_tokens=tokens, temperature=1, seed=seed)
        return [frame.token_id for frame in runtime.stub.Generate(request, **runtime.more)][:tokens]

    def all_of(server):
        runtime = Runtime(server)
        return [lambda s=s: generate(runtime, s) for s in range(3)] + [lambda s=s: ask(server, s) for s in range(3)]
    expected = [function() for function in all_of(plain)]
    plain.stop()
    server = Server("--grpc", "127.0.0.1:0", "--threads", "1", "--name", "m", "--cache-ram", "0", "--memory-limit",
                    f"{(workspace + 2 * each) // 1024}K", model=model)
    for i, (answer, wanted) in enumerate(zip(in_threads(all_of(server)), expected)):
        equal(answer, wanted, f"answer {i}")
    holds(server.metric("kakeya_preemptions_total") > 0, "nobody gave way")
    equal(server.stop(), 0)


run_tests()
