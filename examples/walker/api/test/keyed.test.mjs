// What each of the three actions behind a key refuses before it does anything, cell by cell, and the bounds of an action's age. Each test
// has the rows of the requirements that it shows; with those of api.test.mjs and offline.test.mjs they are what S0-115 asks.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { ago, DAY, HOUR, openWalker, signIn } from "./support.mjs";

let api, walker;
before(
  async () => {
    api = await openWalker();
    walker = await signIn(api, "keyed", 100);
    await walker.start(1);
  },
  { timeout: 120_000 },
);
after(() => api?.close());

const ACTIONS = {
  allocate: ["/tree/allocate", { allocations: [{ node: "roots", points: 1 }] }],
  advance: ["/quest/1/step/1/advance", {}],
  complete: ["/quest/complete", { questId: 1 }],
};
const MINUTE = 60_000;
const now = () => ({ clientGeneratedAt: ago(0) });

/** How a request is spoiled, and what is said. */
const SPOILED = {
  "S0-86 no key": [() => ({ body: now() }), 400, "IDEMPOTENCY_KEY_REQUIRED"],
  "S0-87 a key that is no UUID": [() => ({ key: "junk", body: now() }), 400, "IDEMPOTENCY_KEY_INVALID"],
  "S0-23 S0-95 no time": [() => ({ key: randomUUID(), body: {} }), 400, "TIMESTAMP_INVALID"],
  "S0-23 a time that is none": [() => ({ key: randomUUID(), body: { clientGeneratedAt: "yesterday" } }), 400, "TIMESTAMP_INVALID"],
  "S0-48 S0-108 7 days and 7 hours ago": [() => ({ key: randomUUID(), body: { clientGeneratedAt: ago(7 * DAY + 7 * HOUR) } }), 422, "STALE_ACTION"],
  "S0-31 S0-109 12 hours ahead": [() => ({ key: randomUUID(), body: { clientGeneratedAt: ago(-12 * HOUR) } }), 422, "STALE_ACTION"],
};

const effects = () => api.ask("SELECT (SELECT count(*) FROM allocation) AS a, (SELECT sum(step) FROM quest_run) AS q, (SELECT sum(tree_points_banked) FROM walker) AS w");

for (const [action, [path, fields]] of Object.entries(ACTIONS))
  for (const [what, [spoil, status, code]] of Object.entries(SPOILED))
    test(`${what}: ${action} is refused and changes nothing`, async () => {
      const { key, body } = spoil();
      const before = await effects();
      const answer = await walker.send("POST", path, { ...fields, ...body }, { key });
      assert.deepEqual([answer.status, answer.body.error], [status, code], answer.text);
      assert.deepEqual(await effects(), before);
    });

/** Ages within the cap and its grace; steps of a quest that is begun anew each time. */
const PASSING = {
  "S0-106 7 days": 7 * DAY,
  "S0-107 7 days and 5 hours": 7 * DAY + 5 * HOUR,
  "S0-110 a minute less than 7 days and 6 hours": 7 * DAY + 6 * HOUR - MINUTE,
  "S0-109 an hour ahead": -HOUR,
};
for (const [what, age] of Object.entries(PASSING))
  test(`${what}: the action passes`, async () => {
    const one = await signIn(api, `aged ${age}`);
    await one.start(1);
    assert.equal((await one.advance(1, 1, {}, { clientGeneratedAt: ago(age) })).status, 200);
  });

test("S0-111 the same instant with Warsaw's offset is decided alike, on both sides of the bound", async () => {
  const one = await signIn(api, "warsaw");
  await one.start(1);
  const zoned = (age) => new Date(Date.now() - age + 2 * HOUR).toISOString().replace("Z", "+02:00");
  assert.equal((await one.advance(1, 1, {}, { clientGeneratedAt: zoned(7 * DAY + 7 * HOUR) })).body.error, "STALE_ACTION");
  assert.equal((await one.advance(1, 1, {}, { clientGeneratedAt: zoned(7 * DAY + 5 * HOUR) })).status, 200);
});
