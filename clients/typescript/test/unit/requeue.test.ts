// What may take another message's place, and when: requeueing, and lanes that the application builds again. Nothing gets two
// successors, and nothing that may have taken effect is replaced without a word.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { OutboxOptions } from "semel/outbox";
import { URL_OF, open, post, settled } from "../support/outboxes.js";
import { Device, Gate } from "../support/world.js";

test("what is given up can be requeued under a new id, in its old place", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422 }];
  const { outbox } = open(device, gate, { onDead: "block" });
  const sent = [1, 2].map((n) => outbox.send(URL_OF, { ...post({ n }), id: `m${n}` }));
  await settled(device, sent[0]!.done);
  const next = await settled(device, outbox.requeue("m1", { id: "m1b", body: '{"n":9}' }));
  assert.deepEqual([next.id, next.supersedes], ["m1b", "m1"]);
  await settled(device, sent[1]!.done);
  assert.deepEqual(gate.effects, ["m1b", "m2"]);
  const orders = gate.arrivals.filter(({ url }) => !url.includes("well-known"));
  assert.equal(orders[1]!.headers.get("semel-supersedes"), "m1");
  assert.equal(orders[1]!.body, '{"n":9}');
  assert.equal((await settled(device, outbox.get("m1")))?.supersededBy, "m1b");
  outbox.dispose();
});

test("two requeues at once, in two tabs or by a double tap, make one successor", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422 }];
  const [first, second] = [open(device, gate), open(device, gate)];
  const sent = first.outbox.send(URL_OF, { ...post(), id: "m1" });
  await settled(device, sent.done);
  const wanted = [["b1", first], ["b2", first], ["b3", second]] as const;
  const results = Promise.allSettled(wanted.map(([id, { outbox }]) => outbox.requeue("m1", { id })));
  const said = (await settled(device, results)).map((result) => (result.status === "fulfilled" ? "requeued" : result.reason.code));
  assert.deepEqual(said.sort(), ["requeued", "state", "state"]);
  await device.advance(60_000);
  assert.equal(gate.effects.length, 1, `${gate.effects}`);
  for (const { outbox } of [first, second]) outbox.dispose();
});

test("an action that waits again is not requeued beside itself", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422 }];
  const { outbox } = open(device, gate);
  const like = (id: string, principal: string) => outbox.send(URL_OF, { ...post(), id, principal, logicalKey: "like:7" });
  await settled(device, like("m1", "anna").done);
  gate.isReached = false;
  await settled(device, like("m2", "anna").accepted);
  await assert.rejects(settled(device, outbox.requeue("m1")), { code: "state" });
  gate.isReached = true;
  await device.advance(10_000);
  assert.deepEqual(gate.effects, ["m2"]);
  // Another's action is another one.
  gate.script = [{ status: 422 }, { status: 404 }];
  await settled(device, like("b1", "bert").done);
  gate.isReached = false;
  await settled(device, like("m3", "anna").accepted);
  gate.isReached = true;
  assert.equal((await settled(device, outbox.requeue("b1", { id: "b2" }))).supersedes, "b1");
  await device.advance(60_000);
  assert.deepEqual(gate.effects.sort(), ["b2", "m2", "m3"]);
  outbox.dispose();
});

test("one that may have been delivered is requeued by force only, or after its key was sealed", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["lost"];
  const { outbox } = open(device, gate);
  const { id, accepted } = outbox.send(URL_OF, { ...post(), id: "m1" });
  await settled(device, accepted);
  await settled(device, outbox.pause());
  await device.until(() => gate.arrivals.length === 1, 5000).catch(() => {});
  if (!gate.arrivals.length) {
    await settled(device, outbox.resume());
    await device.until(() => gate.arrivals.length === 1);
    await settled(device, outbox.pause());
  }
  await device.advance(10_000);
  gate.script = [{ status: 404 }];
  await assert.rejects(settled(device, outbox.requeue(id)), { code: "possibly-delivered" });
  gate.script = [{ status: 200, body: '{"sealed":false,"state":"settled"}' }];
  await assert.rejects(settled(device, outbox.requeue(id)), { code: "possibly-delivered" });
  gate.script = [{ status: 200, body: '{"sealed":true,"identity":"hashed"}' }];
  await assert.rejects(settled(device, outbox.requeue(id)), { code: "possibly-delivered" });
  gate.script = [{ status: 200, body: '{"sealed":true,"identity":"verified"}' }];
  const next = await settled(device, outbox.requeue(id));
  assert.equal(next.possiblyDelivered, false);
  assert.match(gate.arrivals.at(-1)!.url, /\/\.well-known\/semel\/keys\/m1\/seal\?endpoint=POST%20%2Forders$/);
  outbox.dispose();
});

test("a seal of a key that the server may have forgotten does not say that nothing happened", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["lost"];
  const { outbox } = open(device, gate);
  const { id, accepted } = outbox.send(URL_OF, { ...post(), id: "m1" });
  await settled(device, accepted);
  await device.until(() => gate.arrivals.length === 1);
  await settled(device, outbox.pause());
  await device.advance(25 * 3_600_000);
  gate.script = [{ status: 200, body: '{"sealed":true,"identity":"verified"}' }];
  await assert.rejects(settled(device, outbox.requeue(id)), { code: "possibly-delivered" });
  outbox.dispose();
});

test("a lane that the server wants rebuilt is built by the application", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422, body: '{"error":"STEP_OUT_OF_ORDER"}' }];
  const ids = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222", "33333333-3333-4333-8333-333333333333"];
  const { outbox } = open(device, gate, {
    profile: "walker",
    rebuild: async (refused, behind) => ({
      drop: behind.map(({ id }) => id),
      with: { request: refused.url, init: post({ step: 1 }).init, options: { id: ids[2]! } },
    }),
  });
  const sent = [0, 1].map((n) => outbox.send(URL_OF, { ...post({ n }), id: ids[n]! }));
  for (const { done } of sent) assert.equal((await settled(device, done)).status, "aborted");
  await device.until(async () => (await outbox.get(ids[2]!))?.status === "done");
  assert.deepEqual(gate.effects, [ids[2]]);
  assert.match(gate.arrivals.at(-1)!.body, /"clientGeneratedAt":"2026-01-01T00:00:00/);
  outbox.dispose();
});

test("a rebuild that failed, or died with its tab, is asked for again", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422, body: '{"error":"STEP_OUT_OF_ORDER"}' }];
  const ids = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"];
  let [asked, isDown] = [0, true];
  const rebuild: OutboxOptions["rebuild"] = async (refused) => {
    asked++;
    if (isDown) throw new TypeError("fetch failed");
    return { with: { request: refused.url, init: post({ step: 1 }).init, options: { id: ids[1]! } } };
  };
  const first = open(device, gate, { profile: "walker", rebuild });
  await settled(device, first.outbox.send(URL_OF, { ...post(), id: ids[0]! }).accepted);
  await device.until(() => asked === 1);
  await device.advance(30_000);
  assert.equal(asked, 1, "not without a pause");
  await device.until(() => asked === 2, 60_000);
  first.tab.kill();
  isDown = false;
  const second = open(device, gate, { profile: "walker", rebuild });
  await device.until(() => gate.effects.length === 1, 60_000);
  await device.advance(120_000);
  assert.deepEqual([gate.effects, asked], [[ids[1]], 3]);
  assert.equal((await settled(device, second.outbox.get(ids[0]!)))?.supersededBy, ids[1]);
  second.outbox.dispose();
});

test("a rebuild that comes late does not replace what was sent again meanwhile", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422, body: '{"error":"STEP_OUT_OF_ORDER"}' }, "lost"];
  const ids = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"];
  let isAsked = false;
  let build = () => {};
  const built = new Promise<void>((resolve) => (build = resolve));
  const rebuild: OutboxOptions["rebuild"] = async (refused) => {
    isAsked = true;
    await built;
    return { with: { request: refused.url, init: post({ step: 1 }).init, options: { id: ids[1]! } } };
  };
  const first = open(device, gate, { profile: "walker", rebuild });
  await settled(device, first.outbox.send(URL_OF, { ...post(), id: ids[0]! }).accepted);
  await device.until(() => isAsked);
  first.tab.freeze();
  const second = open(device, gate, { profile: "walker" });
  await device.until(() => second.outbox.getSnapshot().isSender);
  await settled(device, second.outbox.retry(ids[0]!));
  await device.until(() => gate.effects.length === 1);
  gate.isReached = false;
  await device.advance(1000);
  build();
  first.tab.thaw();
  await device.advance(1000);
  gate.isReached = true;
  await device.advance(600_000);
  assert.deepEqual(gate.effects, [ids[0]]);
  assert.equal((await settled(device, second.outbox.get(ids[0]!)))?.status, "done");
  for (const { outbox } of [first, second]) outbox.dispose();
});

test("what took the place of one that may have been delivered never says that neither was", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["lost", { status: 404 }];
  const { outbox } = open(device, gate);
  const id = "00000000-0000-4000-8000-00000000000";
  const { accepted } = outbox.send(URL_OF, { ...post(), id: `${id}1` });
  await settled(device, accepted);
  await device.until(() => gate.arrivals.length === 1);
  await settled(device, outbox.pause());
  await device.advance(10_000);
  const forced = await settled(device, outbox.requeue(`${id}1`, { id: `${id}2`, force: true }));
  assert.equal(forced.possiblyDelivered, true);
  await assert.rejects(settled(device, outbox.requeue(`${id}2`)), { code: "possibly-delivered" }, "it was not sent, and the first was");
  gate.script = [{ status: 422, headers: { "idempotency-replayed": "true" } }];
  await settled(device, outbox.resume());
  await device.until(() => gate.arrivals.some(({ key }) => key === `${id}2`));
  await device.advance(1000);
  const dead = await settled(device, outbox.get(`${id}2`));
  assert.deepEqual([dead?.status, dead?.possiblyDelivered], ["dead", true]);
  outbox.dispose();
});

test("every message of a chain of requeues names the first to its receiver, and its receipt the one before", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 422 }, { status: 404 }, { status: 422 }];
  const { outbox } = open(device, gate);
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).done);
  for (const [old, id] of [["m1", "m2"], ["m2", "m3"]] as const) {
    assert.equal((await settled(device, outbox.requeue(old, { id }))).supersedes, old);
    await device.until(async () => /done|dead/.test((await outbox.get(id))?.status ?? ""));
  }
  const sent = gate.arrivals.filter(({ url }) => !url.includes("well-known"));
  const named = sent.map(({ key, headers }) => [key, headers.get("semel-supersedes")]);
  assert.deepEqual(named, [["m1", null], ["m2", "m1"], ["m3", "m1"]]);
  outbox.dispose();
});

test("what was forced beside one that may have been delivered says that it may be there twice", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["lost", { status: 404 }];
  const { outbox } = open(device, gate);
  const id = "00000000-0000-4000-8000-00000000000";
  await settled(device, outbox.send(URL_OF, { ...post(), id: `${id}1` }).accepted);
  await device.until(() => gate.arrivals.length === 1);
  await settled(device, outbox.pause());
  await device.advance(10_000);
  await settled(device, outbox.requeue(`${id}1`, { id: `${id}2`, force: true }));
  await settled(device, outbox.resume());
  await device.until(async () => (await outbox.get(`${id}2`))?.status === "done");
  assert.deepEqual(gate.effects, [`${id}1`, `${id}2`]);
  const told = await settled(device, outbox.get(`${id}2`));
  assert.deepEqual([told?.possiblyRepeated, told?.guarantee], [true, "at-least-once"]);
  outbox.dispose();
});

test("what the server knows of a key counts more than what the row says", async () => {
  const device = new Device();
  const gate = new Gate(device);
  // The load balancer's 404 came while the request ran behind it.
  gate.script = [{ status: 404 }, { status: 200, body: '{"sealed":false,"state":"settled","status":201}' }];
  const { outbox } = open(device, gate);
  const sent = outbox.send(URL_OF, { ...post(), id: "m1" });
  assert.equal((await settled(device, sent.done)).possiblyDelivered, false);
  await assert.rejects(settled(device, outbox.requeue("m1")), { code: "possibly-delivered" });
  gate.script = [{ status: 200, body: '{"sealed":false,"state":"settled","status":422}' }];
  assert.equal((await settled(device, outbox.requeue("m1"))).possiblyDelivered, false);
  outbox.dispose();
});

test("a seal says nothing where the server has said that it forgets sooner", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const { outbox } = open(device, gate);
  gate.script = [{ status: 201, headers: { "semel-retention": "3600", "semel-guarantee": "fenced" } }, "lost"];
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m0" }).done);
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).accepted);
  await device.until(() => gate.arrivals.length === 2);
  gate.isReached = false;
  await settled(device, outbox.pause());
  await device.advance(2 * 3_600_000);
  gate.isReached = true;
  gate.script = [{ status: 200, body: '{"sealed":true,"identity":"verified"}' }];
  await assert.rejects(settled(device, outbox.requeue("m1")), { code: "possibly-delivered" });
  outbox.dispose();
});
