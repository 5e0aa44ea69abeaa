"""The gateway's own description, for clients that are made from one and for tests that are: OpenAPI 3.1, from the models that check requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from equipoise.gateway.asked import ChatAsked, TextAsked

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
_REFUSALS = ("400", "401", "403", "404", "408", "413", "415", "421", "429", "499", "502", "503", "504")


def describe(version: str) -> dict[str, Any]:
    _, schemas = models_json_schema(
        [(ChatAsked, "validation"), (TextAsked, "validation")], ref_template="#/components/schemas/{model}"
    )
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
    reply = {
        "type": "object",
        "required": ["choices"],
        "properties": {"object": {"const": kind}, "choices": {"type": "array"}},
    }
    found = {"application/json": {"schema": reply}, "text/event-stream": {"schema": {"type": "string"}}}
    return {
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "whole, or as a stream", "content": found}, **_refused()},
    }


def _read(about: str) -> dict[str, Any]:
    found = {"application/json": {"schema": {"type": "object"}}}
    return {"responses": {"200": {"description": about, "content": found}, **_refused()}}


def _refused() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": "refused", "content": content} for status in _REFUSALS}
