// A walker's queue (semel/outbox, in Node) against the game's real API: days without a network, lost answers, actions that are too
// old, and a quest chain that has to be built again. Each test has the rows of the requirements that it shows.
import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { existsSync, readdirSync } from "node:fs";
import { after, before, test } from "node:test";
import { Outbox } from "semel/outbox";
import { ago, DAY, HOUR, openWalker, signIn, until } from "./support.mjs";

/** libfaketime, by which the sweeper's clock is two seconds before three. */
const fake = readdirSync("/usr/lib").map((name) => `/usr/lib/${name}/faketime/libfaketime.so.1`).find((path) => existsSync(path));

let api;
before(async () => (api = await openWalker()), { timeout: 120_000 });
after(() => api?.close());

const count = async (sql, params) => Number((await api.ask(`SELECT count(*) FROM ${sql}`, params))[0].count);

/** A phone: its network can be cut before a request or after it, and its clock set. */
function phone(walker, { rebuild } = {}) {
  const net = { isUp: true, loseAnswers: 0, sent: [], clock: 0 };
  const events = [];
  const outbox = Outbox.open({
    name: randomUUID(),
    profile: "walker",
    credentials: () => ({ principal: walker.walkerId, headers: { Authorization: `Bearer ${walker.token}` } }),
    persist: false,
    ...(rebuild && { rebuild }),
    environment: {
      page: undefined,
      locks: undefined,
      now: () => Date.now() + net.clock,
      fetch: async (input, init) => {
        if (!net.isUp) throw new TypeError("no network");
        const request = new Request(input, init);
        net.sent.push(`${new URL(request.url).pathname} ${request.headers.get("Idempotency-Key")}`);
        const answer = await fetch(request);
        if (net.loseAnswers-- > 0) throw new TypeError("the answer was lost");
        return answer;
      },
    },
  });
  outbox.on((event) => events.push(event));
  const act = (path, body = {}, more = {}) => {
    const at = new Date(more.generatedAt ?? Date.now() + net.clock);
    const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...body, clientGeneratedAt: at.toISOString() }) };
    return outbox.send(api.origin + path, { init, principal: walker.walkerId, operation: path, ...more });
  };
  const ended = async (sent) => {
    const receipts = await Promise.all(sent.map(({ done }) => done));
    return receipts.map(({ status, response }) => `${status} ${response?.status ?? ""}`.trim());
  };
  return { net, events, outbox, act, ended };
}

const ROOTS = { allocations: [{ node: "roots", points: 2 }] };

test("S0-114 S0-32 S0-37 a day offline: all three kinds are kept, drained in their order, and take effect once", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "day");
  await walker.start(1);
  const { net, outbox, act, ended } = phone(walker);
  net.isUp = false;
  const sent = [act("/tree/allocate", ROOTS), act("/quest/1/step/1/advance"), act("/quest/1/step/2/advance"), act("/quest/complete", { questId: 1 })];
  await Promise.all(sent.map(({ accepted }) => accepted));
  net.isUp = true;
  // The first answer is lost: its key comes again.
  net.loseAnswers = 1;
  outbox.kick();
  assert.deepEqual(await ended(sent), ["done 200", "done 200", "done 200", "done 200"]);
  const keys = net.sent.map((line) => line.split(" ")[1]);
  assert.deepEqual([...new Set(keys)], sent.map(({ id }) => id), "in their order");
  assert.equal(keys.length, 5, "S0-145 the first was answered from the record");
  assert.deepEqual(await walker.tree(), { treePointsBanked: 6, allocations: [{ node: "roots", points: 2 }] });
  assert.ok(!net.sent.some((line) => line.startsWith("/tree/state")), "S0-04 nothing is read besides");
  outbox.dispose();
});

test("S0-142 the link is lost after two of five: three remain, with the same keys next time", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "five");
  for (const quest of [1, 3]) await walker.start(quest);
  const { net, outbox, act, ended } = phone(walker);
  net.isUp = false;
  const sent = ["1/step/1", "1/step/2", "3/step/1", "3/step/2", "3/step/3"].map((step) => act(`/quest/${step}/advance`));
  await Promise.all(sent.map(({ accepted }) => accepted));
  const cut = outbox.on(({ type, id }) => {
    if (type === "done" && id === sent[1].id) net.isUp = false;
  });
  net.isUp = true;
  outbox.kick();
  await sent[1].done;
  await until("the third was tried in vain", async () => (await outbox.get(sent[2].id)).attempts > 0);
  cut();
  assert.deepEqual((await outbox.list()).map(({ status }) => (status === "done" ? "done" : "waits")), ["done", "done", "waits", "waits", "waits"]);
  net.isUp = true;
  outbox.kick();
  assert.deepEqual(await ended(sent), Array(5).fill("done 200"));
  assert.deepEqual((await walker.available()).map(({ step }) => step), [2, 0, 3]);
  outbox.dispose();
});

test("S0-143 the same action with the same key twice is one, and S0-10 a double tap is one key", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "double");
  const { outbox, act } = phone(walker);
  const [id, generatedAt] = [randomUUID(), Date.now()];
  const sent = [act("/tree/allocate", ROOTS, { id, generatedAt }), act("/tree/allocate", ROOTS, { id, generatedAt })];
  await Promise.all(sent.map(({ done }) => done));
  assert.equal((await outbox.list()).length, 1);
  assert.equal(await count("semel.record WHERE principal = $1", [walker.walkerId]), 1);
  outbox.dispose();
});

test("S0-141 S0-45 an action with a time of 30 days ago is sent, refused, and given up with word of it", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "past");
  const { net, events, outbox, act, ended } = phone(walker);
  const stale = act("/tree/allocate", ROOTS, { generatedAt: Date.now() - 30 * DAY });
  assert.deepEqual(await ended([stale]), ["dead 422"]);
  assert.equal(net.sent.length, 1, "S0-65 no second attempt");
  assert.ok(events.some(({ type, ids }) => type === "expired" && ids?.includes(stale.id)), JSON.stringify(events));
  assert.equal(await count("allocation WHERE walker_id = $1", [walker.walkerId]), 0);
  assert.equal(await count("semel.record WHERE principal = $1 AND status = 422", [walker.walkerId]), 1, "S0-43");
  outbox.dispose();
});

test("S0-144 a key that was used for another body is given up as a conflict; the next one goes on", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "conflict", 10);
  const { events, outbox, act, ended } = phone(walker);
  const key = randomUUID();
  assert.equal((await walker.allocate([{ node: "roots", points: 1 }], { key })).status, 200);
  const sent = [act("/tree/allocate", ROOTS, { id: key }), act("/tree/allocate", { allocations: [{ node: "roots", points: 1 }] })];
  assert.deepEqual(await ended(sent), ["dead 409", "done 200"]);
  assert.match(events.find(({ type, id }) => type === "dropped" && id === key)?.reason ?? "", /idempotency-conflict/);
  outbox.dispose();
});

test("S0-147 S0-55 S0-68 steps 3 and 4 while the walker is at 1: the app asks what is available and builds the chain again", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "chain");
  await walker.start(3);
  await walker.advance(3, 1);
  const notices = [];
  const rebuild = async (refused, behind) => {
    const quest = (await walker.available()).find(({ questId }) => questId === 3);
    notices.push(`You are at step ${quest.step}.`);
    const body = JSON.stringify({ clientGeneratedAt: new Date().toISOString() });
    return {
      drop: behind.filter(({ url }) => url.includes("/quest/3/")).map(({ id }) => id),
      with: { request: `${api.origin}/quest/3/step/${quest.nextStep}/advance`, init: { method: "POST", headers: { "Content-Type": "application/json" }, body } },
    };
  };
  const { net, outbox, act } = phone(walker, { rebuild });
  const sent = [act("/quest/3/step/3/advance"), act("/quest/3/step/4/advance")];
  const [third, fourth] = await Promise.all(sent.map(({ done }) => done));
  assert.deepEqual([third.status, fourth.status], ["aborted", "aborted"]);
  await until("the corrected step is done", async () => (await outbox.get(third.supersededBy))?.status === "done");
  assert.notEqual(third.supersededBy, third.id, "G0-15 a new key");
  assert.deepEqual(notices, ["You are at step 1."]);
  assert.deepEqual(net.sent.map((line) => line.split(" ")[0]), ["/quest/3/step/3/advance", "/quest/3/step/2/advance"]);
  assert.equal((await walker.available()).find(({ questId }) => questId === 3).step, 2);
  outbox.dispose();
});

test("S0-150 after its record a repeat is too old: a freshly computed refusal and no effect", { timeout: 60_000 }, async () => {
  const walker = await signIn(api, "late", 5);
  const [key, clientGeneratedAt] = [randomUUID(), ago(HOUR)];
  const first = await walker.allocate(ROOTS.allocations, { key }, { clientGeneratedAt });
  assert.equal(first.status, 200, first.text);
  const old = ago(9 * DAY);
  // Nine days later: the record is as old as that, and the repeat says when it happened.
  await api.ask("UPDATE semel.record SET created_at = created_at - $2, settled_at = settled_at - $2, expires_at = expires_at - $2 WHERE key = $1", [key, 9 * DAY]);
  const late = await walker.allocate(ROOTS.allocations, { key }, { clientGeneratedAt: old });
  assert.deepEqual([late.status, late.body.error, late.headers.get("idempotency-replayed")], [422, "STALE_ACTION", null]);
  assert.equal((await walker.tree()).treePointsBanked, 3);
});

test("S0-85 S0-12 S0-78 the daily sweep at three removes what has expired and says how many", { timeout: 90_000 }, async () => {
  assert.ok(fake, "libfaketime is installed");
  const walker = await signIn(api, "sweep", 50);
  const [old, fresh] = [randomUUID(), randomUUID()];
  assert.equal((await walker.allocate(ROOTS.allocations, { key: old })).status, 200);
  assert.equal((await walker.allocate([{ node: "stamina", points: 1 }], { key: fresh })).status, 200);
  await api.ask("UPDATE semel.record SET created_at = created_at - $2, settled_at = settled_at - $2, expires_at = expires_at - $2 WHERE key = $1", [old, 9 * DAY]);
  const runs = await count("semel.cleanup");
  await api.stack.kill("sweeper");
  const semel = process.env.SEMEL_BIN ?? "semel";
  const today = new Date().toISOString().slice(0, 10);
  api.stack.add("sweeper", {
    command: semel,
    args: ["gate", "sweep", "--store", api.database, "--when", "daily 03:00"],
    env: { LD_PRELOAD: fake, FAKETIME: `@${today} 02:59:57`, TZ: "UTC" },
  });
  await api.stack.start("sweeper");
  await until("three o'clock has passed", async () => (await count("semel.cleanup")) > runs, 80);
  const left = await api.ask("SELECT key FROM semel.record WHERE principal = $1", [walker.walkerId]);
  assert.deepEqual(left.map(({ key }) => key), [fresh]);
  await until("the count is said", () => /removed [1-9]\d* expired record/.test(api.stack.said("sweeper")));
});
