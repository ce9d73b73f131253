// Every step of a sender is a place where its tab is killed, reloaded or frozen, with every answer or with half of them lost.
// Whatever happens, each accepted message takes effect once behind a gate, in its lane's order, and none is lost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Outbox } from "semel/outbox";
import { Device, Gate, Tab } from "../support/world.js";

const LANES = { a: ["a1", "a2", "a3"], b: ["b1", "b2"] };
const IDS = Object.values(LANES).flat();

interface Course {
  fate: "none" | "kill" | "reload" | "freeze";
  at: number;
  losesAnswers: boolean;
}

function open(device: Device, gate: Gate) {
  const tab = new Tab(device, gate.fetch);
  const credentials = ({ principal }: { principal: string }) =>
    tab.outside("credentials", async () => ({ principal, headers: { authorization: "t" } }));
  return { tab, outbox: Outbox.open({ name: "fates", credentials, environment: tab.environment }) };
}

async function run({ fate, at, losesAnswers }: Course) {
  const device = new Device();
  const gate = new Gate(device);
  let requests = 0;
  gate.reply = () => (losesAnswers && requests++ % 2 === 0 ? "lost" : undefined);
  const first = open(device, gate);
  await device.advance(0);
  const others = fate === "reload" ? [] : [open(device, gate)];
  await device.advance(0);
  // One takes over; another only waits for what it has sent.
  if (others.length) others.push(open(device, gate));
  await device.advance(0);
  const before = first.tab.steps.length;
  if (fate !== "none") first.tab.meet(fate === "freeze" ? "freeze" : "kill", before + at, () => {
    if (fate === "reload") setImmediate(() => others.push(open(device, gate)));
  });
  const accepted = new Set<string>();
  const told = new Map<string, string>();
  for (const [lane, ids] of Object.entries(LANES))
    for (const id of ids) {
      // Lane b is another tab's, which lives on.
      const { outbox } = lane === "b" ? (others.at(-1) ?? first) : first;
      const sent = outbox.send("https://api.example/x", { init: { method: "POST", body: id }, id, lane });
      sent.accepted.then(() => accepted.add(id), () => {});
      sent.done.then(({ status }) => told.set(id, status), () => {});
    }
  await device.advance(1000);
  const steps = first.tab.steps.length - before;
  await device.until(async () => {
    const known = await device.rows("fates");
    return known.every(({ status }) => status === "done") && [...accepted].every((id) => known.some(({ ids }) => ids[0] === id));
  }, 120_000, 500);
  if (first.tab.isFrozen) first.tab.thaw();
  await device.advance(30_000);
  const what = `${fate} at ${at}${losesAnswers ? ", answers lost" : ""}`;
  check(gate, accepted, await device.rows("fates"), what, losesAnswers);
  const heard = fate === "none" || fate === "freeze" ? [...accepted] : fate === "kill" ? LANES.b : [];
  for (const id of heard) assert.equal(told.get(id), "done", `${what}: done of ${id}`);
  first.outbox.dispose();
  for (const { outbox } of others) outbox.dispose();
  return steps;
}

function check(gate: Gate, accepted: Set<string>, known: { ids: string[]; status: string }[], what: string, losesAnswers: boolean) {
  for (const id of accepted) assert.equal(gate.effects.filter((key) => key === id).length, 1, `${what}: ${id} took effect once`);
  for (const ids of Object.values(LANES)) {
    const effects = gate.effects.filter((key) => ids.includes(key));
    assert.deepEqual(effects, ids.filter((id) => effects.includes(id)), `${what}: order`);
  }
  for (const { ids, status } of known) assert.equal(status, "done", `${what}: ${ids[0]}`);
  // Each lane had one message under way at most; a tab that thaws may send each once more.
  const most = (losesAnswers ? 2 : 1) * IDS.length + 4;
  assert.ok(gate.arrivals.length <= most, `${what}: ${gate.arrivals.length} requests`);
}

for (const losesAnswers of [false, true])
  for (const fate of ["kill", "reload", "freeze"] as const)
    test(`every step × ${fate}${losesAnswers ? ", every other answer lost" : ""}`, async (t) => {
      const steps = await run({ fate: "none", at: 0, losesAnswers });
      assert.ok(steps > 40, `${steps} steps`);
      for (let at = 1; at <= steps; at++) await run({ fate, at, losesAnswers });
      t.diagnostic(`${steps} steps`);
    });
