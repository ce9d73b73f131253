// The game's API over HTTP, each test with the rows of the requirements that it shows.
import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { Validator } from "@seriousme/openapi-schema-validator";
import { ago, DAY, HOUR, openWalker, signIn, until } from "./support.mjs";

let api;
before(async () => (api = await openWalker()), { timeout: 120_000 });
after(() => api?.close());

const count = async (sql, params) => Number((await api.ask(`SELECT count(*) FROM ${sql}`, params))[0].count);
const ROOTS = [{ node: "roots", points: 2 }];
const KEYED = [["/tree/allocate", { allocations: ROOTS }], ["/quest/1/step/1/advance", {}], ["/quest/complete", { questId: 1 }]];

test("S0-01 S0-86 S0-87 S0-163 the three actions need a key, and only they do", async () => {
  const walker = await signIn(api, "keys");
  for (const [path, body] of KEYED) {
    const bare = await walker.send("POST", path, { ...body, clientGeneratedAt: ago(0) });
    assert.deepEqual([bare.status, bare.body.error], [400, "IDEMPOTENCY_KEY_REQUIRED"], path);
    for (const key of ["junk", randomUUID().toUpperCase(), "018f2c3e-0000-7000-8000-000000000000"])
      assert.equal((await walker.act(path, body, { key })).body.error, "IDEMPOTENCY_KEY_INVALID", `${path} ${key}`);
    const undated = await walker.send("POST", path, body, { key: randomUUID() });
    assert.equal(undated.status, 400, "S0-23 S0-95");
  }
  assert.equal((await walker.start(1)).status, 200, "S0-21 an unmarked route");
  assert.equal((await walker.start(1)).body.error, "QUEST_ALREADY_IN_PROGRESS", "S0-103");
});

test("S0-01 S0-03 S0-13 each of the three takes effect once, and every attempt gets the same bytes", async () => {
  const walker = await signIn(api, "once");
  await walker.start(1);
  const twice = async (path, body) => {
    const [key, clientGeneratedAt] = [randomUUID(), ago(0)];
    const first = await walker.act(path, { ...body, clientGeneratedAt }, { key });
    const again = await walker.act(path, { ...body, clientGeneratedAt, clientSubmittedAt: ago(0) }, { key });
    assert.equal(first.status, 200, first.text);
    assert.deepEqual([again.status, again.text, again.headers.get("idempotency-replayed")], [200, first.text, "true"], "S0-25 G0-3");
    return first.body;
  };
  assert.deepEqual(await twice("/tree/allocate", { allocations: ROOTS }), { treePointsBanked: 3, allocations: ROOTS });
  await twice("/quest/1/step/1/advance", {});
  await twice("/quest/1/step/2/advance", {});
  assert.equal((await twice("/quest/complete", { questId: 1 })).pointsAwarded, 3);
  assert.equal((await walker.tree()).treePointsBanked, 6, "S0-72 never granted twice");
});

test("S0-02 another key for what is done gets the game's own 409", async () => {
  const walker = await signIn(api, "other-key");
  await walker.allocate(ROOTS);
  assert.equal((await walker.allocate(ROOTS)).body.error, "ALREADY_ALLOCATED");
});

test("S0-112 tree: too old is STALE_ACTION, altered allocations a conflict, the same again the same state", async () => {
  const walker = await signIn(api, "tree", 10);
  const stale = { key: randomUUID() };
  const refused = await walker.allocate(ROOTS, stale, { clientGeneratedAt: ago(8 * DAY) });
  assert.deepEqual([refused.status, refused.body.error, refused.body.details.ageDays, refused.body.details.capDays], [422, "STALE_ACTION", 8, 7]);
  const [record] = await api.ask("SELECT status FROM semel.record WHERE key = $1", [stale.key]);
  assert.equal(record.status, 422, "S0-43 on record");
  assert.equal(await count("allocation WHERE walker_id = $1", [walker.walkerId]), 0);
  const [key, clientGeneratedAt] = [randomUUID(), ago(HOUR)];
  const first = await walker.allocate(ROOTS, { key }, { clientGeneratedAt });
  const altered = await walker.allocate([{ node: "roots", points: 1 }], { key }, { clientGeneratedAt });
  assert.deepEqual([altered.status, altered.body.error], [409, "IDEMPOTENCY_CONFLICT"]);
  const sent = `{"allocations":[{"node":"roots","points":1}],"clientGeneratedAt":"${clientGeneratedAt}"}`;
  assert.equal(altered.body.details.receivedHash, createHash("sha256").update(sent).digest("hex"), "S0-16");
  assert.equal((await walker.allocate(ROOTS, { key }, { clientGeneratedAt })).text, first.text);
  assert.equal((await walker.tree()).treePointsBanked, 8);
});

test("S0-113 S0-48 quest: too old is STALE_ACTION on advance and complete, a replayed complete awards once", async () => {
  const walker = await signIn(api, "quest", 0);
  await walker.start(1);
  const old = { clientGeneratedAt: ago(8 * DAY) };
  assert.equal((await walker.advance(1, 1, {}, old)).body.error, "STALE_ACTION");
  assert.equal((await walker.complete(1, {}, old)).body.error, "STALE_ACTION");
  assert.equal((await walker.advance(1, 1, {}, { clientGeneratedAt: ago(-12 * HOUR) })).body.error, "STALE_ACTION", "S0-31");
  assert.equal((await walker.advance(1, 1, {}, { clientGeneratedAt: ago(7 * DAY + 5 * HOUR) })).status, 200, "S0-107");
  await walker.advance(1, 2);
  const [key, clientGeneratedAt] = [randomUUID(), ago(0)];
  const answers = await Promise.all(Array.from({ length: 5 }, () => walker.complete(1, { key }, { clientGeneratedAt })));
  assert.deepEqual(new Set(answers.map(({ text }) => text)).size, 1);
  assert.equal(answers[0].body.pointsAwarded, 3);
  assert.equal((await walker.tree()).treePointsBanked, 3);
  assert.equal((await walker.complete(1)).body.error, "QUEST_ALREADY_COMPLETED");
});

test("S0-38 S0-101 S0-102 steps go in their order: S0-147 the walker is at 2, and steps 4 and 5 are refused with where it is", async () => {
  const walker = await signIn(api, "steps");
  await walker.start(1);
  await walker.advance(1, 1);
  await walker.advance(1, 2);
  await walker.complete(1);
  await walker.start(2);
  for (const step of [1, 2]) assert.equal((await walker.advance(2, step)).status, 200);
  const [key, clientGeneratedAt] = [randomUUID(), ago(0)];
  const refused = await walker.advance(2, 4, { key }, { clientGeneratedAt });
  assert.deepEqual([refused.status, refused.body.error], [422, "STEP_OUT_OF_ORDER"]);
  assert.deepEqual(refused.body.details, { questId: 2, step: 2, expected: 3, received: 4 });
  assert.equal((await walker.complete(2)).body.error, "STEP_OUT_OF_ORDER");
  const quest = (await walker.available()).find(({ questId }) => questId === 2);
  assert.deepEqual([quest.status, quest.step, quest.nextStep], ["in-progress", 2, 3]);
  await walker.advance(2, 3);
  assert.equal((await walker.advance(2, 4, { key }, { clientGeneratedAt })).status, 200, "a refusal frees its key");
});

test("S0-57 prerequisites are asked for in the tree and before a quest", async () => {
  const walker = await signIn(api, "needs", 20);
  const early = await walker.allocate([{ node: "crown", points: 5 }]);
  assert.deepEqual([early.status, early.body.error, early.body.details.missing], [422, "PREREQUISITES_NOT_MET", ["stamina", "pathfinder"]]);
  assert.equal((await walker.start(2)).body.error, "PREREQUISITES_NOT_MET");
  const all = await walker.allocate([{ node: "roots", points: 2 }, { node: "stamina", points: 3 }, { node: "pathfinder", points: 3 }, { node: "crown", points: 5 }]);
  assert.equal(all.body.treePointsBanked, 7);
});

test("S0-36 S0-58 S0-152 of parallel allocations that overspend exactly one succeeds", async () => {
  const walker = await signIn(api, "spender", 7);
  await walker.allocate(ROOTS);
  const wanted = [[{ node: "stamina", points: 3 }], [{ node: "pathfinder", points: 3 }], [{ node: "stamina", points: 3 }], [{ node: "pathfinder", points: 3 }]];
  const answers = await Promise.all(wanted.map((allocations) => walker.allocate(allocations)));
  const codes = answers.map(({ status, body }) => (status === 200 ? "ok" : body.error)).sort();
  assert.equal(codes.filter((code) => code === "ok").length, 1, codes.join());
  assert.ok(codes.includes("INSUFFICIENT_POINTS"), codes.join());
  assert.equal((await walker.tree()).treePointsBanked, 2);
  const [{ spent }] = await api.ask("SELECT sum(points)::int AS spent FROM allocation WHERE walker_id = $1", [walker.walkerId]);
  assert.equal(spent, 5, "no partial effect");
});

test("S0-11 S0-161 a key belongs to its walker and route; two devices of one walker share it", async () => {
  const [one, other] = [await signIn(api, "one"), await signIn(api, "other")];
  const [key, clientGeneratedAt] = [randomUUID(), ago(0)];
  await one.start(1);
  const answers = [await one.allocate(ROOTS, { key }, { clientGeneratedAt }), await other.allocate(ROOTS, { key }, { clientGeneratedAt }), await one.advance(1, 1, { key })];
  assert.deepEqual(answers.map(({ status, headers }) => [status, headers.get("idempotency-replayed")]), [[200, null], [200, null], [200, null]]);
  const phone = await signIn(api, "one");
  assert.equal((await phone.allocate(ROOTS, { key }, { clientGeneratedAt })).headers.get("idempotency-replayed"), "true");
});

test("S0-20 the step counter keeps its key in the body and merges", async () => {
  const walker = await signIn(api, "steps-of-a-day");
  const ingest = (steps) => walker.send("POST", "/step/ingest", { idempotencyKey: "2026-05-01", steps });
  assert.deepEqual([(await ingest(900)).body, (await ingest(1200)).body, (await ingest(1000)).body].map(({ steps }) => steps), [900, 1200, 1200]);
});

test("S0-79 with a walker go tree, quests and keys", async () => {
  const [walker, other] = [await signIn(api, "leaver"), await signIn(api, "stayer")];
  await walker.start(1);
  for (const one of [walker, other]) await one.allocate(ROOTS);
  assert.equal(await count("semel.record WHERE principal = $1", [walker.walkerId]), 1);
  assert.deepEqual((await walker.send("DELETE", "/walker")).body, { deleted: 1 });
  for (const table of ["semel.record WHERE principal = $1::text", "allocation WHERE walker_id = $1::uuid", "quest_run WHERE walker_id = $1::uuid"])
    assert.equal(await count(table, [walker.walkerId]), 0, table);
  assert.equal(await count("semel.record WHERE principal = $1", [other.walkerId]), 1);
  assert.equal((await walker.allocate(ROOTS)).status, 401);
});

test("S0-162 the document lists the header, the timestamp and the refusals of all three actions", async () => {
  const document = await (await fetch(`${api.origin}/openapi.json`)).json();
  const { valid, errors } = await new Validator().validate(structuredClone(document));
  assert.ok(valid, JSON.stringify(errors));
  for (const path of ["/tree/allocate", "/quest/{id}/step/{n}/advance", "/quest/complete"]) {
    const { parameters, requestBody, responses } = document.paths[path].post;
    assert.ok(parameters.some(({ name, required }) => name === "Idempotency-Key" && required), path);
    const { required, properties } = requestBody.content["application/json"].schema;
    assert.ok(required.includes("clientGeneratedAt") && !required.includes("clientSubmittedAt") && properties.clientSubmittedAt, path);
    assert.match(responses[422].description, /STALE_ACTION/);
    assert.match(responses[409].description, /IDEMPOTENCY_CONFLICT/);
    assert.match(responses[400].description, /IDEMPOTENCY_KEY_REQUIRED/);
  }
  assert.match(document.paths["/quest/{id}/step/{n}/advance"].post.responses[422].description, /STEP_OUT_OF_ORDER/);
});

test("S0-47 every error is the envelope, and S0-24 S0-25 the log has all three times", async () => {
  const walker = await signIn(api, "errors");
  const answers = [
    await walker.send("GET", "/nowhere"), await walker.start(99), await walker.act("/tree/allocate"), await walker.advance(1, 9),
    await walker.allocate(ROOTS, { headers: { Authorization: "Bearer nobody" } }), await walker.send("POST", "/tree/allocate", {}),
  ];
  assert.deepEqual(answers.map(({ status }) => status), [404, 404, 400, 422, 401, 400]);
  for (const { body } of answers) assert.deepEqual(Object.keys(body).sort(), ["details", "error", "message", "requestId"]);
  const [generated, submitted] = [ago(HOUR), ago(60_000)];
  await walker.allocate(ROOTS, { headers: { "X-Request-Id": "log-me" } }, { clientGeneratedAt: generated, clientSubmittedAt: submitted });
  await until("its line is in the log", () => api.stack.said("service").includes("log-me"));
  const line = JSON.parse(api.stack.said("service").split("\n").find((text) => text.includes("log-me")));
  assert.deepEqual([line.clientGeneratedAt, line.clientSubmittedAt, line.status], [generated, submitted, 200]);
  const [record] = await api.ask("SELECT client_generated_at::text AS at FROM semel.record WHERE request_id = 'log-me'");
  assert.equal(Number(record.at), Date.parse(generated));
});

test("S0-92 S0-01 every process is killed in turn while walkers act: nothing is lost or done twice", { timeout: 240_000 }, async () => {
  const walker = await signIn(api, "survivor", 1000);
  let done = 0;
  let isRunning = true;
  /** Sends with one key until there is an answer of the game. */
  const insist = async (path, body) => {
    const [key, clientGeneratedAt] = [randomUUID(), ago(0)];
    return until(`an answer for ${path}`, async () => {
      const answer = await walker.act(path, { ...body, clientGeneratedAt }, { key });
      return answer.status < 500 && answer.body.error !== "IDEMPOTENCY_IN_FLIGHT" && answer;
    });
  };
  const playing = (async () => {
    while (isRunning) {
      await api.ask("DELETE FROM quest_run WHERE walker_id = $1", [walker.walkerId]).catch(() => {});
      const started = await walker.start(1).catch(() => undefined);
      if (started?.status !== 200) continue;
      for (const step of [1, 2]) assert.equal((await insist(`/quest/1/step/${step}/advance`, {})).status, 200);
      assert.equal((await insist("/quest/complete", { questId: 1 })).body.pointsAwarded, 3);
      done++;
    }
  })();
  try {
    for (let round = 0; round < (process.env.SEMEL_TEST_LONG === "1" ? 20 : 2); round++)
      for (const victim of api.stack.names()) {
        const before = done;
        await until("a quest is done", () => done > before);
        await api.stack.kill(victim);
        await api.stack.start(victim);
      }
  } finally {
    isRunning = false;
  }
  await playing;
  assert.equal((await walker.tree()).treePointsBanked, 1000 + 3 * done, `${done} quests`);
});
