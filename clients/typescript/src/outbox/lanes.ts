// What lets a lane go on: messages end and leave it, lanes and principals are paused. Transactions, each of which may run twice (see
// the store).
import type { Tx } from "./store.js";
import type { Row } from "./types.js";

/** What is stopped on purpose. */
export interface Paused {
  isAll?: boolean;
  lanes: string[];
  principals: string[];
}

/** Takes a message out of its lane, or leaves it there to block it. The body goes, unless the message may be requeued. */
export async function end(tx: Tx, row: Row, now: number, doesBlock: boolean): Promise<void> {
  row.endedAt = now;
  delete row.lk;
  if (!doesBlock) delete row.q;
  await tx.put("messages", row);
  if (row.status === "done") await tx.delete("requests", row.n);
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
