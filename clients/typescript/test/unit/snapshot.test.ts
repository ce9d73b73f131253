// Working values: nothing is queued before they are submitted, and then all of them at once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { IDBFactory } from "fake-indexeddb";
import { Outbox } from "semel/outbox";
import { PendingIndicator, WorkingValues, oldDatabase, type Key } from "semel/snapshot";
import { fillStorage, reportFailures } from "../support/faults.js";
import { Device, Gate, Tab } from "../support/world.js";

function open(device: Device, gate: Gate, indexedDB?: IDBFactory) {
  const tab = new Tab(device, gate.fetch);
  const environment = { ...tab.environment, ...(indexedDB && { indexedDB }) };
  const outbox = Outbox.open({ name: "scores", profile: "scores", credentials: "none", environment });
  const values = new WorkingValues<number>({
    outbox,
    name: "scores",
    request: ({ key: [section, patrol], value }) => ({
      url: "https://api.example/scores",
      init: { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ section, patrol, points: value }) },
      lane: `${section}/${patrol}`,
    }),
  });
  return { tab, outbox, values };
}

async function settled<T>(device: Device, promise: Promise<T>): Promise<T> {
  let result: { value: T } | { error: unknown } | undefined;
  promise.then((value) => (result = { value }), (error) => (result = { error }));
  await device.until(() => result !== undefined);
  if ("error" in result!) throw result.error;
  return result!.value;
}

const add = (points: number) => (before = 0) => before + points;

test("taps change the running total only, and survive a reload", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const first = open(device, gate);
  await settled(device, first.values.update(["s1", "p1"], add(2)));
  await settled(device, first.values.update(["s1", "p1"], add(3)));
  assert.equal((await settled(device, first.outbox.list())).length, 0);
  first.tab.kill();
  const second = open(device, gate);
  assert.equal(await settled(device, second.values.get(["s1", "p1"])), 5);
  assert.equal(gate.arrivals.length, 0);
  second.outbox.dispose();
});

test("submitting moves all values with keys of their own, and later taps change nothing that was submitted", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox, values } = open(device, gate);
  await settled(device, values.update(["s1", "p1"], add(5)));
  await settled(device, values.update(["s1", "p2"], add(7)));
  const receipts = await settled(device, values.submit());
  assert.equal(new Set(receipts.map(({ id }) => id)).size, 2, "keys are made at this moment, offline");
  assert.deepEqual(await settled(device, values.all()), []);
  await settled(device, values.update(["s1", "p1"], add(1)));
  await device.advance(3000);
  gate.isReached = true;
  await device.until(() => gate.effects.length === 2);
  const bodies = gate.arrivals.map(({ body }) => JSON.parse(body)).sort((a, b) => a.points - b.points);
  assert.deepEqual(bodies, [{ section: "s1", patrol: "p1", points: 5 }, { section: "s1", patrol: "p2", points: 7 }]);
  assert.equal(gate.arrivals[0]!.headers.get("x-idempotency-key"), gate.arrivals[0]!.key);
  assert.equal(await settled(device, values.get(["s1", "p1"])), 1);
  outbox.dispose();
});

test("a tab that dies while it submits leaves the values or the messages, never both and never neither", async () => {
  for (let at = 1; at < 12; at++) {
    const device = new Device();
    const gate = new Gate(device);
    gate.isReached = false;
    const first = open(device, gate);
    await settled(device, first.values.update(["s1", "p1"], add(5)));
    await settled(device, first.values.update(["s1", "p2"], add(7)));
    first.tab.meet("kill", first.tab.steps.length + at);
    void first.values.submit();
    await device.advance(100);
    first.tab.kill();
    const second = open(device, gate);
    const left = (await settled(device, second.values.all())).length;
    const queued = (await settled(device, second.outbox.list())).length;
    assert.ok((left === 2 && queued === 0) || (left === 0 && queued === 2), `killed at ${at}: ${left} values, ${queued} messages`);
    second.outbox.dispose();
  }
});

test("a tap while it is being submitted is part of it, or stays", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox, values } = open(device, gate);
  await settled(device, values.update(["s1", "p1"], add(5)));
  const [receipts] = await settled(device, Promise.all([values.submit(), values.update(["s1", "p1"], add(1))]));
  const left = (await settled(device, values.get(["s1", "p1"]))) ?? 0;
  gate.isReached = true;
  await device.until(() => gate.effects.length === 1);
  assert.equal(receipts.length, 1);
  assert.equal(JSON.parse(gate.arrivals.at(-1)!.body).points + left, 6);
  outbox.dispose();
});

test("a change that was committed and reported as failed is applied once, and a submit tells what it moved", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const factory = new Tab(device, gate.fetch).environment.indexedDB!;
  const taps = await reportFailures(device, factory, 1, (_, store) => store === "working");
  const { values: tapped, outbox: first } = open(device, gate, taps.indexedDB);
  assert.equal(await settled(device, tapped.update(["s1", "p1"], add(5))), 5);
  assert.equal(await settled(device, tapped.get(["s1", "p1"])), 5);
  assert.equal(taps.left(), 0);
  taps.undo();
  first.dispose();
  const moves = await reportFailures(device, factory, 1, (_, store) => store === "messages");
  const { values, outbox } = open(device, gate, moves.indexedDB);
  const told: string[] = [];
  outbox.on(({ type }) => told.push(type));
  const receipts = await settled(device, values.submit());
  assert.equal(moves.left(), 0);
  assert.equal(receipts.length, 1);
  await device.until(async () => (await outbox.get(receipts[0]!.id))?.status === "done", 60_000);
  assert.deepEqual(gate.arrivals.map(({ body }) => JSON.parse(body).points), [5]);
  assert.deepEqual(await settled(device, values.all()), []);
  assert.deepEqual(told, ["queued", "done"]);
  moves.undo();
  outbox.dispose();
});

test("an older queue of events is moved into the values, each event once", async () => {
  const old = new IDBFactory();
  const make = (run: (store: IDBObjectStore) => void) =>
    new Promise<void>((resolve) => {
      const request = old.open("patrol-events", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("events", { autoIncrement: true });
      request.onsuccess = () => {
        const transaction = request.result.transaction("events", "readwrite");
        run(transaction.objectStore("events"));
        transaction.oncomplete = () => (request.result.close(), resolve());
      };
    });
  await make((store) => [2, 3, -1].forEach((delta) => store.add({ sectionId: "s1", patrolId: "p1", delta })));
  const device = new Device();
  const { outbox, values } = open(device, new Gate(device));
  type Old = { sectionId: string; patrolId: string; delta: number };
  const read = ({ sectionId, patrolId, delta }: Old) => ({ key: [sectionId, patrolId] as Key, change: add(delta) });
  const queue = oldDatabase<Old>("patrol-events", "events", old);
  // The first run is interrupted before the old store is emptied.
  await assert.rejects(settled(device, values.importQueue({ ...queue, clear: async () => { throw new Error("interrupted"); } }, read)));
  assert.equal(await settled(device, values.importQueue(queue, read)), 3);
  assert.equal(await settled(device, values.get(["s1", "p1"])), 4);
  assert.equal(await settled(device, values.importQueue(queue, read)), 0);
  assert.equal(await settled(device, values.importQueue(oldDatabase<Old>("none", "events", old), read)), 0);
  outbox.dispose();
});

test("one indicator counts what waits here and at the server", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 202, body: '{"success":true}' }];
  const { outbox, values } = open(device, gate);
  const polled = [2, 0];
  const indicator = new PendingIndicator(outbox, async () => polled.shift()!, 1);
  const seen: number[] = [];
  indicator.subscribe(() => seen.push(indicator.getSnapshot()));
  await settled(device, values.set(["s1", "p1"], 5));
  await settled(device, values.submit());
  await device.until(() => gate.arrivals.length === 1);
  const end = Date.now() + 5000;
  while (polled.length && Date.now() < end) {
    await device.advance(100);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.ok(seen.includes(2), `${seen}`);
  assert.equal(indicator.getSnapshot(), 0);
  indicator.stop();
  outbox.dispose();
});

test("a page that was just opened learns what waits at the server, and sees it clear", async () => {
  const device = new Device();
  const { outbox } = open(device, new Gate(device));
  const polled = [3, 1, 0];
  const indicator = new PendingIndicator(outbox, async () => polled.shift()!, 1);
  const seen: number[] = [];
  indicator.subscribe(() => seen.push(indicator.getSnapshot()));
  await indicator.refresh();
  assert.equal(indicator.getSnapshot(), 3);
  const end = Date.now() + 5000;
  while (polled.length && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 5));
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(indicator.getSnapshot(), 0);
  assert.ok(seen.includes(1), `${seen}`);
  indicator.stop();
  outbox.dispose();
});

test("a value that was taken away is not submitted, also not by a submit that had begun", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const { outbox, values } = open(device, gate);
  await settled(device, values.set(["s1", "p1"], 5));
  await settled(device, values.set(["s1", "p2"], 7));
  await settled(device, values.remove(["s1", "p1"]));
  const begun = values.submit();
  const gone = values.remove(["s1", "p2"]);
  const receipts = await settled(device, begun);
  await settled(device, gone);
  assert.ok(receipts.length <= 1, "p1 was gone before");
  assert.deepEqual(await settled(device, values.all()), []);
  assert.deepEqual(await settled(device, values.submit()), []);
  outbox.dispose();
});

test("what is submitted is the same action as one that waits in memory, because the storage was full", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox } = open(device, gate);
  const out = (points: number) => ({
    url: "https://api.example/scores", init: { method: "POST", body: String(points) }, logicalKey: `score:${points}`, lane: "s1",
  });
  const values = new WorkingValues<number>({ outbox, name: "likes", request: ({ value }) => out(value) });
  for (const points of [1, 2]) await settled(device, values.set(["p", points], points));
  const storage = await fillStorage(device);
  try {
    const { url, ...options } = out(1);
    const first = outbox.send(url, options);
    assert.equal((await settled(device, first.accepted)).durable, false);
    storage.isFull = false;
    const receipts = await settled(device, values.submit());
    assert.deepEqual(receipts.map(({ id, durable }) => [id === first.id, durable]), [[true, false], [false, true]]);
    assert.deepEqual(await settled(device, values.all()), []);
    gate.isReached = true;
    outbox.kick();
    await device.until(() => gate.effects.length === 2, 180_000);
    await device.advance(60_000);
    assert.deepEqual(gate.arrivals.map(({ body }) => body), ["1", "2"]);
  } finally {
    storage.undo();
    outbox.dispose();
  }
});
