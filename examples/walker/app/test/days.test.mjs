// A player's offline days: the app on a phone, the game's real API behind the real gate, and a network that comes and goes. Each test has
// the rows of the requirements that it shows.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openWalker, signIn, until } from "../../api/test/support.mjs";
import { Network, Phone } from "../phone.mjs";

let api;
before(async () => (api = await openWalker()), { timeout: 120_000 });
after(() => api?.close());

/** A walker's phone, and the walker as the server knows it. */
async function open(t, name, points) {
  const walker = await signIn(api, name, points);
  const network = await new Network().open(api.origin);
  const folder = await mkdtemp(join(tmpdir(), "semel-phone-"));
  const phone = await new Phone({ name, folder, network }).start();
  t.after(async () => {
    await phone.kill();
    network.close();
    await rm(folder, { recursive: true, force: true });
  });
  return { walker, network, phone };
}

const records = async (walker) => api.ask("SELECT key, status, client_generated_at FROM semel.record WHERE principal = $1 ORDER BY created_at, key", [walker.walkerId]);
/** The API's log lines since a moment. */
const logged = (from) => api.stack.said("service").slice(from).split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
const keyOf = ([line]) => line.slice(-36);
const LIMIT = { timeout: 120_000 };

test("S0-114 S0-32 S0-37 S0-122 three offline days: all kinds are kept, drained in order, and take effect once", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "three-days");
  network.cut();
  const keys = [];
  for (const [day, lines] of [[-3, ["start 1", "advance 1 1"]], [-2, ["advance 1 2", "complete 1"]], [-1, ["allocate roots 2", "start 3", "advance 3 1"]]]) {
    phone.type(`clock ${day}`);
    for (const line of lines) keys.push(keyOf(await phone.tap(line, /^accepted .*$/m)));
  }
  assert.equal((await phone.queue()).length, 7);
  assert.match((await phone.queue())[0], /^starting quest 1 waits for its next attempt/, "the person sees why");
  network.isUp = true;
  await phone.drained();
  assert.deepEqual(await walker.tree(), { treePointsBanked: 6, allocations: [{ node: "roots", points: 2 }] });
  assert.deepEqual((await walker.available()).map(({ status, step }) => [status, step]), [["completed", 2], ["available", 0], ["in-progress", 1]]);
  // Starting a quest is not behind a key.
  const kept = await records(walker);
  assert.deepEqual(kept.map(({ key }) => key), keys.filter((_, at) => at !== 0 && at !== 5), "one record each, in their order");
  const ages = kept.map(({ client_generated_at: at }) => Math.round((Date.now() - Number(at)) / 86_400_000));
  assert.deepEqual(ages, [3, 2, 2, 1, 1]);
});

test("S0-04 S0-145 an answer is lost: the key comes again, the record answers, and the app asks for nothing besides", LIMIT, async (t) => {
  const { network, phone } = await open(t, "lost-answer");
  await phone.tap("tree", /^tree 5 banked/m);
  const from = api.stack.said("service").length;
  network.lostAnswers = 1;
  const key = keyOf(await phone.tap("allocate roots 2", /^accepted .*$/m));
  await phone.hears(/^tree 3 banked, roots 2$/m);
  await phone.drained();
  const lines = logged(from);
  assert.deepEqual(lines.map(({ method, path, replayed }) => [method, path, replayed]), [["POST", "/tree/allocate", false], ["POST", "/tree/allocate", true]]);
  assert.equal((await api.ask("SELECT FROM semel.record WHERE key = $1", [key])).length, 1);
});

test("S0-142 the link is lost after two of five: three remain, with the same keys next time", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "five");
  for (const quest of [1, 3]) await walker.start(quest);
  network.cut();
  const keys = [];
  for (const step of ["1 1", "1 2", "3 1", "3 2", "3 3"]) keys.push(keyOf(await phone.tap(`advance ${step}`, /^accepted .*$/m)));
  network.onAnswer = (answers) => answers === 2 && network.cut();
  network.isUp = true;
  await until("two are done", async () => (await phone.queue()).length === 3);
  await until("the third was tried in vain", async () => /attempt at/.test((await phone.queue())[0]));
  assert.equal((await records(walker)).length, 2);
  network.onAnswer = undefined;
  network.isUp = true;
  await phone.drained();
  assert.deepEqual((await records(walker)).map(({ key }) => key), keys);
});

test("S0-141 S0-45 the clock is thirty days back at the tap: it is sent, refused, dropped and told once", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "past");
  network.cut();
  phone.type("clock -30");
  for (const node of ["roots 1", "roots 1"]) await phone.tap(`allocate ${node}`);
  phone.type("clock 0");
  await phone.tap("allocate roots 2");
  network.isUp = true;
  await phone.hears(/^notice: Some queued actions expired: offline for more than 7 days \(2\)\.$/m, { seconds: 60 });
  await phone.drained();
  assert.deepEqual((await records(walker)).map(({ status }) => status), [422, 422, 200], "S0-43");
  assert.deepEqual((await walker.tree()).allocations, [{ node: "roots", points: 2 }]);
  assert.equal(phone.said.match(/^notice: /gm).length, 1, "S0-154");
  await phone.tap("counts", /^count OfflineActionExpired 2$/m);
});

test("S0-144 S0-114 a key that was used for another body is a sync error, reported like a crash, and the next one goes on", LIMIT, async (t) => {
  const { walker, phone } = await open(t, "conflict", 10);
  const key = randomUUID();
  assert.equal((await walker.allocate([{ node: "roots", points: 1 }], { key })).status, 200);
  await phone.tap(`allocate roots 2 ${key}`);
  await phone.tap("allocate roots 1");
  await phone.hears(/^notice: Sync error: points for the tree was not accepted \(idempotency-conflict\)/m, { seconds: 60 });
  await phone.drained();
  assert.match(phone.said, new RegExp(`^REPORT ${key}`, "m"));
  assert.deepEqual((await walker.tree()).allocations, [{ node: "roots", points: 2 }]);
});

test("S0-143 a second tap and a second enqueue with the same key are the first", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "twice");
  const key = randomUUID();
  network.cut();
  await phone.tap(`allocate roots 2 ${key}`, /^accepted/m);
  await phone.tap(`allocate roots 2 ${key}`, /^known/m);
  await phone.tap("start 1", /^accepted/m);
  await phone.tap("start 1", /^known/m);
  network.isUp = true;
  await phone.drained();
  assert.equal((await records(walker)).length, 1);
});

test("S0-147 S0-55 steps 3 and 4 while the walker is at 1: the app asks what is available, takes both back and says so", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "ahead");
  await walker.start(3);
  await walker.advance(3, 1);
  network.cut();
  for (const line of ["advance 3 3", "complete 3", "allocate roots 2"]) await phone.tap(line);
  network.isUp = true;
  await phone.hears(/^notice: Quest 3 is somewhere else .*taken back step 3 of quest 3, completing quest 3\.$/m, { seconds: 60 });
  await phone.drained();
  assert.equal((await walker.available()).find(({ questId }) => questId === 3).step, 1);
  assert.deepEqual((await walker.tree()).allocations, [{ node: "roots", points: 2 }], "what is no part of the quest went on");
});

test("S0-55 S0-161 another phone went on with the quest: this one goes on from there", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "two-phones");
  await walker.start(3);
  network.cut();
  for (const line of ["advance 3 1", "advance 3 2", "advance 3 3", "complete 3"]) await phone.tap(line);
  for (const step of [1, 2]) await walker.advance(3, step);
  network.isUp = true;
  await phone.hears(/^notice: .*taken back step 1 of quest 3, step 2 of quest 3\.$/m, { seconds: 60 });
  await phone.drained();
  assert.equal((await walker.available()).find(({ questId }) => questId === 3).status, "completed");
  assert.equal((await walker.tree()).treePointsBanked, 9);
});

test("S0-58 points that were spent elsewhere: told, and the tree is read again", LIMIT, async (t) => {
  const { walker, network, phone } = await open(t, "spent", 5);
  await walker.allocate([{ node: "roots", points: 2 }]);
  network.cut();
  await phone.tap("allocate stamina 3");
  await api.ask("UPDATE walker SET tree_points_banked = 1 WHERE id = $1", [walker.walkerId]);
  network.isUp = true;
  await phone.hears(/^notice: No longer valid: points for the tree\. Your points have changed\.$/m, { seconds: 60 });
  await phone.hears(/^tree 1 banked, roots 2$/m);
});

test("S0-92 S0-142 every process is killed in turn while the player plays on: nothing is lost or done twice, and what waits says why", { timeout: 400_000 }, async (t) => {
  const { walker, phone } = await open(t, "killed", 0);
  const rounds = process.env.SEMEL_TEST_LONG === "1" ? 10 : 1;
  const accepted = [];
  const act = async (line) => accepted.push(keyOf(await phone.tap(line, /^accepted .*$/m)));
  let quests = 0;
  /** One whole quest in the queue; the server forgets the run before it. */
  const queueQuest = async () => {
    await phone.drained();
    await until("the run is forgotten", () => api.ask("DELETE FROM quest_run WHERE walker_id = $1", [walker.walkerId]));
    for (const line of ["start 1", "advance 1 1", "advance 1 2", "complete 1"]) await act(line);
    quests++;
  };
  for (let round = 0; round < rounds; round++) {
    for (const victim of api.stack.names()) {
      await queueQuest();
      await api.stack.kill(victim);
      if (victim !== "sweeper") {
        await act("allocate roots 1");
        await until("the person sees why", async () => /attempt at|answer/.test((await phone.queue())[0] ?? ""));
      }
      await api.stack.start(victim);
    }
    for (const pause of [0, 40, 150]) {
      await queueQuest();
      await new Promise((resolve) => setTimeout(resolve, pause));
      await phone.kill();
      await phone.start();
    }
  }
  await phone.drained(120);
  const tree = await walker.tree();
  const spent = tree.allocations.reduce((sum, { points }) => sum + points, 0);
  assert.equal(tree.treePointsBanked + spent, 3 * quests, `${quests} quests`);
  const settled = await api.ask("SELECT key FROM semel.record WHERE principal = $1", [walker.walkerId]);
  assert.equal(new Set(settled.map(({ key }) => key)).size, settled.length);
  assert.equal(phone.said.match(/taken back/g), null, "no step was lost or sent twice");
});
