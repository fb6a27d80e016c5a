"""LangChain's models for OpenAI's and Anthropic's APIs send pictures, as they are installed: in its own form of parts and in those of the
APIs, in turns, streams and results of tools. What comes back is what plain requests get."""

import base64
import os

os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")  # it would tell others

from harness import *  # noqa: E402, F403
from langchain_anthropic import ChatAnthropic  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

MODEL = "tests/data/vision/tiny-tower"
QUESTION = "What is this?"
TOKENS = 8
_server = []


def server():
    if not _server:
        _server.append(Server("--backend", "cpu", "--precision", "f32", "--image-budget", "70", model=MODEL))
    return _server[0]


def encoded(name="photo.jpg"):
    with open(f"tests/data/images/{name}", "rb") as file:
        return base64.b64encode(file.read()).decode()


def own(name="photo.jpg", kind="image/jpeg"):
    """LangChain's form."""
    return {"type": "image", "base64": encoded(name), "mime_type": kind}


def openais(name="photo.jpg", kind="image/jpeg", **more):
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded(name)}", **more}}


def anthropics(name="photo.jpg", kind="image/jpeg"):
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": encoded(name)}}


def text(words=QUESTION):
    return {"type": "text", "text": words}


def plain(messages, **more):
    """The text and the prompt's tokens of an answer to the same request, asked without LangChain."""
    body = {"model": "tiny-tower", "messages": messages, "max_tokens": TOKENS, "temperature": 0, **more}
    reply = server().post("/v1/chat/completions", body)
    equal(reply.status, 200, reply.body)
    return reply.json["choices"][0]["message"]["content"], reply.json["usage"]["prompt_tokens"]


def by_openai(**more):
    return ChatOpenAI(base_url=server().url + "/v1", api_key="none", model="tiny-tower", max_tokens=TOKENS, temperature=0, max_retries=0,
                      **more)


def by_anthropic():
    return ChatAnthropic(base_url=server().url, api_key="none", model="tiny-tower", max_tokens=TOKENS, temperature=0, max_retries=0)


def said(message):
    """Its text: a string, or a list of parts."""
    content = message.content
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@test("ChatOpenAI: a picture in both forms, whole and streamed, and the next turn")
def _():
    words, n = plain([{"role": "user", "content": [openais(), text()]}])
    holds(words, "the model says something")
    for part in (own(), openais()):
        question = HumanMessage(content=[part, text()])
        answer = by_openai().invoke([question])
        equal((said(answer), answer.usage_metadata["input_tokens"]), (words, n))
        equal("".join(map(said, by_openai().stream([question]))), words)
    turn = [question, answer, HumanMessage(content=[text("and"), own("text.png", "image/png"), text("differ?")])]
    again = by_openai().invoke(turn)
    wanted = plain([{"role": "user", "content": [openais(), text()]}, {"role": "assistant", "content": words},
                    {"role": "user", "content": [text("and"), openais("text.png", "image/png"), text("differ?")]}])
    equal((said(again), again.usage_metadata["input_tokens"]), wanted)
    holds(again.usage_metadata["input_token_details"]["cache_read"] > 60, "the first picture is found again")


@test("ChatOpenAI: a budget of its own, detail over it; an address is refused as the API refuses it")
def _():
    request = {"image_budget": 280}
    for detail, least, most in (("auto", 140, 320), ("low", 63, 140)):
        asked = HumanMessage(content=[openais(detail=detail), text()])
        n = by_openai(extra_body=request).invoke([asked]).usage_metadata["input_tokens"]
        equal(n, plain([{"role": "user", "content": asked.content}], **request)[1])
        holds(least < n < most, (detail, n))
    try:
        by_openai().invoke([HumanMessage(content=[{"type": "image", "url": "https://example.org/a.png"}, text()])])
    except Exception as refusal:
        holds("messages[0].content[0]" in str(refusal) and "data: URI" in str(refusal), str(refusal))
    else:
        holds(False, "an address was taken")


@test("ChatOpenAI over Responses: the same picture is the same prompt")
def _():
    words, n = plain([{"role": "user", "content": [openais(), text()]}])
    answer = by_openai(use_responses_api=True).invoke([HumanMessage(content=[own(), text()])])
    equal((said(answer), answer.usage_metadata["input_tokens"]), (words, n))


@test("ChatAnthropic: pictures in both forms, streamed, and in a tool's result")
def _():
    words, n = plain([{"role": "user", "content": [openais(), text()]}])
    for part in (own(), anthropics()):
        question = HumanMessage(content=[part, text()])
        answer = by_anthropic().invoke([question])
        equal((said(answer), answer.usage_metadata["input_tokens"]), (words, n))
        equal("".join(map(said, by_anthropic().stream([question]))), words)
    call = {"name": "look", "args": {}, "id": "t1", "type": "tool_call"}
    tools = [{"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {}}}]
    counts = []
    for content in ("seen", [text("seen"), own()]):
        turn = [HumanMessage("Look."), AIMessage("", tool_calls=[call]), ToolMessage(content, tool_call_id="t1")]
        counts.append(by_anthropic().bind_tools(tools).invoke(turn).usage_metadata["input_tokens"])
    equal(counts[1] - counts[0], 63 + 2, "the picture's tokens and those around it")


if __name__ == "__main__":
    run_tests()
