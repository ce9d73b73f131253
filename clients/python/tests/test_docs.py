"""The code of the guide is run as it stands there."""

import asyncio
import re
import subprocess
import sys
import textwrap
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from places import ROOT

GUIDE = (ROOT / "docs" / "guides" / "once-python.md").read_text()
BLOCKS = dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture(autouse=True)
def orders(database, postgres, monkeypatch):
    database.execute(
        "DROP TABLE IF EXISTS orders; CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)"
    )
    monkeypatch.setenv("DATABASE_URL", postgres)
    return lambda: database.execute("SELECT count(*) FROM orders").fetchone()[0]


def test_every_block_of_the_guide_is_run_here():
    assert set(BLOCKS) == {"fastapi", "django", "once", "retrying"}
    assert GUIDE.count("```python") == len(BLOCKS)


def test_the_examples_of_frameworks_have_about_ten_lines():
    for name in ("fastapi", "django"):
        lines = [line for line in BLOCKS[name].splitlines() if line.strip()]
        assert len(lines) <= 12, f"{name} has {len(lines)} lines"


def test_fastapi(orders):
    space = {}
    exec(BLOCKS["fastapi"], space)
    app = space["app"]

    class Authenticate:
        """Stands for whatever authenticates; it was added last, so it comes first."""

        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            scope["user"] = type("User", (), {"username": "alice"})()
            await self.app(scope, receive, send)

    app.add_middleware(Authenticate)

    async def check():
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            key = {"Idempotency-Key": str(uuid.uuid4())}
            answers = [await client.post("/orders", json={"item": "tea"}, headers=key) for _ in range(3)]
            assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}
            assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true", "true"]
            refused = await client.post("/orders", json={"item": "tea"})
            assert refused.status_code == 400

    asyncio.run(check())
    assert orders() == 1


DJANGO = """
import sys, types, urllib.parse, os
import django
from django.conf import settings
parts = urllib.parse.urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
        "PASSWORD": parts.password or "", "HOST": parts.hostname, "PORT": parts.port or 5432}},
    ROOT_URLCONF="shop.urls", ALLOWED_HOSTS=["*"], INSTALLED_APPS=[], SECRET_KEY="x",
)
django.setup()
from django.db import connection, models
shop, module = types.ModuleType("shop"), types.ModuleType("shop.models")
class Order(models.Model):
    item = models.TextField()
    class Meta:
        app_label, db_table = "shop", "orders"
module.Order = Order
sys.modules.update({"shop": shop, "shop.models": module})

BLOCK

from django.http import HttpRequest
from django.test import RequestFactory
urls = types.ModuleType("shop.urls"); urls.urlpatterns = []; sys.modules["shop.urls"] = urls
class User:
    pk, is_authenticated = 7, True
def send(item, key="k-1"):
    request = RequestFactory().post("/orders", {"item": item}, headers={"Idempotency-Key": key} if key else {})
    request.user = User()
    return create_order(request)
first, again, other = send("tea"), send("tea"), send("coffee")
assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422), (first.content, other.content)
assert first.content == again.content and again["Idempotency-Replayed"] == "true" and "Idempotency-Replayed" not in first
assert first["Semel-Guarantee"] == "atomic" and first["Content-Type"] == again["Content-Type"] == "application/json"
assert send("tea", None).status_code == 400
assert send("tea", "a, b").status_code == 400
assert Order.objects.count() == 1

from django.db import transaction
try:
    with transaction.atomic():
        send("tea", "k-2")
    raise SystemExit("it ran inside atomic()")
except RuntimeError as error:
    assert "atomic" in str(error)
hooks = []
from semel.django import once
@once("hooked")
def hooked(request):
    Order.objects.create(item="x")
    transaction.on_commit(lambda: hooks.append(Order.objects.count()))
    transaction.on_commit(lambda: 1 / 0)
    from django.http import HttpResponse
    return HttpResponse("ok")
request = RequestFactory().post("/orders", headers={"Idempotency-Key": "k-3"}); request.user = User()
assert hooked(request).content == b"ok", "a hook that fails after COMMIT does not undo it"
assert hooks == [2] and Order.objects.count() == 2
async def view(request):
    pass
try:
    once("x")(view)
    raise SystemExit("an asynchronous view was taken")
except TypeError:
    pass
"""


def test_django(orders):
    program = DJANGO.replace("BLOCK", BLOCKS["django"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert orders() == 2


def test_once(orders):
    outputs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", BLOCKS["once"]], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
    assert [output[-1] for output in outputs] == ["False", "True"] and outputs[0][:-1] == outputs[1][:-1]
    assert orders() == 1


def test_retrying(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            keys.append(self.headers["Idempotency-Key"])
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    code = textwrap.dedent(BLOCKS["retrying"]).replace(":8000", f":{server.server_port}")
    for _ in range(2):
        space = {}
        exec(code, space)
        assert space["answer"].status_code == 201
    server.shutdown()
    assert len(keys) == 2 and len(set(keys)) == 1
