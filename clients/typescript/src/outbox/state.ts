// Sums up a queue for people who watch it: counts, and for each lane what its first message waits for. Reads only.
import { isPaused, readPaused } from "./lanes.js";
import type { Store, Tx } from "./store.js";
import type { LaneState, Row, Snapshot } from "./types.js";

const LANES_MAX = 50;

type Summary = Awaited<ReturnType<typeof summarize>>;

/** What each store was last seen to hold. */
export type Summaries = Map<Store, Summary>;

/** What is in these stores together: of one that cannot be read, what it held when it could. */
export async function readSnapshot(stores: Store[], known: Summaries, isSender: boolean, now: number): Promise<Snapshot> {
  const all: Snapshot = { waiting: 0, sending: 0, held: 0, dead: 0, durable: true, isSender, lanes: [] };
  for (const store of stores) {
    const found = await store.run("readonly", (tx) => summarize(tx, now)).catch(() => undefined);
    if (found) known.set(store, found);
    const one = known.get(store);
    if (!one) continue;
    for (const name of ["waiting", "sending", "held", "dead"] as const) all[name] += one[name];
    all.lanes.push(...one.lanes);
    if (!store.isDurable && one.waiting + one.sending + one.held) all.durable = false;
  }
  return all;
}

async function summarize(tx: Tx, now: number) {
  const [waiting, sending, held, dead] = [
    await tx.count("status", "pending"), await tx.count("status", "inflight"), await tx.count("status", "held"),
    await tx.count("status", "dead"),
  ];
  const heads: Row[] = [];
  await tx.scan({ index: "q", isUnique: true }, (row) => heads.push(row) >= LANES_MAX);
  const paused = await readPaused(tx);
  const lanes: LaneState[] = [];
  for (const head of heads) {
    const state = isPaused(paused, head) ? "paused" : stateOf(head, now);
    lanes.push({
      lane: head.lane, waiting: await tx.count("q", head.lane), state, head: head.ids[0]!,
      ...(head.reason ? { reason: head.reason } : {}),
      ...(state === "waiting" ? { nextAttemptAt: head.nextAt } : {}),
    });
  }
  return { waiting, sending, held, dead, lanes };
}

function stateOf({ status, nextAt }: Row, now: number): LaneState["state"] {
  if (status === "inflight") return "sending";
  if (status === "held") return "held";
  if (status === "dead") return "blocked";
  return nextAt > now ? "waiting" : "ready";
}
