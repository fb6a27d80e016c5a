"""Pictures in requests: what arrives as what, what is refused, and what is not computed twice."""

import base64
import json
import os
import struct
import subprocess
import tempfile
import zlib

import anthropic
import openai
from harness import *  # noqa: F403
from pictures import picture, png, text, uri, user

MODEL = "tests/data/vision/tiny-tower"
PICTURES = "tests/data/images"
COMPUTE = ("--backend", "cpu", "--precision", "f32")
QUESTION = "What is this?"
_server = []


def server():
    if not _server:
        _server.append(Server(*COMPUTE, "--image-budget", "70", model=MODEL))
    return _server[0]


def content_of(name):
    with open(f"{PICTURES}/{name}", "rb") as file:
        return file.read()


def chat(messages, to=None, status=200, **more):
    body = {"model": "tiny-tower", "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **more}
    reply = (to or server()).post("/v1/chat/completions", body)
    equal(reply.status, status, reply.body)
    return reply


def tokens_of(reply):
    return reply.json["choices"][0]["token_ids"]


def cached(reply):
    return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def run(names, *arguments):
    """What `kakeya run` answers about the same pictures."""
    command = [KAKEYA, "run", *COMPUTE, "--model", MODEL, "--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--json"]
    for name in names:
        command += ["--image", name]
    made = subprocess.run([*command, *arguments], capture_output=True, text=True)
    equal(made.returncode, 0, made.stderr)
    return json.loads(made.stdout)["token_ids"]


def refused(code, where, *messages, says="", to=None, **more):
    error = chat(list(messages), to=to, status=400, **more).error
    equal((error["code"], error["param"]), (code, where), error["message"])
    holds(where in error["message"] and says in error["message"], error["message"])


@test("a picture's answer is that of the program, in all four formats and by OpenAI's client")
def _():
    client = openai.OpenAI(base_url=server().url + "/v1", api_key="none", max_retries=0)
    for name in ("photo.jpg", "exact.png", "photo.webp", "two-frames.gif"):
        wanted = run([f"{PICTURES}/{name}"], "--image-budget", "70", QUESTION)
        answer = client.chat.completions.create(
            model="tiny-tower", max_tokens=8, temperature=0, extra_body={"ignore_eos": True, "return_token_ids": True},
            messages=[user(picture(content_of(name)), text(QUESTION))])
        equal(answer.choices[0].token_ids, wanted[:8], name)  # behind them it would call a tool


@test("parts keep their order over several messages, and a picture's type is that of its bytes")
def _():
    parts = [text("A thing:"), {"type": "image"}, text("is this a thing?")]
    more = [text("and"), {"type": "image"}, {"type": "image"}, text("differ?")]
    names = [f"{PICTURES}/{name}" for name in ("gradient.png", "text.png", "photo.jpg")]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([user(*parts), {"role": "assistant", "content": "This is a line."}, user(*more)], file)
        file.flush()
        wanted = run(names, "--image-budget", "70", "--messages", file.name)
    sent = [picture(open(name, "rb").read()) for name in names]  # the last one says that it is a PNG
    parts[1], more[1], more[2] = sent
    reply = chat([user(*parts), {"role": "assistant", "content": "This is a line."}, user(*more)])
    equal(tokens_of(reply), wanted)


@test("the same picture again is not computed; one pixel that differs is, and all behind it")
def _():
    one, other = png(160, 120), png(160, 120, changed=(80, 60))
    first = chat([user(picture(one), text(QUESTION))])
    n = first.json["usage"]["prompt_tokens"]
    equal(cached(first), 0)
    again = chat([user(picture(one), text(QUESTION))])
    equal((cached(again), tokens_of(again)), (n - 1, tokens_of(first)))
    # a text in front of the picture, which both prompts begin with
    begin = text("a word " * 40)
    chat([user(begin, picture(one), text(QUESTION))])
    changed = chat([user(begin, picture(other), text(QUESTION))])
    at = changed.json["prompt_token_ids"].index(19)
    holds(cached(changed) <= at, f"{cached(changed)} of {at} tokens in front of the picture")
    fresh = chat([user(begin, picture(other), text(QUESTION))], cache_prompt=False)
    equal(tokens_of(changed), tokens_of(fresh))
    # the next turn finds both the picture and the answer
    said = {"role": "assistant", "content": first.json["choices"][0]["message"]["content"]}
    turn = chat([user(picture(one), text(QUESTION)), said, user(text("And now?"))])
    ids = first.json["prompt_token_ids"]
    holds(cached(turn) > len(ids) - ids[::-1].index(19), cached(turn))


@test("several answers to one picture, and several conversations at a time")
def _():
    data = [png(96 + 8 * i, 96) for i in range(4)]
    alone = [tokens_of(chat([user(picture(d), text(QUESTION))], cache_prompt=False)) for d in data]
    both = in_threads([lambda d=d: tokens_of(chat([user(picture(d), text(QUESTION))])) for d in data])
    equal(both, alone)
    many = chat([user(picture(data[0]), text(QUESTION))], n=3, temperature=1, seed=7).json["choices"]
    equal(len(many), 3)
    single = chat([user(picture(data[0]), text(QUESTION))], temperature=1, seed=7, cache_prompt=False)
    equal(many[0]["token_ids"], tokens_of(single))


@test("budgets: detail, the part's own, the request's, the server's")
def _():
    data = png(200, 150)

    def length(request=None, **part):
        message = user({**picture(data, **({"detail": part.pop("detail")} if "detail" in part else {})), **part}, text("x"))
        body = {"model": "tiny-tower", "messages": [message], **(request or {})}
        return server().post("/v1/chat/completions/render", body).json["token_ids"].count(19)

    low, middle = length(), length(image_budget=280)
    holds(35 <= low <= 70 and 140 < middle <= 280, (low, middle))
    equal(length(detail="low"), low)
    equal(length(detail="auto"), low)
    high = length(detail="high")
    holds(560 < high <= 1120, high)
    equal(length({"image_budget": 280}), middle)
    equal(length({"mm_processor_kwargs": {"max_soft_tokens": 280}}), middle)
    equal(length({"image_budget": 1120}, image_budget=280), middle)
    refused("invalid_value", "messages[0].content[0].image_budget", user({**picture(data), "image_budget": 100}), says="1120")
    equal(length(detail=None), low)
    for detail in ("best", "", 5, ["low"]):
        refused("invalid_value", "messages[0].content[0].detail", user(picture(data, detail=detail)))
    error = chat([user(picture(data))], status=400, image_budget=71).error
    equal((error["code"], error["param"]), ("invalid_value", "image_budget"))


def log_line(to, reply):
    """The log's line of this request."""
    name = reply.headers["x-request-id"]
    return eventually(lambda: next((line for line in to.log().splitlines() if name in line), None), f"a line of {name}")


@test("a picture that is made smaller is named in a header and in the log")
def _():
    fits = chat([user(picture(png(40, 30)), text("x"))])
    equal(fits.headers.get("x-kakeya-images-resized"), None)
    holds("resized" not in log_line(server(), fits), "no picture was made smaller")
    large = chat([user(text("x"), picture(png(400, 300)))])
    said = large.headers["x-kakeya-images-resized"]
    holds(said.startswith("messages[0].content[1] 400x300 to "), said)
    holds(log_line(server(), large).endswith(f", images resized: {said}"), log_line(server(), large))
    many = chat([user(*[picture(png(400, 300))] * 20)], max_tokens=1).headers["x-kakeya-images-resized"]
    holds(many.endswith(" to 108x84; and others") and len(many) < 700, many)
    other = Server(*COMPUTE, "--image-budget", "70", "--log-json", model=MODEL)
    equal(json.loads(log_line(other, chat([user(text("x"), picture(png(400, 300)))], to=other)))["images_resized"], said)
    holds("images_resized" not in json.loads(log_line(other, chat([user(text("x"))], to=other))), "no picture at all")
    other.stop()


@test("usage tells the prompt's tokens of pictures, where there are any")
def _():
    one, two = png(160, 120), png(96, 96)
    alone = chat([user(text(QUESTION))]).json["usage"]["prompt_tokens_details"]
    holds("image_tokens" not in alone, alone)
    messages = [user(picture(one), text("and"), picture(two), text(QUESTION))]
    for _ in range(2):  # computed, and found again
        reply = chat(messages).json
        equal(reply["usage"]["prompt_tokens_details"]["image_tokens"], reply["prompt_token_ids"].count(19))
    n = reply["prompt_token_ids"].count(19)
    holds(70 < n <= 140, n)
    client = openai.OpenAI(base_url=server().url + "/v1", api_key="none", max_retries=0)
    for timings in (False, True):
        chunks = list(client.chat.completions.create(
            model="tiny-tower", messages=messages, max_tokens=4, stream=True, stream_options={"include_usage": True},
            extra_body={"timings_per_token": timings}))
        equal(chunks[-1].usage.prompt_tokens_details.image_tokens, n)
    parts = [{"type": "input_image", "image_url": uri(data), "detail": "auto"} for data in (one, two)]
    words = [{"type": "input_text", "text": "and"}, {"type": "input_text", "text": QUESTION}]
    asked = {"model": "tiny-tower", "max_output_tokens": 4, "temperature": 0}
    first = client.responses.create(input=[{"role": "user", "content": [parts[0], words[0], parts[1], words[1]]}], **asked)
    equal(first.usage.input_tokens_details.image_tokens, n)
    turn = client.responses.create(input="And now?", previous_response_id=first.id, **asked)
    equal(turn.usage.input_tokens_details.image_tokens, n, "pictures of earlier turns are the prompt's")
    plain = client.responses.create(input="And now?", **asked)
    holds("image_tokens" not in plain.usage.input_tokens_details.model_dump(), plain.usage)


@test("addresses, broken files and what is no picture are refused, with the place")
def _():
    good, place = picture(png(40, 30)), "messages[1].content[1]"
    first = [user(good), ]
    for address in ("https://example.org/a.png", "http://127.0.0.1/", "file:///etc/passwd", "ftp://a/b"):
        bad = user(text("x"), {"type": "image_url", "image_url": {"url": address}})
        refused("unsupported_content", place, *first, bad, says="data: URI")
        refused("unsupported_content", place, *first, user(text("x"), {"type": "image_url", "image_url": address}))
    for data in ("data:image/png;base64,", "data:image/png;base64,iVBOR w0", "data:image/png;base64,AA=A", "data:image/png,abc",
                 "data:image/png;base64,A", "data:"):
        refused("invalid_image_url", place, *first, user(text("x"), {"type": "image_url", "image_url": {"url": data}}))
    for data in (b"hello there", b"<svg></svg>", b"BM" + bytes(60)):
        refused("image_parse_error", place, *first, user(text("x"), picture(data)), says="neither PNG")
    whole = content_of("photo.jpg")
    refused("image_parse_error", place, *first, user(text("x"), picture(whole[:len(whole) // 2])))
    refused("invalid_type", place, *first, user(text("x"), {"type": "image_url"}))
    refused("unsupported_content", place, *first, user(text("x"), {"type": "input_image", "file_id": "file-1"}))
    for name in sorted(os.listdir(f"{PICTURES}/bad")):
        error = chat([user(picture(content_of(f"bad/{name}")))], status=400).error
        equal(error["param"], "messages[0].content[0]", name)
    refused("unsupported_content", "messages[0].content[0]", {"role": "system", "content": [good]}, user(text("x")))


@test("limits: bytes, pixels and pictures, all in /props")
def _():
    small = Server(*COMPUTE, "--image-bytes", "20K", "--image-pixels", "1", "--image-count", "2", "--image-budget", "140", model=MODEL)
    props = small.get("/props").json
    equal(props["modalities"]["vision"], True)
    equal(props["kakeya"]["images"], {"budgets": [70, 140, 280, 560, 1120], "budget": 140, "max_bytes": 20480, "max_pixels": 1000000,
                                      "max_side": 32768, "max_count": 2, "weights_bytes": small.metric("kakeya_image_weights_bytes")})
    dry = subprocess.run([KAKEYA, "serve", "--dry-run", "--json", *COMPUTE, "--model", MODEL], capture_output=True, check=True)
    ledger = json.loads(dry.stdout)["ledger"]
    equal(ledger["vision_bytes"], props["kakeya"]["images"]["weights_bytes"])
    holds(ledger["vision_bytes"] > 100000 and ledger["picture_bytes"] > 1000000, ledger)
    equal(small.get("/v1/models").json["data"][0]["architecture"]["input_modalities"], ["text", "image"])
    one = picture(png(20, 20))
    chat([user(one, one, text("x"))], to=small)
    refused("too_many_images", "messages[1].content[0]", user(one, one), user(one), to=small)
    refused("image_too_large", "messages[0].content[0]", user(picture(png(100, 100))), to=small, says="20480 bytes")
    flat = png(2, 2)
    header = flat[:16] + struct.pack(">II", 1001, 1000) + flat[24:29]
    big = header + struct.pack(">I", zlib.crc32(header[12:])) + flat[33:]
    refused("image_too_large", "messages[0].content[0]", user(picture(big)), to=small)
    small.stop()


@test("a model without a tower says so")
def _():
    other = Server(model=text_model())
    equal(other.get("/props").json["kakeya"]["images"], None)
    equal(other.get("/props").json["modalities"]["vision"], False)
    body = {"model": other.get("/v1/models").json["data"][0]["id"], "messages": [user(text("x"), picture(png(40, 30)))]}
    reply = other.post("/v1/chat/completions", body)
    equal((reply.status, reply.error["code"], reply.error["param"]), (400, "unsupported_content", "messages[0].content[1]"))
    holds("reads no images" in reply.error["message"], reply.error["message"])
    other.stop()


@test("--vision off answers pictures with a 400 that says so, and text as ever; on is as auto")
def _():
    off = Server(*COMPUTE, "--vision", "off", "--image-budget", "70", model=MODEL)
    equal(off.get("/props").json["kakeya"]["images"], None)
    equal(off.get("/v1/models").json["data"][0]["architecture"]["input_modalities"], ["text"])
    one = png(40, 30)
    refused("unsupported_content", "messages[0].content[1]", user(text("x"), picture(one)), says="vision is off (--vision off)", to=off)
    words = [user(text(QUESTION))]
    equal(tokens_of(chat(words, to=off)), tokens_of(chat(words)))
    asked = {"model": "tiny-tower", "max_output_tokens": 4, "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": uri(one)}]}]}
    reply = off.post("/v1/responses", asked)
    equal(reply.status, 400)
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(one).decode()}}
    said = off.post("/v1/messages", {"model": "tiny-tower", "max_tokens": 4, "messages": [{"role": "user", "content": [block]}]})
    equal(said.status, 400)
    for answer in (reply, said):
        holds("vision is off (--vision off)" in answer.json["error"]["message"], answer.body)
    off.stop()
    on = Server(*COMPUTE, "--vision", "on", "--image-budget", "70", model=MODEL)
    asked = [user(picture(one), text(QUESTION))]
    equal(tokens_of(chat(asked, to=on)), tokens_of(chat(asked)))
    on.stop()


@test("a tool's picture stands behind its result")
def _():
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    result = {"role": "tool", "tool_call_id": "c1", "content": [text("seen"), picture(png(64, 64))]}
    reply = chat([user(text("Look.")), {"role": "assistant", "tool_calls": [call]}, result], tools=tools)
    ids = reply.json["prompt_token_ids"]
    holds(35 <= ids.count(19) <= 70, ids)
    equal(reply.headers.get("x-kakeya-ignored"), None)
    other = {**result, "content": [text("seen"), picture(png(64, 64, changed=(3, 3)))]}
    changed = chat([user(text("Look.")), {"role": "assistant", "tool_calls": [call]}, other], tools=tools)
    holds(cached(changed) < ids.index(19), cached(changed))


@test("tokens are counted with pictures, and rendered")
def _():
    messages = [user(picture(png(160, 120)), text(QUESTION))]
    n = chat(messages).json["usage"]["prompt_tokens"]
    reply = server().post("/v1/chat/completions/input_tokens", {"model": "tiny-tower", "messages": messages})
    equal(reply.json["input_tokens"], n)
    made = server().post("/v1/chat/completions/render", {"model": "tiny-tower", "messages": messages}).json
    place = made["features"]["mm_placeholders"]["image"][0]
    equal(place, {"offset": made["token_ids"].index(19), "length": made["token_ids"].count(19)})
    holds(len(made["features"]["mm_hashes"]["image"][0]) == 64, made["features"])


@test("every render route tells the pictures' digests and places, and tells the same")
def _():
    photo, other = content_of("photo.jpg"), png(160, 120)

    def source(data, kind):
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}}

    bodies = {"chat/completions": {"messages": [user(picture(photo), text("A"), picture(other))]},
              "responses": {"input": [{"role": "user", "content": [
                  {"type": "input_image", "image_url": uri(photo)}, {"type": "input_text", "text": "A"},
                  {"type": "input_image", "image_url": uri(other)}]}]},
              "messages": {"messages": [{"role": "user", "content": [source(photo, "image/jpeg"), {"type": "text", "text": "A"},
                                                                      source(other, "image/png")]}]}}
    seen = [server().post(f"/v1/{path}/render", {"model": "tiny-tower", **body}).json for path, body in bodies.items()]
    for path, made in zip(bodies, seen):
        equal(made, seen[0], path)
    features, ids = seen[0]["features"], seen[0]["token_ids"]
    equal(len(set(features["mm_hashes"]["image"])), 2)
    places = features["mm_placeholders"]["image"]
    equal(len(places), 2)
    for place in places:
        begin, end = place["offset"], place["offset"] + place["length"]
        holds(set(ids[begin:end]) == {19} and ids[begin - 1] != 19 and ids[end] != 19, f"{place}")
    equal(sum(place["length"] for place in places), ids.count(19))


@test("Responses: a user's picture, a tool's, and a conversation that goes on without sending it again")
def _():
    client = openai.OpenAI(base_url=server().url + "/v1", api_key="none", max_retries=0)
    common = {"model": "tiny-tower", "max_output_tokens": 12, "temperature": 0}

    def ask(*parts, **more):
        return client.responses.create(input=[{"role": "user", "content": list(parts)}], **common, **more)

    one, other = uri(png(160, 120)), uri(png(160, 120, changed=(9, 9)))
    words = {"type": "input_text", "text": QUESTION}
    first = ask({"type": "input_image", "image_url": one, "detail": "auto"}, words)
    n = chat([user(picture(png(160, 120)), text(QUESTION))]).json["usage"]["prompt_tokens"]
    equal(first.usage.input_tokens, n)
    turn = ask({"type": "input_text", "text": "And now?"}, previous_response_id=first.id)
    holds(turn.usage.input_tokens_details.cached_tokens > n - 20, turn.usage)
    changed = ask({"type": "input_image", "image_url": other, "detail": "auto"}, words)
    holds(changed.usage.input_tokens_details.cached_tokens < 20, changed.usage)
    counted = server().post("/v1/responses/input_tokens", {**common, "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": one}, words]}]})
    equal(counted.json["input_tokens"], n)
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    for brought, place in (([{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": one}], "input[2].output[1]"),
                           ({"type": "computer_screenshot", "image_url": one}, "input[2].output")):
        kind = "function_call_output" if isinstance(brought, list) else "computer_call_output"
        items = [{"role": "user", "content": "Look."}, call, {"type": kind, "call_id": "c", "output": brought}]
        ids = server().post("/v1/responses/render", {**common, "input": items}).json["token_ids"]
        holds(35 <= ids.count(19) <= 70, (kind, ids))
        (brought[1] if isinstance(brought, list) else brought)["image_url"] = "https://example.org/a.png"
        error = server().post("/v1/responses", {**common, "input": items}).error
        equal((error["code"], error["param"]), ("unsupported_content", place))
    bad = {**common, "input": [{"role": "user", "content": [words, {"type": "input_image", "file_id": "file-1"}]}]}
    equal(server().post("/v1/responses", bad).error["param"], "input[0].content[1]")
    equal(ask({"type": "input_image", "image_url": one}, words, extra_body={"image_budget": 140}).usage.input_tokens > n, True)


@test("Messages: pictures in turns and in results, counted, and by Anthropic's client")
def _():
    client = anthropic.Anthropic(base_url=server().url, api_key="none", max_retries=0)
    common = {"model": "tiny-tower"}

    def block(data, kind="image/png"):
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}}

    one = png(160, 120)
    messages = [{"role": "user", "content": [block(one, "image/jpeg"), text(QUESTION)]}]
    n = chat([user(picture(one), text(QUESTION))]).json["usage"]["prompt_tokens"]
    answer = client.messages.create(max_tokens=12, messages=messages, **common)
    usage = answer.usage
    equal(usage.input_tokens + (usage.cache_read_input_tokens or 0), n)
    again = client.messages.create(max_tokens=12, messages=messages, **common)
    equal(again.usage.cache_read_input_tokens, n - 1)
    equal(client.messages.count_tokens(messages=messages, **common).input_tokens, n)
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block(one), text("seen"), block(png(96, 96))]}
    turns = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [use]},
             {"role": "user", "content": [result, text("Between."), block(png(64, 64)), text("And that?")]}]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    made = server().post("/v1/messages/render", {**common, "max_tokens": 5, "messages": turns, "tools": tools}).json
    equal(len(made["features"]["mm_hashes"]["image"]), 3)
    client.messages.create(max_tokens=5, messages=turns, tools=tools, **common)
    for broken in (block(b"x"), {"type": "image", "source": {"type": "url", "url": "https://a/b"}}, {"type": "image"}):
        reply = server().post("/v1/messages", {**common, "max_tokens": 5, "messages": [user(text("x"), broken)]})
        equal(reply.status, 400)
        holds("messages[0].content[1]" in reply.json["error"]["message"], reply.body)
    turns[2]["content"][0]["content"][2] = block(one[:90])
    reply = server().post("/v1/messages", {**common, "max_tokens": 5, "messages": turns, "tools": tools})
    holds("messages[2].content[0].content[2]" in reply.json["error"]["message"], reply.body)


def tower(to):
    return to.metric("kakeya_images_computed_total"), to.metric("kakeya_image_cache_hits_total")


@test("rows are kept for prompts that begin otherwise, within a bound, and told in /metrics")
def _():
    kept = Server(*COMPUTE, "--image-budget", "70", "--image-cache", "20K", model=MODEL)  # one picture of 63 rows of 48 values
    one, other, third = png(160, 120), png(160, 120, changed=(1, 1)), png(160, 120, changed=(2, 2))
    first = chat([user(picture(one), text(QUESTION))], to=kept)
    equal(tower(kept), (1, 0))
    rows = kept.metric("kakeya_image_rows_computed_total")
    equal(rows, first.json["prompt_token_ids"].count(19))
    equal(kept.metric("kakeya_image_cache_images"), 1)
    chat([user(picture(one), text(QUESTION))], to=kept)  # found in the prefix store
    equal(tower(kept), (1, 0))
    again = chat([user(picture(one), text(QUESTION))], to=kept, cache_prompt=False)
    equal((tower(kept), tokens_of(again)), ((1, 1), tokens_of(first)))
    chat([user(text("Look:"), picture(one), picture(other))], to=kept)
    equal(tower(kept), (2, 2))
    chat([user(picture(third))], to=kept)
    holds(kept.metric("kakeya_image_cache_bytes") <= 20480, "the bound")
    chat([user(picture(one), text(QUESTION))], to=kept, cache_prompt=False)
    equal(tower(kept)[0], 4)  # it was used least lately
    kept.stop()


@test("decoders run in a process of their own, and many at a time do no harm")
def _():
    good, bad = png(64, 64), content_of("photo.jpg")[:5000]

    def ask(data, status):
        return lambda: chat([user(picture(data), text("x"))], status=status).status

    equal(in_threads([ask(good, 200), ask(bad, 400)] * 8), [200, 400] * 8)
    children = subprocess.run(["ps", "-o", "stat=", "--ppid", str(server().process.pid)], capture_output=True, text=True).stdout
    equal(children.split(), [], "no child is left")


@test("a body of twenty pictures and 32 MB grows the server by less than 200 MB")
def _():
    alone = Server(*COMPUTE, "--image-budget", "70", model=MODEL)
    noise = png(1150, 360)  # 1.24 MB
    messages = [user(*[picture(noise)] * 20, text("x"))]
    body = json.dumps({"model": "tiny-tower", "messages": messages, "max_tokens": 1}).encode()
    holds(30 << 20 < len(body) <= 32 << 20, len(body))

    def resident(key):
        with open(f"/proc/{alone.process.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

    chat([user(picture(png(64, 64)))], to=alone)
    before = resident("VmRSS")
    equal(alone.post("/v1/chat/completions", body).status, 200)
    grown = resident("VmHWM") - before
    print(f"# {grown / 1e6:.0f} MB")
    holds(grown < 200e6, f"{grown / 1e6:.0f} MB")
    alone.stop()


@test("a saved conversation is found again with its picture by the next server, and with no other")
def _():
    one, other = png(160, 120), png(160, 120, changed=(0, 0))
    begin = text("a word " * 300)
    with tempfile.TemporaryDirectory() as directory:
        options = (*COMPUTE, "--image-budget", "140", "--session-dir", directory)
        before = Server(*options, model=MODEL)
        first = chat([user(picture(one), begin)], to=before)
        equal(before.stop(), 0)
        after = Server(*options, model=MODEL)
        again = chat([user(picture(one), begin)], to=after)
        holds(cached(again) > 500, cached(again))
        equal(tokens_of(again), tokens_of(first))
        holds(cached(chat([user(picture(other), begin)], to=after)) < 30, "another picture")
        after.stop()


if __name__ == "__main__":
    run_tests()
