"""What the tests by OpenAI's Python client share: a server, its client, the requests that most of them make."""

import json
import subprocess

import openai

from harness import KAKEYA, WAIT, Server, equal, scripted_model

server = Server("--name", "demo", "--name", "gemma", "--vision", "off")
ASK = [{"role": "user", "content": "def fibonacci(n):"}]


def client(s=server, **options):
    return openai.OpenAI(base_url=s.url + "/v1", api_key=options.pop("api_key", "none"), timeout=WAIT,
                         max_retries=options.pop("max_retries", 0), **options)


ai = client()


def chat(messages=None, s=None, **options):
    options = {"model": "demo", "messages": messages or ASK, "temperature": 0, "max_tokens": 24, **options}
    return (client(s) if s else ai).chat.completions.create(**options)


def text(answer, i=0):
    return answer.choices[i].message.content


def refusal(code=None, param=None, status=400, s=server, **body):
    body = {"model": "demo", "messages": ASK, **body}
    body = {k: v for k, v in body.items() if v is not ...}
    reply = s.post("/v1/chat/completions", body)
    equal(reply.status, status, f"{reply.body[:300]}")
    equal((reply.error["code"], reply.error["param"]), (code, param), reply.error["message"])
    return reply.error["message"]


def run(*arguments, model=None):
    command = [KAKEYA, "run", "--json", "--attention", "native", *arguments]
    if model:
        command += ["--model", model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    equal(done.returncode, 0, done.stderr)
    return json.loads(done.stdout)


def scripted(script, *options):
    return Server("--name", "demo", *options, model=scripted_model(script))


def tool(name="f", **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def stream_text(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def input_tokens(messages):
    return server.post("/v1/chat/completions/input_tokens", {"model": "demo", "messages": messages}).json["input_tokens"]


def body_text(**options):
    reply = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 24, **options})
    equal(reply.status, 200, reply.body)
    return [c["message"]["content"] for c in reply.json["choices"]]
