// Keeps the promises that messages end: settles them when a message is final, whoever found that out. Reads the stores only.
import type { Environment } from "./environment.js";
import { receiptOf } from "./rows.js";
import type { Store, Tx } from "./store.js";
import { OutboxError, type ErrorCode, type Receipt, type Row, type Status } from "./types.js";

/** How often it is looked whether another tab has taken over, and at how many messages all the same. */
const LOOK_MS = 5000;
const LOOKED_AT_MAX = 5;
/** Messages that one transaction reads: who sends has to write meanwhile. */
const READ_MAX = 50;

export interface Waiter {
  id: string;
  resolve(receipt: Receipt): void;
  reject(error: OutboxError): void;
}

export class Waiters {
  #waiting = new Map<string, Waiter[]>();
  #timer: unknown;
  #epoch: unknown;
  #looks = 0;

  constructor(
    private readonly stores: Store[],
    private readonly environment: Environment,
  ) {}

  add(row: Row, waiter: Waiter, durable: boolean): void {
    const id = row.ids[0]!;
    this.#waiting.set(id, [...(this.#waiting.get(id) ?? []), waiter]);
    if (isFinal(row.status)) this.#end(row, durable);
    else this.#watch();
  }

  /** Settles the promises for those of these messages that are final. */
  async settle(ids: string[] = [...this.#waiting.keys()]): Promise<void> {
    const wanted = ids.filter((id) => this.#waiting.has(id));
    for (let at = 0; at < wanted.length; at += READ_MAX)
      for (const store of this.stores) {
        const find = async (tx: Tx) => {
          const rows = [];
          for (const id of wanted.slice(at, at + READ_MAX)) rows.push(await tx.first("ids", id));
          return rows;
        };
        // What cannot be read now is looked at again.
        for (const row of await store.run("readonly", find).catch(() => []))
          if (row && isFinal(row.status)) this.#end(row, store.isDurable);
      }
  }

  rejectAll(code: ErrorCode, why: string): void {
    for (const waiters of this.#waiting.values()) for (const { reject } of waiters) reject(new OutboxError(code, why));
    this.#waiting.clear();
    this.environment.clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #end(row: Row, durable: boolean): void {
    const id = row.ids[0]!;
    for (const waiter of this.#waiting.get(id) ?? []) waiter.resolve(receiptOf(row, durable, waiter.id));
    this.#waiting.delete(id);
  }

  /** Looks after them: a tab that sends may die between the commit and its word of it. Then another takes over. */
  #watch(): void {
    this.#timer ??= this.environment.setTimeout(async () => {
      await this.#look();
      this.#timer = undefined;
      if (this.#waiting.size) this.#watch();
    }, LOOK_MS);
  }

  async #look(): Promise<void> {
    const epoch = await this.stores[0]!.run("readonly", (tx) => tx.get("meta", "epoch")).catch(() => undefined);
    const isTakenOver = epoch !== this.#epoch;
    this.#epoch = epoch;
    if (isTakenOver) return this.settle();
    // Where nobody takes over, a few at a time: reading is work, and a network may be away for days.
    const at = (LOOKED_AT_MAX * this.#looks++) % this.#waiting.size;
    await this.settle([...this.#waiting.keys()].slice(at, at + LOOKED_AT_MAX));
  }
}

function isFinal(status: Status): boolean {
  return /^(done|dead|aborted)$/.test(status);
}
