// What the outbox promises to those who use it, in one tab and in several.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Outbox, OutboxError, type Receipt } from "semel/outbox";
import { fillStorage } from "../support/faults.js";
import { URL_OF, open, post, settled } from "../support/outboxes.js";
import { Device, Gate, Tab } from "../support/world.js";

test("a message is accepted, sent with its key, and told done", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const { outbox, events } = open(device, gate);
  const sent = outbox.send(URL_OF, { ...post(), operation: "create-order" });
  assert.match(sent.id, /^[0-9a-f-]{36}$/);
  const accepted = await settled(device, sent.accepted);
  assert.equal(accepted.durable, true);
  const done = await settled(device, sent.done);
  assert.equal(done.status, "done");
  assert.equal(done.guarantee, "once");
  assert.equal(done.response?.body, `{"key":"${sent.id}"}`);
  assert.deepEqual(gate.effects, [sent.id]);
  const { headers, cookies } = gate.arrivals[0]!;
  assert.equal(headers.get("x-client-tx-id"), done.clientTxId);
  assert.equal(headers.get("idempotency-first-sent"), new Date(done.firstAttemptAt!).toISOString());
  assert.equal(cookies, "omit");
  assert.deepEqual(events.map(({ type }) => type), ["queued", "done"]);
  await device.advance(100);
  assert.deepEqual({ ...outbox.getSnapshot(), lanes: [] }, { waiting: 0, sending: 0, held: 0, dead: 0, durable: true, isSender: true, lanes: [] });
  outbox.dispose();
});

test("a lane is sent in order and stops for the one that fails", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [undefined, { status: 503 }, "lost"];
  const { outbox, events } = open(device, gate);
  const sent = [1, 2, 3, 4].map((n) => outbox.send(URL_OF, { ...post({ n }), id: `m${n}` }));
  await settled(device, sent[3]!.done);
  assert.deepEqual(gate.arrivals.map(({ key }) => key), ["m1", "m2", "m2", "m2", "m3", "m4"]);
  assert.deepEqual(gate.effects, ["m1", "m2", "m3", "m4"]);
  const times = gate.arrivals.slice(1, 4).map(({ at }) => at);
  assert.deepEqual([times[1]! - times[0]!, times[2]! - times[1]!], [500, 1000], "full jitter, u 0.5");
  assert.equal(events.filter(({ type }) => type === "retry").length, 2);
  assert.match(events.find(({ type }) => type === "retry")!.reason!, /come back later \(HTTP 503\)/);
  outbox.dispose();
});

test("what a reload finds in flight is sent again with the same key", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["silent"];
  const first = open(device, gate);
  const { id } = first.outbox.send(URL_OF, post());
  await device.until(() => gate.arrivals.length === 1);
  first.tab.kill();
  const second = open(device, gate);
  await device.until(async () => (await second.outbox.get(id))?.status === "done");
  assert.deepEqual(gate.arrivals.map(({ key }) => key), [id, id]);
  assert.deepEqual(gate.effects, [id]);
  second.outbox.dispose();
});

test("a failed send is tried again without another write", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["unreachable", "unreachable", "unreachable"];
  const { outbox } = open(device, gate);
  const { done } = outbox.send(URL_OF, post());
  assert.equal((await settled(device, done)).attempts, 4);
  outbox.dispose();
});

test("the same id is one message, another request under it is refused, and nothing is stored", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox } = open(device, gate);
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).accepted);
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).accepted);
  const other = outbox.send(URL_OF, { ...post({ amount: 6 }), id: "m1" });
  await assert.rejects(settled(device, other.accepted), { code: "id-reused" });
  await assert.rejects(settled(device, other.done), { code: "id-reused" });
  assert.equal((await settled(device, outbox.list())).length, 1);
  outbox.dispose();
});

test("what a message asks for can be read, also after a reload, until it is done", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const first = open(device, gate);
  const sent = first.outbox.send(URL_OF, { ...post({ words: "hello" }), id: "m1" });
  await settled(device, sent.accepted);
  first.outbox.dispose();
  const { outbox } = open(device, gate);
  const request = await settled(device, outbox.request("m1"));
  assert.deepEqual([request?.method, request?.url, await request?.json()], ["POST", URL_OF, { words: "hello" }]);
  await assert.rejects(settled(device, outbox.request("no such")), { code: "not-found" });
  gate.isReached = true;
  outbox.kick();
  await device.until(() => gate.effects.length === 1);
  await device.advance(1000);
  assert.equal(await settled(device, outbox.request("m1")), undefined);
  outbox.dispose();
});

test("a double tap is one action, and its id finds the message", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 503, headers: { "retry-after": "5" } }];
  const { outbox } = open(device, gate);
  const first = outbox.send(URL_OF, { ...post(), logicalKey: "like:7" });
  await settled(device, first.accepted);
  const second = outbox.send(URL_OF, { ...post({ amount: 6 }), logicalKey: "like:7" });
  assert.equal((await settled(device, second.accepted)).aliasOf, first.id);
  const done = await settled(device, second.done);
  assert.deepEqual([done.id, done.aliasOf, done.status], [second.id, first.id, "done"]);
  assert.deepEqual(gate.effects, [first.id]);
  const third = outbox.send(URL_OF, { ...post(), logicalKey: "like:7" });
  await settled(device, third.done);
  assert.equal(gate.effects.length, 2, "once it is done, the next tap is another action");
  outbox.dispose();
});

test("no more than maxMessages wait, also of those that are accepted in one go", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox } = open(device, gate, { maxMessages: 3 });
  const sent = ["m1", "m2", "m3", "m1", "m4", "m5"].map((id) => outbox.send(URL_OF, { ...post(), id }).accepted);
  const said = await settled(device, Promise.allSettled(sent));
  assert.deepEqual(said.map((one) => (one.status === "rejected" ? one.reason.code : "accepted")), ["accepted", "accepted", "accepted", "accepted", "full", "full"]);
  gate.isReached = true;
  await device.until(() => gate.effects.length === 3);
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m4" }).done);
  outbox.dispose();
});

test("what is malformed is refused at once and uses up no id", async () => {
  const device = new Device();
  const { outbox } = open(device, new Gate(device));
  const refused = async (input: string, options: object) =>
    settled(device, outbox.send(input, options).accepted).then(() => "accepted", (error: OutboxError) => error.code);
  assert.equal(await refused(URL_OF, post({}, { authorization: "Bearer x" })), "credential-in-request");
  assert.equal(await refused("ftp://example/x", {}), "malformed");
  assert.equal(await refused("not a url", {}), "malformed");
  assert.equal(await refused(URL_OF, { ...post(), id: "bad\nid" }), "malformed");
  assert.equal(await refused(URL_OF, { ...post(), lane: "" }), "malformed");
  assert.equal(await refused(URL_OF, { init: { method: "POST", body: "x".repeat((1 << 20) + 1) } }), "too-large");
  assert.equal((await settled(device, outbox.list())).length, 0);
  assert.throws(() => Outbox.open({ name: "old", credentials: "none", maxAge: 7 * 86_400_000 }), /maxAge/);
  outbox.dispose();
});

test("every tab accepts and one sends", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const tabs = [open(device, gate), open(device, gate), open(device, gate)];
  await device.advance(200);
  const sent = tabs.flatMap(({ outbox }, tab) => [1, 2].map((n) => outbox.send(URL_OF, { ...post(), id: `t${tab}-${n}` })));
  const done = await settled(device, Promise.all(sent.map((one) => one.done)));
  assert.deepEqual(done.map(({ status }) => status), Array(6).fill("done"));
  assert.equal(gate.arrivals.length, 6);
  await device.advance(200);
  assert.equal(tabs.filter(({ outbox }) => outbox.getSnapshot().isSender).length, 1);
  for (const { outbox } of tabs) outbox.dispose();
});

test("a frozen sender is replaced after two silent seconds, and changes nothing when it thaws", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const leader = open(device, gate);
  await device.advance(200);
  const other = open(device, gate);
  await device.advance(200);
  gate.script = ["silent"];
  leader.outbox.send(URL_OF, { ...post(), id: "m1" });
  await device.until(() => gate.arrivals.length === 1);
  leader.tab.freeze();
  const { done } = other.outbox.send(URL_OF, { ...post(), id: "m2" });
  await settled(device, done, 10_000);
  assert.deepEqual(gate.effects, ["m1", "m2"]);
  leader.tab.thaw();
  await device.advance(60_000);
  assert.equal((await settled(device, other.outbox.get("m1")))?.status, "done");
  assert.deepEqual(gate.effects, ["m1", "m2"]);
  assert.equal(gate.arrivals.length, 3);
  leader.outbox.dispose();
  other.outbox.dispose();
});

test("credentials are fetched at send, and another principal's messages stay parked", async () => {
  const device = new Device();
  const gate = new Gate(device);
  let signedIn: { principal: string; headers: Record<string, string> } | null = { principal: "anna", headers: { authorization: "Bearer a1" } };
  gate.isReached = false;
  const { outbox, events } = open(device, gate, { credentials: () => signedIn });
  const annas = outbox.send(URL_OF, { ...post(), principal: "anna" });
  await settled(device, annas.accepted);
  await device.advance(5000);
  signedIn = { principal: "bert", headers: { authorization: "Bearer b1" } };
  gate.isReached = true;
  outbox.kick();
  const berts = outbox.send(URL_OF, { ...post(), principal: "bert" });
  await settled(device, berts.done);
  await device.advance(120_000);
  assert.deepEqual(gate.arrivals.map(({ headers }) => headers.get("authorization")), ["Bearer b1"]);
  const parked = (await settled(device, outbox.get(annas.id)))!;
  assert.equal(parked.status, "held");
  assert.equal(parked.reason, "It waits for anna to sign in: bert is signed in now.");
  signedIn = { principal: "anna", headers: { authorization: "Bearer a2" } };
  outbox.kick();
  await settled(device, annas.done);
  assert.equal(gate.arrivals[1]!.headers.get("authorization"), "Bearer a2", "not the token of the time of accepting");
  assert.deepEqual(events.filter(({ id }) => id === annas.id).map(({ type }) => type), ["queued", "retry", "retry", "retry", "retry", "held", "released", "done"]);
  const stored = JSON.stringify(await settled(device, outbox.list()));
  assert.ok(!stored.includes("Bearer"), "credentials are never stored");
  outbox.dispose();
});

test("a refused credential holds the principal until there is a fresh one", async () => {
  const device = new Device();
  const gate = new Gate(device);
  let token = "t1";
  gate.reply = ({ headers }) => (headers.get("authorization") === "t2" ? undefined : { status: 401 });
  const { outbox } = open(device, gate, { credentials: ({ principal }) => ({ principal, headers: { authorization: token } }) });
  const sent = [1, 2].map((n) => outbox.send(URL_OF, { ...post({ n }), lane: `lane-${n}` }));
  await device.advance(300_000);
  assert.ok(gate.arrivals.length <= 2, "the refused credential is not tried again");
  token = "t2";
  outbox.kick();
  for (const { done } of sent) assert.equal((await settled(device, done)).status, "done");
  outbox.dispose();
});

test("where there is no credential to renew, a refused message is not sent again and again", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.reply = () => ({ status: 401 });
  const { outbox } = open(device, gate);
  outbox.send(URL_OF, post());
  await device.advance(90_000);
  assert.equal(gate.arrivals.length, 2, "at once, and a minute later");
  outbox.dispose();
});

test("signing out parks in every tab and deletes nothing", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["silent"];
  const { outbox, tab } = open(device, gate);
  const one = outbox.send(URL_OF, { ...post(), principal: "anna" });
  await device.until(() => gate.arrivals.length === 1);
  await settled(device, outbox.signOut("anna"));
  await device.advance(600_000);
  assert.equal(gate.arrivals.length, 1);
  tab.kill();
  const later = open(device, gate);
  await device.advance(600_000);
  assert.equal(gate.arrivals.length, 1, "also after a reload");
  assert.equal((await settled(device, later.outbox.get(one.id)))?.possiblyDelivered, true);
  await settled(device, later.outbox.resume({ principal: "anna" }));
  await device.until(async () => (await later.outbox.get(one.id))?.status === "done");
  later.outbox.dispose();
});

test("where storage is full or forbidden, messages go straight through and say so", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 503 }];
  const { outbox, events } = open(device, gate, { environment: { indexedDB: undefined } });
  const sent = [1, 2, 3].map((n) => outbox.send(URL_OF, { ...post({ n }), id: `m${n}` }));
  assert.equal((await settled(device, sent[0]!.accepted)).durable, false);
  await settled(device, sent[2]!.done);
  assert.deepEqual(gate.arrivals.map(({ key }) => key), ["m1", "m1", "m2", "m3"]);
  assert.ok(events.some(({ type, reason }) => type === "not-durable" && /lost if this page is closed/.test(reason!)));
  assert.equal((await settled(device, outbox.list())).length, 3);
  outbox.dispose();
});

test("a message that found no room in the storage keeps its place in the lane", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox, tab } = open(device, gate);
  await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).accepted);
  const storage = await fillStorage(device);
  try {
    const at = device.now;
    const sent = ["m2", "m3"].map((id) => outbox.send(URL_OF, { ...post(), id }));
    await device.settle();
    storage.isFull = false;
    const last = outbox.send(URL_OF, { ...post(), id: "m4" });
    await device.settle();
    assert.equal(device.now, at, "all of it within one millisecond");
    const kept = await settled(device, Promise.all([...sent, last].map(({ accepted }) => accepted)));
    assert.deepEqual(kept.map(({ durable }) => durable), [false, false, true]);
    gate.isReached = true;
    tab.page.dispatchEvent(new Event("online"));
    await settled(device, last.done);
    assert.deepEqual(gate.effects, ["m1", "m2", "m3", "m4"]);
  } finally {
    storage.undo();
    outbox.dispose();
  }
});

test("a vanished database is reported, and its promises end", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const { outbox, events, tab } = open(device, gate);
  const { accepted, done } = outbox.send(URL_OF, post());
  await settled(device, accepted);
  await device.advance(100);
  await new Promise((resolve) => (device.indexedDB.deleteDatabase("semel:test").onsuccess = resolve));
  const next = outbox.send(URL_OF, post());
  await settled(device, next.accepted);
  await assert.rejects(settled(device, done), { code: "storage-lost" });
  assert.ok(events.some(({ type }) => type === "storage-lost"));
  tab.kill();
});

test("a database that the browser closed under the page is opened again", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const databases: IDBDatabase[] = [];
  const { outbox, tab } = open(device, gate, { environment: (() => {
    const tab = new Tab(device, gate.fetch).environment;
    return { ...tab, indexedDB: { open: (...parameters: Parameters<IDBFactory["open"]>) => {
      const request = tab.indexedDB!.open(...parameters);
      request.addEventListener("success", () => databases.push(request.result));
      return request;
    } } as IDBFactory };
  })() });
  await settled(device, outbox.send(URL_OF, post()).done);
  databases.at(-1)!.close();
  assert.equal((await settled(device, outbox.send(URL_OF, post()).accepted)).durable, true);
  assert.equal(databases.length, 2);
  outbox.dispose();
  tab.kill();
});

test("a bookkeeping failure after an accepted send is no failed send", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const { outbox, events } = open(device, gate);
  await device.advance(100);
  const database = await new Promise<IDBDatabase>((resolve) => {
    const request = device.indexedDB.open("semel:test");
    request.onsuccess = () => resolve(request.result);
  });
  const store = Object.getPrototypeOf(database.transaction("messages").objectStore("messages"));
  database.close();
  const put = store.put;
  let failures = 3;
  store.put = function (this: IDBObjectStore, ...parameters: unknown[]) {
    if ((parameters[0] as Receipt)?.status === "done" && failures-- > 0) throw new DOMException("broken", "DataError");
    return put.apply(this, parameters);
  };
  try {
    const done = await settled(device, outbox.send(URL_OF, post()).done);
    assert.equal(done.attempts, 1);
    assert.equal(gate.arrivals.length, 1);
    assert.deepEqual(events.map(({ type }) => type), ["queued", "done"]);
  } finally {
    store.put = put;
    outbox.dispose();
  }
});

test("an HTML page of something in between is not the service's refusal", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 404, headers: { "content-type": "text/html" }, body: "<h1>no such host</h1>" }];
  const { outbox } = open(device, gate);
  const sent = outbox.send(URL_OF, post());
  assert.equal((await settled(device, sent.done)).status, "done");
  gate.script = [{ status: 404, body: '{"code":"no-such-order"}' }];
  const refused = await settled(device, outbox.send(URL_OF, post()).done);
  assert.equal(refused.status, "dead");
  assert.equal(refused.reason, "Refused: rejected (HTTP 404 no-such-order).");
  outbox.dispose();
});

test("a dead message is passed, or blocks its lane visibly until somebody decides", async () => {
  for (const onDead of ["skip", "block"] as const) {
    const device = new Device();
    const gate = new Gate(device);
    gate.script = [{ status: 422, body: '{"code":"no-tea"}' }];
    const { outbox } = open(device, gate, { onDead });
    const sent = [1, 2].map((n) => outbox.send(URL_OF, { ...post({ n }), id: `m${n}` }));
    assert.equal((await settled(device, sent[0]!.done)).status, "dead");
    await device.advance(60_000);
    assert.equal(gate.arrivals.length, onDead === "skip" ? 2 : 1);
    if (onDead === "block") {
      const [lane] = outbox.getSnapshot().lanes;
      assert.deepEqual([lane!.state, lane!.head, lane!.waiting], ["blocked", "m1", 2]);
      assert.match(lane!.reason!, /HTTP 422 no-tea/);
      await settled(device, outbox.resume({ lane: "default" }));
    }
    assert.equal((await settled(device, sent[1]!.done)).status, "done");
    outbox.dispose();
  }
});

test("abort takes back what waits, and nothing that is under way", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["silent"];
  const { outbox } = open(device, gate);
  const sent = [1, 2].map((n) => outbox.send(URL_OF, { ...post({ n }), id: `m${n}` }));
  await device.until(() => gate.arrivals.length === 1);
  await assert.rejects(settled(device, outbox.abort("m1")), { code: "state" });
  await settled(device, outbox.abort("m2"));
  assert.equal((await settled(device, sent[1]!.done)).status, "aborted");
  await assert.rejects(settled(device, outbox.abort("m9")), { code: "not-found" });
  await settled(device, sent[0]!.done);
  assert.deepEqual(gate.effects, ["m1"]);
  outbox.dispose();
});

test("promises end when the outbox is closed, and a second one goes on", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const first = open(device, gate);
  const { accepted, done } = first.outbox.send(URL_OF, { ...post(), id: "m1" });
  await settled(device, accepted);
  first.outbox.dispose();
  first.outbox.dispose();
  await assert.rejects(settled(device, done), { code: "disposed" });
  await assert.rejects(settled(device, first.outbox.send(URL_OF, post()).accepted), { code: "disposed" });
  const second = open(device, gate);
  gate.isReached = true;
  await device.until(async () => (await second.outbox.get("m1"))?.status === "done");
  second.outbox.dispose();
});

test("mounting twice leaves no lock behind", async () => {
  const device = new Device();
  const gate = new Gate(device);
  const tab = new Tab(device, gate.fetch);
  const mount = () => Outbox.open({ name: "test", credentials: "none", environment: tab.environment });
  mount().dispose();
  const second = mount();
  await settled(device, second.send(URL_OF, post()).done, 1000);
  assert.equal(gate.effects.length, 1);
  second.dispose();
});

test("subscribers are called after a change, and a snapshot is the same until then", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = [{ status: 503, headers: { "retry-after": "30" } }];
  const { outbox } = open(device, gate);
  await device.advance(200);
  let calls = 0;
  const stop = outbox.subscribe(() => calls++);
  const before = outbox.getSnapshot();
  assert.equal(outbox.getSnapshot(), before);
  outbox.send(URL_OF, { ...post(), id: "m1" });
  await device.advance(1000);
  assert.ok(calls >= 1);
  const [lane] = outbox.getSnapshot().lanes;
  assert.deepEqual([lane!.state, lane!.head, lane!.reason], ["waiting", "m1", "The server asks to come back later (HTTP 503)."]);
  stop();
  const after = calls;
  await device.advance(60_000);
  assert.equal(calls, after);
  assert.equal(outbox.getSnapshot().waiting, 0);
  outbox.dispose();
});

test("an attempt that still runs at a gate is asked for again and not taken for delivered", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.script = ["silent", { status: 202, headers: { "semel-outcome": "pending", "retry-after": "1" } }, { status: 503 }];
  const { outbox } = open(device, gate);
  const done = await settled(device, outbox.send(URL_OF, { ...post(), id: "m1" }).done, 600_000);
  assert.deepEqual([done.response?.status, done.attempts, gate.effects], [201, 4, ["m1"]]);
  outbox.dispose();
});
