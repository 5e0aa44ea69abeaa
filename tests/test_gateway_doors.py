"""Who gets in, how far, and what is never told: keys, limits, secrets, odd requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_world import CHAT, run, saying, until, world
from unruly_server import UnrulyServer

from equipoise.errors import UsageError
from equipoise.gateway import keys as keys_module
from equipoise.gateway.answering import Gateway
from equipoise.gateway.app import make_app
from equipoise.gateway.guard import check_bind
from equipoise.gateway.keys import Keyring, read_keys
from equipoise.gateway.serving import serve
from equipoise.gateway.settings import Settings

KEY = "planted-key-of-a-caller-0123456789"
UPSTREAM_KEY = "planted-key-of-the-upstream-987654"
UP = {"upstreams": [{"url": "http://127.0.0.1:9/v1"}]}


def bearer(key=KEY):
    return {"Authorization": f"Bearer {key}"}


def hashed(key=KEY):
    return hashlib.sha256(key.encode()).hexdigest()


# --- keys


def test_without_a_key_nothing_answers_but_health():
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, environment={keys_module.VARIABLE: KEY}) as there:
            routes = [(route.path, sorted(route.methods)[0]) for route in there_routes(there)]
            found = {}
            for path, method in [*routes, ("/", "GET"), ("/metrics", "GET"), ("/docs", "GET"), ("//v1/models", "GET")]:
                path = path.replace("{name:path}", "tiny")
                async with there.session.request(method, there.url + path) as reply:
                    found[path] = reply.status
            assert not server.asked
            async with there.session.get(there.url + "/v1/models", headers=bearer()) as reply:
                assert reply.status == 200
            return found

    found = run(go())
    assert found.pop("/health/live") == 200
    assert found.pop("/health/ready") == 200
    assert set(found.values()) == {401}
    assert "/v1/chat/completions" in found


def there_routes(there):
    return make_app(there.gateway)._app.router.routes


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", f"Basic {KEY}", f'Bearer "{KEY}"', f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer " + "x" * 10_000, "Bearer \xff\xfe"],
)  # fmt: skip
def test_only_the_very_key_opens(header):
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, environment={keys_module.VARIABLE: KEY}) as there:
            status, _, told = await there.post(headers={"Authorization": header} if header else None)
            good, _, _ = await there.post(headers=bearer())
            return status, told, good

    status, told, good = run(go())
    assert (status, told["error"]["type"], good) == (401, "authentication_error", 200)


@pytest.mark.parametrize(
    "lines",
    [
        f"Authorization: Bearer {KEY}\r\nAuthorization: Bearer {KEY}x",
        f"Authorization: Bearer {KEY}x\r\nAuthorization: Bearer {KEY}",
        f"Authorization: Bearer\r\n {KEY}x",
        f"Authorization: Bearer {KEY}\r\n\tx",
        f"Authorization: Bearer {KEY}\0",
        f"Authorization : Bearer {KEY}",
        f"X-Authorization: Bearer {KEY}",
    ],
    ids=["twice", "twice the other way", "folded", "folded with a tab", "with a zero", "with a space", "another name"],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "//v1/models", "/v1/%6dodels", "/./v1/models", "/health/live/../../v1/models"]
)
def test_no_header_of_odd_form_opens_anything(lines, path):
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, environment={keys_module.VARIABLE: KEY}) as there:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(there.url.rpartition(":")[2]))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n\r\n".encode())
            told = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            return told

    told = run(go())
    assert told.split()[1] in (b"400", b"401")
    assert b"tiny" not in told


def test_a_clock_that_jumps_breaks_no_request_and_leaves_nothing_set_aside(monkeypatch):
    gate, jump = asyncio.Event(), [0.0]
    real = keys_module.time.time
    monkeypatch.setattr(keys_module.time, "time", lambda: real() + jump[0])

    async def behave(reply, asked):
        await gate.wait()
        await saying("4|2")(reply, asked)

    async def go():
        rule = {"keys": {"ann": {"sha256": hashed(), "tokens_per_day": 100}}}
        async with UnrulyServer(behave) as server, world(server, **rule) as there:
            (caller,) = there.gateway.keys.callers
            going, ledgers = asyncio.ensure_future(there.post(headers=bearer(), max_tokens=10)), [caller.ledger]
            await until(lambda: server.open == 1)
            for days in (3, -3):
                jump[0] = days * 86400.0
                ledgers.append(caller.ledger)
            gate.set()
            statuses = [(await going)[0], (await there.post(headers=bearer(), max_tokens=10))[0]]
            return statuses, [each._reserved for each in ledgers], sum(each.spent.generated for each in ledgers)

    assert run(go()) == ([200, 200], [0, 0, 0], 4)


def test_keys_are_held_as_digests_and_compared_by_hmac(monkeypatch):
    compared = []
    real = keys_module.hmac.compare_digest
    monkeypatch.setattr(keys_module.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    other = "another-key-of-a-caller-0123"
    ring = read_keys(Settings(**UP), {keys_module.VARIABLE: f"{KEY} {other}"})
    found = ring.find(f"Bearer {KEY}")
    assert found is not None
    assert found.name == "key1"
    # Both are looked at, though the first fits; and what is compared are SHA-256 digests.
    assert compared == [(bytes.fromhex(hashed()), bytes.fromhex(hashed(k))) for k in (KEY, other)]
    assert KEY not in repr(ring.__dict__)
    assert ring.find("Bearer nonsense-nonsense-nonsense") is None


def test_keys_come_from_the_config_by_digest_or_variable_and_from_a_closed_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# callers\nbob key-of-bob-0123456789\n")
    os.chmod(file, 0o600)
    settings = Settings(
        **UP, keys={"ann": {"sha256": hashed()}, "eve": {"env": "EVES"}}, keys_file=file
    )  # fmt: skip
    ring = read_keys(settings, {"EVES": "key-of-eve-0123456789"})
    names = [ring.find(f"Bearer {key}").name for key in (KEY, "key-of-eve-0123456789", "key-of-bob-0123456789")]
    assert names == ["ann", "eve", "bob"]
    os.chmod(file, 0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_keys(settings, {"EVES": "key-of-eve-0123456789"})
    with pytest.raises(UsageError, match="EVES, which is not set"):
        read_keys(settings, {})
    with pytest.raises(UsageError, match="16 or more"):
        read_keys(Settings(**UP), {keys_module.VARIABLE: "short"})
    with pytest.raises(UsageError, match="the same"):
        read_keys(Settings(**UP), {keys_module.VARIABLE: f"{KEY} {KEY}"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_another_address_than_loopback_needs_keys(host):
    with pytest.raises(UsageError, match="needs keys"):
        serve(Gateway(Settings(**UP, host=host, port=0), {}))
    with pytest.raises(UsageError, match="needs keys"):
        serve(Gateway(Settings(**UP, ops_host=host, port=0), {}))
    check_bind(host, read_keys(Settings(**UP), {keys_module.VARIABLE: KEY}))
    check_bind("127.0.0.1", Keyring({}))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "127.0.0.1@evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
    ],
)
def test_without_keys_only_this_machine_is_answered(headers, status):
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server) as there:
            return (await there.post(headers=headers))[0], (await there.get("/v1/models", headers=headers))[0]

    assert run(go()) == (status, status)


# --- limits of a key


def with_rule(**rule):
    return {"keys": {"ann": {"sha256": hashed(), **rule}}}


def test_a_keys_tokens_of_the_day_are_a_hard_limit():
    async def go():
        settings = {**with_rule(tokens_per_day=5), "strategy": "majority:n=2"}
        async with UnrulyServer(saying("4|2")) as server, world(server, **settings) as there:
            first = await there.post(headers=bearer(), max_tokens=2)
            second = await there.post(headers=bearer(), max_tokens=2)
            third = await there.post(headers=bearer(), max_tokens=2)
            return first, second, third, there.gateway.keys.callers[0].ledger.spent.generated

    first, second, third, spent = run(go())
    assert (first[0], first[2]["usage"]["completion_tokens"]) == (200, 4)
    # One token is left: one completion of one token is asked for, and the upstream here makes two of it.
    assert second[0] == 200
    assert third[0] == 429
    assert third[2]["error"]["code"] == "insufficient_quota"
    assert third[1]["x-should-retry"] == "false"
    assert spent == 6


def test_tokens_that_are_only_set_aside_are_waited_for():
    async def behave(reply, asked):
        await asyncio.sleep(0.05)
        await saying("4|2")(reply, asked)

    async def go():
        async with UnrulyServer(behave) as server, world(server, **with_rule(tokens_per_day=10)) as there:
            first = asyncio.ensure_future(there.post(headers=bearer(), max_tokens=10))
            await until(lambda: len(server.asked) == 1)
            both = [await there.post(headers=bearer(), max_tokens=10), await first]
            return [each[0] for each in both], [each.body["max_tokens"] for each in server.asked]

    # The first sets all ten aside and makes two: the second gets the eight that are left.
    assert run(go()) == ([200, 200], [10, 8])


@pytest.mark.parametrize(
    ("rule", "body", "status", "code"),
    [
        ({"models": ["other"]}, {}, 403, "model_not_allowed"),
        ({"models": ["tiny"]}, {}, 200, None),
        ({"strategies": ["single"]}, {"model": "tiny@majority:n=2"}, 403, "strategy_not_allowed"),
        ({"strategies": ["majority"]}, {"model": "tiny@majority:n=2"}, 200, None),
        ({"width": 2}, {"model": "tiny@majority:n=3"}, 400, "invalid_value"),
        ({"width": 2}, {"model": "tiny@majority"}, 200, None),
    ],
)
def test_a_key_may_do_what_its_rule_says(rule, body, status, code):
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, **with_rule(**rule)) as there:
            return await there.post(headers=bearer(), **body), len(server.asked)

    (found, _, told), asked = run(go())
    assert found == status
    if code is not None:
        assert told["error"]["code"] == code
        assert asked == 0
    elif body:
        assert asked == 2


def test_a_keys_budget_is_under_every_request():
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, **with_rule(budget=40)) as there:
            wanted = {"strategy": "majority:n=2", "budget": 9999}
            return await there.post(headers=bearer(), equipoise=wanted)

    assert run(go())[2]["usage"]["x_equipoise"]["budget"] == 40


@pytest.mark.parametrize("rule", [{"requests_per_minute": 2}, {"at_once": 2}])
def test_too_many_requests_of_a_key_are_told_to_wait(rule):
    gate = asyncio.Event()

    async def behave(reply, asked):
        await gate.wait()
        await saying("4")(reply, asked)

    async def go():
        async with UnrulyServer(behave) as server, world(server, **with_rule(**rule)) as there:
            going = [asyncio.ensure_future(there.post(headers=bearer())) for _ in range(2)]
            await until(lambda: len(server.asked) == 2)
            refused = await there.post(headers=bearer())
            gate.set()
            return refused, [(await each)[0] for each in going], (await there.post(headers=bearer()))[0]

    (status, headers, told), others, after = run(go())
    assert (status, told["error"]["type"]) == (429, "rate_limit_error")
    assert int(headers["retry-after"]) >= 1
    assert others == [200, 200]
    assert after == (429 if "requests_per_minute" in rule else 200)


def test_more_than_the_gateway_holds_is_refused_at_once():
    gate = asyncio.Event()

    async def behave(reply, asked):
        await gate.wait()
        await saying("4")(reply, asked)

    async def go():
        async with UnrulyServer(behave) as server, world(server, limits={"at_once": 3}) as there:
            going = [asyncio.ensure_future(there.post()) for _ in range(3)]
            await until(lambda: len(server.asked) == 3)
            refused = [await there.post() for _ in range(30)]
            gate.set()
            return [each[0] for each in refused], [(await each)[0] for each in going], len(server.asked)

    refused, accepted, asked = run(go())
    assert (set(refused), accepted, asked) == ({429}, [200] * 3, 3)


# --- bodies


def test_a_body_has_a_limit_told_or_not():
    async def chunked():
        for _ in range(40):
            yield b"x" * 1024

    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, limits={"body_bytes": 8192}) as there:
            url, kind = f"{there.url}/v1/chat/completions", {"Content-Type": "application/json"}
            found = []
            for data in (b"x" * 9000, chunked()):
                async with there.session.post(url, data=data, headers=kind) as reply:
                    found.append((reply.status, json.loads(await reply.read())["error"]["code"]))
            return found

    assert run(go()) == [(413, "body_too_long")] * 2


def test_a_body_that_says_it_is_too_long_is_not_waited_for():
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server) as there:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(there.url.rpartition(":")[2]))
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 9000000\r\n\r\n".encode())
            line = await asyncio.wait_for(reader.readline(), 5)
            writer.close()
            return line

    assert run(go()).split()[1] == b"413"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"messages": NaN}', b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}", b'{"model": "tiny"}'],
)  # fmt: skip
def test_what_is_no_request_is_a_400(data):
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server) as there:
            url = f"{there.url}/v1/chat/completions"
            async with there.session.post(url, data=data, headers={"Content-Type": "application/json"}) as reply:
                return reply.status, json.loads(await reply.read())

    status, told = run(go())
    assert status == 400
    assert set(told["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("GET", "/v1/nothing", 404), ("GET", "/%2e%2e/etc", 404)],
)  # fmt: skip
def test_other_addresses_and_methods_have_openais_errors(method, path, status):
    async def go():
        async with (
            UnrulyServer(saying("4")) as server,
            world(server) as there,
            there.session.request(method, there.url + path) as reply,
        ):
            return reply.status, reply.headers, json.loads(await reply.read())

    found, headers, told = run(go())
    assert (found, told["error"]["type"] in ("invalid_request_error", "not_found_error")) == (status, True)
    assert headers["x-request-id"]


def test_its_description_is_openapi_and_names_every_route():
    jsonschema = pytest.importorskip("jsonschema")

    async def go():
        async with UnrulyServer(saying("4")) as server, world(server) as there:
            _, text = await there.get("/openapi.json")
            _, _, reply = await there.post()
            _, _, error = await there.post(n=0)
            return json.loads(text), {route.path for route in there_routes(there)}, reply, error

    told, routes, reply, error = run(go())
    assert {path.replace("{name}", "{name:path}") for path in told["paths"]} == routes - {"/openapi.json"}
    chat = told["paths"]["/v1/chat/completions"]["post"]

    def check(schema, value):
        jsonschema.Draft202012Validator({**schema, "components": told["components"]}).validate(value)

    check(chat["requestBody"]["content"]["application/json"]["schema"], {"model": "tiny", "messages": CHAT, "n": 2})
    with pytest.raises(jsonschema.ValidationError):
        check(chat["requestBody"]["content"]["application/json"]["schema"], {"messages": "no"})
    check(chat["responses"]["200"]["content"]["application/json"]["schema"], reply)
    check(chat["responses"]["400"]["content"]["application/json"]["schema"], error)


def test_a_page_cannot_send_a_form():
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server) as there:
            data = json.dumps({"model": "tiny", "messages": CHAT})
            url = f"{there.url}/v1/chat/completions"
            async with there.session.post(url, data=data, headers={"Content-Type": "text/plain"}) as reply:
                return reply.status, server.asked

    assert run(go()) == (415, [])


# --- secrets, and where requests go


def test_no_key_is_anywhere_but_in_its_header(caplog, capfd):
    caplog.set_level(logging.DEBUG)

    async def behave(reply, asked):
        if asked.number == 1:
            await reply.error(500, {"error": {"message": f"you sent {asked.headers['authorization']}"}})
        elif asked.number == 2:
            await reply.error(401, {"error": {"message": f"bad key {UPSTREAM_KEY}"}})
        else:
            await saying("4")(reply, asked)

    async def go():
        environment = {keys_module.VARIABLE: KEY, "UP_KEY": UPSTREAM_KEY}
        async with UnrulyServer(behave) as server:
            upstream = {"url": server.url, "dialect": "openai", "key_env": "UP_KEY"}
            async with world(upstream, environment=environment, retries=0) as there:
                told = [await there.post(headers=bearer(), model=m) for m in ("tiny", "tiny", "tiny", f"x{KEY}")]
                seen = [json.dumps(each[2]) + str(each[1]) for each in told]
                for path in ("/", "/metrics"):
                    async with there.session.get(there.ops + path) as reply:
                        seen.append(await reply.text())
                seen += [
                    repr(there.gateway.keys.callers),
                    repr(there.gateway.settings),
                    repr(there.gateway.fleet.upstreams),
                ]
                return [each[0] for each in told], seen, server.asked

    statuses, seen, asked = run(go())
    assert statuses == [200, 502, 502, 404]
    assert asked[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert KEY not in str([each.headers for each in asked])  # a caller's key goes no further
    printed = capfd.readouterr()
    text = "\n".join([*(each for each in seen), caplog.text, printed.out, printed.err])
    assert UPSTREAM_KEY not in text
    assert KEY not in text.replace(f"x{KEY}", "")  # the model's name was the caller's own


def test_nothing_in_a_request_says_where_it_goes():
    async def go():
        async with UnrulyServer(saying("4")) as server, UnrulyServer(saying("evil")) as evil, world(server) as there:
            named = ("x-its-endpoint", "x-endpoint", "x-upstream", "x-base-url", "x-forwarded-host", "x-api-base")
            headers = dict.fromkeys(named, evil.url)
            body = dict.fromkeys(("base_url", "api_base", "endpoint", "url", "upstream", "api_key"), evil.url)
            found = [
                await there.post(headers=headers, **body),
                await there.post(headers=headers, **body, equipoise={"strategy": "majority:n=2"}),
            ]
            async with there.session.post(f"{there.url}/configure", json={"endpoint": evil.url}) as reply:
                assert reply.status == 404
            return [each[0] for each in found], len(server.asked), evil.asked, evil.asked_models

    assert run(go()) == ([200, 200], 3, [], 0)


# --- the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs an upstream"),
        (["--upstream", "ftp://x"], "not an address of a server"),
        (["--upstream", "http://user:pw@x/v1"], "password"),
        (["--upstream", "http://x/v1?key=sk-1"], "an address with ? or # in it"),
        (["--upstream", "http://x/v1", "--strategy", "nothing"], "no strategy of this gateway"),
        (["--upstream", "http://x/v1", "--strategy", "majorty:n=8"], "did you mean 'majority'?"),
        (["--upstream", "http://x/v1", "--strategy", "majority:m=8"], 'strategy = "majority:m=8": unknown setting'),
        (["--upstream", "http://x/v1", "--strategy", "majority:n=zero"], "a whole number of 1 or more, found zero"),
        (["--upstream", "http://x/v1", "--strategy", "majority:n=65"], "64 at most"),
        (["--upstream", "http://x/v1", "--strategy", "auto"], "needs a plan: give --plan"),
        (["--upstream", "http://x/v1", "--set", "presets.a.strategy=auto"], 'presets.a.strategy = "auto" needs a plan'),
        (["--upstream", "http://x/v1", "--strategy", "os:system"], "no strategy of this gateway"),
        (["--upstream", "http://x/v1", "--host", "0.0.0.0"], "needs keys"),
        (["--upstream", "http://x/v1", "--set", "limits.width=0"], "limits.width"),
        (["--upstream", "http://x/v1", "--set", "effort.huge.strategy=single"], "no effort is called huge"),
        (["--upstream", "http://x/v1", "--plan", "nowhere.json"], "cannot read the plan"),
    ],
)
def test_a_start_that_cannot_work_is_one_line(equipoise, monkeypatch, words, said):
    monkeypatch.delenv(keys_module.VARIABLE, raising=False)
    found = equipoise("serve", *words)
    assert found.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1
    assert "sk-1" not in found.err
    assert found.out == ""


def test_a_config_file_is_read_and_flags_come_before_it(equipoise, tmp_path, monkeypatch):
    monkeypatch.delenv(keys_module.VARIABLE, raising=False)
    file = tmp_path / "gateway.toml"
    lines = [
        'strategy = "majority:n=4"', "budget = 100", "[[upstreams]]", 'url = "http://one/v1"', "[presets.deep]",
        'strategy = "deepconf"', "[limits]", "width = 8", "[keys.ann]", f'sha256 = "{hashed()}"', 'models = ["a"]',
    ]  # fmt: skip
    file.write_text("\n".join(lines))
    seen = []
    monkeypatch.setattr("equipoise.gateway.serving.serve", lambda gateway, say: seen.append(gateway))
    assert equipoise("serve", file, "--budget", "7", "--set", "limits.n=2").code == 0
    settings = seen[0].settings
    assert (settings.strategy, settings.budget, settings.limits.width, settings.limits.n) == ("majority:n=4", 7, 8, 2)
    assert settings.presets["deep"].strategy == "deepconf"
    assert [each.name for each in seen[0].keys.callers] == ["ann"]
    file.write_text('[keys.ann]\nkey = "plain"\n')
    found = equipoise("serve", file)
    assert found.code == 2
    assert "plain" not in found.err
