"""Sounds in requests: what arrives as what, what is refused, and what is not computed twice."""

import json
import subprocess
import tempfile

import anthropic
import openai
from harness import *  # noqa: F403
from pictures import picture, png, text, user
from sounds import flac_bomb, header, part, wav

MODEL, FRAMES = "tests/data/vision/tiny-e", "tests/data/vision/tiny-unified"
SOUNDS = "tests/data/sounds"
COMPUTE = ("--backend", "cpu", "--precision", "f32")
QUESTION = "What is this?"
PLACE = "messages[0].content[1]"
_server = []


def server():
    if not _server:
        _server.append(Server(*COMPUTE, "--image-budget", "70", "--max-tokens", "24", model=MODEL))
    return _server[0]


def content_of(name):
    with open(f"{SOUNDS}/{name}", "rb") as file:
        return file.read()


def chat(messages, to=None, status=200, **more):
    body = {"model": "tiny-e", "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **more}
    reply = (to or server()).post("/v1/chat/completions", body)
    equal(reply.status, status, reply.body)
    return reply


def tokens_of(reply):
    return reply.json["choices"][0]["token_ids"]


def usage_of(reply):
    return reply.json["usage"]["prompt_tokens_details"]


def computed(to=None):
    return tuple((to or server()).metric(f"kakeya_{name}_computed_total") for name in ("sounds", "sound_rows"))


def run(*arguments, model=MODEL):
    """What `kakeya run` answers about the same sounds."""
    command = [KAKEYA, "run", *COMPUTE, "--model", model, "--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--json"]
    made = subprocess.run([*command, *arguments], capture_output=True, text=True)
    equal(made.returncode, 0, made.stderr)
    return json.loads(made.stdout)["token_ids"]


def refused(code, bad, says="", to=None, where=PLACE, **more):
    error = chat([user(text("x"), bad)], to=to, status=400, **more).error
    equal((error["code"], error["param"]), (code, where), error["message"])
    holds(where in error["message"] and says in error["message"], error["message"])


@test("a sound's answer is that of the program, in all three formats and by OpenAI's client")
def _():
    client = openai.OpenAI(base_url=server().url + "/v1", api_key="none", max_retries=0)
    for name in ("chirp.wav", "sweep-24000.mp3", "sweep-44100-stereo.flac", "sweep-8000-stereo.wav", "sweep-u8.wav"):
        wanted = run("--audio", f"{SOUNDS}/{name}", QUESTION)
        answer = client.chat.completions.create(
            model="tiny-e", max_tokens=12, temperature=0, extra_body={"ignore_eos": True, "return_token_ids": True},
            messages=[user(part(content_of(name), name.split(".")[-1]), text(QUESTION))])
        equal(answer.choices[0].token_ids, wanted, name)
    holds(isinstance(answer.usage.prompt_tokens_details.audio_tokens, int), "audio_tokens")


@test("the 12B's form reads sounds, too")
def _():
    other = Server(*COMPUTE, model=FRAMES)
    wanted = run("--audio", f"{SOUNDS}/chirp.wav", QUESTION, model=FRAMES)
    equal(tokens_of(chat([user(part(content_of("chirp.wav")), text(QUESTION))], to=other, model="tiny-unified")), wanted)
    other.stop()


@test("sounds, pictures and texts keep their order over several messages; the bytes decide what a sound is")
def _():
    names = [f"{SOUNDS}/{name}" for name in ("chirp.wav", "sweep-24000.mp3", "sweep-44100-stereo.flac")]
    photo = "tests/data/images/photo.jpg"
    parts = [{"type": "audio"}, text("A thing:"), {"type": "image"}, {"type": "audio"}]
    more = [text("and"), {"type": "audio"}, text("differ?")]
    said = {"role": "assistant", "content": "This is a line."}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([user(*parts), said, user(*more)], file)
        file.flush()
        given = [argument for name in names for argument in ("--audio", name)]
        wanted = run(*given, "--image", photo, "--image-budget", "70", "--messages", file.name)
    sent = [part(open(name, "rb").read(), "wav") for name in names]  # two of them are none
    sent[1]["input_audio"]["data"] = "data:audio/mpeg;base64," + sent[1]["input_audio"]["data"]
    del sent[2]["input_audio"]["format"]
    parts[0], parts[3], more[1] = sent
    parts[2] = picture(open(photo, "rb").read())
    body = [user(*parts), said, user(*more)]
    reply = chat(body)
    equal(tokens_of(reply), wanted)
    features = server().post("/v1/chat/completions/render", {"model": "tiny-e", "messages": body}).json["features"]
    equal({kind: len(those) for kind, those in features["mm_hashes"].items()}, {"image": 1, "audio": 3})
    places = {kind: sum(p["length"] for p in those) for kind, those in features["mm_placeholders"].items()}
    details = usage_of(reply)
    equal((details["image_tokens"], details["audio_tokens"]), (places["image"], places["audio"]))


@test("the same sound again computes no row; one sample that differs is heard, and all after it")
def _():
    one, other = wav(1), wav(1, changed=8000)
    before = computed()
    first = chat([user(part(one), text(QUESTION))])
    rows = usage_of(first)["audio_tokens"]
    equal((rows, usage_of(first)["cached_tokens"]), (25, 0))
    equal(computed(), (before[0] + 1, before[1] + rows))
    n = first.json["usage"]["prompt_tokens"]
    again = chat([user(part(one), text(QUESTION))])
    equal((usage_of(again)["cached_tokens"], tokens_of(again), usage_of(again)["audio_tokens"]), (n - 1, tokens_of(first), rows))
    said = {"role": "assistant", "content": first.json["choices"][0]["message"]["content"]}
    turn = chat([user(part(one), text(QUESTION)), said, user(text("And now?"))])
    holds(usage_of(turn)["cached_tokens"] > rows, usage_of(turn))
    equal(usage_of(turn)["audio_tokens"], rows, "sounds of earlier turns are the prompt's")
    equal(computed(), (before[0] + 1, before[1] + rows))
    begin = text("a word " * 40)
    chat([user(begin, part(one), text(QUESTION))])
    changed = chat([user(begin, part(other), text(QUESTION))])
    equal(computed(), (before[0] + 2, before[1] + 2 * rows), "the first one's rows were kept, the other's are new")
    at = changed.json["prompt_token_ids"].index(22)
    holds(usage_of(changed)["cached_tokens"] <= at, f"{usage_of(changed)} of {at} tokens in front of the sound")
    equal(tokens_of(changed), tokens_of(chat([user(begin, part(other), text(QUESTION))], cache_prompt=False)))


@test("several conversations at a time, several answers to one sound, streams")
def _():
    data = [wav(0.2 + 0.1 * i) for i in range(4)]
    alone = [tokens_of(chat([user(part(d), text(QUESTION))], cache_prompt=False)) for d in data]
    equal(in_threads([lambda d=d: tokens_of(chat([user(part(d), text(QUESTION))])) for d in data]), alone)
    many = chat([user(part(data[0]), text(QUESTION))], n=3, temperature=1, seed=7).json["choices"]
    single = chat([user(part(data[0]), text(QUESTION))], temperature=1, seed=7, cache_prompt=False)
    equal((len(many), many[0]["token_ids"]), (3, tokens_of(single)))
    client = openai.OpenAI(base_url=server().url + "/v1", api_key="none", max_retries=0)
    chunks = list(client.chat.completions.create(model="tiny-e", max_tokens=4, stream=True, stream_options={"include_usage": True},
                                                 messages=[user(part(data[0]), text(QUESTION))]))
    equal(chunks[-1].usage.prompt_tokens_details.audio_tokens, usage_of(single)["audio_tokens"])


@test("the routes that count tokens count a sound's")
def _():
    messages = [user(part(wav(2)), text(QUESTION))]
    counted = server().post("/v1/chat/completions/input_tokens", {"model": "tiny-e", "messages": messages}).json["input_tokens"]
    equal(counted, chat(messages).json["usage"]["prompt_tokens"])
    without = server().post("/v1/chat/completions/input_tokens", {"model": "tiny-e", "messages": [user(text(QUESTION))]}).json
    equal(counted - without["input_tokens"], 50 + 2)


@test("empty, broken and overlong sounds are refused, with the place")
def _():
    good = content_of("chirp.wav")
    for data in (b"hello there", b"OggS" + bytes(60), b"RIFF\0\0\0\0AVI " + bytes(60), png(40, 30)):
        refused("audio_parse_error", part(data), says="neither WAV, FLAC nor MP3")
    for data in (good[:20], good[:44], good[:9000], content_of("sweep-44100-stereo.flac")[:9000], b"ID3" + bytes(80), header(0)):
        refused("audio_parse_error", part(data))
    refused("invalid_audio", part(wav(0.01)), says="a sound of 160 samples is too short")
    refused("sound_too_large", part(wav(30.001)), says="longer than 30 seconds")
    hour = header(3600 * 8000, rate=4000) + bytes(3600 * 8000)  # more than the limit of bytes, too
    refused("sound_too_large", part(hour[:-5000000]), says="bytes")
    refused("sound_too_large", part(header(31 * 8000, rate=4000) + bytes(31 * 8000)), says="longer than 30 seconds")
    refused("sound_too_large", part(flac_bomb(3600), "flac"), says="longer than 30 seconds")
    equal(usage_of(chat([user(part(flac_bomb(8), "flac"))]))["audio_tokens"] > 190, True, "a short one of the kind is heard")
    for audio, code, where in (({"data": "", "format": "wav"}, "invalid_audio", PLACE),
                               ({"data": "AA=A", "format": "wav"}, "invalid_audio", PLACE),
                               ({"data": "UklG Rg", "format": "wav"}, "invalid_audio", PLACE),
                               ({"data": "https://example.org/a.wav", "format": "wav"}, "invalid_audio", PLACE),
                               ({"format": "wav"}, "invalid_type", PLACE), (None, "invalid_type", PLACE), ("x", "invalid_type", PLACE),
                               ({"data": 7, "format": "wav"}, "invalid_type", PLACE),
                               (part(good, "ogg")["input_audio"], "invalid_value", f"{PLACE}.input_audio.format"),
                               (part(good, 3)["input_audio"], "invalid_value", f"{PLACE}.input_audio.format")):
        refused(code, {"type": "input_audio", "input_audio": audio}, where=where)
    error = chat([{"role": "system", "content": [part(good)]}, user(text("x"))], status=400).error
    equal((error["code"], error["param"]), ("unsupported_content", "messages[0].content[0]"))


@test("limits: bytes, seconds and sounds, all in /props; its metrics and the model's modalities")
def _():
    small = Server(*COMPUTE, "--audio-bytes", "100K", "--audio-seconds", "2", "--audio-count", "2", model=MODEL)
    props = small.get("/props").json
    equal(props["modalities"], {"vision": True, "audio": True})
    weights = small.metric("kakeya_sound_weights_bytes")
    holds(weights > 10000, weights)
    equal(props["kakeya"]["sounds"], {"formats": ["wav", "mp3", "flac"], "max_bytes": 102400, "max_seconds": 2, "max_count": 2,
                                      "weights_bytes": weights})
    equal(small.get("/v1/models").json["data"][0]["architecture"]["input_modalities"], ["text", "image", "audio"])
    one = part(wav(0.2))
    chat([user(text("x"), one, one)], to=small)
    error = chat([user(one, one), user(text("x"), one)], to=small, status=400).error
    equal((error["code"], error["param"]), ("too_many_sounds", "messages[1].content[1]"))
    refused("sound_too_large", part(wav(4)), to=small, says="102400 bytes (--audio-bytes)")
    refused("sound_too_large", part(wav(2.001)), to=small, says="2 seconds, which is the most that is read here")
    chat([user(part(wav(2)))], to=small)
    small.stop()


@test("models without sound say so; so do Responses and Messages, which have none")
def _():
    for model, name, reason in (("tests/data/vision/tiny-tower", "tiny-tower", "reads no sound"), (None, None, "reads no sound")):
        other = Server(*COMPUTE, model=model) if model else Server()
        name = name or other.get("/v1/models").json["data"][0]["id"]
        equal((other.get("/props").json["kakeya"]["sounds"], other.get("/props").json["modalities"]["audio"]), (None, False))
        refused("unsupported_content", part(wav(0.2)), says=reason, to=other, model=name)
        other.stop()
    one = part(wav(0.2))
    asked = {"model": "tiny-e", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, one]}]}
    error = server().post("/v1/responses", asked).error
    equal((error["code"], error["param"]), ("unsupported_content", "input[0].content[1]"))
    holds("input_audio" in error["message"], error["message"])
    client = anthropic.Anthropic(base_url=server().url, api_key="none", max_retries=0)
    block = {"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": one["input_audio"]["data"]}}
    for bad in (block, one):
        try:
            client.messages.create(model="tiny-e", max_tokens=4, messages=[user(text("x"), bad)])
        except anthropic.BadRequestError as why:
            holds(bad["type"] in str(why) and "messages[0].content[1]" in str(why), why)
        else:
            raise AssertionError("an Anthropic request with a sound was answered")


@test("decoders run in a process of their own, and many at a time do no harm")
def _():
    good, bad = wav(0.3), content_of("sweep-44100-stereo.flac")[:5000]

    def ask(data, status):
        return lambda: chat([user(part(data), text("x"))], status=status).status

    equal(in_threads([ask(good, 200), ask(bad, 400)] * 8), [200, 400] * 8)
    children = subprocess.run(["ps", "-o", "stat=", "--ppid", str(server().process.pid)], capture_output=True, text=True).stdout
    equal(children.split(), [], "no child is left")


@test("a saved conversation is found again with its sound by the next server, and with no other")
def _():
    one, other = wav(2), wav(2, changed=0)
    begin = text("a word " * 300)
    with tempfile.TemporaryDirectory() as directory:
        options = (*COMPUTE, "--session-dir", directory)
        before = Server(*options, model=MODEL)
        first = chat([user(part(one), begin)], to=before)
        equal(before.stop(), 0)
        after = Server(*options, model=MODEL)
        again = chat([user(part(one), begin)], to=after)
        holds(usage_of(again)["cached_tokens"] > 500, usage_of(again))
        equal((tokens_of(again), computed(after)), (tokens_of(first), (0, 0)))
        holds(usage_of(chat([user(part(other), begin)], to=after))["cached_tokens"] < 30, "another sound")
        after.stop()


if __name__ == "__main__":
    run_tests()
