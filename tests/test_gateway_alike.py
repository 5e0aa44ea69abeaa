"""What is known of an event without parsing it must be what parsing would have told."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.gateway.asked import ChatAsked, TextAsked
from equipoise.gateway.counted import BOOKED, Counted
from equipoise.infer.ledger import Ledger
from equipoise.samplers.http_draw import Fault

CHAT = ChatAsked(messages=[{"role": "user", "content": "?"}])


def counted(asked=CHAT, *, limit=None, n=1):
    ledger = Ledger(None)
    room = asyncio.run(ledger.reserve(10_000))
    return Counted(asked, ledger, room, n, limit)


def event(delta, *, index=0, ascii=True, spaces=True, **more):
    told = {"id": "x", "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}], **more}
    return json.dumps(told, ensure_ascii=ascii, separators=None if spaces else (",", ":")).encode()


def said(out):
    assert out.startswith(b"data: ")
    assert out.endswith(b"\n\n")
    return json.loads(out[6:-2])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.text(), min_size=2, max_size=6), st.booleans(), st.booleans(), st.sampled_from(["content", "reasoning"])
)
def test_a_known_event_is_counted_and_told_as_a_parsed_one(texts, ascii, spaces, name):
    count = counted()
    for text in texts:
        if any(0xD800 <= ord(c) < 0xE000 for c in text) and not ascii:
            continue
        data = event({name: text}, ascii=ascii, spaces=spaces, usage=None)
        expected = json.loads(data)
        if name == "reasoning":
            expected["choices"][0]["delta"]["reasoning_content"] = text
        assert said(count.hand(data)) == expected
    count.settle()
    kinds = {"content": count.ledger.spent.answer, "reasoning": count.ledger.spent.thinking}
    kept = [t for t in texts if t and (ascii or not any(0xD800 <= ord(c) < 0xE000 for c in t))]
    assert kinds[name] == sum(kinds.values()) == len(kept)


def test_the_second_event_of_a_stream_is_known_and_bytes_that_are_not_one_event_are_not():
    count = counted()
    first, second = event({"content": "a"}), event({"content": 'b "\\ \n ü'})
    assert count.hand_known(b"data: " + first + b"\n\n") is None
    count.hand(first)
    whole = b"data: " + second + b"\n\n"
    assert count.hand_known(whole) == whole
    for other in (
        whole + whole,
        whole[:-1],
        whole[6:],
        b"data: " + event({"content": ""}) + b"\n\n",
        b"data: " + event({"content": "b"}, index=1) + b"\n\n",
        b"data: " + event({"content": "b"}, error=None) + b"\n\n",
        whole.replace(b"b ", b"b\x01"),
        whole.replace(b"b ", b"b\\x "),
        whole.replace(b"b ", b"b\xff "),
        whole.replace(b"b ", b'b", "tool_calls": [1], "x": "'),
    ):
        assert count.hand_known(other) is None


def test_broken_text_in_a_known_shape_is_still_an_error():
    count = counted()
    count.hand(event({"content": "aaaa"}))
    with pytest.raises(Fault, match="not JSON"):
        count.hand(event({"content": "aaaa"}).replace(b"aaaa", b"\xff\xfe"))


@pytest.mark.parametrize(
    "told",
    [
        {"usage": {"completion_tokens": 1}},  # a running count: what it adds is not always one
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": "a", "tool_calls": [{"index": 0}]}}]},
    ],
)
def test_an_event_that_may_count_as_more_is_looked_at_every_time(told):
    count = counted(n=2)
    whole = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}], **told}).encode()
    count.hand(whole)
    assert count.hand_known(b"data: " + whole + b"\n\n") is None


def test_choices_in_turns_and_texts_are_known_too():
    count = counted(n=3)
    for _ in range(2):
        for index in range(3):
            count.hand(event({"content": "a"}, index=index))
    assert count._made == {0: 2, 1: 2, 2: 2}
    texts = counted(TextAsked(prompt="?"))
    text = b'{"choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":null}]}'
    texts.hand(text % b"a")
    assert texts.hand_known(b"data: " + text % b"b" + b"\n\n") == b"data: " + text % b"b" + b"\n\n"


def test_tokens_are_booked_in_lots_and_all_of_them_at_the_end():
    count = counted(limit=100)
    for _ in range(BOOKED + 3):
        count.hand(event({"content": "a"}))
    assert count.ledger.spent.answer == BOOKED
    count.close(done=False, asked=True)
    assert (count.ledger.spent.answer, count.ledger.spent.cancelled) == (0, BOOKED + 3)


def test_a_completion_is_over_with_the_first_token_beyond_its_limit_known_or_not():
    count = counted(limit=3)
    over = []
    for _ in range(5):
        count.hand(event({"content": "a"}))
        over.append(count.over)
    assert over == [False, False, False, True, True]
