// The transactions of a sender: one with an old epoch changes nothing, and each may run twice.
import assert from "node:assert/strict";
import { test } from "node:test";
import { STALE, claim, settle, takeEpoch } from "../../dist/outbox/claims.js";
import { freeze } from "../../dist/outbox/freeze.js";
import { MemoryStore } from "../../dist/outbox/memory.js";
import { accept } from "../../dist/outbox/rows.js";
import type { Row } from "../../dist/outbox/types.js";
import { ietf } from "../../dist/contract/profiles.js";

async function prepare() {
  const store = new MemoryStore();
  const request = new Request("https://api.example/x", { method: "POST", body: "x" });
  const draft = await freeze(request, "m1", {}, ietf, 0);
  const row = await store.run("readwrite", (tx) => accept(tx, draft, { left: 10 }));
  const epoch = await store.run("readwrite", (tx) => takeEpoch(tx, 0, 0));
  const now = () => store.run("readonly", (tx) => tx.get<Row>("messages", row.n)) as Promise<Row>;
  return { store, row, epoch, now };
}

const done = { to: "done", change: { reason: "Delivered." } } as const;

test("an old epoch neither claims nor settles nor holds", async () => {
  const { store, row, epoch, now } = await prepare();
  const claimed = (await store.run("readwrite", (tx) => claim(tx, row.n, "t1", epoch, 0))) as Row;
  await store.run("readwrite", (tx) => takeEpoch(tx, 0, 0));
  const before = await now();
  assert.deepEqual([before.status, before.ambiguous], ["pending", true], "what was under way may have arrived");
  assert.equal(await store.run("readwrite", (tx) => claim(tx, row.n, "t2", epoch, 0)), STALE);
  assert.equal(await store.run("readwrite", (tx) => settle(tx, claimed, "t1", epoch, done, 0, false)), STALE);
  const held = { to: "held", change: { heldFor: "auth" as const } } as const;
  assert.equal(await store.run("readwrite", (tx) => settle(tx, before, null, epoch, held, 0, false)), STALE);
  assert.deepEqual(await now(), before);
});

test("a claim and a settlement that ran before find their own work", async () => {
  const { store, row, epoch, now } = await prepare();
  for (let times = 0; times < 2; times++) {
    const claimed = (await store.run("readwrite", (tx) => claim(tx, row.n, "t1", epoch, 0))) as Row;
    assert.deepEqual([claimed.status, claimed.attempts], ["inflight", 1]);
  }
  assert.equal(await store.run("readwrite", (tx) => claim(tx, row.n, "t2", epoch, 0)), null, "one attempt at a time");
  for (let times = 0; times < 2; times++) {
    const settled = (await store.run("readwrite", async (tx) => settle(tx, (await tx.get<Row>("messages", row.n))!, "t1", epoch, done, 7, false))) as Row;
    assert.deepEqual([settled.status, settled.endedAt], ["done", 7]);
  }
  const other = { to: "dead", change: {} } as const;
  const settled = await now();
  assert.equal(await store.run("readwrite", (tx) => settle(tx, settled, "t9", epoch, other, 9, false)), null);
  assert.equal((await now()).status, "done");
});

test("what was decided of a message is not written into the one that took its place meanwhile", async () => {
  const { store, row, epoch, now } = await prepare();
  await store.run("readwrite", (tx) => tx.put("messages", { ...row, ids: ["m2"], supersedes: "m1" }));
  const expired = { to: "expired", change: { reason: "It waited for 23 hours and was given up." } } as const;
  assert.equal(await store.run("readwrite", (tx) => settle(tx, row, null, epoch, expired, 9, false)), null);
  assert.equal((await now()).status, "pending");
});
