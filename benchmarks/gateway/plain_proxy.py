"""The proxy that one writes without a gateway: aiohttp on both sides, bytes handed on as they come, nothing looked at.

python benchmarks/gateway/plain_proxy.py http://127.0.0.1:8000/v1 [uvloop]      # prints its address as JSON
"""

from __future__ import annotations

import json
import socket
import sys

import aiohttp
from aiohttp import web

UPSTREAM = sys.argv[1]


async def complete(request: web.Request) -> web.StreamResponse:
    headers = {"Content-Type": "application/json"}
    body = await request.read()
    async with request.app[SESSION].post(f"{UPSTREAM}/chat/completions", data=body, headers=headers) as reply:
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]})
        await response.prepare(request)
        async for data in reply.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


async def connect(app: web.Application):
    app[SESSION] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    yield
    await app[SESSION].close()


SESSION: web.AppKey[aiohttp.ClientSession] = web.AppKey("session")
app = web.Application()
app.router.add_post("/v1/chat/completions", complete)
app.cleanup_ctx.append(connect)

if __name__ == "__main__":
    bound = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(json.dumps({"address": f"http://127.0.0.1:{bound.getsockname()[1]}/v1"}), flush=True)
    loop = None
    if "uvloop" in sys.argv:
        import uvloop

        loop = uvloop.new_event_loop()
    web.run_app(app, sock=bound, access_log=None, print=None, loop=loop)
