// Keeps rows in memory, for pages that have no storage. What is in here ends with the page, and receipts say so.
import type { IndexName, Store, StoreName, Tx } from "./store.js";
import type { Row } from "./types.js";

export class MemoryStore implements Store {
  readonly isDurable = false;
  readonly mayHold = true;
  #stores: Record<StoreName, Map<IDBValidKey, unknown>> = {
    messages: new Map(), requests: new Map(), meta: new Map(), working: new Map(),
  };
  #last = 0;
  #turn: Promise<unknown> = Promise.resolve();

  /** One transaction at a time. No work here fails half way: each checks before it writes. */
  run<T>(_mode: IDBTransactionMode, work: (tx: Tx) => Promise<T>): Promise<T> {
    const turn = this.#turn.then(() => work(this.#tx()));
    this.#turn = turn.catch(() => {});
    return turn;
  }

  close(): void {}

  #rows(): Row[] {
    return [...(this.#stores.messages.values() as Iterable<Row>)].sort((a, b) => a.n - b.n);
  }

  #tx(): Tx {
    const copy = <T>(value: T): T => structuredClone(value);
    const having = (name: IndexName, key?: IDBValidKey) => (row: Row) =>
      key === undefined ? row[name] !== undefined : name === "ids" ? row.ids.includes(key as string) : row[name] === key;
    return {
      get: async <T>(name: StoreName, key: IDBValidKey) => copy(this.#stores[name].get(key)) as T | undefined,
      all: async <T>(name: StoreName) => copy([...this.#stores[name].values()]) as T[],
      first: async (name, key) => copy(this.#rows().find(having(name, key))),
      count: async (name, key) => this.#rows().filter(having(name, key)).length,
      put: async (name, value, key) => {
        const row = copy(value) as Row;
        const at = key ?? (row.n ??= ++this.#last);
        this.#stores[name].set(at, row);
        return at;
      },
      delete: async (name, key) => this.#stores[name].delete(key),
      scan: async ({ index, key, isUnique, after = 0 }, visit) => {
        const seen = new Set<unknown>();
        for (const row of this.#rows().filter((row) => row.n > after && (!index || having(index, key)(row)))) {
          const value = index && row[index];
          if (isUnique && seen.has(value)) continue;
          seen.add(value);
          if (visit(copy(row))) return;
        }
      },
    };
  }
}
