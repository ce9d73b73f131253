// What `fetchOnce` sends again, with which key, and what it leaves alone.
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { fetchOnce, NoAnswerError } from "semel";

interface Answer {
  status: number;
  headers?: Record<string, string>;
  body?: string;
}

async function call(answers: (Answer | "broken")[], options: Parameters<typeof fetchOnce>[1] = {}) {
  mock.timers.enable({ apis: ["setTimeout"] });
  const requests: Request[] = [];
  const waits: number[] = [];
  const send = (async (request: Request) => {
    requests.push(request);
    const next = answers.shift() ?? { status: 200 };
    if (next === "broken") throw new TypeError("fetch failed");
    return new Response(next.body ?? "{}", { status: next.status, headers: next.headers ?? {} });
  }) as typeof fetch;
  try {
    let result: Response | Error | undefined;
    fetchOnce("https://api.example/orders", { method: "POST", body: "{}", fetch: send, ...options }).then(
      (answer) => (result = answer),
      (error) => (result = error),
    );
    for (let waited = 0, before = 0; !result; waited += 100) {
      for (let turns = 0; turns < 20; turns++) await new Promise((resolve) => setImmediate(resolve));
      if (requests.length > before) waits.push(waited), (before = requests.length);
      mock.timers.tick(100);
      assert.ok(waited < 200_000, "it ends");
    }
    const keys = requests.map(({ headers }) => headers.get("idempotency-key"));
    return { result, requests, keys, waits };
  } finally {
    mock.timers.reset();
  }
}

test("one key for all attempts of a call, another for the next call", async () => {
  const { result, keys, requests } = await call(["broken", { status: 503 }, { status: 500 }]);
  assert.equal((result as Response).status, 200);
  assert.equal(keys.length, 4);
  assert.equal(new Set(keys).size, 1);
  assert.match(keys[0]!, /^[0-9a-f]{8}-[0-9a-f]{4}-4/);
  assert.equal(await requests[3]!.text(), "{}", "the body is sent again");
  assert.notEqual((await call([])).keys[0], keys[0]);
});

test("the caller's key is used, in the option or in the header", async () => {
  assert.deepEqual((await call(["broken"], { key: "order-7" })).keys, ["order-7", "order-7"]);
  assert.deepEqual((await call([], { headers: { "Idempotency-Key": "order-8" } })).keys, ["order-8"]);
});

test("what may not be retried is returned", async () => {
  const left = async (answer: Answer) => (await call([answer])).keys.length;
  for (const status of [400, 401, 403, 404, 413, 422]) assert.equal(await left({ status }), 1, `${status}`);
  assert.equal(await left({ status: 409, body: '{"type":"urn:semel:problem:key-sealed"}' }), 1);
  assert.equal(await left({ status: 500, headers: { "idempotency-replayed": "true" } }), 1, "it will be said again");
  assert.equal(await left({ status: 500, headers: { "semel-guarantee": "none" } }), 1, "keys are not known here");
  assert.equal(await left({ status: 503, headers: { "x-should-retry": "false" } }), 1);
});

test("what may be retried is", async () => {
  const again = async (answer: Answer) => (await call([answer])).keys.length;
  for (const status of [408, 425, 429, 500, 502, 503, 504]) assert.equal(await again({ status }), 2, `${status}`);
  assert.equal(await again({ status: 409, body: '{"type":"urn:semel:problem:in-flight"}' }), 2);
  assert.equal(await again({ status: 409, headers: { link: '</.well-known/semel/problems/in-flight>; rel="describedby"' } }), 2);
  assert.equal(await again({ status: 404, headers: { "x-should-retry": "true" } }), 2);
  assert.equal(await again({ status: 202, headers: { "semel-outcome": "pending" } }), 2, "another attempt still runs");
  assert.equal(await again({ status: 503, headers: { "semel-guarantee": "none" } }), 2, "surely not carried out");
});

test("Retry-After is honoured, and one that is too long is left to the caller", async () => {
  const { waits } = await call([{ status: 503, headers: { "retry-after": "20" } }]);
  assert.ok(waits[1]! >= 20_000 && waits[1]! < 21_500, `${waits}`);
  const { result, keys } = await call([{ status: 503, headers: { "retry-after": "3600" } }]);
  assert.deepEqual([(result as Response).status, keys.length], [503, 1]);
});

test("no answer at all is an error that names the key", async () => {
  const { result, keys } = await call(Array(9).fill("broken"), { retries: 2 });
  assert.ok(result instanceof NoAnswerError);
  assert.equal(result.key, keys[0]);
  assert.equal(keys.length, 3);
  const last = await call([{ status: 503 }, { status: 502 }], { retries: 1 });
  assert.equal((last.result as Response).status, 502, "the last answer is the caller's");
  const runs = { status: 202, headers: { "semel-outcome": "pending" } };
  assert.ok((await call([runs, runs], { retries: 1 })).result instanceof NoAnswerError, "it is not done");
});

test("an abort ends it at once", async () => {
  const controller = new AbortController();
  const { result, keys } = await call(["broken"], { signal: (setImmediate(() => setImmediate(() => controller.abort())), controller.signal) });
  assert.equal((result as Error).name, "AbortError");
  assert.ok(keys.length <= 2);
});

test("the time of an attempt ends with its answer: a body may take longer, and one of a conflict may not take for ever", async () => {
  const encode = (text: string) => new TextEncoder().encode(text);
  /** A body that comes after so many milliseconds, unless the request is aborted. */
  const slow = (status: number, body: string, millis: number) =>
    (async (_: Request, { signal }: RequestInit) => {
      const stream = new ReadableStream({
        start: (controller) => {
          const timer = setTimeout(() => (controller.enqueue(encode(body)), controller.close()), millis);
          signal!.addEventListener("abort", () => (clearTimeout(timer), controller.error(signal!.reason)));
        },
      });
      return new Response(stream, { status });
    }) as typeof fetch;
  const url = "https://api.example/orders";
  const answer = await fetchOnce(url, { method: "POST", timeout: 20, fetch: slow(200, "late", 80) });
  assert.equal(await answer.text(), "late");
  const stuck = fetchOnce(url, { method: "POST", timeout: 20, retries: 0, fetch: slow(409, "{}", 60_000) });
  await assert.rejects(stuck, NoAnswerError);
});
