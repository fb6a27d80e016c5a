"""What routers ask of a replica: the ids of a request (render), gauges, words about the model; and the fields that they add.
With --figures: how long rendering takes."""

import http.client
import json

from harness import *  # noqa: F403

TEXT = open("examples/needle-60.txt").read()
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {
    "name": {"type": "string"}}, "required": ["name"]}}}]


def user(text):
    return {"role": "user", "content": text}


def post(s, path, body, status=200):
    reply = s.post(path, {"model": "demo", **body})
    equal(reply.status, status, f"{path}: {reply.body[:300]}")
    return reply.json


def endless(s, timeout=None):
    """A stream that holds its place until its connection is closed."""
    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=timeout or WAIT)
    body = {"model": "demo", "messages": [user("Hello.")], "stream": True, "max_tokens": -1, "ignore_eos": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    equal(reply.status, 200)
    reply.read(50)
    return connection


@test("render: the ids of chat and of completions are those that the request has")
def _():
    s = Server("--name", "demo")
    first = {"messages": [{"role": "system", "content": "Short."}, user(TEXT)]}
    bodies = [first, {**first, "tools": TOOLS}, {**first, "reasoning_effort": "high"}, {"messages": [user("Ein Wörterbuch? 🙂\n")]},
              {"messages": [user("Say yes."), {"role": "assistant", "content": "Ye"}], "continue_final_message": True,
               "add_generation_prompt": False},
              {**first, "response_format": {"type": "json_object"}, "temperature": 0.5, "seed": 3, "n": 2, "stream": True}]
    for body in bodies:
        said = post(s, "/v1/chat/completions/render", body)
        equal(said["features"], None, "there are no images")
        asked = post(s, "/v1/chat/completions", {**body, "stream": False, "max_tokens": 1, "return_token_ids": True})
        equal(said["token_ids"], asked["prompt_token_ids"], f"{body}")
    for prompt in ("Once upon a time", ["Once", "Twice"], [2, 300, 301], [[2, 300], [2, 301, 302]]):
        said = post(s, "/v1/completions/render", {"prompt": prompt})
        asked = post(s, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "return_token_ids": True})
        equal([p["token_ids"] for p in said], [c["prompt_token_ids"] for c in asked["choices"]], f"{prompt}")
        equal([p["features"] for p in said], [None] * len(said))
    s.stop()


@test("render: an answer that comes back is the tokens that were sampled")
def _():
    s = Server("--name", "demo")
    ask = [user("Tell a story.")]
    first = post(s, "/v1/chat/completions", {"messages": ask, "max_tokens": 24, "temperature": 1, "seed": 5, "return_token_ids": True})
    message = first["choices"][0]["message"]
    talk = [*ask, {"role": "assistant", "content": message["content"]}, user("Go on.")]
    said = post(s, "/v1/chat/completions/render", {"messages": talk})["token_ids"]
    before = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    equal(said[: len(before)], before)
    asked = post(s, "/v1/chat/completions", {"messages": talk, "max_tokens": 1, "return_token_ids": True})
    equal(said, asked["prompt_token_ids"])
    s.stop()


@test("render: responses and messages have the ids of the same conversation in chat completions")
def _():
    s = Server("--name", "demo")
    want = post(s, "/v1/chat/completions/render", {"messages": [{"role": "system", "content": "Short."}, user(TEXT)]})
    said = post(s, "/v1/responses/render", {"input": TEXT, "instructions": "Short."})
    equal(said["token_ids"], want["token_ids"], "responses")
    usage = post(s, "/v1/responses", {"input": TEXT, "instructions": "Short.", "max_output_tokens": 1})["usage"]
    equal(len(said["token_ids"]), usage["input_tokens"])
    body = {"messages": [user(TEXT)], "system": "Short."}
    said = post(s, "/v1/messages/render", body)
    equal(said["token_ids"], want["token_ids"], "messages")
    usage = post(s, "/v1/messages", {**body, "max_tokens": 1})["usage"]
    equal(len(said["token_ids"]), usage["input_tokens"] + usage["cache_read_input_tokens"])
    kept = post(s, "/v1/responses", {"input": "Hello.", "max_output_tokens": 4, "store": True})
    chained = {"input": "And now?", "previous_response_id": kept["id"]}
    said = post(s, "/v1/responses/render", chained)
    usage = post(s, "/v1/responses", {**chained, "max_output_tokens": 1})["usage"]
    equal(len(said["token_ids"]), usage["input_tokens"], "a chain")
    s.stop()


@test("render: nothing is computed, and no place is waited for")
def _():
    s = Server("--name", "demo", "--max-batch", "1", "--max-queue", "1")
    connection = endless(s)
    names = ("kakeya_prompt_tokens_total", "kakeya_requests_running", "kakeya_requests_waiting")
    before = [s.metric(name) for name in names]
    equal(before[1:], [1, 0], "the only place is taken")
    for path, body in (("chat/completions", {"messages": [user(TEXT)]}), ("completions", {"prompt": TEXT}),
                       ("responses", {"input": TEXT}), ("messages", {"messages": [user(TEXT)]})):
        post(s, f"/v1/{path}/render", body)
        equal([s.metric(name) for name in names], before, path)
    connection.close()
    s.stop()


@test("render: what the request itself would be refused for")
def _():
    s = Server("--name", "demo", "--context", "64")
    for path, body, param in (("chat/completions", {"messages": [user(TEXT)]}, "messages"), ("completions", {"prompt": TEXT}, "prompt"),
                              ("responses", {"input": TEXT}, "input")):
        error = post(s, f"/v1/{path}/render", body, 400)["error"]
        equal((error["code"], error["param"]), ("context_length_exceeded", param), path)
    error = post(s, "/v1/messages/render", {"messages": [user(TEXT)]}, 400)["error"]
    holds(error["message"].startswith("prompt is too long: "), error)
    error = post(s, "/v1/chat/completions/render", {}, 400)["error"]
    equal(error["param"], "messages")
    error = post(s, "/v1/completions/render", {"prompt": []}, 400)["error"]
    equal(error["param"], "prompt")
    equal(s.get("/v1/chat/completions/render").status, 405)
    s.stop()


@test("gauges: block size and blocks, the load, the model's name; with --metrics-names vllm all that llm-d reads")
def _():
    s = Server("--name", "demo", "--metrics-names", "both", "--memory-limit", "256M", "--context", "4096", "--max-batch", "3")
    text = s.get("/metrics").body.decode()
    values = metrics("\n".join(line.replace("model_name=", "model=") for line in text.splitlines()))
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        equal(values[name], 0.0, name)
    geometry = [key for key in values if key.startswith("vllm:cache_config_info")]
    equal(len(geometry), 1, geometry)
    labels = dict(pair.split("=") for pair in geometry[0].split("|")[1:])
    equal((labels["block_size"], values[geometry[0]]), ("16", 1.0))
    each = s.get("/props").json["kakeya"]["kv_bytes_per_token"]
    equal(int(labels["num_gpu_blocks"]), int(values["kakeya_kv_room_bytes"] // (16 * each)))
    told = s.get("/server_info").json
    equal((told["model_id"], told["model_path"], told["served_model_name"], told["dp_size"]), ("demo", "demo", "demo", 1))
    equal((told["max_running_requests"], told["context_length"]), (3, 4096))
    holds(told["max_total_num_tokens"] // 16 == int(labels["num_gpu_blocks"]), told)
    told = s.get("/model_info").json
    equal((told["model_path"], told["is_generation"]), ("demo", True))
    holds("tokenizer_path" not in told, "SGLang's gateway would download what this names")
    equal(s.get("/get_load").json, [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}])
    connection = endless(s)
    eventually(lambda: s.get("/get_load").json[0]["num_tokens"] > 10, "its tokens count")
    load = s.get("/get_load").json[0]
    equal((load["num_reqs"], load["num_waiting_reqs"]), (1, 0))
    connection.close()
    s.stop()


# What vllm-router 0.1.17 and sglang-router 0.3.2 make of a request that says no more than it must.
ADDED = {"stream": False, "no_stop_trim": False, "ignore_eos": False, "skip_special_tokens": True, "return_hidden_states": False}
CHAT = {**ADDED, "logprobs": False, "continue_final_message": False, "separate_reasoning": True, "stream_reasoning": True}
ROUTED = [("/v1/chat/completions", {"messages": [user("x")], **CHAT}),
          ("/v1/chat/completions", {"messages": [user("x")], **CHAT, "include_reasoning": True}),
          ("/v1/completions", {"prompt": "x", **ADDED, "echo": False}),
          ("/v1/responses", {"input": "x", "store": True, "stream": None, "temperature": 1.0, "top_p": 1.0, "priority": 0, "top_k": -1,
                             "min_p": 0.0, "repetition_penalty": 1.0})]


@test("a server with --strict takes what routers add, at the values that change nothing, and no other")
def _():
    s = Server("--name", "demo", "--strict")
    for path, body in ROUTED:
        reply = s.post(path, {"model": "demo", "max_output_tokens" if "input" in body else "max_tokens": 2, **body})
        equal((reply.status, reply.headers.get("x-kakeya-ignored")), (200, None), f"{path} {reply.body[:300]}")
    for path, body in ROUTED:
        for name in ("no_stop_trim", "skip_special_tokens", "return_hidden_states", "separate_reasoning"):
            if name not in body:
                continue
            reply = s.post(path, {"model": "demo", **body, name: not body[name]})
            equal((reply.status, reply.error["param"]), (400, name), path)
    s.stop()


@test("what lm-eval asks for: ids, then scores of a prompt and of the token behind it, also of one that ends the answer")
def _():
    s = Server("--name", "demo")
    told = s.get("/tokenizer_info").json
    equal((told["bos_token"], told["eos_token"]), ("<bos>", "<eos>"))

    def ids(text):
        return post(s, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    stop = ids("<turn|>")[0]
    for context, continuation in (("def fibonacci(n):", "\n    return n"), (TEXT[:700], TEXT[700:760]), ("The end.", "<turn|>")):
        whole, before = ids(context + continuation), ids(context)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump([2, *whole], f)
            f.flush()
            scored = subprocess.run([KAKEYA, "score", "--json", "--ids-file", f.name], capture_output=True, text=True, timeout=WAIT)
        equal(scored.returncode, 0, scored.stderr)
        want = -sum(json.loads(scored.stdout)["token_nll"][len(before):])
        for more in ({}, {"logit_bias": {str(stop): 100}}):
            asked = {"prompt": context + continuation, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
            choice = post(s, "/v1/completions", {**asked, **more})["choices"][0]
            values = choice["logprobs"]["token_logprobs"]
            equal(len(values), len(whole) + 1, f"one for each of the prompt, and one behind it: {more}")
            got = sum(values[len(before):-1])
            holds(abs(got - want) < 1e-4, f"{continuation!r}: {got}, kakeya score says {want}")
        equal((choice["finish_reason"], choice["text"]), ("stop", context + continuation))
    s.stop()


def figures():
    s = Server("--name", "demo")
    times, text = [], TEXT + TEXT[:1250]
    for i in range(11):
        reply = s.post("/v1/chat/completions/render", {"model": "demo", "messages": [user(f"{i} {text}")]})
        equal(reply.status, 200)
    for line in s.log().splitlines():
        if "render 200" in line:
            times.append(float(line.split(" 200 ")[1].split(" ms")[0]))
    times.sort()
    print(f"render of {len(reply.json['token_ids'])} tokens, ms: {times[len(times) // 2]} ({times[0]} to {times[-1]})")
    s.stop()


if sys.argv[1:] == ["--figures"]:
    figures()
else:
    run_tests()
