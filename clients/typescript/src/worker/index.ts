// `semel/worker`: the service worker's half of an outbox. The worker drains the queue when the browser has a network again and no
// page may be open; `wakeWorker` is the page's side. A worker has no session of its own: it is given its credentials in its own
// script, or it sends nothing and says `no-credentials`.
import { Outbox, type Credentials, type OutboxOptions } from "../outbox/index.js";
import * as requeueing from "../outbox/requeue.js";
import * as sending from "../outbox/sending.js";

export interface WorkerOptions extends Omit<OutboxOptions, "credentials" | "sends"> {
  credentials?: Credentials;
}

interface ExtendableEvent extends Event {
  waitUntil(work: Promise<unknown>): void;
}

interface SyncManager {
  register(tag: string): Promise<void>;
}

/** Lets a service worker drain the outbox of this name: at a Background Sync, or when a page asks for it. */
export function drainInWorker(options: WorkerOptions, scope: EventTarget = globalThis as unknown as EventTarget): Outbox {
  const { credentials, ...rest } = options;
  const outbox = Outbox.open({
    ...rest,
    credentials: credentials ?? (() => null),
    sends: "on-drain",
    // Workers may not load modules later.
    environment: { load: async () => ({ ...sending, loadRequeueing: async () => requeueing }), ...options.environment },
  });
  const drain = async () => {
    if (!credentials) return outbox.report("no-credentials", "The service worker has no credentials of its own.");
    const { waiting, sending } = await outbox.drain();
    // The browser tries again later when this fails.
    if (waiting + sending) throw new Error(`${waiting + sending} messages still wait`);
  };
  const hear = (name: string, isMine: (event: never) => boolean) =>
    scope.addEventListener(name, (event) => {
      if (isMine(event as never)) (event as ExtendableEvent).waitUntil(drain());
    });
  hear("sync", ({ tag }: { tag: string }) => tag === tagOf(options.name));
  hear("message", ({ data }: { data: unknown }) => data === tagOf(options.name));
  return outbox;
}

/** Asks the service worker to drain what this page may not live to send: by Background Sync, else when the page is left. */
export function wakeWorker(outbox: Outbox, registration: Promise<ServiceWorkerRegistration> = navigator.serviceWorker.ready): () => void {
  const tag = tagOf(outbox.name);
  const wake = async () => {
    const { sync, active } = (await registration) as ServiceWorkerRegistration & { sync?: SyncManager };
    // Where it is forbidden or missing, the worker is told when the page is left.
    if (sync) await sync.register(tag).catch(() => active?.postMessage(tag));
  };
  const leave = async () => {
    if (outbox.getSnapshot().waiting) (await registration).active?.postMessage(tag);
  };
  const stop = outbox.on(({ type }) => void (type === "queued" && wake()));
  globalThis.addEventListener?.("pagehide", leave);
  return () => {
    stop();
    globalThis.removeEventListener?.("pagehide", leave);
  };
}

function tagOf(name: string): string {
  return `semel:${name}`;
}
