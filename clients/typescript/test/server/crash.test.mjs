// Processes that die: effect and record together or not at all, whatever the moment. And 200 requests of one key over two
// processes, in two languages where the other one is given.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { freePort, isLong, makeDatabase, run, start } from "./support.mjs";

const program = fileURLToPath(new URL("serve.mjs", import.meta.url));
const goClient = fileURLToPath(new URL("../../../go", import.meta.url));
const times = isLong ? 20 : 3;
let database;
let healthy;

async function serve(...more) {
  const port = await freePort();
  const child = await start(process.execPath, [program, "--port", port, "--postgres", database.url, ...more]);
  return { ...child, url: `http://127.0.0.1:${port}/orders` };
}

const post = (url, key, body = '{"item":"tea"}') =>
  fetch(url, { method: "POST", body, headers: { "content-type": "application/json", "idempotency-key": key, "x-user": "alice" } });

const count = async (sql, params) => Number((await database.query(`SELECT count(*) AS n FROM ${sql}`, params))[0].n);

before(async () => {
  database = await makeDatabase("crash");
  healthy = await serve();
});
after(async () => {
  await healthy?.kill();
  await database?.drop();
});

for (const [step, isCommitted] of [
  ["begun", false],
  ["entered", false],
  ["handling", false],
  ["handled", false],
  ["left", false],
  ["committed", true],
]) {
  test(`a process killed when it has ${step} leaves effect and record together or not at all, ${times} times`, async () => {
    for (let time = 0; time < times; time++) {
      const [key, item] = [randomUUID(), randomUUID()];
      const body = JSON.stringify({ item });
      const doomed = await serve("--die-at", step);
      await assert.rejects(post(doomed.url, key, body), "the process should have died");
      assert.equal(await doomed.exited, "SIGKILL");
      const effects = await count("orders WHERE item = $1", [item]);
      assert.equal(effects, isCommitted ? 1 : 0);
      assert.equal(await count("semel.record WHERE key = $1 AND state = 2", [key]), effects, "effect and record");
      const retry = await post(healthy.url, key, body);
      assert.equal(retry.status, 201);
      assert.equal(retry.headers.get("idempotency-replayed"), isCommitted ? "true" : null);
      assert.equal(await count("orders WHERE item = $1", [item]), 1);
    }
    assert.equal(await count("semel.record WHERE state <> 2", []), 0, "nothing is ever unknown");
  });
}

/** Sends 200 requests of one key to two services at once, and counts. */
async function storm(urls) {
  const [key, item] = [randomUUID(), randomUUID()];
  const body = JSON.stringify({ item });
  const all = Array.from({ length: 200 }, async (_, at) => {
    const response = await post(urls[at % urls.length], key, body);
    return { status: response.status, replayed: response.headers.has("idempotency-replayed"), body: await response.text() };
  });
  const answers = await Promise.all(all);
  assert.deepEqual([...new Set(answers.map(({ status, body }) => `${status} ${body}`))].length, 1, "200 equal answers");
  assert.equal(answers[0].status, 201);
  assert.equal(answers.filter(({ replayed }) => !replayed).length, 1, "one of them is the first");
  assert.equal(await count("orders WHERE item = $1", [item]), 1, "one effect");
}

test("200 parallel requests of one key over two processes take effect once", async () => {
  const second = await serve();
  try {
    for (let time = 0; time < times; time++) await storm([healthy.url, second.url]);
  } finally {
    await second.kill();
  }
});

test("200 parallel requests of one key over two languages, Node and Go, take effect once", async () => {
  const binary = `${goClient}/target/serve`;
  await run("go", ["build", "-o", binary, "./internal/serve"], { cwd: goClient });
  const port = await freePort();
  const other = await start(binary, ["--port", port, "--postgres", database.url]);
  try {
    for (let time = 0; time < times; time++) await storm([healthy.url, `http://127.0.0.1:${port}/orders`]);
  } finally {
    await other.kill();
  }
});
