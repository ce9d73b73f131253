// What is accepted takes effect once also where something else fails: a listener, a hook, the storage, the other tab.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Environment, OutboxError, OutboxOptions } from "semel/outbox";
import { fillStorage, reportFailures } from "../support/faults.js";
import { URL_OF, open, post, settled as settledWithin } from "../support/outboxes.js";
import { Device, Gate, Tab } from "../support/world.js";

/** What does not happen within minutes is stuck. */
const MINUTES = 180_000;
const settled = <T>(device: Device, promise: Promise<T>, most = MINUTES) => settledWithin(device, promise, most);

test("a listener that throws stops nothing, whatever it is told", async () => {
  for (const wanted of ["queued", "retry", "held", "released", "done"]) {
    const device = new Device();
    const gate = new Gate(device);
    gate.script = [{ status: 503 }, { status: 401 }];
    const reported: unknown[] = [];
    let token = "t1";
    const { outbox, events } = open(device, gate, {
      credentials: ({ principal }) => ({ principal, headers: { authorization: token } }),
      environment: { report: (error) => reported.push(error) },
    });
    const others: string[] = [];
    outbox.on(({ type }) => {
      if (type === wanted) throw new Error(`a listener's mistake at ${type}`);
    });
    outbox.on(({ type }) => others.push(type));
    const { accepted, done } = outbox.send(URL_OF, post());
    await settled(device, accepted);
    await device.until(() => events.some(({ type }) => type === "held"), MINUTES);
    token = "t2";
    outbox.kick();
    assert.equal((await settled(device, done)).status, "done", wanted);
    await settled(device, outbox.send(URL_OF, post()).done);
    const told = ["queued", "retry", "held", "released", "done", "queued", "done"];
    assert.deepEqual([events.map(({ type }) => type), others], [told, told], wanted);
    assert.deepEqual([gate.effects.length, gate.arrivals.length], [2, 4], wanted);
    assert.equal(reported.length, told.filter((type) => type === wanted).length, wanted);
    outbox.dispose();
  }
});

test("a subscriber that throws keeps no other from being called", async () => {
  const device = new Device();
  const reported: unknown[] = [];
  const { outbox } = open(device, new Gate(device), { environment: { report: (error) => reported.push(error) } });
  let calls = 0;
  outbox.subscribe(() => {
    throw new Error("a subscriber's mistake");
  });
  outbox.subscribe(() => calls++);
  await settled(device, outbox.send(URL_OF, post()).done);
  await device.advance(200);
  assert.ok(calls > 0);
  assert.equal(reported.length, calls);
  outbox.dispose();
});

test("an isFromService that throws is reported, and the message is sent again with its key", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const reported: unknown[] = [];
  let asked = 0;
  const isFromService = () => {
    if (asked++ < 2) throw new Error("the application's mistake");
    return true;
  };
  const { outbox } = open(device, gate, { isFromService, environment: { report: (error) => reported.push(error) } });
  const done = await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).done, 60_000);
  assert.deepEqual([done.status, done.attempts, gate.effects, reported.length], ["done", 3, ["m1"], 2]);
  outbox.dispose();
});

test("a claim that was committed and twice reported as failed is taken back, and sent with the same key", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const tab = new Tab(device, gate.fetch);
  const storage = await reportFailures(device, tab.environment.indexedDB!, 2, ({ status }) => status === "inflight");
  try {
    const { outbox } = open(device, gate, { environment: { indexedDB: storage.indexedDB } });
    const sent = outbox.send(URL_OF, { ...post(), id: "m1" });
    await settled(device, sent.accepted);
    const done = await settled(device, sent.done, 60_000);
    assert.equal(storage.left(), 0);
    assert.deepEqual([done.status, gate.arrivals.map(({ key }) => key)], ["done", ["m1"]]);
    outbox.dispose();
  } finally {
    storage.undo();
  }
});

test("a message that storage keeps while it says that it did not is the same one when it is sent again under the refusal's id", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const tab = new Tab(device, gate.fetch);
  const storage = await reportFailures(device, tab.environment.indexedDB!, Infinity, (_, store) => store === "messages");
  try {
    const { outbox } = open(device, gate, { environment: { indexedDB: storage.indexedDB } });
    const like = (id?: string) => outbox.send(URL_OF, { ...post(), logicalKey: "like:7", ...(id && { id }) });
    const sent = like();
    const error = await settled(device, sent.accepted.then(() => null, (error: OutboxError) => error));
    assert.deepEqual([error?.code, error?.id], ["storage-failed", sent.id]);
    assert.match(error!.message, /may have been accepted.*same id/);
    await assert.rejects(sent.done, { id: sent.id });
    storage.end();
    await device.until(() => gate.effects.length === 1, MINUTES);
    // It was kept, and it is done: under an id of its own the same action would be another one.
    const again = like(error!.id);
    assert.equal((await settled(device, again.accepted)).durable, true);
    assert.equal((await settled(device, again.done)).status, "done");
    await device.advance(60_000);
    assert.deepEqual([gate.effects, gate.arrivals.map(({ key }) => key)], [[sent.id], [sent.id]]);
    outbox.dispose();
  } finally {
    storage.undo();
  }
});

test("an action of one principal is not taken for the same action of another", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox } = open(device, gate);
  const like = (id: string, principal: string) => outbox.send(URL_OF, { ...post(), id, principal, logicalKey: "like:7" });
  const [annas, berts] = [like("a1", "anna"), like("b1", "bert")];
  assert.equal((await settled(device, annas.accepted)).aliasOf, undefined);
  assert.equal((await settled(device, berts.accepted)).aliasOf, undefined);
  assert.equal((await settled(device, like("a2", "anna").accepted)).aliasOf, "a1");
  assert.equal((await settled(device, like("b2", "bert").accepted)).aliasOf, "b1");
  gate.isReached = true;
  outbox.kick();
  for (const { done } of [annas, berts]) assert.equal((await settled(device, done)).status, "done");
  assert.deepEqual(gate.effects.sort(), ["a1", "b1"]);
  outbox.dispose();
});

test("an id of one principal's message is refused to another, also that of a double tap", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox } = open(device, gate);
  const send = (id: string, principal: string) => outbox.send(URL_OF, { ...post(), id, principal, logicalKey: "like:7" }).accepted;
  await settled(device, send("m1", "anna"));
  await settled(device, send("m2", "anna"));
  await assert.rejects(settled(device, send("m1", "bert")), { code: "id-reused" });
  await assert.rejects(settled(device, send("m2", "bert")), { code: "id-reused" });
  outbox.dispose();
});

test("a double tap is one action, also where the storage frees or fills between the taps", async () => {
  for (const isFullFirst of [true, false]) {
    const device = new Device();
    const gate = new Gate(device);
    gate.isReached = false;
    const { outbox } = open(device, gate);
    await settled(device, outbox.send("https://api.example/other", { ...post(), lane: "other" }).accepted);
    const storage = await fillStorage(device);
    try {
      storage.isFull = isFullFirst;
      const first = outbox.send(URL_OF, { ...post(), id: "m1", logicalKey: "like:7" });
      assert.equal((await settled(device, first.accepted)).durable, !isFullFirst);
      storage.isFull = !isFullFirst;
      const second = outbox.send(URL_OF, { ...post(), id: "m2", logicalKey: "like:7" });
      // What cannot be written beside the first is refused: nothing of it may be lost, and nothing may be done twice.
      if (isFullFirst) assert.equal((await settled(device, second.accepted)).aliasOf, "m1");
      else await assert.rejects(settled(device, second.accepted), { code: "storage-failed" });
      const again = outbox.send(URL_OF, { ...post(), id: "m1", logicalKey: "like:7" });
      assert.equal((await settled(device, again.accepted)).durable, !isFullFirst);
      storage.isFull = false;
      gate.isReached = true;
      outbox.kick();
      await settled(device, first.done);
      await device.advance(60_000);
      assert.deepEqual(gate.effects.filter((key) => key.startsWith("m")), ["m1"], `full ${isFullFirst ? "first" : "then"}`);
      assert.equal((await settled(device, outbox.list({ lane: "default" }))).length, 1);
    } finally {
      storage.undo();
      outbox.dispose();
    }
  }
});

test("while a storage that has been there cannot be read, an action that may wait in it is refused, and any other is kept in memory", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const first = open(device, gate);
  await settled(device, first.outbox.send(URL_OF, { ...post(), id: "m1", logicalKey: "like:7" }).accepted);
  first.outbox.dispose();
  const { outbox } = open(device, gate, { environment: { indexedDB: undefined } });
  await assert.rejects(settled(device, outbox.send(URL_OF, { ...post(), logicalKey: "like:7" }).accepted), { code: "storage-failed" });
  assert.equal((await settled(device, outbox.send(URL_OF, post()).accepted)).durable, false);
  outbox.dispose();
});

test("done is settled in another tab when the sender dies before it tells of it", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const tab = new Tab(device, gate.fetch);
  const { channel } = tab.environment;
  const dies: Environment["channel"] = (name) => {
    const own = channel(name)!;
    const post = own.postMessage;
    own.postMessage = (message) => {
      if ((message as { what?: { type: string } }).what?.type === "done") tab.kill();
      post(message);
    };
    return own;
  };
  const sender = open(device, gate, { environment: { ...tab.environment, channel: dies } });
  await device.advance(200);
  // The heir hears of its lock and looks; this one hears of nothing.
  const heir = open(device, gate);
  await device.advance(200);
  const other = open(device, gate);
  const { accepted, done } = other.outbox.send(URL_OF, { ...post(), id: "m1" });
  await settled(device, accepted);
  await device.until(() => tab.isDead, MINUTES);
  assert.equal((await settled(device, done, 10_000)).status, "done");
  assert.deepEqual(gate.effects, ["m1"]);
  for (const { outbox } of [sender, heir, other]) outbox.dispose();
});

test("without any storage the snapshot counts, and pausing, signing out and draining work", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox } = open(device, gate, { environment: { indexedDB: undefined } });
  const sent = outbox.send(URL_OF, { ...post(), principal: "anna" });
  await settled(device, sent.accepted);
  await device.advance(200);
  const { waiting, durable } = outbox.getSnapshot();
  assert.deepEqual([waiting, durable], [1, false]);
  await settled(device, outbox.signOut("anna"));
  gate.isReached = true;
  await device.advance(600_000);
  assert.equal(gate.arrivals.length, 0);
  await settled(device, outbox.resume({ principal: "anna" }));
  assert.equal((await settled(device, sent.done, 1000)).status, "done");
  await settled(device, outbox.pause());
  await settled(device, outbox.send(URL_OF, post()).accepted);
  await settled(device, outbox.resume());
  assert.equal((await settled(device, outbox.drain())).waiting, 0);
  assert.equal(gate.effects.length, 2);
  outbox.dispose();
});

test("a snapshot keeps what it knew of a storage that cannot be read for a while", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  let isBroken = false;
  const factory = new Tab(device, gate.fetch).environment.indexedDB!;
  const databases: IDBDatabase[] = [];
  const indexedDB = {
    open: (...parameters: Parameters<IDBFactory["open"]>) => {
      if (isBroken) throw new DOMException("broken", "UnknownError");
      const request = factory.open(...parameters);
      request.addEventListener("success", () => databases.push(request.result));
      return request;
    },
  } as IDBFactory;
  const { outbox } = open(device, gate, { environment: { indexedDB } });
  await settled(device, outbox.send(URL_OF, post()).accepted);
  await device.advance(200);
  isBroken = true;
  for (const database of databases) database.close();
  assert.equal((await settled(device, outbox.send(URL_OF, { ...post(), lane: "b" }).accepted)).durable, false);
  await device.advance(200);
  assert.equal(outbox.getSnapshot().waiting, 2);
  await assert.rejects(settled(device, outbox.signOut("default")), "what is on the disk could not be parked");
  outbox.dispose();
});

test("a cookie is sent for whom it is there, also when somebody else signs in while the message is claimed", async () => {
  const device = new Device();
  const gate = new Gate(device);
  let signedIn = "anna";
  let asked = 0;
  const credentials: OutboxOptions["credentials"] = () => {
    const given = { principal: signedIn, cookies: true };
    if (++asked === 1) signedIn = "bert";
    return given;
  };
  const { outbox, events } = open(device, gate, { credentials });
  const sent = outbox.send(URL_OF, { ...post(), id: "m1", principal: "anna" });
  await settled(device, sent.accepted);
  await device.until(() => events.some(({ type }) => type === "held"), MINUTES);
  const held = await settled(device, outbox.get("m1"));
  assert.deepEqual([gate.arrivals.length, held?.status, held?.possiblyDelivered], [0, "held", false]);
  assert.equal(held?.reason, "It waits for anna to sign in: bert is signed in now.");
  signedIn = "anna";
  outbox.kick();
  assert.equal((await settled(device, sent.done)).status, "done");
  assert.deepEqual(gate.arrivals.map(({ cookies }) => cookies), ["include"]);
  outbox.dispose();
});

test("a database that opened too late is closed again and blocks no upgrade", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const tab = new Tab(device, gate.fetch);
  const factory = tab.environment.indexedDB!;
  let late = 6000;
  const indexedDB = {
    open: (...parameters: Parameters<IDBFactory["open"]>) =>
      new Proxy(factory.open(...parameters), {
        set: (target, name, handler) =>
          Reflect.set(target, name, name === "onsuccess" ? (event: Event) => device.setTimeout(() => handler(event), late, tab) : handler),
        get: (target, name) => {
          const value = Reflect.get(target, name);
          return typeof value === "function" ? value.bind(target) : value;
        },
      }),
  } as IDBFactory;
  const { outbox } = open(device, gate, { environment: { ...tab.environment, indexedDB } });
  assert.equal((await settled(device, outbox.send(URL_OF, post()).accepted)).durable, false);
  await device.advance(20_000);
  late = 0;
  await device.advance(20_000);
  let version = 0;
  device.indexedDB.open("semel:test", 7).onsuccess = ({ target }) => (version = (target as IDBOpenDBRequest).result.version);
  await device.advance(1000);
  assert.equal(version, 7);
  outbox.dispose();
});

test("a worker's first drain behind a tab that hangs sends", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const page = open(device, gate);
  await settled(device, page.outbox.send(URL_OF, { ...post(), id: "m1" }).accepted);
  page.tab.freeze();
  gate.isReached = true;
  const worker = open(device, gate, { sends: "on-drain" });
  await device.advance(1000);
  const { waiting, sending } = await settled(device, worker.outbox.drain());
  assert.deepEqual([gate.effects, waiting + sending], [["m1"], 0]);
  for (const { outbox } of [page, worker]) outbox.dispose();
});

test("where the part that sends cannot be loaded at first, what is kept in memory is sent when it can", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const { load } = new Tab(device, gate.fetch).environment;
  let isThere = false;
  const environment = {
    indexedDB: undefined,
    load: async () => {
      if (!isThere) throw new TypeError("Failed to fetch dynamically imported module");
      return load();
    },
  };
  const { outbox } = open(device, gate, { environment });
  const { accepted, done } = outbox.send(URL_OF, post());
  assert.equal((await settled(device, accepted)).durable, false);
  await device.advance(1000);
  isThere = true;
  assert.equal((await settled(device, done, 10_000)).status, "done");
  outbox.dispose();
});
