// The transactions of the outbox, each of which may run twice (see the store). Every write of a sender presents its epoch and
// the token of its attempt; an old epoch changes nothing.
import type { Draft } from "./freeze.js";
import type { Verdict } from "./judge.js";
import type { Tx } from "./store.js";
import { OutboxError, type Frozen, type Receipt, type Row, type Status } from "./types.js";

/** What is stopped on purpose. */
export interface Paused {
  isAll?: boolean;
  lanes: string[];
  principals: string[];
}

/** The clocks that were learned, by the time on the local clock during which they held. */
export type Clocks = { from: number; to: number; ahead: number }[];

const SWEEP_ROWS_MAX = 500;

/** Puts a message into its lane, or finds the one that has its id or its logical key. */
export async function accept(tx: Tx, { row, request }: Draft, max: number): Promise<Row> {
  const id = row.ids[0]!;
  const known = await tx.first("ids", id);
  if (known) return acceptKnown(known, row, id);
  const same = row.lk && (await tx.first("lk", row.lk));
  if (same) {
    same.ids.push(id);
    await tx.put("messages", same);
    return same;
  }
  if ((await tx.count("q")) >= max) throw new OutboxError("full", `${max} messages wait already`);
  const n = (await tx.put("messages", row)) as number;
  await tx.put("requests", request, n);
  return { ...row, n };
}

function acceptKnown(known: Row, row: Omit<Row, "n">, id: string): Row {
  // An alias was another request of the same action; the id itself must be for the same thing.
  if (known.ids[0] === id && known.print !== row.print)
    throw new OutboxError("id-reused", `the id ${id} was used for another request`);
  if (known.status === "dead" || known.status === "aborted")
    throw new OutboxError("id-spent", `the message ${id} was ${known.status === "dead" ? "given up" : "taken back"}: requeue it`);
  return known;
}

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

/** Takes a message out of its lane, or leaves it there to block it. The body goes, unless the message may be requeued. */
async function end(tx: Tx, row: Row, now: number, doesBlock: boolean): Promise<void> {
  row.endedAt = now;
  delete row.lk;
  if (!doesBlock) delete row.q;
  await tx.put("messages", row);
  if (row.status === "done") await tx.delete("requests", row.n);
}

/** Takes a message back that is not being sent. */
export async function abort(tx: Tx, id: string, now: number, reason: string, supersededBy?: string): Promise<Row> {
  const row = await find(tx, id);
  if (row.status === "aborted") return row;
  if (row.status === "done" || row.status === "inflight")
    throw new OutboxError("state", `the message ${id} ${row.status === "done" ? "was delivered" : "is being sent"}`);
  const aborted: Row = { ...row, status: "aborted", reason, ...(supersededBy ? { supersededBy } : {}) };
  delete aborted.heldFor;
  await end(tx, aborted, now, false);
  await tx.delete("requests", row.n);
  return aborted;
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
  const row: Row = { ...draft.row, n, supersedes: old.ids[0]!, ambiguous: old.ambiguous };
  await tx.put("messages", row);
  await tx.put("requests", draft.request, n);
  return row;
}

/** Makes a waiting message due now. */
export async function hasten(tx: Tx, id: string, now: number): Promise<Row> {
  const row = await find(tx, id);
  if (row.status !== "pending" && row.status !== "held")
    throw new OutboxError("state", `the message ${id} is ${row.status}: only one that waits can be tried again; requeue it`);
  const hastened: Row = { ...row, status: "pending", nextAt: now };
  delete hastened.heldFor;
  await tx.put("messages", hastened);
  return hastened;
}

export async function find(tx: Tx, id: string): Promise<Row> {
  const row = await tx.first("ids", id);
  if (!row) throw new OutboxError("not-found", `there is no message ${id}`);
  return row;
}

export async function readPaused(tx: Tx): Promise<Paused> {
  return (await tx.get<Paused>("meta", "paused")) ?? { lanes: [], principals: [] };
}

export function isPaused(paused: Paused, { lane, principal }: Pick<Row, "lane" | "principal">): boolean {
  return !!paused.isAll || paused.lanes.includes(lane) || paused.principals.includes(principal);
}

/** Stops or lets go everything, a lane or a principal. */
export async function setPaused(tx: Tx, on: boolean, { lane, principal }: { lane?: string; principal?: string }): Promise<void> {
  const paused = await readPaused(tx);
  const change = (list: string[], name?: string) =>
    name === undefined ? list : [...list.filter((other) => other !== name), ...(on ? [name] : [])];
  const isAll = lane === undefined && principal === undefined ? on : !!paused.isAll;
  const lanes = change(paused.lanes, lane);
  const principals = change(paused.principals, principal);
  await tx.put("meta", { isAll, lanes, principals }, "paused");
  if (on || lane === undefined) return;
  // A lane that a dead message blocks goes on without it.
  for (let head = await tx.first("q", lane); head?.status === "dead"; head = await tx.first("q", lane)) {
    delete head.q;
    await tx.put("messages", head);
  }
}

/** What is known of a message under this id. */
export function receiptOf(row: Row, durable: boolean, id = row.ids[0]!): Receipt {
  const { ids, txId, print, q, lk, ahead, heldFor, failures, inBurst, burstAt, same, sameCount, n, token, noAnswer, ...rest } = row;
  const { nextAt, firstAt, lastAt, ambiguous, deduplicated, answer, ...shown } = rest;
  return {
    ...shown,
    id,
    clientTxId: txId,
    durable,
    guarantee: deduplicated ? "once" : "at-least-once",
    possiblyDelivered: ambiguous && row.status !== "done",
    possiblyRepeated: ambiguous && row.status === "done" && !deduplicated,
    ...(id === ids[0] ? {} : { aliasOf: ids[0]! }),
    ...(firstAt === undefined ? {} : { firstAttemptAt: firstAt }),
    ...(row.status === "pending" ? { nextAttemptAt: nextAt } : {}),
    ...(answer ? { response: answer } : {}),
  };
}

export type { Frozen };
