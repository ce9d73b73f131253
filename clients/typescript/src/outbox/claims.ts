// The transactions of the sender, each of which may run twice (see the store). Every write presents the sender's epoch and the
// token of its attempt; an old epoch changes nothing.
import type { Verdict } from "./judge.js";
import { end, isPaused, readPaused } from "./lanes.js";
import type { Tx } from "./store.js";
import type { Row, Status } from "./types.js";

/** The clocks that were learned, by the time on the local clock during which they held. */
export type Clocks = { from: number; to: number; ahead: number }[];

const SWEEP_ROWS_MAX = 500;

/** Makes this sender the only one that may write, and takes back what an earlier one was sending. */
export async function takeEpoch(tx: Tx, now: number, keep: number): Promise<number> {
  const epoch = ((await tx.get<number>("meta", "epoch")) ?? 0) + 1;
  await tx.put("meta", epoch, "epoch");
  for (const row of await collect(tx, "inflight", (row) => row)) await takeBack(tx, row, now);
  // Numbers only: rows that ended have answers in them, and answers may be large.
  const old = (row: Row) => (row.endedAt! < now - keep ? row.n : undefined);
  for (const n of [...(await collect(tx, "done", old)), ...(await collect(tx, "aborted", old))]) {
    await tx.delete("messages", n);
    await tx.delete("requests", n);
  }
  return epoch;
}

/** Lets a message wait again whose attempt ended without a word: what was under way may have arrived. */
async function takeBack(tx: Tx, { token: _, ...row }: Row, now: number): Promise<void> {
  await tx.put("messages", { ...row, status: "pending", ambiguous: true, noAnswer: true, nextAt: now });
}

/** What `pick` finds in the first rows of a status. */
async function collect<T>(tx: Tx, status: Status, pick: (row: Row) => T | undefined): Promise<T[]> {
  const found: T[] = [];
  let seen = 0;
  await tx.scan({ index: "status", key: status }, (row) => {
    const picked = pick(row);
    if (picked !== undefined) found.push(picked);
    return ++seen >= SWEEP_ROWS_MAX;
  });
  return found;
}

/** Whether this epoch is still the one that may write. */
async function isCurrent(tx: Tx, epoch: number): Promise<boolean> {
  return (await tx.get<number>("meta", "epoch")) === epoch;
}

export const STALE = Symbol("another sender has taken over");

/** Marks the head of a lane as being sent. Once this returns, a restart knows that it may have been. */
export async function claim(tx: Tx, n: number, token: string, epoch: number, now: number): Promise<Row | null | typeof STALE> {
  if (!(await isCurrent(tx, epoch))) return STALE;
  const row = await tx.get<Row>("messages", n);
  if (row?.token === token) return row;
  if (!row || (row.status !== "pending" && row.status !== "held") || (await tx.first("q", row.lane))?.n !== n) return null;
  if (isPaused(await readPaused(tx), row)) return null;
  const { heldFor: _, ...rest } = row;
  const claimed: Row = { ...rest, status: "inflight", attempts: row.attempts + 1, firstAt: row.firstAt ?? now, lastAt: now, token };
  await tx.put("messages", claimed);
  return claimed;
}

/** Takes a claim back that was committed although the storage said that it was not: nothing runs under it. */
export async function unclaim(tx: Tx, before: Row, epoch: number, now: number): Promise<typeof STALE | void> {
  if (!(await isCurrent(tx, epoch))) return STALE;
  const row = await tx.get<Row>("messages", before.n);
  if (row?.status === "inflight" && row.token === before.token) await takeBack(tx, row, now);
}

/** Writes what became of an attempt; with `token`, only if that attempt still runs. `null`: somebody else decides now. */
export async function settle(
  tx: Tx, before: Row, token: string | null, epoch: number, verdict: Verdict, now: number, doesBlock: boolean,
): Promise<Row | null | typeof STALE> {
  if (!(await isCurrent(tx, epoch))) return STALE;
  const row = await tx.get<Row>("messages", before.n);
  // Its number may be its successor's by now.
  if (!row || row.ids[0] !== before.ids[0] || (token === null ? row.status !== before.status : row.token !== token)) return null;
  // This very settlement was committed before, and the page did not hear of it.
  if (token !== null && row.status !== "inflight") return row;
  return write(tx, row, verdict, now, doesBlock);
}

async function write(tx: Tx, row: Row, { to, change }: Verdict, now: number, doesBlock: boolean): Promise<Row> {
  const statuses = { done: "done", retry: "pending", held: "held", dead: "dead", dropped: "dead", expired: "dead" } as const;
  const status = statuses[to];
  const written: Row = { ...row, ...change, status };
  if (status !== "held") delete written.heldFor;
  if (!written.burstAt) delete written.burstAt;
  if (status === "done" || status === "dead") await end(tx, written, now, status === "dead" && doesBlock);
  else await tx.put("messages", written);
  return written;
}
