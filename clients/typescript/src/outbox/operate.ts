// What people do with messages that wait: look, take back, hasten. Transactions, each of which may run twice (see the store).
import { end } from "./lanes.js";
import { receiptOf } from "./rows.js";
import type { Store, Tx } from "./store.js";
import { OutboxError, type ListFilter, type Receipt, type Row } from "./types.js";

const LIST_MAX = 1000;

/** Messages in the order in which they were accepted, store by store. */
export async function list(stores: Store[], { status, lane, after, limit = LIST_MAX }: ListFilter): Promise<Receipt[]> {
  const found: Receipt[] = [];
  for (const store of stores)
    await store.run("readonly", async (tx) => {
      const from = after === undefined ? 0 : ((await tx.first("ids", after))?.n ?? 0);
      const scan = status ? { index: "status" as const, key: status } : { after: from };
      await tx.scan(scan, (row) => {
        if (row.n > from && (lane === undefined || row.lane === lane)) found.push(receiptOf(row, store.isDurable));
        return found.length >= Math.min(limit, LIST_MAX);
      });
    }).catch(() => {});
  return found;
}

/** Takes a message back that is not being sent. */
export async function abort(tx: Tx, id: string, now: number, reason = "Taken back.", supersededBy?: string): Promise<Row> {
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

/** Makes a waiting message due now. */
export async function hasten(tx: Tx, id: string, now: number): Promise<Row> {
  const row = await find(tx, id);
  if (row.status !== "pending" && row.status !== "held")
    throw new OutboxError("state", `the message ${id} is ${row.status}`);
  const hastened: Row = { ...row, status: "pending", nextAt: now };
  delete hastened.heldFor;
  await tx.put("messages", hastened);
  return hastened;
}
