"""Gemma 3 270M behind the server: its turns, its 262,144 tokens under forms, and what it has not, which is refused."""

import json
import os

import openai

from harness import WAIT, Server, equal, holds, run_tests, test

server = Server("--name", "gemma3", model=os.environ["KAKEYA_REAL_MODEL"])
ai = openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=WAIT, max_retries=0)
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
ANSWERED = [*ASK, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": [{"type": "text", "text": " Bye "}]}]


def chat(messages, **options):
    return ai.chat.completions.create(**{"model": "gemma3", "messages": messages, "temperature": 0, "max_tokens": 8, **options})


def refused(**body):
    reply = server.post("/v1/chat/completions", {"model": "gemma3", "messages": ASK, "max_tokens": 4, **body})
    equal(reply.status, 400, reply.body)
    return reply.error["message"]


@test("turns are Gemma 3's, and a conversation goes on from what is kept")
def _():
    ids = server.post("/tokenize", {"messages": ASK}).json["tokens"]
    text = server.post("/detokenize", {"tokens": ids}).json["prompt"]
    equal(text, "<bos><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n<start_of_turn>model\n")
    equal((ids[:4], ids[-3:]), ([2, 105, 2364, 107], [105, 4368, 107]))
    first = chat(ASK)
    equal(first.usage.prompt_tokens, len(ids))
    again = chat([*ASK, {"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "More"}])
    holds(again.usage.prompt_tokens_details.cached_tokens >= len(ids) - 3, again.usage)
    streamed = list(chat(ANSWERED, stream=True))
    equal("".join(c.choices[0].delta.content or "" for c in streamed if c.choices), chat(ANSWERED).choices[0].message.content)


@test("what is continued is what `run` continues")
def _():
    answer = ai.completions.create(model="gemma3", prompt="The capital of France is", temperature=0, max_tokens=11, logprobs=2)
    equal(answer.choices[0].text, " the capital of the country of France. It is the")
    holds(all(len(top) >= 2 for top in answer.choices[0].logprobs.top_logprobs), answer.choices[0].logprobs)


@test("answers follow a schema and an expression, over the whole vocabulary")
def _():
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
              "required": ["city", "people"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema, "strict": True}}
    for temperature in (0, 1):
        value = json.loads(chat(ASK, max_tokens=80, temperature=temperature, seed=3, response_format=form).choices[0].message.content)
        holds(len(value["city"]) <= 12 and isinstance(value["people"], int), value)
    reply = server.post("/v1/chat/completions", {"model": "gemma3", "messages": ASK, "max_tokens": 20, "guided_regex": "[0-9]{3}-[a-z]+x"})
    holds(reply.json["choices"][0]["message"]["content"][3] == "-", reply.body)


@test("what it has not is refused in one line")
def _():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    holds("no control tokens for calls" in refused(tools=tools), "tools")
    holds("Gemma 3" in refused(tools=tools, tool_choice="none"), "tools that may not be called")
    holds("alternate" in refused(messages=[ASK[1], ASK[1]]), "roles")
    holds("system text" in refused(messages=ASK[:1]), "a system text alone")
    equal(chat(ASK).choices[0].finish_reason in ("stop", "length"), True)


run_tests()
