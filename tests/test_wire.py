"""OpenAI's JSON and server-sent events: what is sent, and that nothing a server writes is misread or breaks the reader."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from equipoise.base import Sampling
from equipoise.errors import UsageError
from equipoise.wire import (
    DIALECTS,
    Event,
    EventStream,
    Malformed,
    Usage,
    describe_error,
    join_tool_calls,
    one_line,
    read_event,
    read_finish,
    read_models,
    write_request,
)

CHAT = [{"role": "user", "content": "2+2?"}]


def write(prompt=CHAT, how=Sampling(), dialect="openai", **settings):
    return write_request(prompt, how, model="m", seed=5, dialect=dialect, **settings)


def dumps(value) -> bytes:
    return json.dumps(value).encode()


# --- out


def test_a_plain_request_has_openais_fields_and_no_others():
    how = Sampling(max_tokens=9, temperature=0.6, top_p=0.9, stop=("a", "b"), top_logprobs=20)
    common = {"model": "m", "max_tokens": 9, "temperature": 0.6, "top_p": 0.9, "seed": 5, "stop": ["a", "b"]}
    common |= {"stream": True, "stream_options": {"include_usage": True}}
    chat, text = write(how=how), write("2+2=", how)
    assert (chat.path, text.path) == ("chat/completions", "completions")
    assert chat.body == common | {"messages": CHAT, "logprobs": True, "top_logprobs": 20}
    assert text.body == common | {"prompt": "2+2=", "logprobs": 20}
    assert "stop" not in write().body
    assert "logprobs" not in write().body


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_server_does_by_itself_is_switched_off(dialect):
    """llama.cpp keeps 40 tokens and cuts below 0.05 of the likeliest, where it is not told otherwise; vLLM asks the model."""
    body = write(dialect=dialect).body
    neutral = {"vllm": -1, "sglang": -1, "llama.cpp": 0, "openai": None}
    assert body.get("top_k") == neutral[dialect]
    assert body.get("min_p") == (None if dialect == "openai" else 0.0)
    assert write(how=Sampling(extra={"top_k": 20}), dialect=dialect).body["top_k"] == 20


def test_every_server_counts_as_it_goes_where_it_can():
    for dialect in ("vllm", "sglang"):
        assert write(dialect=dialect).body["stream_options"]["continuous_usage_stats"] is True
    assert write(dialect="llama.cpp").body["timings_per_token"] is True


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("sglang", {"continue_final_message": True}),
        ("llama.cpp", {}),
    ],
)
def test_an_assistants_message_at_the_end_is_continued(dialect, fields):
    begun = [*CHAT, {"role": "assistant", "content": "It is"}]
    plain, asked = write(dialect=dialect).body, write(begun, dialect=dialect).body
    added = {name: value for name, value in asked.items() if name not in plain}
    assert added == fields
    assert asked["messages"] == begun


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(UsageError, match="would start a new one"):
        write([{"role": "assistant", "content": "It is"}])
    with pytest.raises(UsageError, match="thinking_field='thinking_token_budget' for vLLM"):
        write(how=Sampling(thinking_budget=100))
    with pytest.raises(UsageError, match="max_tokens, n are set by the sampler itself"):
        write(how=Sampling(extra={"n": 4, "max_tokens": 1, "top_k": 3}))


def test_fields_have_the_servers_names_and_none_leaves_one_out():
    how = Sampling(max_tokens=7, thinking_budget=3, extra={"temperature": None, "chat_template_kwargs": {"a": 1}})
    body = write(how=how, limit_field="max_completion_tokens", thinking_field="think").body
    assert (body["max_completion_tokens"], body["think"], body["chat_template_kwargs"]) == (7, 3, {"a": 1})
    assert not {"max_tokens", "temperature"} & set(body)


# --- events

STREAM = b': ping\r\n\r\nevent: x\ndata: {"a": 1}\n\ndata:two\r\ndata: lines\r\n\r\nid: 3\ndata: [DONE]\n\n'
FOUND = [b'{"a": 1}', b"two\nlines", b"[DONE]"]


def test_events_are_found_however_the_bytes_are_cut():
    assert EventStream().feed(STREAM) == FOUND
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1):
            stream = EventStream()
            parts = (STREAM[:first], STREAM[first:second], STREAM[second:])
            assert [event for part in parts for event in stream.feed(part)] == FOUND


def test_the_last_empty_line_may_be_missing():
    stream = EventStream()
    assert stream.feed(b"data: a\n\ndata: b") == [b"a"]
    assert stream.end() == [b"b"]
    assert stream.end() == []


@pytest.mark.parametrize("start", [b"", b"data: ", b": "])
def test_a_line_has_a_longest(start):
    stream = EventStream(longest=100)
    stream.feed(start + b"x" * (100 - len(start)))
    with pytest.raises(Malformed, match="more than 100 bytes"):
        stream.feed(b"x")


def test_an_event_of_many_lines_has_a_longest_too():
    stream = EventStream(longest=100)
    stream.feed(b"data: xxxx\n" * 10)
    with pytest.raises(Malformed, match="more than 100 bytes"):
        stream.feed(b"data: xxxx\n")
    each = EventStream(longest=100)  # of one event, not of all
    assert sum(len(each.feed(b"data: " + b"x" * 80 + b"\n\n")) for _ in range(20)) == 20


# --- in


def chunk(delta=None, **more):
    return {"choices": [{"index": 0, "delta": delta or {}, **more}]}


def test_pieces_of_a_chat():
    assert read_event(dumps(chunk({"role": "assistant", "content": None}))) == Event()
    assert read_event(dumps(chunk({"content": "hé"}))).text == "hé"
    for name in ("reasoning", "reasoning_content"):
        assert read_event(dumps(chunk({name: "hm", "content": None}))).thinking == "hm"
    both = read_event(dumps(chunk({"reasoning": "hm", "reasoning_content": "hm"})))
    assert both.thinking == "hm"  # one text under two names
    assert read_event(dumps(chunk(finish_reason="length"))).finish == "length"
    assert read_event(dumps({"choices": [{"text": "4", "finish_reason": None}]})).text == "4"
    assert read_event(dumps({"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]})).text == "4"


def test_counts_by_every_server():
    openai = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    openai["completion_tokens_details"] = {"reasoning_tokens": 2}
    assert read_event(dumps({"choices": [], "usage": openai})).usage == Usage(9, 4, 5, 2)
    sglang = {"prompt_tokens": 9, "completion_tokens": 5, "reasoning_tokens": 0, "prompt_tokens_details": None}
    assert read_event(dumps(chunk() | {"usage": sglang})).usage == Usage(9, None, 5, None)
    llama = {"cache_n": 24, "prompt_n": 14, "predicted_n": 3, "predicted_ms": 1.5}
    assert read_event(dumps(chunk() | {"timings": llama})).usage == Usage(38, 24, 3, None)
    assert read_event(dumps(chunk() | {"usage": None})).usage is None
    assert read_event(dumps(chunk() | {"usage": {"completion_tokens": -3, "prompt_tokens": True}})).usage == Usage()


def test_log_probs_of_both_kinds():
    content = [
        {"token": "a", "id": 7, "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}, {"logprob": None}]},
        {"token": "b", "id": 8, "logprob": None},
    ]
    tokens = read_event(dumps(chunk(logprobs={"content": content}))).tokens
    assert (tokens.texts, tokens.logprobs, tokens.top_logprobs, tokens.ids) == (
        ["a", "b"],
        [-0.5, None],
        [[-0.5], []],
        [7, 8],
    )
    old = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -2], "top_logprobs": [{"a": -0.5, "c": -1.5}, None]}
    tokens = read_event(dumps({"choices": [{"text": "ab", "logprobs": old}]})).tokens
    assert (tokens.texts, tokens.logprobs, tokens.top_logprobs, tokens.ids) == (
        ["a", "b"],
        [-0.5, -2.0],
        [[-0.5, -1.5], []],
        None,
    )
    with pytest.raises(Malformed, match="log-probs of 2 tokens with 1 texts"):
        read_event(dumps({"choices": [{"text": "ab", "logprobs": old | {"tokens": ["a"]}}]}))
    infinite = b'{"choices": [{"logprobs": {"content": [{"token": "a", "logprob": -Infinity}]}}]}'
    assert read_event(infinite).tokens.logprobs == [None]


def test_errors_in_a_stream():
    event = read_event(dumps({"error": {"message": "engine\ndied", "code": 500}}))
    assert (event.error, event.error_code) == ("engine died", 500)
    assert read_event(dumps({"error": "no"})).error == "no"


WHOLE = {
    "choices": [
        {
            "index": 0,
            "delta": {"content": "a", "reasoning": "b", "tool_calls": [{"index": 0, "function": {"name": "f"}}]},
            "finish_reason": "stop",
            "logprobs": {
                "content": [{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": -1.0}]}]
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
    "timings": {"predicted_n": 1, "prompt_n": 1, "cache_n": 0},
}
JUNK = [None, 0, -1, 1.5, True, "", "x", [], [None], {}, {"x": 1}, [[1]], 10**400]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


@pytest.mark.parametrize("path", [path for path in places(WHOLE) if path], ids=lambda p: ".".join(map(str, p)))
def test_junk_in_any_place_is_read_or_refused_and_never_breaks(path):
    for junk in JUNK:
        reply = deepcopy(WHOLE)
        *before, last = path
        inner = reply
        for name in before:
            inner = inner[name]
        inner[last] = junk
        try:
            event = read_event(dumps(reply))
            join_tool_calls(event.tool_calls)
        except Malformed:
            continue
        assert isinstance(event.text, str)
        assert event.finish is None or isinstance(event.finish, str)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"7", b"[]", b"null", b"[" * 100_000, b'{"a": 1}', b"9" * 5000]
)
def test_what_is_no_reply(data):
    with pytest.raises(Malformed):
        read_event(data)


@pytest.mark.parametrize(
    ("word", "finish"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "tool"), ("eos_token", "stop"), ("repetition", "length")],
)
def test_words_for_an_end(word, finish):
    assert read_finish(word) == (finish, None)


@pytest.mark.parametrize("word", ["abort", "content_filter", "error"])
def test_ends_that_are_none(word):
    finish, error = read_finish(word)
    assert finish == "error"
    assert word in error


def test_tool_calls_are_joined_by_their_index():
    pieces = [
        {"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}},
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}},
        {"index": 1, "function": {"arguments": "[]"}},
        {"index": 0, "function": {"arguments": "}"}},
    ]
    calls = join_tool_calls(pieces)
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]
    whole = [{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "g"}}]  # of a reply in one piece
    assert [call["id"] for call in join_tool_calls(whole)] == ["a", "b"]
    assert join_tool_calls([]) is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (dumps({"error": {"message": "no model"}}), "no model"),
        (dumps({"error": "no model"}), "no model"),
        (dumps({"object": "error", "message": "no model"}), "no model"),
        (dumps({"detail": [{"loc": ["body"], "msg": "no model"}]}), "no model"),
        (dumps({"detail": "no model"}), "no model"),
        (b"no\r\n\x1b[31m model", "no [31m model"),
        (b"", "no message"),
        (dumps({"strange": 1}), '{"strange": 1}'),
        (b"[" * 100_000, "[" * 299 + "…"),
    ],
)
def test_an_error_in_one_line(body, said):
    assert describe_error(body) == said


def test_one_line_is_short():
    assert len(one_line("x" * 10_000)) == 300
    assert one_line("a\u2028b\x00c\n\nd") == "a b c d"


def test_models_and_whose_they_are():
    listed = {"data": [{"id": "a", "owned_by": "vllm"}, {"id": "b", "owned_by": "vllm"}]}
    assert read_models(dumps(listed)) == (["a", "b"], "vllm")
    assert read_models(dumps({"data": [{"id": "a", "owned_by": "openai"}, {"id": 7}]})) == (["a"], "openai")
    for junk in ({}, {"data": "x"}, {"data": [1]}):
        with pytest.raises(Malformed):
            read_models(dumps(junk))
