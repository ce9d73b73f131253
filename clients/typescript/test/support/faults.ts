// Storage that fails in the ways that browsers have: no room for what is written, and commits that are reported as failures.
import type { Device } from "./world.js";

type Put = (this: IDBObjectStore, ...parameters: unknown[]) => IDBRequest;

/** Calls `visit` before every write to any object store, until the answer's `undo`; what it throws makes the write fail. */
export async function watchWrites(device: Device, visit: (value: unknown, store: IDBObjectStore) => void): Promise<{ undo(): void }> {
  const database = await new Promise<IDBDatabase>((resolve) => {
    const request = device.indexedDB.open("writes", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("any");
    request.onsuccess = () => resolve(request.result);
  });
  const store = Object.getPrototypeOf(database.transaction("any").objectStore("any")) as { put: Put };
  database.close();
  const put = store.put;
  store.put = function (...parameters) {
    visit(parameters[0], this);
    return put.apply(this, parameters);
  };
  return { undo: () => void (store.put = put) };
}

/** Messages find no room while the answer's `isFull` is set. */
export async function fillStorage(device: Device): Promise<{ isFull: boolean; undo(): void }> {
  const state = { isFull: true, undo: () => {} };
  const { undo } = await watchWrites(device, (_, store) => {
    if (state.isFull && store.name === "messages") throw new DOMException("full", "QuotaExceededError");
  });
  state.undo = undo;
  return state;
}

/** Storage that commits and then reports a failure: of the first transaction that writes what `isMeant` says, and of those after it. */
export async function reportFailures(
  device: Device, factory: IDBFactory, times: number, isMeant: (value: any, store: string) => boolean,
): Promise<{ indexedDB: IDBFactory; undo(): void; end(): void; left(): number }> {
  const meant = new WeakSet<IDBTransaction>();
  let left = times;
  let hasBegun = false;
  const { undo } = await watchWrites(device, (value, store) => {
    if (isMeant(value, store.name)) meant.add(store.transaction);
  });
  const open = (...parameters: Parameters<IDBFactory["open"]>) => {
    const request = factory.open(...parameters);
    request.addEventListener("success", () => {
      const database = request.result;
      const begin = database.transaction.bind(database);
      database.transaction = ((...how: Parameters<typeof begin>) => {
        const transaction = begin(...how);
        let fail: ((event: Event) => void) | undefined;
        return new Proxy(transaction, {
          set: (target, name, handler) => {
            if (name === "onabort") fail = handler;
            const hear = (event: Event) => {
              hasBegun ||= meant.has(transaction);
              if (hasBegun && left-- > 0) fail!(event);
              else handler(event);
            };
            return Reflect.set(target, name, name === "oncomplete" ? hear : handler);
          },
          get: (target, name) => {
            const value = Reflect.get(target, name);
            return typeof value === "function" ? value.bind(target) : value;
          },
        });
      }) as typeof begin;
    });
    return request;
  };
  return { indexedDB: { open } as IDBFactory, undo, end: () => void (left = 0), left: () => Math.max(0, left) };
}
