"""Orders in PostgreSQL, settled in the same transaction: the one line of semel is `semel.settle`.

The gateway sends the fence of its claim along. Order and record commit together or not at all, so that a retry after any
crash gets the first answer or runs the request for the first time; nothing is ever unknown. Run it with
`DATABASE=postgres://… uvicorn orders:app --port 3000`, with semel's store in the same database.
"""

import asyncio
import json
import os
import signal

import psycopg
from psycopg.types.json import Jsonb

DATABASE = os.environ["DATABASE"]
# For tests of this example: where the process kills itself.
DIES_AT = os.environ.get("DIES_AT")


def dies_at(step: str) -> None:
    if step == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def place(fence: str, item: str) -> bytes:
    """Places an order and settles its request, in one transaction."""
    dies_at("before the transaction")
    with psycopg.connect(DATABASE) as database:
        row = database.execute("INSERT INTO orders (item) VALUES (%s) RETURNING id", [item]).fetchone()
        dies_at("after the effect")
        answer = json.dumps({"id": row[0], "item": item}).encode()
        database.execute(
            "SELECT semel.settle(%s, 201, %s, %s)", [fence, Jsonb({"Content-Type": "application/json"}), answer]
        )
        dies_at("after the settlement")
    dies_at("after the commit")
    return answer


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    fence = dict(scope["headers"]).get(b"semel-fence", b"").decode()
    try:
        status, answer = 201, await asyncio.to_thread(place, fence, json.loads(body)["item"])
    except psycopg.Error as error:
        # The transaction was rolled back; a stale fence (SM001) means that another attempt holds the key by now.
        status, answer = 503, json.dumps({"error": str(error)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
