"""The Python client: what its users' programs see, against a running service."""

import os
import subprocess
import sys
import tempfile
import threading

import grpc
from harness import WAIT, equal, eventually, holds, run_tests, test
from grpc_harness import Service

from kakeya import remote
from kakeya.remote import (
    Client, InterTokenTimeoutError, InvalidArgumentError, InvariantViolationError, KakeyaError, ResourceExhaustedError,
    RpcCancelledError, Session, SessionClosedError, SessionInfo, SessionNotFoundError, StopReason, UnimplementedError)
from kakeya.remote.errors import from_rpc_error

SOURCE = os.environ["CLIENT_SOURCE"]
PROMPT = [2, 4528, 110, 111, 112]
NO_PROXY = [("grpc.enable_http_proxy", 0)]
service = Service()


def connect(**more):
    return Client(service.address, channel_options=NO_PROXY, **more)


def raises(kind, function, code=None):
    try:
        result = function()
        if hasattr(result, "__next__"):
            list(result)
    except kind as error:
        holds(type(error) is kind, f"{type(error)} is not {kind}")
        holds(isinstance(error, KakeyaError), "every error is a KakeyaError")
        equal(error.rpc_code, code, "code")
        return error
    raise AssertionError(f"no {kind.__name__}")


@test("the package comes from what pip has installed, with its types")
def installed():
    holds(os.path.exists(os.path.join(os.path.dirname(remote.__file__), os.pardir, "py.typed")), "py.typed")
    holds(not remote.__file__.startswith(os.path.abspath("python")), remote.__file__)
    for name in ("Client", "Session", "SessionInfo", "SessionNotFoundError", "InvalidArgumentError", "KakeyaError",
                 "InvariantViolationError", "ResourceExhaustedError", "UnimplementedError", "RpcCancelledError",
                 "InterTokenTimeoutError", "SessionClosedError", "DEFAULT_ADDRESS"):
        holds(name in remote.__all__ and hasattr(remote, name), name)
    equal(remote.DEFAULT_ADDRESS, "localhost:50051")


@test("mypy --strict finds nothing")
def types():
    result = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--cache-dir", os.devnull],
                            cwd=SOURCE, capture_output=True, text=True)
    equal(result.returncode, 0, result.stdout + result.stderr)


@test("a session from its making to its end")
def whole():
    with connect() as client:
        equal((client.address, client.closed), (service.address, False))
        session = client.create_session(eos_token_ids=[0, 7, 42], client_label="test")
        holds(isinstance(session, Session) and session.session_id and not session.closed)
        equal(session.info().history_length, 0)
        equal(session.append([1, 2, 3]), 3)
        equal(session.last_stop_reason, None)
        tokens = list(session.generate(max_tokens=4))
        holds(1 <= len(tokens) <= 4, str(tokens))
        equal(session.last_generated_token_count, len(tokens))
        holds(session.last_stop_reason in (StopReason.MAX_TOKENS, StopReason.EOS), str(session.last_stop_reason))
        holds(session.last_total_duration_seconds >= session.last_prefill_duration_seconds > 0)
        equal(session.last_history_truncated_dropped, None)
        info = session.info()
        holds(isinstance(info, SessionInfo) and info.kv_live_bytes > 0 and info.idle_seconds >= 0, str(info))
        equal((info.cache_invariant_inv1_violations, info.cache_invariant_inv2_violations), (0, 0))
        equal(session.append(iter([5])), 4 + len(tokens), "any iterable")
        equal(session.close(), 4 + len(tokens))
    equal(client.closed, True)
    client.close()


@test("a closed session refuses calls without asking the server; closing again gives 0")
def closed():
    with connect() as client:
        session = client.create_session()
        equal(session.append([1, 2]), 2)
        equal((session.close(), session.close(), session.closed), (2, 0, True))
        raises(SessionClosedError, lambda: session.append([1]))
        raises(SessionClosedError, lambda: session.generate(max_tokens=1))
        raises(SessionNotFoundError, session.info, grpc.StatusCode.NOT_FOUND)
        with client.create_session() as inner:
            inner.append(PROMPT)
        equal(inner.closed, True)
        with client.create_session() as lost:
            Session(client=client, session_id=lost.session_id).close()
        equal(lost.closed, True, "an error while leaving is swallowed")


@test("errors are classes of their own")
def errors():
    with connect() as client:
        foreign = Session(client=client, session_id="sess-" + "0" * 32)
        error = raises(SessionNotFoundError, lambda: foreign.append([1]), grpc.StatusCode.NOT_FOUND)
        holds(foreign.session_id in str(error), str(error))
        raises(SessionNotFoundError, foreign.close, grpc.StatusCode.NOT_FOUND)
        equal((foreign.closed, foreign.close()), (True, 0), "a failed close closes, too")
        session = client.create_session()
        session.append(PROMPT)
        raises(InvalidArgumentError, lambda: session.generate(max_tokens=0), grpc.StatusCode.INVALID_ARGUMENT)
        raises(InvalidArgumentError, lambda: session.append([1 << 20]), grpc.StatusCode.INVALID_ARGUMENT)
        running = session.generate(max_tokens=8000, temperature=2.0)  # hardly a draft holds: many seconds
        next(running)
        raises(KakeyaError, lambda: session.append([1]), grpc.StatusCode.ABORTED)
        running.close()
        for bad in (0, -1.0):
            try:
                list(session.generate(max_tokens=1, inter_token_timeout_s=bad))
                raise AssertionError("a timeout that is none")
            except ValueError:
                pass

    class Failed(grpc.RpcError, grpc.Call):
        def __init__(self, code):
            self._code = code

        def code(self):
            return self._code

        def details(self):
            return None

    Failed.__abstractmethods__ = frozenset()
    for code, kind in ((grpc.StatusCode.FAILED_PRECONDITION, InvariantViolationError),
                       (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhaustedError),
                       (grpc.StatusCode.UNIMPLEMENTED, UnimplementedError), (grpc.StatusCode.CANCELLED, RpcCancelledError),
                       (grpc.StatusCode.INTERNAL, KakeyaError), (grpc.StatusCode.DEADLINE_EXCEEDED, KakeyaError)):
        error = from_rpc_error(Failed(code))
        equal((type(error), error.rpc_code, str(error)), (kind, code, ""))
    equal(from_rpc_error(grpc.RpcError("x")).rpc_code, None)


@test("an iterator that is left cancels; the session goes on with what it holds")
def left():
    with connect() as client:
        whole = client.create_session()
        whole.append(PROMPT)
        expected = list(whole.generate(max_tokens=500))
        for timeout in (None, 60.0):
            session = client.create_session()
            session.append(PROMPT)
            tokens = []
            for token in session.generate(max_tokens=4000, inter_token_timeout_s=timeout):
                tokens.append(token)
                if len(tokens) == 3:
                    break
            equal((tokens, session.last_stop_reason), (expected[:3], None))
            kept = session.info().history_length - len(PROMPT)
            holds(kept >= 3, str(kept))
            equal(list(session.generate(max_tokens=8, inter_token_timeout_s=timeout)), expected[kept:kept + 8])


@test("sampling options reach the server")
def sampling():
    with connect() as client:
        def answer(**options):
            with client.create_session() as session:
                session.append(PROMPT)
                return list(session.generate(max_tokens=24, **options))
        equal(answer(temperature=1.0, seed=1), answer(temperature=1.0, seed=1))
        holds(answer(temperature=1.0, seed=1) != answer(temperature=1.0, seed=2), "the seed matters")
        equal(answer(temperature=1.5, top_k=1, seed=3), answer())
        equal(answer(temperature=1.5, top_p=1e-6, seed=3), answer(seed=0, temperature=0.0))


@test("a token that does not come in time is an error, and the stream is cancelled")
def late():
    class Silent:
        def __init__(self):
            self.cancelled = threading.Event()

        def __iter__(self):
            return self

        def __next__(self):
            self.cancelled.wait(WAIT)
            raise StopIteration

        def cancel(self):
            self.cancelled.set()
            return True

    with connect() as client:
        session = client.create_session()
        session.append(PROMPT)
        silent = Silent()
        client._stub.generate = lambda *_: silent
        raises(InterTokenTimeoutError, lambda: session.generate(max_tokens=1, inter_token_timeout_s=0.05))
        holds(silent.cancelled.is_set(), "cancelled")


@test("keys and TLS")
def keys():
    with Service(key="secret") as locked:
        with Client(locked.address, channel_options=NO_PROXY, api_key="secret") as client:
            holds(client.create_session().session_id)
        with Client(locked.address, channel_options=NO_PROXY) as client:
            raises(KakeyaError, client.create_session, grpc.StatusCode.UNAUTHENTICATED)
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = os.path.join(directory, "key.pem"), os.path.join(directory, "certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True,
                       capture_output=True)
        with open(certificate, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        with Service(load=False, certificate=certificate, tls_key=key) as safe:
            with Client(safe.address, credentials=credentials, channel_options=NO_PROXY) as client:
                raises(KakeyaError, client.create_session, grpc.StatusCode.UNAVAILABLE)
                safe.tell("load")

                def made():
                    try:
                        return client.create_session().session_id
                    except KakeyaError:
                        return None
                eventually(made, "a session over TLS")


@test("the example runs")
def example():
    with open(os.path.join(SOURCE, "examples/remote.py")) as file:
        text = file.read().replace("Client()", f"Client({service.address!r})")
    result = subprocess.run([sys.executable, "-c", text, *map(str, PROMPT)], capture_output=True, text=True,
                            env={k: v for k, v in os.environ.items() if "proxy" not in k.lower()})
    equal(result.returncode, 0, result.stderr)
    holds("MAX_TOKENS after 32 tokens" in result.stdout, result.stdout)


try:
    run_tests()
finally:
    Service.kill_all()
