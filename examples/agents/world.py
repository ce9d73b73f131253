"""A small world that agents live in: a plain ASGI service that knows nothing of keys or retries.

Every POST, PUT or PATCH has an effect each time it arrives, and GET /api/effects counts them. Run it with
`uvicorn world:app --port 3000`; semel stands in front of it and is not mentioned again in this file.
"""

import asyncio
import json
import re
import secrets

EFFECTS: dict[str, int] = {}
STORIES: list[dict] = []

# What has an effect, and under which name it is counted. The last row takes every other path.
ROUTES = [
    (r"/api/dwellers/(\w+)/act", "act"),
    (r"/api/dwellers/(\w+)/heartbeat", "heartbeat"),
    (r"/api/stories", "story"),
    (r"/api/proposals", "proposal"),
    (r"/api/review/(\w+)/(\w+)/feedback", "feedback"),
    (r"/api/auth/agent", "agent"),
    (r"/api/.*", "other"),
]


def effect(path: str, body: bytes) -> tuple[int, dict]:
    """What a request does, each time."""
    name = next((name for pattern, name in ROUTES if re.fullmatch(pattern, path)), None)
    if name is None:
        return 404, {"error": "no such place"}
    EFFECTS[name] = EFFECTS.get(name, 0) + 1
    answer = {"id": EFFECTS[name], "kind": name}
    if name == "agent":
        answer["token"] = secrets.token_hex(16)
    if name == "story":
        STORIES.append(json.loads(body or b"{}"))
    return 201, answer


async def read(receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = await read(receive)
    headers = dict(scope["headers"])
    # An action may take its time.
    await asyncio.sleep(float(headers.get(b"x-work-seconds", b"0")))
    if scope["method"] == "GET":
        status, answer = 200, {"effects": EFFECTS, "total": sum(EFFECTS.values())}
    else:
        status, answer = effect(scope["path"], body)
    content = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
