"""What a caller is told when it does not get a reply: one error shape, OpenAI's, with what a client needs to try again."""

from __future__ import annotations

from typing import Any

from equipoise.errors import NoRoom, UsageError
from equipoise.samplers.http_draw import Fault, Refused
from equipoise.wire import one_line

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_RETRY = (408, 409, 429, 502, 503, 504)  # what another try may cure


class Refusal(Exception):
    """A status with a sentence; `after`: seconds after which it is worth another try."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.after = status, code, param, after

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        told = {"x-should-retry": "true" if self.status in _RETRY and self.code != "insufficient_quota" else "false"}
        if self.after is not None:
            told |= {"retry-after": str(max(1, round(self.after))), "retry-after-ms": str(round(1000 * self.after))}
        return told


def draining() -> Refusal:
    return Refusal(503, "this gateway is about to stop", code="draining", after=1.0)


def late(seconds: float, most: float) -> Refusal:
    """Nothing within the time: the caller's own where it gave less than the operator's `most`."""
    return Refusal(408 if seconds < most else 504, f"nothing was found within {seconds:g} seconds", code="timeout")


def refuse(problem: Exception) -> Refusal:
    """The refusal for what went wrong on the way. Addresses and keys of upstreams stay here."""
    if isinstance(problem, Refusal):
        return problem
    if isinstance(problem, Refused):
        if problem.status in (401, 403, 407):
            return Refusal(502, "the upstream refused the gateway's own key: tell its operator", code="upstream_key")
        code = "context_length_exceeded" if isinstance(problem, NoRoom) else "upstream_refused"
        return Refusal(problem.status, f"the upstream refused the request: {problem.said}", code=code)
    if isinstance(problem, UsageError):
        return Refusal(400, one_line(str(problem), 500), code="invalid_value")
    if isinstance(problem, Fault):
        if problem.status == 429:
            return Refusal(429, "the upstream is busy", code="upstream_busy", after=problem.after or 1.0)
        told = "no upstream answers" if problem.status is None else one_line(str(problem), 300)
        return Refusal(502, told, code="upstream_failed", after=problem.after or 1.0)
    if isinstance(problem, TimeoutError):
        return Refusal(504, "the time for this request is over", code="timeout")
    return Refusal(500, f"internal error, {type(problem).__name__}", code="internal_error")
