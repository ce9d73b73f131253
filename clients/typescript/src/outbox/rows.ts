// The transactions of those who use the outbox: accept, look, take back, pause. Each may run twice (see the store).
import type { Draft } from "./freeze.js";
import type { Tx } from "./store.js";
import { OutboxError, type Receipt, type Row } from "./types.js";

/** What is stopped on purpose. */
export interface Paused {
  isAll?: boolean;
  lanes: string[];
  principals: string[];
}

/** Puts a message into its lane, or joins the one that it is already. `room`: how many more may wait. */
export async function accept(tx: Tx, draft: Draft, room: { left: number }): Promise<Row> {
  const { row, request } = draft;
  const known = await join(tx, draft);
  if (known) return known;
  if (room.left-- <= 0) throw new OutboxError("full", "too many messages wait already");
  const n = (await tx.put("messages", row)) as number;
  await tx.put("requests", request, n);
  return { ...row, n };
}

/** Finds the message that has this one's id, or that waits and is the same action: from then on it has this id too. */
export async function join(tx: Tx, { row }: Draft): Promise<Row | undefined> {
  const id = row.ids[0]!;
  const known = await tx.first("ids", id);
  if (known) return acceptKnown(known, row, id);
  const same = await findAction(tx, row);
  if (!same) return undefined;
  same.ids.push(id);
  await tx.put("messages", same);
  return same;
}

/** The message that waits and is the same action of the same principal: what others call alike is their own. */
export async function findAction(tx: Tx, { lk, principal }: Omit<Row, "n">): Promise<Row | undefined> {
  let found: Row | undefined;
  if (lk) await tx.scan({ index: "lk", key: lk }, (row) => (row.principal === principal ? !!(found = row) : false));
  return found;
}

function acceptKnown(known: Row, row: Omit<Row, "n">, id: string): Row {
  // An alias was another request of the same action; the id itself must be for the same thing.
  if (known.principal !== row.principal || (known.ids[0] === id && known.print !== row.print))
    throw new OutboxError("id-reused", `the id ${id} was used for another request`);
  if (known.status === "dead" || known.status === "aborted")
    throw new OutboxError("id-spent", `the message ${id} is ${known.status}: requeue it`);
  return known;
}

/** Takes a message out of its lane, or leaves it there to block it. The body goes, unless the message may be requeued. */
export async function end(tx: Tx, row: Row, now: number, doesBlock: boolean): Promise<void> {
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
    throw new OutboxError("state", `the message ${id} is ${row.status}`);
  const aborted: Row = { ...row, status: "aborted", reason, ...(supersededBy ? { supersededBy } : {}) };
  delete aborted.heldFor;
  await end(tx, aborted, now, false);
  await tx.delete("requests", row.n);
  return aborted;
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

const SHOWN = "lane principal operation logicalKey method url status attempts generatedAt acceptedAt endedAt reason supersedes supersededBy"
  .split(" ") as (keyof Row)[];

/** What is known of a message under this id. */
export function receiptOf(row: Row, durable: boolean, id = row.ids[0]!): Receipt {
  const { ids, status, ambiguous, deduplicated, firstAt, answer } = row;
  const shown = SHOWN.filter((name) => row[name] !== undefined).map((name) => [name, row[name]]);
  return {
    ...(Object.fromEntries(shown) as Receipt),
    id,
    clientTxId: row.txId,
    durable,
    guarantee: deduplicated ? "once" : "at-least-once",
    possiblyDelivered: ambiguous && status !== "done",
    possiblyRepeated: ambiguous && status === "done" && !deduplicated,
    ...(id !== ids[0] && { aliasOf: ids[0]! }),
    ...(firstAt !== undefined && { firstAttemptAt: firstAt }),
    ...(status === "pending" && { nextAttemptAt: row.nextAt }),
    ...(answer && { response: answer }),
  };
}
