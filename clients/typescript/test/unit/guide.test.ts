// Runs the programs of docs/guides/client-browser.md and of the package's README.md as they stand there.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fetchOnce } from "semel";
import { Outbox, type OutboxOptions } from "semel/outbox";
import { Device, Gate, Tab } from "../support/world.js";

test("the guide's first program does what the guide says", async () => {
  const guide = readFileSync(new URL("../../../../docs/guides/client-browser.md", import.meta.url), "utf8");
  const program = /```js\n([\s\S]*?)```/.exec(guide)![1]!.replace(/^import .*\n/gm, "");
  const device = new Device();
  const gate = new Gate(device);
  const { environment } = new Tab(device, gate.fetch);
  const said: unknown[][] = [];
  const run = new Function("Outbox", "session", "console", `return (async () => { ${program} })()`);
  const opened = { open: (options: OutboxOptions) => Outbox.open({ ...options, environment }) };
  let isDone = false;
  run(opened, { user: "anna", token: "t" }, { log: (...words: unknown[]) => said.push(words) }).then(() => (isDone = true));
  await device.until(() => isDone);
  const [arrival] = gate.arrivals;
  assert.equal(arrival!.headers.get("authorization"), "Bearer t");
  assert.deepEqual(said.map(([word]) => word), ["queued", "done", true]);
  assert.deepEqual(said[2], [true, "done", "once", `{"key":"${arrival!.key}"}`]);
});

/** The programs of the README, without their imports. */
const programs = [...readFileSync(new URL("../../README.md", import.meta.url), "utf8").matchAll(/```js\n([\s\S]*?)```/g)].map(
  ([, program]) => program!.replace(/^import .*\n/gm, ""),
);

test("the README's call of fetchOnce sends one key with every attempt", async () => {
  const requests: Request[] = [];
  const send = (async (request: Request) => {
    requests.push(request);
    if (requests.length === 1) throw new TypeError("fetch failed");
    return new Response(await request.text(), { status: 201 });
  }) as typeof fetch;
  const run = new Function("fetchOnce", `return (async () => { ${programs[0]}; return answer; })()`);
  const once = (url: string, init: object) => fetchOnce(url, { ...init, fetch: send });
  const answer: Response = await run(once);
  assert.deepEqual([answer.status, await answer.json()], [201, { item: "tea", amount: 5 }]);
  const keys = requests.map(({ headers }) => headers.get("idempotency-key"));
  assert.deepEqual([keys.length, new Set(keys).size, typeof keys[0]], [2, 1, "string"]);
  assert.equal(requests[1]!.headers.get("authorization"), "Bearer demo");
});

test("the README's outbox takes a message over and delivers it", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const { environment } = new Tab(device, gate.fetch);
  const run = new Function("Outbox", "user", `return (async () => { ${programs[1]}; return [await accepted, receipt]; })()`);
  const opened = { open: (options: OutboxOptions) => Outbox.open({ ...options, environment }) };
  let said: { durable: boolean; status: string; reason: string; id: string }[] | undefined;
  run(opened, { id: "anna", token: async () => "t" }).then((found: typeof said) => (said = found));
  await device.until(() => said !== undefined);
  const [accepted, receipt] = said!;
  assert.equal(accepted!.durable, true);
  assert.deepEqual([receipt!.status, receipt!.reason], ["done", "Delivered (HTTP 201)."]);
  assert.deepEqual(gate.effects, [receipt!.id]);
  assert.equal(gate.arrivals[0]!.headers.get("authorization"), "Bearer t");
  assert.equal(programs.length, 2, "every program of the README is run");
});
