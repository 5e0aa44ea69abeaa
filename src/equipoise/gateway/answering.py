"""What lasts longer than a request, and how one request runs from its body to its reply."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from equipoise.gateway.asked import Asked, ChatAsked, read_body
from equipoise.gateway.asking import make_questions
from equipoise.gateway.auto import read_plan
from equipoise.gateway.board import Entry
from equipoise.gateway.cache import HEADER, Cache, Copying, Kept, as_events, is_whole, say_again
from equipoise.gateway.client import Client, ClientGone
from equipoise.gateway.keys import Caller, Keyring, read_keys
from equipoise.gateway.metrics import Metrics
from equipoise.gateway.orders import check_operator, make_order
from equipoise.gateway.record import open_recorder
from equipoise.gateway.refusals import Refusal, draining, late, refuse
from equipoise.gateway.relay import Relay
from equipoise.gateway.search import STOPPING, Search, make_head, make_id
from equipoise.gateway.settings import Settings
from equipoise.gateway.upstreams import Fleet
from equipoise.infer.ledger import Ledger
from equipoise.loopback import is_loopback

log = logging.getLogger("equipoise.gateway")
GONE = 499  # what metrics count a client under that left before its reply


class Gateway:
    """What lasts longer than a request. Nothing in a request changes it, but for counts."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
        self.settings = settings
        self.keys = read_keys(settings, environment)
        # The operator's port asks for a key only where others can reach it.
        self.keys_for_ops = Keyring({}) if is_loopback(settings.ops_host) else self.keys
        self.fleet = Fleet(settings, environment)
        self.policy = None if settings.plan is None else read_plan(settings.plan)
        check_operator(settings, self.policy)
        self.recorder = None if settings.record is None else open_recorder(settings.record)
        self.metrics = Metrics()
        self.cache = Cache(settings.cache) if settings.cache.entries else None
        self.entries: dict[int, Entry] = {}
        self.running = 0
        self.draining = False  # nothing new begins
        self.ending = False  # what is under way ends too

    async def answer(self, client: Client, caller: Caller, kind: type[Asked]) -> None:
        """One request for a completion, from its first check to its last byte."""
        began, strategy = time.monotonic(), "none"
        admitted = False
        try:
            self._check_room()
            caller.admit()
            admitted = True
            self.running += 1
            if (client.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
                raise Refusal(415, "the body is JSON: send it as content-type application/json", code="not_json")
            body = await client.body(self.settings.limits.body_bytes)
            asked, raw = read_body(body, kind, self.settings.limits)
            model, suffix = self.fleet.resolve(asked.model)
            order = make_order(asked, model, suffix, self.settings, caller.rule, self.policy)
            strategy = order.name
            place = None if self.cache is None else self.cache.place(asked, raw, order, caller.name)
            if place is not None and await self._found(client, asked, place):
                return
            if self.ending:
                raise draining()
            entry = Entry(client.request_id, caller.name, order, Ledger(order.budget, within=caller.ledger))
            self.entries[id(entry)] = entry
            try:
                if order.strategy is None:
                    await self._relay(client, asked, raw, entry, place)
                else:
                    await self._search(client, asked, entry, place)
            finally:
                del self.entries[id(entry)]
                self.metrics.spend(entry.ledger.spent)
        except ClientGone:
            client.status = GONE
            self.metrics.gone += 1
        except Exception as problem:  # the boundary: whatever it was, the caller gets an error in OpenAI's shape
            refusal = refuse(problem)
            if refusal.status == 500:
                log.error(
                    "internal error in request %s", client.request_id, exc_info=bool(os.environ.get("EQUIPOISE_DEBUG"))
                )
            await client.refuse(refusal)
        finally:
            if admitted:
                caller.leave()
                self.running -= 1
            route = "chat" if kind is ChatAsked else "completions"
            labels = (("route", route), ("strategy", strategy))
            self.metrics.requests[(*labels, ("code", str(client.status)))] += 1
            self.metrics.seconds[labels].add(time.monotonic() - began)
            if client.started is not None:
                self.metrics.first[labels].add(client.started - began)

    def end(self) -> None:
        """The time for what is under way is over: searches answer with what they have, the others end with an error."""
        self.draining = self.ending = True
        for entry in self.entries.values():
            if entry.end is not None:
                entry.end()

    def list_models(self) -> list[dict[str, Any]]:
        """The upstreams' models, and each with every preset."""
        now, found = int(time.time()), self.fleet.models()
        virtual = [f"{model}@{preset}" for model in found for preset in self.settings.presets]
        return [
            {"id": name, "object": "model", "created": now, "owned_by": owner}
            for owner, names in (("upstream", found), ("equipoise", virtual))
            for name in names
        ]

    # --- inside

    def _check_room(self) -> None:
        if self.draining:
            raise draining()
        if self.running >= self.settings.limits.at_once:
            raise Refusal(429, "too many requests are under way", code="overloaded", after=1.0)

    async def _found(self, client: Client, asked: Asked, place: bytes) -> bool:
        """Whether the reply was there already, and is sent."""
        assert self.cache is not None
        kept: Kept | None = self.cache.find(place)
        client.headers[HEADER] = found = "miss" if kept is None else "hit"
        self.metrics.cache[(("result", found),)] += 1
        if kept is None:
            return False
        chat = isinstance(asked, ChatAsked)
        reply = say_again(kept, make_id(client.request_id, chat=chat))
        if asked.stream:
            await client.write(as_events(reply, usage=asked.wants_usage))
            await client.end()
        else:
            await client.reply(reply)
        return True

    async def _relay(
        self, client: Client, asked: Asked, raw: dict[str, Any], entry: Entry, place: bytes | None
    ) -> None:
        relay = Relay(self.fleet, asked, raw, entry.order, entry.ledger, self.settings.max_tokens)
        copying = None if place is None else Copying(client.write)
        done, reply = False, b""
        try:
            if asked.stream:
                streaming = client.pinging(relay.stream(client.write if copying is None else copying.write))
                await client.while_there(self._within(entry, streaming))
                done = True
                await client.end()
                if copying is not None and relay.counted is not None:
                    reply = copying.reply(relay.counted.usage(), chat=isinstance(asked, ChatAsked)) or b""
            else:
                reply = await client.while_there(self._within(entry, relay.whole()))
                done = True
                await client.reply(reply)
        finally:
            relay.close(done=done)
        if place is not None and reply and self.cache is not None:
            self.cache.keep(place, reply)

    async def _search(self, client: Client, asked: Asked, entry: Entry, place: bytes | None) -> None:
        questions = make_questions(asked, entry.order, id=client.request_id)
        head = make_head(entry.order, client.request_id, chat=isinstance(asked, ChatAsked))
        search = Search(self.fleet, asked, entry.order, entry, questions, head)
        try:
            if asked.stream:
                streaming = client.pinging(search.stream(client))
                await client.while_there(self._within(entry, streaming, search.drain))
                await client.end()
            else:
                await client.reply(await client.while_there(self._within(entry, search.whole(), search.drain)))
            if place is not None and self.cache is not None and is_whole(search.choices):
                self.cache.keep(place, json.dumps(search.reply()).encode())
        finally:
            for question, choice in zip(questions, search.choices, strict=False):
                if self.recorder is not None:
                    self.recorder.add(question, choice, entry.order)
                self.metrics.stops[(("strategy", entry.order.name), ("reason", choice.stopped_by))] += 1

    async def _within(self, entry: Entry, work: Any, drain: Callable[[], None] | None = None) -> Any:
        """What `work` gives in its time, or until the gateway ends.

        `drain` is for work that ends by itself at both, with what it has: it is broken off only where it does not.
        """
        loop, more = asyncio.get_running_loop(), 0.0 if drain is None else STOPPING
        try:
            async with asyncio.timeout(entry.order.seconds + more) as limit:

                def end() -> None:
                    limit.reschedule(loop.time() + more)
                    if drain is not None:
                        drain()

                entry.end = end
                try:
                    return await work
                finally:
                    entry.end = None
        except TimeoutError:
            if not limit.expired():
                raise
            raise draining() if self.ending else late(entry.order.seconds, self.settings.limits.seconds) from None
