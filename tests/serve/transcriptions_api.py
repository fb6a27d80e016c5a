"""/v1/audio/transcriptions: by OpenAI's client, and forms that are none."""

import http.client
import json

import openai
from harness import *  # noqa: F403
from pictures import text, user
from sounds import flac_bomb, header, part, wav

MODEL = "tests/data/vision/tiny-e"
CARD = ("Transcribe the following speech segment in {0} into {0} text.\n\nFollow these specific instructions for formatting the answer:\n"
        "* Only output the transcription, with no newlines.\n* When transcribing numbers, write the digits, i.e. write 1.7 and not one "
        "point seven, and write 3 instead of three.")
_server = []


def server():
    if not _server:
        _server.append(Server("--backend", "cpu", "--precision", "f32", "--max-tokens", "16", "--audio-seconds", "4", model=MODEL))
    return _server[0]


def client():
    return openai.OpenAI(base_url=server().url + "/v1", api_key="none", max_retries=0)


def asked(data, language="English", more=""):
    """The same as a chat."""
    body = {"model": "tiny-e", "messages": [user(part(data), text(CARD.format(language) + more))], "temperature": 0}
    reply = server().post("/v1/chat/completions", body)
    equal(reply.status, 200, reply.body)
    return reply.json


def send(body, boundary="b", to=None, kind="multipart/form-data"):
    connection = http.client.HTTPConnection(*(to or server()).url.split("//")[1].split(":"))
    connection.request("POST", "/v1/audio/transcriptions", body, {"content-type": f"{kind}; boundary={boundary}"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def form(**values):
    out = b""
    for name, value in values.items():
        data = value if isinstance(value, bytes) else value.encode()
        out += b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n' % name.encode() + data + b"\r\n"
    return out + b"--b--\r\n"


def refused(code, where, says="", to=None, **values):
    status, body = send(form(**{"model": "tiny-e", "file": wav(0.2), **values}), to=to)
    error = json.loads(body)["error"]
    equal((status, error["code"], error["param"]), (404 if code == "model_not_found" else 400, code, where), body)
    holds(says in error["message"], body)


@test("OpenAI's client gets the transcript that a chat with the card's words gives, as json, text and a stream")
def _():
    data = wav(1)
    wanted = asked(data)
    made = client().audio.transcriptions.create(model="tiny-e", file=("a.wav", data), language="en")
    equal(made.text, wanted["choices"][0]["message"]["content"])
    usage = wanted["usage"]
    equal((made.usage.input_tokens, made.usage.output_tokens), (usage["prompt_tokens"], usage["completion_tokens"]))
    equal(made.usage.input_token_details.audio_tokens, 25)
    plain = client().audio.transcriptions.create(model="tiny-e", file=("a.wav", data), language="English", response_format="text")
    equal(plain, made.text + "\n")
    events = list(client().audio.transcriptions.create(model="tiny-e", file=("a.wav", data), language="en", stream=True))
    equal("".join(e.delta for e in events if e.type == "transcript.text.delta"), made.text)
    equal((events[-1].type, events[-1].text, events[-1].usage.total_tokens), ("transcript.text.done", made.text, made.usage.total_tokens))
    equal(server().metric("kakeya_sounds_computed_total"), 1, "it is the same sound")


@test("language and prompt are told to the model, and temperature counts")
def _():
    data = wav(0.5)
    for language, name in (("de", "German"), ("Swiss German", "Swiss German")):
        made = client().audio.transcriptions.create(model="tiny-e", file=("a.wav", data), language=language)
        equal(made.text, asked(data, name)["choices"][0]["message"]["content"], name)
    made = client().audio.transcriptions.create(model="tiny-e", file=("a.wav", data), language="en", prompt="ZyntriQix", temperature=0)
    equal(made.text, asked(data, more="\n\nWhat the segment follows, or is about: ZyntriQix")["choices"][0]["message"]["content"])
    without = client().audio.transcriptions.create(model="tiny-e", file=("a.wav", data))
    holds(without.usage.input_tokens != made.usage.input_tokens, "in its original language")


@test("what is not done is refused by name")
def _():
    for name in ("verbose_json", "srt", "vtt", "diarized_json"):
        refused("unsupported_value", "response_format", says=name, response_format=name)
    for name in ("timestamp_granularities[]", "include[]"):
        refused("unsupported_parameter", name, **{name: "word"})
    refused("invalid_value", "language", language="qq")
    refused("invalid_value", "temperature", temperature="hot")
    refused("invalid_value", "prompt", prompt=b"\xff")
    refused("model_not_found", "model", model="whisper-1")
    refused("audio_parse_error", "file", file=b"hello", says="neither WAV")
    refused("audio_parse_error", "file", file=b"")
    refused("audio_parse_error", "file", file=wav(1)[:9000])
    refused("sound_too_large", "file", file=flac_bomb(3600), says="longer than 4 seconds")
    refused("sound_too_large", "file", file=header(5 * 32000) + bytes(5 * 32000))
    other = Server()
    refused("unsupported_content", "file", says="reads no sound", to=other, model=other.get("/v1/models").json["data"][0]["id"])
    other.stop()


@test("forms that are broken are 400, other bodies 415, and fields that are not known are named")
def _():
    whole = form(model="tiny-e", file=wav(0.2))
    equal(send(whole)[0], 200)
    equal(send(b"preamble\r\n" + whole + b"epilogue")[0], 200)
    for body, boundary in ((b"", "b"), (whole, "other"), (whole[:-200], "b"), (whole, ""), (whole, "b" * 71),
                           (b"--b\r\n\r\n\r\n--b--", "b"), (b'--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--', "b"),
                           (b"--b", "b"), (b"--b\r\n", "b"),
                           (form(**{f"x{i}": "" for i in range(40)}), "b")):
        status, said = send(body, boundary)
        equal((status, json.loads(said)["error"]["code"]), (400, "invalid_form"), (body[:40], said))
    for values, where in (({"model": "tiny-e"}, "file"), ({"file": wav(0.2)}, "model")):
        status, said = send(form(**values))
        equal((status, json.loads(said)["error"]["param"]), (400, where), said)
    equal(send(whole, kind="application/json")[0], 415)
    strict = Server("--backend", "cpu", "--strict", "--max-tokens", "4", model=MODEL)
    refused("unsupported_parameter", "chunking_strategy", to=strict, chunking_strategy="auto")
    strict.stop()


if __name__ == "__main__":
    run_tests()
