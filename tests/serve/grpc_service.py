"""The gRPC service against clients from its own .proto: the wire, the behaviour, many clients at once, health."""

import json
import os
import struct
import subprocess
import tempfile
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from grpc_harness import (
    BUILD, DEMO, KAKEYA, PROTO, TINY, Service, fails, generate_stubs, health_pb, health_pb2_grpc, pb, runtime_pb2_grpc)
from harness import KAKEYA, SHORT, WAIT, equal, eventually, holds, in_threads, run_tests, test

Code = grpc.StatusCode
Done = pb.GenerateDone
PROMPT = [2, 4528, 110, 111, 112, 113, 114]
VOCAB, CONTEXT = 8192, 8192

shared = Service()


def run_kakeya(ids, max_tokens, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        output = subprocess.run(
            [KAKEYA, "run", "--model", DEMO, "--ids-file", file.name, "--json", "--ignore-eos", "--attention", "native",
             "--max-tokens", str(max_tokens), *options], check=True, capture_output=True, text=True).stdout
    return json.loads(output)["token_ids"]


def prompt(n, salt=0):
    return [2] + [100 + (i * 7 + salt * 13) % 900 for i in range(n - 1)]


def start(service=shared, ids=PROMPT, eos=()):
    session = service.create(eos)
    equal(service.append(session, ids), len(ids), "history")
    return session


# ------------------------------------------------------------------------------------------------ the wire


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


@test("46: messages have the bytes that other implementations of this interface write")
def bytes_of_messages():
    for message, expected in (
            (pb.AppendTokensRequest(session_id="s", token_ids=[1, 300, 262143]), "0a0173120601ac02ffff0f"),
            (pb.GenerateRequest(session_id="s", max_tokens=5, seed=0, temperature=0), "0a017310051800" "2500000000"),
            (pb.GenerateResponse(token_id=0), "0800"),
            (pb.GenerateResponse(done=Done(stop_reason=Done.STOP_REASON_EOS, generated_token_count=3,
                                           total_duration_seconds=0.5)), "120d0802100321000000000000e03f")):
        equal(message.SerializeToString().hex(), expected, type(message).__name__)


@test("45: the service has the names and numbers of the published interface")
def names_and_numbers():
    service = pb.DESCRIPTOR.services_by_name["RuntimeService"]
    equal([(m.name, m.input_type.name, m.output_type.name, m.server_streaming, m.client_streaming)
           for m in service.methods],
          [(n, n + "Request", n + "Response", n == "Generate", False)
           for n in ("CreateSession", "AppendTokens", "Generate", "CloseSession", "GetSessionInfo")])
    equal(service.full_name, "kakeya.v1.RuntimeService")
    # name, number, type of descriptor.proto, repeated, presence
    string, uint32, uint64, single, double, enum, message = 9, 13, 4, 2, 1, 14, 11
    expected = {
        "CreateSessionRequest": [("client_label", 1, string, 0, 0), ("eos_token_ids", 2, uint32, 1, 0)],
        "CreateSessionResponse": [("session_id", 1, string, 0, 0)],
        "AppendTokensRequest": [("session_id", 1, string, 0, 0), ("token_ids", 2, uint32, 1, 0)],
        "AppendTokensResponse": [("history_length", 1, uint64, 0, 0)],
        "GenerateRequest": [("session_id", 1, string, 0, 0), ("max_tokens", 2, uint32, 0, 0), ("seed", 3, uint64, 0, 1),
                            ("temperature", 4, single, 0, 1), ("top_p", 5, single, 0, 1), ("top_k", 6, uint32, 0, 1)],
        "GenerateResponse": [("token_id", 1, uint32, 0, 1), ("done", 2, message, 0, 1), ("truncated", 3, message, 0, 1)],
        "GenerateDone": [("stop_reason", 1, enum, 0, 0), ("generated_token_count", 2, uint32, 0, 0),
                         ("prefill_duration_seconds", 3, double, 0, 0), ("total_duration_seconds", 4, double, 0, 0)],
        "HistoryTruncated": [("dropped_token_count", 1, uint64, 0, 0)],
        "CloseSessionRequest": [("session_id", 1, string, 0, 0)],
        "CloseSessionResponse": [("final_history_length", 1, uint64, 0, 0)],
        "GetSessionInfoRequest": [("session_id", 1, string, 0, 0)],
        "GetSessionInfoResponse": [
            ("history_length", 1, uint64, 0, 0), ("kv_live_bytes", 2, uint64, 0, 0),
            ("cache_invariant_inv1_violations", 3, uint64, 0, 0), ("cache_invariant_inv2_violations", 4, uint64, 0, 0),
            ("idle_seconds", 5, double, 0, 0)],
    }
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    actual = {m.name: [(f.name, f.number, f.type, int(f.label == 3), int(f.HasField("oneof_index"))) for f in m.field]
              for m in file.message_type}
    equal(actual, expected)
    equal(dict(Done.StopReason.items()),
          {"STOP_REASON_UNSPECIFIED": 0, "STOP_REASON_MAX_TOKENS": 1, "STOP_REASON_EOS": 2, "STOP_REASON_CANCELLED": 3,
           "STOP_REASON_TRUNCATED": 4})


def load_messages(path):
    """Messages of a .proto in a pool of their own."""
    with tempfile.TemporaryDirectory() as directory:
        output = os.path.join(directory, "set")
        import grpc_tools.protoc
        equal(grpc_tools.protoc.main(["protoc", f"-I{path}", f"--descriptor_set_out={output}",
                                      "kakeya/v1/runtime.proto"]), 0, path)
        with open(output, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kakeya.v1.{name}"))


@test("the form for protoc-c gives the bytes of the shipped .proto")
def both_forms():
    shipped, derived = load_messages(PROTO), load_messages(os.path.join(BUILD, "proto"))
    same = 0
    for name, values in (
            ("CreateSessionRequest", {"client_label": "grüß", "eos_token_ids": [0, 7, 42]}),
            ("CreateSessionResponse", {"session_id": "sess-1"}), ("CreateSessionResponse", {}),
            ("AppendTokensRequest", {"session_id": "s", "token_ids": [1, 300, 262143]}),
            ("AppendTokensResponse", {"history_length": 2**63}),
            ("GenerateRequest", {"session_id": "s", "max_tokens": 5}),
            ("GenerateRequest", {"session_id": "s", "max_tokens": 5, "seed": 0, "temperature": 0, "top_p": 0, "top_k": 0}),
            ("GenerateRequest", {"seed": 2**64 - 1, "temperature": 1.5, "top_p": 0.25, "top_k": 64}),
            ("GenerateResponse", {"token_id": 0}), ("GenerateResponse", {"token_id": 262143}),
            ("CloseSessionRequest", {"session_id": "s"}), ("CloseSessionResponse", {"final_history_length": 7}),
            ("GetSessionInfoRequest", {"session_id": "s"}),
            ("GetSessionInfoResponse", {"history_length": 1, "kv_live_bytes": 2, "idle_seconds": 0.5})):
        one, other = shipped(name)(**values), derived(name)()
        data = one.SerializeToString(deterministic=True)
        other.ParseFromString(data)
        equal(other.SerializeToString(deterministic=True), data, f"{name} {values}")
        for field, value in values.items():
            got = getattr(other, field)
            if isinstance(value, (list, float)):
                got, value = list(got) if isinstance(value, list) else got, value
            equal(got, value.encode() if isinstance(value, str) else value, f"{name}.{field}")
        same += 1
    equal(same, 14)


@test("46: ids that are not packed, and fields that nobody knows, are read")
def unpacked_ids():
    session = shared.create()
    data = b"\x0a" + varint(len(session)) + session.encode()
    ids = [1, 300, 8191]
    unpacked = b"".join(b"\x10" + varint(i) for i in ids)
    unknown = b"\xf8\x06\x05" + b"\xfa\x06\x03abc"
    reply = shared.raw("AppendTokens")(data + unpacked + unknown, timeout=WAIT)
    equal(pb.AppendTokensResponse.FromString(reply).history_length, 3)
    mixed = b"\x12" + varint(3) + b"".join(varint(i) for i in (5, 300)) + b"\x10\x07"
    equal(pb.AppendTokensResponse.FromString(shared.raw("AppendTokens")(data + mixed, timeout=WAIT)).history_length, 6)
    other = start(ids=ids + [5, 300, 7])
    equal(shared.answer(session, 8)[0], shared.answer(other, 8)[0], "the same tokens however they came")


@test("46: token 0 is a frame with a payload")
def token_zero():
    # Half a vocabulary of prompts, sampled hot, meets token 0 at most once in a while; the tiny model meets it soon.
    with Service(TINY) as service:
        session = start(service, [5, 6, 7])
        for seed in range(2000):
            frames = list(service.raw_stream("Generate")(
                pb.GenerateRequest(session_id=session, max_tokens=64, seed=seed, temperature=2).SerializeToString()))
            if b"\x08\x00" in frames:
                return
            service.close(session)
            session = start(service, [5, 6, 7])
    raise AssertionError("token 0 was never sampled")


@test("bytes that are no message, and text that is no text, are refused; the connection lives")
def bad_bytes():
    for method in ("CreateSession", "AppendTokens", "CloseSession", "GetSessionInfo"):
        for data in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x0a\x03a\x00b", b"\x0a\x03\xed\xa0\x80"):
            fails(Code.INVALID_ARGUMENT, lambda: shared.raw(method)(data, timeout=WAIT))
    fails(Code.INVALID_ARGUMENT, lambda: shared.raw_stream("Generate")(b"\x0a\x01\xff", timeout=WAIT))
    fails(Code.NOT_FOUND, lambda: shared.raw("GetSessionInfo")(b"", timeout=WAIT))
    long_id = "ä" * 5000
    error = fails(Code.NOT_FOUND, lambda: shared.info(long_id), "ä" * 32)
    holds(len(error.details()) < 200, "an error shows a part of a long name")
    shared.close(shared.create(label="ok"))


@test("requests up to 16 MiB are read, larger ones refused")
def large_messages():
    session = shared.create()
    error = fails(Code.INVALID_ARGUMENT, lambda: shared.append(session, [300] * 2_000_000), "2000000", CONTEXT)
    holds("context" in error.details(), error.details())
    fails(Code.RESOURCE_EXHAUSTED, lambda: shared.append(session, [300] * 9_000_000), "larger")
    # Numbers that are not packed take many times their bytes: still refused, and not by a crash.
    unpacked = b"\x0a" + varint(len(session)) + session.encode() + b"\x10\x05" * 7_000_000
    fails(Code.RESOURCE_EXHAUSTED, lambda: shared.raw("AppendTokens")(unpacked, timeout=WAIT), "too many fields")
    equal(shared.info(session).history_length, 0)
    equal(shared.append(session, PROMPT), len(PROMPT), "the session lives")


# ------------------------------------------------------------------------------------------------ sessions


@test("45: the calls that the published clients make")
def acceptance():
    session = shared.create(eos=[0, 7, 42])
    holds(session.startswith("sess-") and len(session) == 37, session)
    info = shared.info(session)
    equal(info.history_length, 0)
    equal(shared.append(session, [1, 2, 3]), 3)
    equal(shared.info(session).history_length, 3)
    tokens, done, truncated = shared.answer(session, 4)
    holds(1 <= len(tokens) <= 4 and done.stop_reason in (Done.STOP_REASON_MAX_TOKENS, Done.STOP_REASON_EOS), str(done))
    equal(truncated, None, "nothing is lost under native attention")
    holds(done.total_duration_seconds >= done.prefill_duration_seconds > 0, str(done))
    info = shared.info(session)
    equal(info.history_length, 3 + len(tokens), "generated tokens join the history")
    holds(info.kv_live_bytes > 0, "K/V memory is counted")
    equal((info.cache_invariant_inv1_violations, info.cache_invariant_inv2_violations), (0, 0))
    holds(0 <= info.idle_seconds < WAIT, f"idle for {info.idle_seconds} s")
    equal(shared.append(session, []), 3 + len(tokens), "an empty list changes nothing")
    second = shared.create()
    shared.append(second, [1, 2])
    equal(shared.close(second), 2, "final length")
    fails(Code.NOT_FOUND, lambda: shared.close(second), second)
    for call in (lambda: shared.append("sess-" + "0" * 32, [1]), lambda: shared.append(second, [1]),
                 lambda: shared.info(second), lambda: shared.generate(second, 1), lambda: shared.info("other")):
        fails(Code.NOT_FOUND, call)
    fails(Code.INVALID_ARGUMENT, lambda: shared.generate(session, 0), "max_tokens")
    fails(Code.INVALID_ARGUMENT, lambda: shared.generate(shared.create(), 1), "no tokens")


@test("47: ids outside the vocabulary, and more than the context holds, change nothing")
def refused_tokens():
    session = start()
    fails(Code.INVALID_ARGUMENT, lambda: shared.append(session, [5, VOCAB, 6]), "[1]", VOCAB)
    fails(Code.INVALID_ARGUMENT, lambda: shared.append(session, [2**32 - 1]), 2**32 - 1)
    fails(Code.INVALID_ARGUMENT, lambda: shared.append(session, [5] * (CONTEXT - len(PROMPT) + 1)), CONTEXT, len(PROMPT))
    equal(shared.info(session).history_length, len(PROMPT))
    equal(shared.append(session, [VOCAB - 1]), len(PROMPT) + 1)


@test("sampling options: refused out of range, honoured within")
def sampling():
    session = start()
    for bad in ({"temperature": -0.5}, {"temperature": 2.5}, {"temperature": float("nan")}, {"top_p": -0.1}, {"top_p": 1.5}):
        fails(Code.INVALID_ARGUMENT, lambda: shared.generate(session, 1, **bad), next(iter(bad)))
    equal(shared.info(session).history_length, len(PROMPT), "a refusal changes nothing")
    greedy = run_kakeya(PROMPT, 24)
    for same in ({}, {"seed": 5}, {"temperature": 0.0, "top_p": 0.5, "top_k": 3}, {"temperature": 1.5, "top_k": 1},
                 {"temperature": 1.5, "top_p": 0.0}):
        equal(shared.answer(start(), 24, **same)[0], greedy, f"greedy with {same}")
    options = {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 77}
    expected = run_kakeya(PROMPT, 24, "--temperature", "0.9", "--top-p", "0.9", "--top-k", "40", "--seed", "77")
    equal(shared.answer(start(), 24, **options)[0], expected, "the tokens of kakeya run with a seed")
    equal(shared.answer(start(), 24, **options)[0], expected, "again")
    hot = {tuple(shared.answer(start(), 24, temperature=2.0)[0]) for _ in range(3)}
    equal(len(hot), 3, "without a seed every answer is another one")


@test("end tokens are sent, kept and reported; without any the answer goes to max_tokens")
def end_tokens():
    greedy = run_kakeya(PROMPT, 24)
    at = next(i for i in range(3, 24) if greedy[i] not in greedy[:i])
    session = start(eos=[VOCAB + 5, greedy[at], 7])
    tokens, done, _ = shared.answer(session, 24)
    equal(tokens, greedy[: at + 1])
    equal(done.stop_reason, Done.STOP_REASON_EOS)
    equal(shared.info(session).history_length, len(PROMPT) + at + 1, "the end token belongs to the history")
    tokens, done, _ = shared.answer(start(), 24)
    equal((tokens, done.stop_reason), (greedy, Done.STOP_REASON_MAX_TOKENS))
    fails(Code.INVALID_ARGUMENT, lambda: shared.create(eos=range(2000)), 2000)


@test("an answer ends where the context ends")
def context_end():
    with Service(context=20) as service:
        session = start(service)
        tokens, done, _ = service.answer(session, 4_000_000_000)
        equal((len(tokens), done.stop_reason), (20 - len(PROMPT), Done.STOP_REASON_TRUNCATED))
        equal(service.info(session).history_length, 20)
        tokens, done, _ = service.answer(session, 5)
        equal((tokens, done.stop_reason), ([], Done.STOP_REASON_TRUNCATED), "a full context")
        session = start(service)
        equal(service.answer(session, 20 - len(PROMPT))[1].stop_reason, Done.STOP_REASON_MAX_TOKENS, "just enough")


@test("turns go on where the last one ended")
def turns():
    session = start()
    first, _, _ = shared.answer(session, 6)
    shared.append(session, [300, 301])
    second, done, _ = shared.answer(session, 6)
    equal(second, run_kakeya(PROMPT + first + [300, 301], 6))
    holds(done.prefill_duration_seconds > 0, "the appended tokens took time")
    equal(shared.answer(session, 6)[1].prefill_duration_seconds, 0.0, "nothing was appended since")


@test("48: a history in one piece, token by token or in parts gives the same answer, beside another session too")
def history_in_pieces():
    ids, other = prompt(120 if SHORT else 300), prompt(90, salt=5)
    expected = run_kakeya(ids, 20)

    def appended(size):
        session = shared.create()
        for i in range(0, len(ids), size):
            equal(shared.append(session, ids[i:i + size]), min(i + size, len(ids)))
        return shared.answer(session, 20)[0]

    for size in (len(ids), 1, 100):
        equal(appended(size), expected, f"pieces of {size}")
    beside = run_kakeya(other, 60)
    one, two = in_threads([lambda: appended(10), lambda: shared.answer(start(ids=other), 60)[0]])
    equal((one, two), (expected, beside), "interleaved")


@test("the frame about a truncated history comes first, under sink-window attention alone")
def truncated():
    with Service(attention="sink-window", sink=4, window=64) as service:
        session = start(service, prompt(68))
        equal(service.answer(session, 2)[2], None, "all 68 tokens are still there")
        session = start(service, prompt(100))
        equal(service.answer(session, 2)[2], 100 - 68)
        equal(service.answer(session, 2)[2], 102 - 68, "once in every answer")
    with Service(attention="restored") as service:
        equal(service.answer(start(service, prompt(100)), 2)[2], None, "restored attention loses nothing")


# ------------------------------------------------------------------------------------------------ at the same time


def long_answer(service, session):
    """A stream that is being answered: its first token has come. Hardly a draft holds, so that it takes many seconds."""
    call = service.generate(session, 8000, temperature=2.0, seed=1)
    holds(next(call).WhichOneof("payload") == "token_id", "the first token")
    return call


@test("47: a busy session refuses a second call and names itself; it tells what it holds")
def busy():
    session = start()
    call = long_answer(shared, session)
    fails(Code.ABORTED, lambda: shared.append(session, [5]), session)
    fails(Code.ABORTED, lambda: shared.generate(session, 1), session)
    fails(Code.ABORTED, lambda: shared.close(session), session)
    history = shared.info(session).history_length
    holds(history > len(PROMPT), "tokens of a running answer are counted")
    call.cancel()
    holds(shared.append(session, [5]) >= history + 1, "the session goes on")


@test("47: a cancel at token 3 keeps the session, which goes on with the same tokens")
def cancelled():
    greedy = run_kakeya(PROMPT, 400)
    for _ in range(3 if SHORT else 10):
        session = start()
        call = shared.generate(session, 4000)
        got = [next(call).token_id for _ in range(3)]
        call.cancel()
        equal(got, greedy[:3])
        seen = shared.info(session).history_length - len(PROMPT)  # the cancel may be on its way yet
        tokens, done, _ = shared.answer(session, 10)
        kept = shared.info(session).history_length - len(PROMPT) - 10
        holds(3 <= seen <= kept, f"history kept {kept} tokens, {seen} before")
        equal(tokens, greedy[kept:kept + 10], "it goes on behind what it has kept")
        equal(done.stop_reason, Done.STOP_REASON_MAX_TOKENS)
        shared.close(session)


def sum_of_running(service):
    """How many tokens finished Generate calls had, by code, as the service tells when they have ended."""
    ended = {}
    while not service.finished.empty():
        line = service.finished.get()
        if line["method"] == "Generate":
            ended[line["session"]] = line
    return ended


@test("a deadline and a lost connection are cancels")
def deadline():
    session = start()
    try:
        for _ in shared.stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=8000), timeout=0.3):
            pass
        raise AssertionError("8000 tokens in 0.3 s")
    except grpc.RpcError as error:
        equal(error.code(), Code.DEADLINE_EXCEEDED)
    holds(shared.info(session).history_length >= len(PROMPT), "the session lives")
    channel = grpc.insecure_channel(shared.address, options=[("grpc.enable_http_proxy", 0),
                                                             ("grpc.use_local_subchannel_pool", 1)])
    call = runtime_pb2_grpc.RuntimeServiceStub(channel).Generate(
        pb.GenerateRequest(session_id=session, max_tokens=8000), timeout=WAIT)
    next(call)
    channel.close()
    eventually(lambda: session in sum_of_running(shared), "the answer ends when its client is gone")
    shared.close(session)


@test("a prompt whose client has gone is given up")
def cancelled_append():
    session = shared.create()
    call = shared.stub.AppendTokens.future(pb.AppendTokensRequest(session_id=session, token_ids=prompt(8000)))
    call.cancel()
    history = shared.info(session).history_length
    holds(history <= 8000, str(history))
    equal(shared.append(session, [5]), history + 1)


@test("47: unknown methods are refused")
def unknown():
    channel = shared.channels[0]
    for path in ("/kakeya.v1.RuntimeService/Reset", "/kakeya.v1.ProposerService/Propose",
                 "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/" + "x" * 1000):
        fails(Code.UNIMPLEMENTED, lambda: channel.unary_unary(path)(b"", timeout=WAIT))


@test("64 streams at once, each with its own answer, a long prompt among them")
def many():
    n = 16 if SHORT else 64
    expected = [run_kakeya(prompt(20, salt=i), 30) for i in range(4)]

    def one(i):
        session = start(ids=prompt(20, salt=i % 4))
        tokens, done, _ = shared.answer(session, 30)
        shared.close(session)
        return tokens, done.stop_reason

    def long_prompt():
        return shared.append(shared.create(), prompt(1000 if SHORT else 3000))

    results = in_threads([long_prompt] + [lambda i=i: one(i) for i in range(n)])
    equal(results[0], 1000 if SHORT else 3000)
    for i, (tokens, reason) in enumerate(results[1:]):
        equal(tokens, expected[i % 4], f"stream {i}")
        equal(reason, Done.STOP_REASON_MAX_TOKENS)


@test("a slow reader pauses its own answer alone, and gets the same tokens")
def slow_reader():
    expected = run_kakeya(PROMPT, 200)
    with Service(ring=8) as service:
        # What the network holds for a client is more than an answer of the demo model, so the ring alone is made small.
        call = service.generate(start(service), 200)
        equal(service.answer(start(service, prompt(30)), 30)[0], run_kakeya(prompt(30), 30), "beside it")
        tokens = [frame.token_id for frame in call if frame.WhichOneof("payload") == "token_id"]
        equal(tokens, expected, "through a ring of 8 tokens")
    with Service(ring=1) as service:
        equal(service.answer(start(service), 60)[0], expected[:60], "through a ring of one token")
        equal(service.answer(start(service), 60, temperature=0.9, seed=3)[0],
              run_kakeya(PROMPT, 60, "--temperature", "0.9", "--seed", "3"), "sampled")


def run_stalled(service, session, count):
    """A raw HTTP/2 client that opens a window of `count` bytes and never more."""
    import socket

    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def header(name, value):
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    host, port = service.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT)
    settings = struct.pack(">HI", 4, count)  # SETTINGS_INITIAL_WINDOW_SIZE
    headers = b"".join(header(*pair) for pair in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/kakeya.v1.RuntimeService/Generate"),
        (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
    message = pb.GenerateRequest(session_id=session, max_tokens=8000).SerializeToString()
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(1, 4, 1, headers) +
                       frame(0, 1, 1, b"\x00" + struct.pack(">I", len(message)) + message))
    return connection


@test("a client that reads nothing is dropped, its session is kept")
def stalled_reader():
    with Service(ring=16, reader=1) as service:
        session = start(service)
        connection = run_stalled(service, session, 100)
        ended = eventually(lambda: sum_of_running(service).get(session), "the call is ended")
        equal(ended["code"], Code.ABORTED.value[0])
        holds(ended["generated"] < 200, f"an answer that nobody reads pauses: {ended['generated']} tokens")
        history = service.info(session).history_length
        equal(history, len(PROMPT) + ended["generated"])
        equal(service.answer(session, 5)[0], run_kakeya(PROMPT, ended["generated"] + 5)[-5:], "it goes on")
        connection.close()


# ------------------------------------------------------------------------------------------------ room and time


@test("sessions expire when they are idle; asking about them does not keep them")
def expiry():
    with Service(ttl=1) as service:
        def begun():
            """A session that was there for a moment: where the machine stands still it is gone before it is asked for."""
            try:
                session = start(service)
                equal(service.info(session).history_length, len(PROMPT))
                return session
            except grpc.RpcError as error:
                equal(error.code(), Code.NOT_FOUND)

        session = eventually(begun, "a session")

        def gone():
            try:
                service.info(session)
                return False
            except grpc.RpcError as error:
                return error.code() == Code.NOT_FOUND
        eventually(gone, "an idle session expires")


@test("a session more than there is room for drops the one that was idle longest, and no busy one")
def capacity():
    with Service(sessions=3) as service:
        one, two, three = (start(service) for _ in range(3))
        service.append(one, [])
        service.answer(two, 1)
        four = start(service)
        fails(Code.NOT_FOUND, lambda: service.info(three))
        calls = [long_answer(service, session) for session in (one, two, four)]
        fails(Code.RESOURCE_EXHAUSTED, lambda: service.create(), "busy")
        calls[0].cancel()
        eventually(lambda: one in sum_of_running(service), "the first answer has ended")
        service.create()
        fails(Code.NOT_FOUND, lambda: service.info(one))
        for call in calls[1:]:
            next(call)
            call.cancel()


@test("idle sessions make room where memory runs out, and none is lost: they go on with the same tokens")
def memory():
    length, count = 300, 16
    with Service(memory=40 << 20, drafter="none", f_theta="none") as service:
        sessions = []
        for i in range(count):
            session = service.create()
            service.append(session, prompt(length, salt=i))
            sessions.append(session)
        held = [service.info(session) for session in sessions]
        equal([info.history_length for info in held], [length] * count)
        holds(any(info.kv_live_bytes == 0 for info in held), "some had to leave memory")
        holds(held[-1].kv_live_bytes > 0, "the newest is there")
        for i in (0, count - 1):
            equal(service.answer(sessions[i], 5)[0], run_kakeya(prompt(length, salt=i), 5), f"session {i}")
    with Service(memory=1 << 20, drafter="none", f_theta="none", load=False) as service:
        service.tell("load")
        eventually(lambda: service.process.poll() is not None, "a model that does not fit ends the program")
        equal(service.process.returncode, 1)
        service.process.returncode = 0


@test("answers whose clients read nothing lend their memory to others, and go on with the same tokens")
def lending():
    length, count = 300, 12
    with Service(memory=40 << 20, drafter="none", f_theta="none", ring=16) as service:
        sessions, connections = [], []
        for i in range(count):
            sessions.append(start(service, prompt(length, salt=i)))
            connections.append(run_stalled(service, sessions[-1], 100))
            eventually(lambda: service.info(sessions[-1]).history_length > length + 16, "it has begun, and is stalled")
        for connection in connections:
            connection.close()
        ended = {}

        def has_ended(session):
            ended.update(sum_of_running(service))
            return ended.get(session)
        for i in (0, count - 1):
            generated = eventually(lambda: has_ended(sessions[i]), "the call is ended")["generated"]
            equal(service.info(sessions[i]).history_length, length + generated)
            equal(service.answer(sessions[i], 5)[0], run_kakeya(prompt(length, salt=i), generated + 5)[-5:], f"session {i}")


def memory_of_a_session(tokens, attention):
    """What one session of so many tokens takes, and the engine beside it: weights may be packed, as the instruction set wants it."""
    told = subprocess.run([KAKEYA, "serve", "--dry-run", "--json", "--drafter", "none", "--f-theta", "none", "--threads", "1",
                           "--memory-limit", "1G"], capture_output=True, check=True).stdout
    row, = (r for r in json.loads(told)["room"]["rows"] if (r["tokens"], r["attention"]) == (tokens, attention))
    return row["workspace_bytes"] + row["kv_bytes"] + row["other_bytes"]


@test("a call is refused for want of memory where it does not fit alone, and changes nothing, under no policy")
def too_large():
    for attention in ("native", "sink-window"):
        engine = {"attention": attention, "drafter": "none", "f_theta": "none", "threads": 1}
        with Service(**engine) as service:
            expected = service.answer(start(service, prompt(150)), 20)[0]
        with Service(memory=memory_of_a_session(4000, attention), **engine) as service:
            session = start(service, prompt(150))
            equal(service.answer(session, 10)[0], expected[:10])
            fails(Code.RESOURCE_EXHAUSTED, lambda: service.append(session, prompt(7000)))
            equal(service.info(session).history_length, 160)
            equal(service.answer(session, 10)[0], expected[10:], attention)


@test("sessions outlive the server where it has a directory, end tokens and all")
def restart():
    greedy = run_kakeya(PROMPT, 60)
    at = next(i for i in range(12, 60) if greedy[i] not in greedy[:i])
    with tempfile.TemporaryDirectory() as directory:
        with Service(directory=directory) as service:
            session, closed = start(service, eos=[greedy[at]]), start(service)
            service.answer(session, 5)
            empty = service.create()
            service.close(closed)
        with Service(directory=directory) as service:
            info = service.info(session)
            equal((info.history_length, info.kv_live_bytes), (len(PROMPT) + 5, 0), "on disk")
            tokens, done, _ = service.answer(session, 100)
            equal(tokens, greedy[5: at + 1], "it goes on with the same tokens")
            equal(done.stop_reason, Done.STOP_REASON_EOS, "its end tokens are still known")
            holds(service.info(session).kv_live_bytes > 0, "in memory again")
            for name in (closed, empty):
                fails(Code.NOT_FOUND, lambda: service.info(name))
            equal(service.close(session), len(PROMPT) + at + 1)
        with Service(directory=directory) as service:
            fails(Code.NOT_FOUND, lambda: service.append(session, [5]))
    with tempfile.TemporaryDirectory() as directory:
        with Service(directory=directory, sessions=2) as service:
            sessions = [start(service, prompt(30, salt=i)) for i in range(5)]
            for i, session in enumerate(sessions):
                equal(service.answer(session, 8)[0], run_kakeya(prompt(30, salt=i), 8), f"session {i} came back")


@test("between a failure and another engine calls wait: no session is made that is lost, and one that was there is NOT_FOUND")
def failure():
    def told(what):
        while what not in service.finished.get(timeout=WAIT):
            pass

    with Service() as service:
        old, empty = start(service), service.create()
        expected = service.answer(start(service), 8)[0]
        service.tell("fail")
        told("failed")
        made = service.stub.CreateSession.future(pb.CreateSessionRequest(), timeout=WAIT)
        told("waits")
        holds(not made.done(), "a session is made by an engine that has failed")
        service.tell("reload")
        for session in (made.result().session_id, empty):
            service.append(session, PROMPT)
            equal(service.answer(session, 8)[0], expected)
        fails(Code.NOT_FOUND, lambda: service.append(old, []))


@test("keys: without one, with a wrong one, with the right one; health needs none")
def keys():
    with Service(key="secret") as service:
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "secret"),)):
            fails(Code.UNAUTHENTICATED, lambda: service.stub.CreateSession(
                pb.CreateSessionRequest(), metadata=metadata, timeout=WAIT), "key")
            fails(Code.UNAUTHENTICATED, lambda: service.stub.Generate(
                pb.GenerateRequest(session_id="x"), metadata=metadata, timeout=WAIT))
        metadata = (("authorization", "Bearer secret"),)
        holds(service.stub.CreateSession(pb.CreateSessionRequest(), metadata=metadata, timeout=WAIT).session_id)
        equal(service.health.Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 1)


@test("TLS, and refused addresses and certificates")
def tls():
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = os.path.join(directory, "key.pem"), os.path.join(directory, "certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                       check=True, capture_output=True)
        with open(certificate, "rb") as file:
            root = file.read()
        service = Service(load=False, certificate=certificate, tls_key=key)
        try:
            channel = grpc.secure_channel(service.address, grpc.ssl_channel_credentials(root))
            health = health_pb2_grpc.HealthStub(channel)
            equal(health.Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 2)
            channel.close()
            fails(Code.UNAVAILABLE, lambda: service.health.Check(health_pb.HealthCheckRequest(), timeout=5))
        finally:
            service.stop()
        for options, words in (({"certificate": certificate}, "a key"),
                               ({"certificate": key, "tls_key": certificate}, "certificate and key"),
                               ({"certificate": "/nowhere", "tls_key": key}, "/nowhere"),
                               ({"address": shared.address}, shared.address), ({"address": "127.0.0.1"}, "HOST:PORT"),
                               ({"address": "127.0.0.1:70000"}, "HOST:PORT"), ({"address": "203.0.113.1:0"}, "203.0.113.1")):
            try:
                Service(load=False, **options).stop()
            except AssertionError as error:
                holds(words in str(error), f"{options}: {error}")
            else:
                raise AssertionError(f"{options} were taken")


# ------------------------------------------------------------------------------------------------ health, the end


@test("health: loading, serving, draining; names that are not served; new work while draining")
def health():
    statuses = health_pb.HealthCheckResponse
    with Service(load=False) as service:
        watch = service.health.Watch(health_pb.HealthCheckRequest(service="kakeya.v1.RuntimeService"))
        other = service.health.Watch(health_pb.HealthCheckRequest(service="nobody"))
        equal(next(watch).status, statuses.NOT_SERVING, "loading")
        equal(next(other).status, statuses.SERVICE_UNKNOWN)
        fails(Code.UNAVAILABLE, service.create, "loaded")
        fails(Code.UNAVAILABLE, lambda: service.info("x"), "loaded")
        for name in ("", "kakeya.v1.RuntimeService"):
            equal(service.health.Check(health_pb.HealthCheckRequest(service=name)).status, statuses.NOT_SERVING, name)
        fails(Code.NOT_FOUND, lambda: service.health.Check(health_pb.HealthCheckRequest(service="nobody")))
        fails(Code.INVALID_ARGUMENT, lambda: service.channels[0].unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\x01\xff"))
        service.tell("load")
        equal(next(watch).status, statuses.SERVING, "serving")
        equal(service.health.Check(health_pb.HealthCheckRequest()).status, statuses.SERVING)
        session, idle = start(service), start(service)
        call = service.generate(session, 300)
        next(call)
        service.tell("drain")
        equal(next(watch).status, statuses.NOT_SERVING, "draining")
        fails(Code.UNAVAILABLE, service.create, "stopping")
        fails(Code.UNAVAILABLE, lambda: service.append(idle, [5]), "stopping")
        fails(Code.UNAVAILABLE, lambda: service.generate(idle, 1), "stopping")
        equal(len([f for f in call if f.WhichOneof("payload") == "token_id"]), 299, "what runs goes on")
        equal(service.close(idle), len(PROMPT))
        third = service.health.Watch(health_pb.HealthCheckRequest())
        equal(next(third).status, statuses.NOT_SERVING)
        watch.cancel()
        service.tell("stop")
        fails(Code.UNAVAILABLE, lambda: list(third), "stopping")


@test("a stop ends what runs with UNAVAILABLE, at once")
def stop():
    with Service() as service:
        calls = [long_answer(service, start(service)) for _ in range(4)]
        waiting = service.stub.AppendTokens.future(
            pb.AppendTokensRequest(session_id=service.create(), token_ids=prompt(8000)))
        service.tell("stop")
        for call in calls:
            fails(Code.UNAVAILABLE, lambda: list(call))
        fails(Code.UNAVAILABLE, waiting.result)
        equal(service.process.wait(WAIT), 0)


@test("localhost means both addresses, and one port is one server's")
def addresses():
    with Service(load=False, address="localhost:0") as service:
        holds(service.address.startswith("127.0.0.1:"), service.address)
        if os.path.exists("/proc/net/if_inet6") and "00000000000000000000000000000001" in open("/proc/net/if_inet6").read():
            port = service.address.split(":")[1]
            with grpc.insecure_channel(f"[::1]:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
                equal(health_pb2_grpc.HealthStub(channel).Check(health_pb.HealthCheckRequest(), timeout=WAIT).status, 2)


@test("random clients that cancel, expire and fail leave nothing behind")
def mixed():
    import random
    with Service(TINY, ring=4, sessions=6) as service:
        def client(seed):
            draw = random.Random(seed)
            session = None
            for _ in range(20 if SHORT else 60):
                try:
                    what = draw.randrange(8)
                    if session is None or what == 0:
                        session = service.create(eos=[draw.randrange(200) for _ in range(draw.randrange(3))])
                        service.append(session, [draw.randrange(200) for _ in range(3)])
                    elif what == 1:
                        service.append(session, [draw.randrange(210) for _ in range(draw.randrange(9))])
                    elif what == 2:
                        service.close(session)
                        session = None
                    elif what == 3:
                        service.info(session)
                    elif what == 4:
                        call = service.generate(session, 40, temperature=1.0)
                        for _ in range(draw.randrange(6)):
                            next(call)
                        call.cancel()
                    elif what == 5:
                        list(service.stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=60),
                                                   timeout=draw.random() * 0.05))
                    else:
                        list(service.generate(session, draw.randrange(30)))
                except StopIteration:
                    pass
                except grpc.RpcError as error:
                    holds(error.code() in (Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED, Code.ABORTED,
                                           Code.DEADLINE_EXCEEDED), f"{error.code()} {error.details()}")
                    if error.code() == Code.NOT_FOUND:
                        session = None
        in_threads([lambda i=i: client(i) for i in range(8)])
        session = start(service, [5, 6, 7])
        equal(len(service.answer(session, 5)[0]), 5, "it still answers")


try:
    run_tests()
finally:
    Service.kill_all()
