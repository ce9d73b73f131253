// What the outbox takes from the browser. Tests bring their own clock, locks and network; every default is looked up when it
// is needed, since a page without TLS has no locks and a private window may have no storage.

import type * as sending from "./sending.js";

/** The part of the Web Locks API that is used. */
export interface Locks {
  request(
    name: string,
    options: { steal?: boolean; signal?: AbortSignal },
    held: () => Promise<void>,
  ): Promise<unknown>;
}

export interface Channel {
  postMessage(message: unknown): void;
  onmessage: ((event: MessageEvent) => void) | null;
  close(): void;
}

export interface Environment {
  indexedDB: IDBFactory | undefined;
  locks: Locks | undefined;
  channel: (name: string) => Channel | undefined;
  fetch: typeof fetch;
  now: () => number;
  random: () => number;
  setTimeout: (work: () => void, millis: number) => unknown;
  clearTimeout: (timer: unknown) => void;
  /** Where `online`, `pageshow`, `pagehide` and `visibilitychange` are heard. */
  page: EventTarget | undefined;
  /** Remembers outside of the database that there was one. */
  marks: Pick<Storage, "getItem" | "setItem"> | undefined;
  persist: () => Promise<boolean>;
  /** Tells of an error of the application's own code, which stops nothing here. */
  report: (error: unknown) => void;
  /** Loads what only the sending tab needs. */
  load: () => Promise<typeof sending>;
}

function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    // Reading localStorage or indexedDB throws where the user has forbidden storage.
    return undefined;
  }
}

export function browserEnvironment(): Environment {
  const scope = globalThis;
  return {
    indexedDB: attempt(() => scope.indexedDB),
    locks: attempt(() => scope.navigator?.locks as unknown as Locks | undefined),
    channel: (name) => attempt(() => new BroadcastChannel(name)),
    fetch: (...request) => scope.fetch(...request),
    now: () => Date.now(),
    random: () => Math.random(),
    setTimeout: (work, millis) => scope.setTimeout(work, Math.min(millis, 0x7fff_ffff)),
    clearTimeout: (timer) => scope.clearTimeout(timer as number),
    page: attempt(() => scope.document) ? scope : undefined,
    marks: attempt(() => scope.localStorage),
    persist: async () => (await scope.navigator?.storage?.persist?.()) ?? false,
    report: (error) => (scope.reportError ?? console.error)(error),
    load: () => import("./sending.js"),
  };
}
