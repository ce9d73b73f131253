// The transactions that accept, and what is shown of a message. Each may run twice (see the store).
import type { Draft } from "./freeze.js";
import type { Tx } from "./store.js";
import { OutboxError, type Receipt, type Row } from "./types.js";

/** Puts a message into its lane, or joins the one that it is already. `room`: how many more may wait. */
export async function accept(tx: Tx, draft: Draft, room: { left: number }): Promise<Row> {
  const { row, request } = draft;
  const known = await join(tx, draft);
  if (known) return known;
  if (room.left-- <= 0) throw new OutboxError("full", "too many messages wait");
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
