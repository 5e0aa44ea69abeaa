"""The gateway's own description, for clients that are made from one and for tests that are: OpenAPI 3.1, from the models that check requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from equipoise.gateway.asked import ChatAsked, TextAsked
from equipoise.gateway.settings import Limits

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
# Of a stream: before OpenAPI 3.2 the schema is that of each event.
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "a chunk as JSON, or [DONE]"}},
}
_REFUSALS = ("400", "401", "403", "404", "408", "413", "415", "421", "429", "499", "502", "503", "504")


def describe(version: str, limits: Limits) -> dict[str, Any]:
    """`limits`: what this gateway does not go beyond stands in the schema of a request."""
    _, schemas = models_json_schema(
        [(ChatAsked, "validation"), (TextAsked, "validation")], ref_template="#/components/schemas/{model}"
    )
    for name in ("ChatAsked", "TextAsked"):
        fields = schemas["$defs"][name]["properties"]
        _lower(fields["n"], limits.n)
        for each in ("max_tokens", "max_completion_tokens"):
            if each in fields:
                _lower(fields[each], limits.max_tokens)
    return {
        "openapi": "3.1.0",
        "info": {"title": "equipoise serve", "version": version},
        "components": {
            "schemas": {**schemas["$defs"], "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": _completions("ChatAsked", "chat.completion")},
            "/v1/completions": {"post": _completions("TextAsked", "text_completion")},
            "/v1/models": {"get": _read("the models, and each with every preset")},
            "/v1/models/{name}": {
                "get": _read("one of them")
                | {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}
            },
            "/health/live": {"get": _read("whether the process runs") | {"security": []}},
            "/health/ready": {"get": _read("whether an upstream answers") | {"security": []}},
        },
    }


def _completions(schema: str, kind: str) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    said = {"message": {"type": "object"}} if kind == "chat.completion" else {"text": {"type": "string"}}
    choice = {
        "type": "object",
        "required": ["index", "finish_reason", *said],
        "properties": {"index": {"type": "integer"}, "finish_reason": {"type": ["string", "null"]}, **said},
    }
    reply = {
        "type": "object",
        "required": ["choices"],
        "properties": {"object": {"const": kind}, "choices": {"type": "array", "items": choice}},
    }
    found = {"application/json": {"schema": reply}, "text/event-stream": {"schema": _EVENT}}
    return {
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "whole, or as a stream", "content": found}, **_refused()},
    }


def _lower(field: dict[str, Any], most: int) -> None:
    """The number of an optional field gets this maximum."""
    for part in field["anyOf"]:
        if part.get("type") == "integer":
            part["maximum"] = most


def _read(about: str) -> dict[str, Any]:
    found = {"application/json": {"schema": {"type": "object"}}}
    return {"responses": {"200": {"description": about, "content": found}, **_refused()}}


def _refused() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": "refused", "content": content} for status in _REFUSALS}
