"""What the tests of the gRPC service share: stubs from the shipped .proto, and a service that does what it is told."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading

from harness import BUILD, KAKEYA, MODELS, WAIT, holds

import grpc
import grpc_tools.protoc

PROTO = os.path.abspath("src/serve/proto")
DEMO = os.path.join(MODELS, "demo")
TINY = os.path.abspath("tests/data/golden/gemma4-tiny-dense")
SERVICE = "kakeya.v1.RuntimeService"
# Another build of the server, and what it is to be run by: sanitizers.
SERVER_BUILD = os.environ.get("GRPC_SERVER_BUILD", BUILD)
WRAPPER = os.environ.get("GRPC_SERVER_WRAPPER", "").split()
CHANNEL = [("grpc.enable_http_proxy", 0)]


def generate_stubs():
    directory = tempfile.mkdtemp(prefix="kakeya-stubs-")
    for name in ("kakeya/v1/runtime.proto", "grpc/health/v1/health.proto"):
        arguments = ["protoc", f"-I{PROTO}", f"--python_out={directory}", f"--grpc_python_out={directory}", name]
        holds(grpc_tools.protoc.main(arguments) == 0, f"protoc takes {name}")
    # `grpc` is the installed package, so the generated grpc/health is put into a package of its own.
    os.rename(os.path.join(directory, "grpc"), os.path.join(directory, "grpc_generated"))
    path = os.path.join(directory, "grpc_generated/health/v1/health_pb2_grpc.py")
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace("from grpc.health.v1", "from grpc_generated.health.v1"))
    sys.path.insert(0, directory)


generate_stubs()

from kakeya.v1 import runtime_pb2 as pb, runtime_pb2_grpc  # noqa: E402
from grpc_generated.health.v1 import health_pb2 as health_pb, health_pb2_grpc  # noqa: E402


class Service:
    """tests/serve/grpc_server.c, with a model that is there unless `load` is False."""

    running = []

    def __init__(self, model=DEMO, load=True, **options):
        if SERVER_BUILD == BUILD:
            options = {"threads": 1, **options}  # as in harness.py; a sanitizer looks at the threads of a default
        command = [*WRAPPER, os.path.join(SERVER_BUILD, "tools/grpc_server"), model,
                   *(f"{k}={v}" for k, v in options.items())]
        clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no first line: {self.process.stderr.read()}")
        Service.running.append(self)
        self.address = json.loads(line)["grpc"]
        self.finished = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.channels = []
        self.stub = runtime_pb2_grpc.RuntimeServiceStub(self.channel())
        self.health = health_pb2_grpc.HealthStub(self.channel())
        if load:
            self.tell("load")
            self.wait_serving()

    def _read(self):
        for line in self.process.stdout:
            self.finished.put(json.loads(line))

    def channel(self, *options):
        channel = grpc.insecure_channel(self.address, options=[*CHANNEL, *options])
        self.channels.append(channel)
        return channel

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_serving(self):
        for response in self.health.Watch(health_pb.HealthCheckRequest(), timeout=WAIT):
            if response.status == health_pb.HealthCheckResponse.SERVING:
                return

    def create(self, eos=(), label=""):
        return self.stub.CreateSession(
            pb.CreateSessionRequest(client_label=label, eos_token_ids=eos), timeout=WAIT).session_id

    def append(self, session, ids):
        return self.stub.AppendTokens(
            pb.AppendTokensRequest(session_id=session, token_ids=ids), timeout=WAIT).history_length

    def generate(self, session, max_tokens, **sampling):
        return self.stub.Generate(
            pb.GenerateRequest(session_id=session, max_tokens=max_tokens, **sampling), timeout=WAIT)

    def answer(self, session, max_tokens, **sampling):
        """The tokens and the last frame; checks that the frames come as they must."""
        tokens, done, truncated = [], None, None
        for frame in self.generate(session, max_tokens, **sampling):
            kind = frame.WhichOneof("payload")
            holds(done is None, "nothing comes behind done")
            if kind == "token_id":
                tokens.append(frame.token_id)
            elif kind == "truncated":
                holds(truncated is None and not tokens, "truncated is the first frame")
                truncated = frame.truncated.dropped_token_count
            else:
                holds(kind == "done", f"a frame has a payload: {kind}")
                done = frame.done
        holds(done is not None, "there is a done frame")
        holds(done.generated_token_count == len(tokens), "the tokens are counted")
        return tokens, done, truncated

    def info(self, session):
        return self.stub.GetSessionInfo(pb.GetSessionInfoRequest(session_id=session), timeout=WAIT)

    def close(self, session):
        return self.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=WAIT).final_history_length

    def raw(self, method):
        """A unary method that takes and gives bytes."""
        return self.channels[0].unary_unary(f"/{SERVICE}/{method}")

    def raw_stream(self, method):
        return self.channels[0].unary_stream(f"/{SERVICE}/{method}")

    def stop(self):
        for channel in self.channels:
            channel.close()
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(WAIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        errors = self.process.stderr.read()
        Service.running.remove(self)
        holds(self.process.returncode == 0, f"the service ended with {self.process.returncode}: {errors}")
        return errors

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.stop()
        except AssertionError:
            if kind is None:
                raise

    @staticmethod
    def kill_all():
        for service in Service.running:
            service.process.kill()


def fails(code, function, *words):
    """The error that a call ends with, of one code, its text with all the words."""
    try:
        result = function()
        if hasattr(result, "__iter__") and not isinstance(result, (str, bytes, tuple)):
            list(result)
    except grpc.RpcError as error:
        if error.code() != code:
            raise AssertionError(f"{error.code()} {error.details()!r}, expected {code}") from None
        for word in words:
            holds(str(word) in error.details(), f"{error.details()!r} says {word!r}")
        return error
    raise AssertionError(f"no error, expected {code}")


def tokenize(text):
    """Ids as `kakeya tokenize` gives them."""
    output = subprocess.run(
        [KAKEYA, "tokenize", "--model", DEMO, "--json", text], check=True, capture_output=True, text=True)
    return json.loads(output.stdout)["ids"]
