// Keeps rows in IndexedDB. One function runs transactions: it opens the database when needed, waits for the commit, and
// repeats once when the browser closed the database under the page. It knows nothing of sending.
//
// Every transaction may therefore run twice: writers must find their own earlier work and leave it.
import type { Environment } from "./environment.js";
import { OutboxError, type Row } from "./types.js";

export type StoreName = "messages" | "requests" | "meta" | "working";
export type IndexName = "ids" | "q" | "lk" | "status";

export interface Scan {
  index?: IndexName;
  key?: IDBValidKey;
  /** Only the first row of each key. */
  isUnique?: boolean;
  /** Only rows with a greater number. */
  after?: number;
}

/** What a transaction offers. */
export interface Tx {
  get<T>(store: StoreName, key: IDBValidKey): Promise<T | undefined>;
  all<T>(store: StoreName): Promise<T[]>;
  first(index: IndexName, key: IDBValidKey): Promise<Row | undefined>;
  count(index: IndexName, key?: IDBValidKey): Promise<number>;
  put(store: StoreName, value: unknown, key?: IDBValidKey): Promise<IDBValidKey>;
  delete(store: StoreName, key: IDBValidKey): Promise<unknown>;
  /** Visits rows in order until `visit` says `true`. */
  scan(scan: Scan, visit: (row: Row) => boolean | void): Promise<void>;
}

export interface Store {
  readonly isDurable: boolean;
  /** Whether there may be messages in it, also while it fails. */
  readonly mayHold: boolean;
  /** Before: nothing. After it returns, what `work` wrote survives a crash; after it throws, nothing of it was written. */
  run<T>(mode: IDBTransactionMode, work: (tx: Tx) => Promise<T>): Promise<T>;
  close(): void;
}

const VERSION = 1;
const STORES: StoreName[] = ["messages", "requests", "meta", "working"];
const OPEN_MS_MAX = 5000;

export class IndexedStore implements Store {
  readonly isDurable = true;
  #opening: Promise<IDBDatabase> | undefined;
  #isClosed = false;
  #isKnown = false;

  constructor(
    private readonly name: string,
    private readonly environment: Environment,
    private readonly onLost: () => void,
  ) {}

  get mayHold(): boolean {
    return this.#isKnown || !!this.environment.marks?.getItem(this.#place);
  }

  get #place(): string {
    return `semel:${this.name}`;
  }

  async run<T>(mode: IDBTransactionMode, work: (tx: Tx) => Promise<T>): Promise<T> {
    try {
      return await this.#runOnce(mode, work);
    } catch (error) {
      if (!isConnectionLost(error) || this.#isClosed) throw error;
      this.#opening = undefined;
      return await this.#runOnce(mode, work);
    }
  }

  close(): void {
    this.#isClosed = true;
    this.#opening?.then((database) => database.close(), () => {});
  }

  async #runOnce<T>(mode: IDBTransactionMode, work: (tx: Tx) => Promise<T>): Promise<T> {
    if (this.#isClosed) throw new OutboxError("disposed", "the outbox was closed");
    const database = await (this.#opening ??= this.#open());
    // Strict: the browser answers only when the data is on the disk.
    const transaction = database.transaction(STORES, mode, { durability: "strict" });
    const finished = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new DOMException("the database was closed", "AbortError"));
    });
    finished.catch(() => {});
    let result: T;
    try {
      result = await work(transactionOf(transaction));
    } catch (error) {
      attemptAbort(transaction);
      // What made the transaction fail says more than the request that failed with it.
      await finished.catch((cause) => {
        if (transaction.error) throw cause;
      });
      throw error;
    }
    await finished;
    return result;
  }

  #open(): Promise<IDBDatabase> {
    const opening = this.#request(VERSION).catch((error) => {
      // A newer release has upgraded the database. Its schema still serves this one.
      if (error?.name === "VersionError") return this.#request();
      throw error;
    });
    const forget = () => {
      if (this.#opening === opening) this.#opening = undefined;
    };
    opening.then(
      (database) => {
        database.onclose = forget;
        // Another tab upgrades the database: make way, and open it again for the next transaction.
        database.onversionchange = () => {
          forget();
          database.close();
        };
        if (this.#isClosed) database.close();
      },
      forget,
    );
    return opening;
  }

  #request(version?: number): Promise<IDBDatabase> {
    const { indexedDB, marks, setTimeout, clearTimeout } = this.environment;
    return new Promise((resolve, reject) => {
      if (!indexedDB) throw new Error("there is no storage");
      let isLate = false;
      const timer = setTimeout(() => {
        isLate = true;
        reject(new Error("the database is stuck"));
      }, OPEN_MS_MAX);
      const request = indexedDB.open(this.#place, version);
      let isNew = false;
      request.onupgradeneeded = ({ oldVersion }) => {
        isNew = oldVersion === 0;
        if (isNew) createStores(request.result);
      };
      request.onsuccess = () => {
        clearTimeout(timer);
        if (isNew && this.mayHold) this.onLost();
        this.#isKnown = true;
        // Nobody waits for it any more: left open, it would block every upgrade.
        if (isLate) request.result.close();
        try {
          marks?.setItem(this.#place, "1");
        } catch {
          // Without the mark a lost database is not noticed; nothing else needs it.
        }
        resolve(request.result);
      };
      request.onerror = () => (clearTimeout(timer), reject(request.error));
    });
  }
}

function createStores(database: IDBDatabase): void {
  const messages = database.createObjectStore("messages", { keyPath: "n", autoIncrement: true });
  messages.createIndex("ids", "ids", { unique: true, multiEntry: true });
  for (const name of ["q", "lk", "status"]) messages.createIndex(name, name);
  for (const name of ["requests", "meta", "working"]) database.createObjectStore(name);
}

function attemptAbort(transaction: IDBTransaction): void {
  try {
    transaction.abort();
  } catch {
    // It has ended already.
  }
}

/** Whether the browser closed the database under the page, as WebKit does to pages in the background. */
function isConnectionLost(error: unknown): boolean {
  return ["InvalidStateError", "UnknownError", "AbortError"].includes((error as DOMException)?.name);
}

export function isStorageFull(error: unknown): boolean {
  return (error as DOMException)?.name === "QuotaExceededError";
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function transactionOf(transaction: IDBTransaction): Tx {
  const store = (name: StoreName) => transaction.objectStore(name);
  const index = (name: IndexName) => store("messages").index(name);
  return {
    get: (name, key) => settled(store(name).get(key)),
    all: (name) => settled(store(name).getAll()),
    first: (name, key) => settled(index(name).get(key)),
    count: (name, key) => settled(index(name).count(key)),
    put: (name, value, key) => settled(store(name).put(value, key)),
    delete: (name, key) => settled(store(name).delete(key)),
    scan: ({ index: name, key, isUnique, after }, visit) =>
      new Promise((resolve, reject) => {
        const range = after === undefined ? key : IDBKeyRange.lowerBound(after, true);
        const source = name ? index(name) : store("messages");
        const request = source.openCursor(range as IDBValidKey, isUnique ? "nextunique" : "next");
        request.onsuccess = () => {
          const cursor = request.result;
          if (!cursor || visit(cursor.value)) resolve();
          else cursor.continue();
        };
        request.onerror = () => reject(request.error);
      }),
  };
}
