// `semel/snapshot`: values that a person still changes, and the moment at which they become messages. Until then nothing is
// queued; then all of them move into the outbox in one transaction, frozen, each with a key of its own.
import type { Outbox, Receipt, SendOptions } from "../outbox/index.js";
import { uuid } from "../contract/mint.js";
import type { Draft } from "../outbox/freeze.js";
import { accept, join, receiptOf } from "../outbox/rows.js";
import type { Tx } from "../outbox/store.js";
import type { Row } from "../outbox/types.js";

/** Parts of a key, such as `[sectionId, patrolId]`. */
export type Key = readonly (string | number)[];

export interface Entry<V> {
  key: Key;
  value: V;
}

/** What is sent for a value. */
export interface Outgoing extends SendOptions {
  url: string | URL;
  init?: RequestInit;
}

export interface WorkingOptions<V> {
  outbox: Outbox;
  /** Tells several sets of values in one outbox apart. */
  name: string;
  /** The request for a value at the moment of submitting. */
  request: (entry: Entry<V>) => Outgoing;
}

interface Stored<V> extends Entry<V> {
  set: string;
  version: number;
}

const TRIES_MAX = 20;
/** Writes that are remembered, so that one that runs twice is known again. */
const WRITES_KEPT_MAX = 50;

export class WorkingValues<V> {
  #options: WorkingOptions<V>;

  constructor(options: WorkingOptions<V>) {
    this.#options = options;
  }

  /** Changes a value. Nothing is queued. Once this is fulfilled, a reload finds the value. */
  update(key: Key, change: (before: V | undefined) => V): Promise<V> {
    return this.#run(once(async (tx) => this.#write(tx, key, change)));
  }

  set(key: Key, value: V): Promise<V> {
    return this.update(key, () => value);
  }

  get(key: Key): Promise<V | undefined> {
    return this.#run(async (tx) => (await tx.get<Stored<V>>("working", this.#place(key)))?.value);
  }

  /** Takes a value away: nothing is sent for it. */
  remove(key: Key): Promise<void> {
    return this.#run(once(async (tx) => void (await tx.delete("working", this.#place(key)))));
  }

  /** All values that were not submitted yet. */
  async all(): Promise<Entry<V>[]> {
    return (await this.#read()).map(({ key, value }) => ({ key, value }));
  }

  /** Moves values into the outbox, all or none. What changes while this runs is part of it, or stays. */
  async submit(keys?: Key[]): Promise<Receipt[]> {
    const { outbox, request } = this.#options;
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const wanted = keys?.map((key) => this.#place(key));
      const entries = (await this.#read()).filter(({ key }) => !wanted || wanted.includes(this.#place(key)));
      const drafts = await Promise.all(
        entries.map(({ key, value }) => {
          const { url, ...options } = request({ key, value });
          return outbox.freeze(url, options);
        }),
      );
      const joined = await this.#joinMemory(drafts);
      const move = once(async (tx) => {
        for (const { key, version } of entries) {
          const now = await tx.get<Stored<V>>("working", this.#place(key));
          if (now?.version !== version) return { result: null, rows: [] };
        }
        const [rows, result]: [Row[], Receipt[]] = [[], []];
        for (const [at, { key }] of entries.entries()) {
          await tx.delete("working", this.#place(key));
          const row = joined[at] ?? (await accept(tx, drafts[at]!, { left: Infinity }));
          if (!joined[at]) rows.push(row);
          result.push(receiptOf(row, !joined[at]));
        }
        return { result, rows };
      });
      const receipts = await outbox.transact(move);
      if (receipts) return receipts;
    }
    throw new Error("the values change too fast to be submitted");
  }

  /** Finds the actions that wait in memory already, where the storage failed before: from then on they are these too. */
  #joinMemory(drafts: Draft[]): Promise<(Row | undefined)[]> {
    return this.#options.outbox.transact(async (tx) => {
      const result: (Row | undefined)[] = [];
      for (const draft of drafts) result.push(await join(tx, draft));
      return { result, rows: [] };
    }, true);
  }

  /** Moves the events of an older queue into the values, each once, whatever is interrupted. The old store is emptied. */
  async importQueue<E>(old: OldQueue<E>, read: (event: E) => { key: Key; change: (before: V | undefined) => V } | null): Promise<number> {
    const events = await old.read();
    const done = this.#place(["imported", old.name]);
    for (const { id, event } of events)
      await this.#run(async (tx) => {
        const imported = (await tx.get<Imported>("meta", done)) ?? { ids: [] };
        if (imported.ids.includes(id)) return;
        const found = read(event);
        if (found) await this.#write(tx, found.key, found.change);
        await tx.put("meta", { ids: [...imported.ids, id] }, done);
      });
    // Emptied only after all of it is here; an interrupted run finds above what it has already.
    await old.clear(events.map(({ id }) => id));
    await this.#run(async (tx) => tx.delete("meta", done));
    return events.length;
  }

  async #write(tx: Tx, key: Key, change: (before: V | undefined) => V): Promise<V> {
    const place = this.#place(key);
    const before = await tx.get<Stored<V>>("working", place);
    const value = change(before?.value);
    const version = ((await tx.get<number>("meta", "working")) ?? 0) + 1;
    await tx.put("meta", version, "working");
    await tx.put("working", { set: this.#options.name, key: [...key], value, version }, place);
    return value;
  }

  async #read(): Promise<Stored<V>[]> {
    const all = await this.#run((tx) => tx.all<Stored<V>>("working"));
    return all.filter(({ set }) => set === this.#options.name);
  }

  #run<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#options.outbox.transact(async (tx) => ({ result: await work(tx), rows: [] }));
  }

  #place(key: Key): string {
    return JSON.stringify([this.#options.name, ...key]);
  }
}

/** Work that is done once: a transaction runs again where its commit was reported as a failure (see the store). */
function once<T>(work: (tx: Tx) => Promise<T>): (tx: Tx) => Promise<T> {
  const token = uuid();
  let done: T;
  return async (tx) => {
    const known = (await tx.get<string[]>("meta", "writes")) ?? [];
    if (known.includes(token)) return done;
    done = await work(tx);
    await tx.put("meta", [...known, token].slice(-WRITES_KEPT_MAX), "writes");
    return done;
  };
}

interface Imported {
  ids: string[];
}

/** A queue that an application kept before. */
export interface OldQueue<E> {
  name: string;
  read(): Promise<{ id: string; event: E }[]>;
  clear(ids: string[]): Promise<void>;
}

/** An object store of an older IndexedDB database, whose keys are the events' ids. */
export function oldDatabase<E>(database: string, store: string, factory: IDBFactory = indexedDB): OldQueue<E> {
  const open = () =>
    new Promise<IDBDatabase | null>((resolve, reject) => {
      const request = factory.open(database);
      // There is no such database: leave none behind.
      request.onupgradeneeded = () => request.transaction!.abort();
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => (request.error?.name === "AbortError" ? resolve(null) : reject(request.error));
    });
  const run = async (mode: IDBTransactionMode, work: (from: IDBObjectStore) => void) => {
    const opened = await open();
    if (!opened) return;
    try {
      if (!opened.objectStoreNames.contains(store)) return;
      await new Promise<void>((resolve, reject) => {
        const transaction = opened.transaction(store, mode, { durability: "strict" });
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error);
        work(transaction.objectStore(store));
      });
    } finally {
      opened.close();
    }
  };
  return {
    name: `${database}/${store}`,
    read: async () => {
      const events: { id: string; event: E }[] = [];
      await run("readonly", (from) => {
        const request = from.openCursor();
        request.onsuccess = () => {
          if (!request.result) return;
          events.push({ id: JSON.stringify(request.result.primaryKey), event: request.result.value });
          request.result.continue();
        };
      });
      return events;
    },
    clear: (ids) => run("readwrite", (from) => ids.forEach((id) => from.delete(JSON.parse(id)))),
  };
}

/** One number for what is still on its way: in this outbox, and accepted by the server but not applied yet. */
export class PendingIndicator {
  #server = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #listeners = new Set<() => void>();
  #undo: (() => void)[];

  /** `poll` asks the server how many writes of this user wait there; it is asked while there are some. */
  constructor(
    private readonly outbox: Outbox,
    private readonly poll: () => Promise<number>,
    private readonly every = 5000,
  ) {
    const onDone = outbox.on(({ type, id }) => {
      if (type === "done" && id) void outbox.get(id).then((receipt) => receipt?.response?.status === 202 && this.#ask(1));
    });
    this.#undo = [onDone, outbox.subscribe(() => this.#tell())];
  }

  readonly getSnapshot = (): number => {
    const { waiting, sending, held } = this.outbox.getSnapshot();
    return waiting + sending + held + this.#server;
  };

  readonly subscribe = (onChange: () => void): (() => void) => {
    this.#listeners.add(onChange);
    return () => this.#listeners.delete(onChange);
  };

  /** Asks the server now: after a start or a sign-in, when it may know of writes that this page has not seen. */
  async refresh(): Promise<void> {
    clearTimeout(this.#timer);
    await this.#poll();
  }

  stop(): void {
    clearTimeout(this.#timer);
    for (const undo of this.#undo) undo();
  }

  #ask(atLeast: number): void {
    this.#server = Math.max(this.#server, atLeast);
    this.#tell();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#poll(), this.every);
  }

  async #poll(): Promise<void> {
    this.#server = await this.poll().catch(() => this.#server);
    this.#tell();
    if (this.#server > 0) this.#ask(0);
  }

  #tell(): void {
    for (const onChange of this.#listeners)
      try {
        onChange();
      } catch (error) {
        (globalThis.reportError ?? console.error)(error);
      }
  }
}
