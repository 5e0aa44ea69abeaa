"""Clients that applications use, each asked in its own way, with what it understood in one form."""

from __future__ import annotations

import asyncio
import atexit
import json
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

KEY = "planted-key-of-a-caller-0123456789"
RUNNER = asyncio.Runner()  # one loop for all: LangChain keeps its connections from model to model
atexit.register(RUNNER.close)


@dataclass
class Said:
    """A reply, as far as a client tells of it. None: the client does not."""

    texts: list[str] = field(default_factory=lambda: [""])
    finish: list[str | None] = field(default_factory=lambda: [None])
    reasoning: str = ""
    prompt: int | None = None
    made: int | None = None
    details: dict[str, Any] | None = None  # usage.x_equipoise
    logprobs: list[tuple[str, float, int]] = field(default_factory=list)  # token, value, alternatives
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    pieces: int = 0  # chunks of a stream that had text

    def grow(self, index: int) -> None:
        while len(self.texts) <= index:
            self.texts.append("")
            self.finish.append(None)

    def count(self, usage: Any) -> None:
        if usage is not None:
            self.prompt, self.made = usage.prompt_tokens, usage.completion_tokens
            assert usage.total_tokens == self.prompt + self.made
            self.details = (usage.model_extra or {}).get("x_equipoise")


# --- the official SDK


class Sdk:
    name = "openai"

    def __init__(self, url: str, key: str = KEY) -> None:
        import openai

        self.url, self.key = url, key
        self.client = openai.OpenAI(base_url=url, api_key=key, timeout=100, max_retries=0)

    def ask(self, model: str, messages: list[dict[str, Any]], *, stream: bool = False, **fields: Any) -> Said:
        reply = self.client.chat.completions.create(model=model, messages=messages, stream=stream, **fields)
        return join(list(reply)) if stream else whole(reply)

    def complete(self, model: str, prompt: str, *, stream: bool = False, **fields: Any) -> Said:
        reply = self.client.completions.create(model=model, prompt=prompt, stream=stream, **fields)
        return join_texts(list(reply) if stream else [reply])

    def leave(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> None:
        """Read the first chunk, and go."""
        stream = self.client.chat.completions.create(model=model, messages=messages, stream=True, **fields)
        next(iter(stream))
        stream.close()

    def models(self) -> list[str]:
        return [each.id for each in self.client.models.list()]


class AsyncSdk(Sdk):
    name = "openai async"

    def ask(self, model: str, messages: list[dict[str, Any]], *, stream: bool = False, **fields: Any) -> Said:
        async def go(client: Any) -> Said:
            reply = await client.chat.completions.create(model=model, messages=messages, stream=stream, **fields)
            return join([chunk async for chunk in reply]) if stream else whole(reply)

        return self.run(go)

    def complete(self, model: str, prompt: str, *, stream: bool = False, **fields: Any) -> Said:
        async def go(client: Any) -> Said:
            reply = await client.completions.create(model=model, prompt=prompt, stream=stream, **fields)
            return join_texts([chunk async for chunk in reply] if stream else [reply])

        return self.run(go)

    def leave(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> None:
        async def go(client: Any) -> None:
            stream = await client.chat.completions.create(model=model, messages=messages, stream=True, **fields)
            await anext(aiter(stream))
            await stream.close()

        self.run(go)

    def models(self) -> list[str]:
        async def go(client: Any) -> list[str]:
            return [each.id async for each in client.models.list()]

        return self.run(go)

    def run(self, go: Any) -> Any:
        import openai

        async def inside() -> Any:
            async with openai.AsyncOpenAI(base_url=self.url, api_key=self.key, timeout=100, max_retries=0) as client:
                return await go(client)

        return RUNNER.run(inside())


def whole(reply: Any) -> Said:
    said = Said()
    for choice in reply.choices:
        said.grow(choice.index)
        message = choice.message
        assert message.role == "assistant"
        said.texts[choice.index], said.finish[choice.index] = message.content or "", choice.finish_reason
        said.reasoning += (message.model_extra or {}).get("reasoning") or ""
        said.calls += [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
        said.logprobs += read_logprobs(choice.logprobs)
    said.count(reply.usage)
    return said


def join(chunks: Iterable[Any]) -> Said:
    said, roles, parts = Said(), set(), {}
    for chunk in chunks:
        said.count(chunk.usage)
        for choice in chunk.choices:
            said.grow(choice.index)
            delta = choice.delta
            roles |= {choice.index} if delta.role == "assistant" else set()
            said.texts[choice.index] += delta.content or ""
            said.pieces += bool(delta.content)
            said.reasoning += (delta.model_extra or {}).get("reasoning") or ""
            said.logprobs += read_logprobs(choice.logprobs)
            if choice.finish_reason is not None:
                assert said.finish[choice.index] is None, "two ends of one answer"
                said.finish[choice.index] = choice.finish_reason
            for call in delta.tool_calls or ():
                part = parts.setdefault((choice.index, call.index), ["", ""])
                part[0] += call.function.name or ""
                part[1] += call.function.arguments or ""
    assert roles == set(range(len(said.texts)))
    said.calls = [(name, json.loads(arguments)) for name, arguments in parts.values()]
    return said


def join_texts(chunks: Iterable[Any]) -> Said:
    """Of the older endpoint, whose chunks look like its whole replies."""
    said = Said()
    for chunk in chunks:
        assert chunk.object == "text_completion"
        said.count(chunk.usage)
        for choice in chunk.choices:
            said.grow(choice.index)
            said.texts[choice.index] += choice.text
            said.pieces += bool(choice.text)
            said.finish[choice.index] = choice.finish_reason or said.finish[choice.index]
    return said


def read_logprobs(told: Any) -> list[tuple[str, float, int]]:
    entries = (told.content if told is not None else None) or ()
    return [(entry.token, entry.logprob, len(entry.top_logprobs or ())) for entry in entries]


# --- LangChain


class LangChain:
    name = "langchain"

    def __init__(self, url: str, key: str = KEY) -> None:
        self.url, self.key = url, key

    def make(self, model: str, **fields: Any) -> Any:
        from langchain_openai import ChatOpenAI

        own = {"base_url": self.url, "api_key": self.key, "timeout": 100, "max_retries": 0, "use_responses_api": False}
        bound = {name: fields.pop(name) for name in ("tools", "tool_choice", "response_format") if name in fields}
        if "stream_options" in fields:
            own["stream_usage"] = bool(fields.pop("stream_options"))
        made = ChatOpenAI(model=model, **own, **fields)
        return made.bind(**bound) if bound else made

    def ask(self, model: str, messages: list[dict[str, Any]], *, stream: bool = False, **fields: Any) -> Said:
        from langchain_core.messages import convert_to_messages

        made = self.make(model, **fields)
        if stream:
            return self.join(self.stream(made, messages))
        if (fields.get("n") or 1) == 1:
            return self.whole([self.invoke(made, messages)])
        found = made.generate([convert_to_messages(messages)])
        said = self.whole([each.message for each in found.generations[0]])
        usage = found.llm_output["token_usage"]
        said.prompt, said.made, said.details = (
            usage["prompt_tokens"],
            usage["completion_tokens"],
            usage.get("x_equipoise"),
        )
        return said

    def invoke(self, made: Any, asked: Any) -> Any:
        return made.invoke(asked)

    def stream(self, made: Any, asked: Any) -> list[Any]:
        return list(made.stream(asked))

    def leave(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> None:
        stream = self.make(model, **fields).stream(messages)
        next(stream)
        stream.close()

    def whole(self, found: list[Any]) -> Said:
        said = Said()
        said.grow(len(found) - 1)
        for index, message in enumerate(found):
            said.texts[index] = message.text
            self.take(said, index, message)
        return said

    def join(self, chunks: list[Any]) -> Said:
        said, joined = Said(), None
        for chunk in chunks:
            said.texts[0] += chunk.text
            said.pieces += bool(chunk.text)
            joined = chunk if joined is None else joined + chunk
        self.take(said, 0, joined)
        return said

    def take(self, said: Said, index: int, message: Any) -> None:
        told = message.response_metadata
        said.finish[index] = told.get("finish_reason")
        said.calls += [(call["name"], call["args"]) for call in message.tool_calls]
        entries = (told.get("logprobs") or {}).get("content") or ()
        said.logprobs += [(each["token"], each["logprob"], len(each["top_logprobs"])) for each in entries]
        said.details = (told.get("token_usage") or {}).get("x_equipoise") or said.details
        usage = message.usage_metadata
        if usage is not None:
            said.prompt, said.made = usage["input_tokens"], usage["output_tokens"]
            assert usage["total_tokens"] == said.prompt + said.made


class AsyncLangChain(LangChain):
    name = "langchain async"

    def invoke(self, made: Any, asked: Any) -> Any:
        return RUNNER.run(made.ainvoke(asked))

    def stream(self, made: Any, asked: Any) -> list[Any]:
        async def go() -> list[Any]:
            return [chunk async for chunk in made.astream(asked)]

        return RUNNER.run(go())


# --- llm, which is configured by a file of models with their addresses
# LiteLLM 1.106 would pin openai to 2.x and bring seventeen packages, boto3 among them; this is seven small ones.


class Llm:
    name = "llm"

    def __init__(self, url: str, key: str = KEY) -> None:
        self.url, self.key = url, key

    def make(self, model: str, **more: Any) -> Any:
        """Through its own file: a line for each model."""
        import llm
        import yaml

        listed = {"model_id": "ours", "model_name": model, "api_base": self.url, "api_key_name": "ours", **more}
        (llm.user_dir() / "extra-openai-models.yaml").write_text(yaml.safe_dump([listed]))
        return llm.get_model("ours")

    def ask(self, model: str, messages: list[dict[str, Any]], *, stream: bool = False, **fields: Any) -> Said:
        fields.pop("stream_options", None)  # it always asks for the usage of a stream
        given: dict[str, Any] = (
            {"schema": form["json_schema"]["schema"]} if (form := fields.pop("response_format", None)) else {}
        )
        fields.pop("tool_choice", None)
        tools = fields.pop("tools", None)
        if tools:
            import llm

            given["tools"] = [
                llm.Tool(each["function"]["name"], each["function"]["description"], each["function"]["parameters"])
                for each in tools
            ]
        made = self.make(model, reasoning="reasoning_effort" in fields, supports_schema=True, supports_tools=True)
        return self.read(self.prompt(made, messages, stream=stream, key=self.key, **given, **fields), stream)

    def prompt(self, made: Any, messages: list[dict[str, Any]], **fields: Any) -> Any:
        system = next((each["content"] for each in messages if each["role"] == "system"), None)
        return made.prompt(messages[-1]["content"], system=system, **fields)

    def complete(self, model: str, prompt: str, *, stream: bool = False, **fields: Any) -> Said:
        made = self.make(model, completion=True)
        return self.read(made.prompt(prompt, stream=stream, key=self.key, **fields), stream)

    def read(self, reply: Any, stream: bool) -> Said:
        pieces = list(reply)
        usage, told = reply.usage(), reply.response_json or {}
        finish = told.get("finish_reason") or ((told.get("choices") or [{}])[0] or {}).get("finish_reason")
        calls = [(call.name, call.arguments) for call in reply.tool_calls()]
        said = Said(["".join(pieces)], [finish], prompt=usage.input, made=usage.output, calls=calls)
        said.pieces = len(pieces) if stream else 0
        return said


class AsyncLlm(Llm):
    name = "llm async"

    def make(self, model: str, **more: Any) -> Any:
        import llm

        super().make(model, **more)
        return llm.get_async_model("ours")

    def read(self, reply: Any, stream: bool) -> Said:
        async def go() -> Said:
            pieces = [piece async for piece in reply]
            usage = await reply.usage()
            return Said(["".join(pieces)], prompt=usage.input, made=usage.output, pieces=len(pieces) if stream else 0)

        return RUNNER.run(go())


# --- Open WebUI, which needs a browser: its requests, as its backend sends them


class OpenWebUi:
    name = "open webui"

    def __init__(self, url: str, key: str = KEY) -> None:
        self.url = url
        self.headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {key}",
            "X-OpenWebUI-User-Name": "Ann",
        }

    def ask(self, model: str, messages: list[dict[str, Any]], *, stream: bool = False, **fields: Any) -> Said:
        told = self.send("/chat/completions", {"stream": stream, "model": model, "messages": messages, **fields})
        if not stream:
            return whole(ChatCompletion.model_validate_json(told))
        events = [line[6:] for line in told.split("\n\n") if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return join([ChatCompletionChunk.model_validate_json(event) for event in events])

    def models(self) -> list[str]:
        return [each["id"] for each in json.loads(self.send("/models"))["data"]]

    def send(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, self.headers), timeout=100) as reply:
            return reply.read().decode()


CLIENTS = {each.name: each for each in (Sdk, AsyncSdk, LangChain, AsyncLangChain, Llm, AsyncLlm, OpenWebUi)}
