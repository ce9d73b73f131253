// Accepts messages: what queued up while the last commit was under way goes into one transaction. Where storage fails, a
// message is kept in memory and the caller is told. A message that one store has already is never put into the other.
import type { Draft } from "./freeze.js";
import { accept, join } from "./rows.js";
import type { Store } from "./store.js";
import { OutboxError, type Row } from "./types.js";

const BATCH_MAX = 100;

export interface Accepted {
  row: Row;
  store: Store;
}

interface Waiting {
  draft: Draft;
  resolve(accepted: Accepted): void;
  reject(error: unknown): void;
}

export class Intake {
  #waiting: Waiting[] = [];
  #isFlushing = false;

  constructor(
    private readonly durable: Store,
    private readonly memory: Store,
    private readonly max: number,
  ) {}

  /** Fulfilled when the message is kept. Refused messages leave nothing behind, but perhaps after `storage-failed`. */
  accept(draft: Draft): Promise<Accepted> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ draft, resolve, reject });
      if (!this.#isFlushing) void this.#flush();
    });
  }

  async #flush(): Promise<void> {
    this.#isFlushing = true;
    while (this.#waiting.length) await this.#acceptAll(this.#waiting.splice(0, BATCH_MAX));
    this.#isFlushing = false;
  }

  async #acceptAll(batch: Waiting[]): Promise<void> {
    const unknown: Waiting[] = [];
    for (const one of batch) if (!(await this.#join(this.memory, one))) unknown.push(one);
    if (!unknown.length) return;
    try {
      await this.#commit(this.durable, unknown);
    } catch (error) {
      if (error instanceof OutboxError) for (const { reject } of unknown) reject(error);
      // One message that is too large for the storage must not take the others along.
      else if (unknown.length > 1) for (const one of unknown) await this.#acceptAll([one]);
      else await this.#keep(unknown[0]!);
    }
  }

  /** Keeps in memory what the storage has no room for. */
  async #keep(one: Waiting): Promise<void> {
    try {
      if (await this.#join(this.durable, one)) return;
    } catch {
      // Of what cannot be read nobody knows whether this very action waits in it, under this key or another.
      if (one.draft.row.lk && this.durable.mayHold)
        return one.reject(new OutboxError("storage-failed", "may have been accepted; send again with the same id", one.draft.row.ids[0]));
    }
    await this.#commit(this.memory, [one]).catch(one.reject);
  }

  /** Settles a message that this store has already. */
  async #join(store: Store, { draft, resolve, reject }: Waiting): Promise<boolean> {
    try {
      const row = await store.run("readwrite", (tx) => join(tx, draft));
      if (row) resolve({ row, store });
      return !!row;
    } catch (error) {
      if (!(error instanceof OutboxError)) throw error;
      reject(error);
      return true;
    }
  }

  async #commit(store: Store, batch: Waiting[]): Promise<void> {
    const results = await store.run("readwrite", async (tx) => {
      // Browsers count rows one by one: once for all of them.
      const room = { left: this.max - (await tx.count("q")) };
      const results: (Row | OutboxError)[] = [];
      for (const { draft } of batch)
        results.push(
          await accept(tx, draft, room).catch((error) => {
            if (error instanceof OutboxError) return error;
            throw error;
          }),
        );
      return results;
    });
    results.forEach((result, at) =>
      result instanceof OutboxError ? batch[at]!.reject(result) : batch[at]!.resolve({ row: result, store }),
    );
  }
}
