"""A model without tokenizer: ids in, ids out on the routes that take ids; what needs text is 400, and the server lives on."""

import contextlib
import os
import shutil
import tempfile

import openai

from harness import BUILD, MODELS, WHOLE, Server, Skip, equal, holds, run_tests, test

IDS = [2, 30, 40, 50]


def post(s, path, **body):
    return s.post(path, {"model": "m", **body})


def complete(s, **body):
    reply = post(s, "/v1/completions", **{"prompt": IDS, "max_tokens": 4, "temperature": 0, **body})
    equal(reply.status, 200, reply.body)
    return reply.json


def check(s):
    one = complete(s, return_token_ids=True)["choices"][0]
    equal((one["text"], one["prompt_token_ids"], len(one["token_ids"])), ("", IDS, 4))
    two = complete(s, prompt=[IDS, IDS[:2]], n=2, return_token_ids=True)["choices"]
    equal([c["prompt_token_ids"] for c in two], [IDS, IDS, IDS[:2], IDS[:2]])
    equal(two[0]["token_ids"], one["token_ids"])
    equal(complete(s)["choices"][0]["text"], "")
    ai = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
    streamed = list(ai.completions.create(model="m", prompt=IDS, max_tokens=4, temperature=0, stream=True,
                                          extra_body={"return_token_ids": True}))
    equal([t for c in streamed for t in c.choices[0].token_ids], one["token_ids"])
    holds(len(streamed) >= 4, "tokens are told as they come")
    equal(streamed[0].choices[0].prompt_token_ids, IDS)
    scored = complete(s, logprobs=2, return_token_ids=True)["choices"][0]["logprobs"]
    equal(scored["tokens"], [f"token_id:{t}" for t in one["token_ids"]])
    equal([len(t) for t in scored["top_logprobs"]], [2] * 4)
    echoed = complete(s, echo=True, max_tokens=0, logprobs=1)["choices"][0]
    equal((echoed["text"], echoed["logprobs"]["tokens"]), ("", [f"token_id:{t}" for t in IDS]))
    stopped = complete(s, stop_token_ids=[one["token_ids"][1]], return_token_ids=True)["choices"][0]
    equal((stopped["finish_reason"], stopped["stop_reason"]), ("stop", one["token_ids"][1]))
    forced = complete(s, logit_bias={"7": 100}, min_tokens=2, return_token_ids=True)["choices"][0]
    equal(forced["token_ids"], [7] * 4)
    complete(s, thinking_token_budget=1, presence_penalty=1, ignore_eos=True, cache_prompt=False, seed=1, temperature=1)


TEXTS = [("/v1/completions", {"prompt": "x"}), ("/v1/completions", {"prompt": [IDS, "x"]}),
         ("/v1/completions", {"prompt": IDS, "stop": "x"}), ("/v1/completions", {"prompt": IDS, "logit_bias": {"x": 1}}),
         ("/tokenize", {"content": "x"}),
         ("/tokenize", {"prompt": "x"}),
         ("/detokenize", {"tokens": IDS})]
MESSAGES = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
for more in ({}, {"stream": True}, {"response_format": SCHEMA}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"},
             {"tools": TOOLS, "tool_choice": "none"}, {"guided_regex": "a+"}, {"prediction": {"type": "content", "content": "x"}},
             {"stop": ["x"]}, {"logprobs": True, "top_logprobs": 2}, {"reasoning_effort": "high"},
             {"messages": [*MESSAGES, {"role": "assistant", "content": "y"}], "continue_final_message": True}):
    TEXTS.append(("/v1/chat/completions", {"messages": MESSAGES, **more}))
for path in ("/v1/chat/completions/input_tokens", "/apply-template", "/tokenize"):
    TEXTS.append((path, {"messages": MESSAGES}))
for path in ("/v1/messages", "/v1/messages/count_tokens"):
    TEXTS.append((path, {"messages": MESSAGES, "max_tokens": 4}))
    TEXTS.append((path, {"messages": MESSAGES, "max_tokens": 4, "tools": [{"name": "f", "input_schema": {}}], "stop_sequences": ["x"]}))
for path in ("/v1/responses", "/v1/responses/input_tokens"):
    TEXTS.append((path, {"input": "x"}))
    TEXTS.append((path, {"input": [], "stream": True, "truncation": "auto"}))


def check_refusals(s):
    for path, body in TEXTS:
        reply = post(s, path, **body)
        equal(reply.status, 400, f"{path} {body}: {reply.body[:200]}")
    for path in ("/", "/health", "/props", "/slots", "/metrics", "/v1/models", "/v1/models/m"):
        equal(s.get(path).status, 200, path)
    equal(complete(s, return_token_ids=True)["choices"][0]["prompt_token_ids"], IDS, "the server lives on")


@contextlib.contextmanager
def without_tokenizer():
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "model")
        shutil.copytree(f"{MODELS}/demo", model, ignore=shutil.ignore_patterns("tokenizer*", "chat_template*"))
        yield model


@test("a directory without tokenizer.json, with sessions in files")
def _():
    with without_tokenizer() as model:
        options = ("--name", "m", "--context", "2048", "--session-dir", os.path.join(model, "sessions"))
        s = Server(*options, model=model)
        check(s)
        check_refusals(s)
        first = complete(s, prompt=IDS * 200, return_token_ids=True)
        equal(s.stop(), 0)
        s = Server(*options, model=model)
        again = complete(s, prompt=IDS * 200, return_token_ids=True)
        equal(again["choices"][0]["token_ids"], first["choices"][0]["token_ids"])
        equal(s.stop(), 0)


@test("weights made in memory have no tokenizer")
def _():
    if not WHOLE:
        raise Skip("it takes gigabytes; the same as a directory without tokenizer.json")
    s = Server("--name", "m", "--synthetic", "e2b:layers=2", "--context", "256")
    check_refusals(s)
    equal(len(complete(s, return_token_ids=True, ignore_eos=True)["choices"][0]["token_ids"]), 4)
    equal(s.stop(), 0)


@test("gRPC takes ids and gives ids")
def _():
    if not os.path.exists(f"{BUILD}/tools/grpc_server"):
        raise Skip("this build has no gRPC service")
    import grpc
    from grpc_harness import CHANNEL, pb, runtime_pb2_grpc
    with without_tokenizer() as model:
        s = Server("--name", "m", "--context", "256", "--grpc", "127.0.0.1:0", model=model)
        ids = complete(s, return_token_ids=True)["choices"][0]["token_ids"]
        stub = runtime_pb2_grpc.RuntimeServiceStub(grpc.insecure_channel(s.addresses["grpc"], options=CHANNEL))
        session = stub.CreateSession(pb.CreateSessionRequest(eos_token_ids=[1])).session_id
        equal(stub.AppendTokens(pb.AppendTokensRequest(session_id=session, token_ids=IDS)).history_length, len(IDS))
        frames = list(stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=4, top_p=0)))
        equal([f.token_id for f in frames[:-1]][:len(ids)], ids)
        equal(stub.GetSessionInfo(pb.GetSessionInfoRequest(session_id=session)).history_length, len(IDS) + 4)
        stub.CloseSession(pb.CloseSessionRequest(session_id=session))
        equal(s.stop(), 0)


if __name__ == "__main__":
    run_tests()
