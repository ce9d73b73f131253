// The transactions of the sender, each of which may run twice (see the store). Every write presents the sender's epoch and the
// token of its attempt; an old epoch changes nothing.
import type { Draft } from "./freeze.js";
import type { Verdict } from "./judge.js";
import { abort, end, isPaused, readPaused } from "./rows.js";
import type { Tx } from "./store.js";
import { OutboxError, type Row, type Status } from "./types.js";

/** The clocks that were learned, by the time on the local clock during which they held. */
export type Clocks = { from: number; to: number; ahead: number }[];

const SWEEP_ROWS_MAX = 500;

/** Makes this sender the only one that may write, and takes back what an earlier one was sending. */
export async function takeEpoch(tx: Tx, now: number, keep: number): Promise<number> {
  const epoch = ((await tx.get<number>("meta", "epoch")) ?? 0) + 1;
  await tx.put("meta", epoch, "epoch");
  for (const row of await rowsOf(tx, "inflight")) {
    delete row.token;
    // What was under way may have arrived.
    await tx.put("messages", { ...row, status: "pending", ambiguous: true, noAnswer: true, nextAt: now });
  }
  const ended = [...(await rowsOf(tx, "done")), ...(await rowsOf(tx, "aborted"))];
  for (const row of ended.filter(({ endedAt }) => endedAt! < now - keep)) {
    await tx.delete("messages", row.n);
    await tx.delete("requests", row.n);
  }
  return epoch;
}

async function rowsOf(tx: Tx, status: Status): Promise<Row[]> {
  const rows: Row[] = [];
  await tx.scan({ index: "status", key: status }, (row) => rows.push(row) >= SWEEP_ROWS_MAX);
  return rows;
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

/** Writes what became of an attempt; with `token`, only if that attempt still runs. `null`: somebody else decides now. */
export async function settle(
  tx: Tx, before: Row, token: string | null, epoch: number, verdict: Verdict, now: number, doesBlock: boolean,
): Promise<Row | null | typeof STALE> {
  if (!(await isCurrent(tx, epoch))) return STALE;
  const row = await tx.get<Row>("messages", before.n);
  if (!row || (token === null ? row.status !== before.status : row.token !== token)) return null;
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

/** Puts a new message in the place of another, which is taken back. */
export async function replace(tx: Tx, id: string, draft: Draft, now: number): Promise<Row> {
  const known = await tx.first("ids", draft.row.ids[0]!);
  if (known?.supersedes === id) return known;
  if (known) throw new OutboxError("id-reused", "the new id is taken: choose another");
  const old = await abort(tx, id, now, "Replaced by another message.", draft.row.ids[0]);
  // The new one takes the old one's number, and with it its place in the lane.
  await tx.delete("messages", old.n);
  const { n, ...moved } = old;
  await tx.put("messages", moved);
  const row: Row = { ...draft.row, n, supersedes: old.ids[0]!, ambiguous: old.ambiguous, inherited: old.ambiguous };
  await tx.put("messages", row);
  await tx.put("requests", draft.request, n);
  return row;
}

