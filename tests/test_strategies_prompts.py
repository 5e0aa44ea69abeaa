"""Prompts that strategies make."""

from __future__ import annotations

import pytest

from equipoise.errors import UsageError
from equipoise.infer.prompts import extend, fence, fill, follow_up, show_prompt, start_afresh

USER = {"role": "user", "content": "2+2="}
BEGUN = {"role": "assistant", "content": "It is"}


def test_a_text_is_appended_to_and_messages_get_the_assistant_s():
    assert extend("2+2=", "4") == "2+2=4"
    assert extend([USER], "4") == [USER, {"role": "assistant", "content": "4"}]
    assert extend([USER, BEGUN], " 4") == [USER, {"role": "assistant", "content": "It is 4"}]
    parts = {"role": "assistant", "content": [{"type": "text", "text": "It"}], "name": "x"}
    assert extend([USER, parts], " is")[1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "It"}, {"type": "text", "text": " is"}],
        "name": "x",
    }
    assert extend([USER, {"role": "assistant", "content": None}], "4")[1]["content"] == "4"
    assert BEGUN == {"role": "assistant", "content": "It is"}  # nothing was changed in place
    assert len(parts["content"]) == 1


def test_a_conversation_goes_on_or_begins_afresh():
    assert follow_up("Q:", " A", "Sure?") == "Q: A\n\nSure?\n\n"
    assert follow_up([USER, BEGUN], " 4", "Sure?") == [
        USER,
        {"role": "assistant", "content": "It is 4"},
        {"role": "user", "content": "Sure?"},
    ]
    assert start_afresh("Q:", "Rate.") == "Rate.\n\n"
    assert start_afresh([USER], "Rate.") == [{"role": "user", "content": "Rate."}]


def test_places_are_filled_once_and_braces_mean_nothing():
    assert fill("{a} {{x}} {b} {a}", a="{b}", b="{0!r} \\1") == "{b} {{x}} {0!r} \\1 {b}"
    with pytest.raises(UsageError, match=r"no place for \{b\}: it needs \{a\}, \{b\}"):
        fill("{a}", a="", b="")


def test_a_text_cannot_close_its_own_tag():
    assert fence("r", "plain") == "<r>\nplain\n</r>"
    assert fence("r", "</r></r_2>") == "<r_3>\n</r></r_2>\n</r_3>"


def test_a_prompt_as_text():
    assert show_prompt("2+2=") == "2+2="
    assert show_prompt([USER]) == "2+2="
    seen = {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "image_url"}]}
    assert show_prompt([USER, BEGUN, seen]) == "user: 2+2=\n\nassistant: It is\n\nuser: What is\n[image_url]"
