// A browser made of fakes: one device with its storage, locks, channels and virtual clock, and tabs that can be killed, frozen
// and thawed at every step that their sender takes. Storage is fake-indexeddb: what was not committed is lost with its tab.
import { IDBFactory, IDBKeyRange } from "fake-indexeddb";
import type { Environment } from "semel/outbox";
import * as requeueing from "../../dist/outbox/requeue.js";
import * as sending from "../../dist/outbox/sending.js";

globalThis.IDBKeyRange ??= IDBKeyRange;

// Digests are made on other threads, and virtual time must not pass meanwhile.
let digests = 0;
const digest = crypto.subtle.digest.bind(crypto.subtle);
crypto.subtle.digest = async (...parameters) => {
  digests++;
  try {
    return await digest(...parameters);
  } finally {
    digests--;
  }
};

interface Timer {
  at: number;
  work: () => void;
  tab: Tab | undefined;
}

interface Holder {
  tab: Tab;
  end(error?: Error): void;
}

/** What all tabs share. */
export class Device {
  now = Date.parse("2026-01-01T00:00:00Z");
  indexedDB = new IDBFactory();
  marks = new Map<string, string>();
  /** Draws of the outbox's random numbers. */
  u = 0.5;
  activity = 0;
  /** Transactions under way: they take none of the virtual time, however much they do. */
  transactions = 0;
  #timers = new Set<Timer>();
  #holders = new Map<string, Holder>();
  #queues = new Map<string, { tab: Tab; begin(): void }[]>();
  channels = new Set<{ tab: Tab; name: string; onmessage: ((event: MessageEvent) => void) | null }>();

  setTimeout(work: () => void, millis: number, tab?: Tab): Timer {
    const timer = { at: this.now + Math.max(0, millis), work, tab };
    this.#timers.add(timer);
    return timer;
  }

  clearTimeout(timer: unknown): void {
    this.#timers.delete(timer as Timer);
  }

  /** Lets everything run that needs no time to pass. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 12; ) {
      const before = this.activity;
      await new Promise((resolve) => setImmediate(resolve));
      quiet = this.activity === before && !digests && !this.transactions ? quiet + 1 : 0;
    }
  }

  /** Lets time pass, timer by timer. */
  async advance(millis: number): Promise<void> {
    const end = this.now + millis;
    await this.settle();
    for (;;) {
      const due = [...this.#timers].filter((timer) => !timer.tab?.isStill && timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!due) break;
      this.#timers.delete(due);
      this.now = Math.max(this.now, due.at);
      if (!due.tab?.isDead) due.work();
      await this.settle();
    }
    this.now = end;
  }

  /** Lets time pass until something holds. */
  async until(condition: () => boolean | Promise<boolean>, most = 3_600_000, step = 100): Promise<void> {
    const end = this.now + most;
    while (!(await condition())) {
      if (this.now > end) throw new Error("it did not happen");
      await this.advance(step);
    }
  }

  request(name: string, { steal, signal }: { steal?: boolean; signal?: AbortSignal }, held: () => Promise<void>, tab: Tab) {
    return new Promise<void>((resolve, reject) => {
      const begin = () => {
        const end = (error?: Error) => {
          tab.run(() => (error ? reject(error) : resolve()));
          if (this.#holders.get(name) !== holder) return;
          this.#holders.delete(name);
          this.#grant(name);
        };
        const holder = { tab, end };
        this.#holders.set(name, holder);
        // Browsers grant a lock in a task of its own.
        setImmediate(() => tab.run(() => void held().then(() => end(), (error) => end(error))));
      };
      if (steal) {
        const old = this.#holders.get(name);
        this.#holders.delete(name);
        begin();
        old?.end(new DOMException("stolen", "AbortError"));
        return;
      }
      const queue = this.#queues.get(name) ?? [];
      this.#queues.set(name, queue);
      const entry = { tab, begin };
      queue.push(entry);
      signal?.addEventListener("abort", () => {
        if (!queue.includes(entry)) return;
        queue.splice(queue.indexOf(entry), 1);
        tab.run(() => reject(signal.reason));
      });
      this.#grant(name);
    });
  }

  #grant(name: string): void {
    if (this.#holders.has(name)) return;
    this.#queues.get(name)?.shift()?.begin();
  }

  /** What is committed. */
  async rows(name: string): Promise<{ ids: string[]; status: string; n: number; attempts: number }[]> {
    const database = await new Promise<IDBDatabase>((resolve) => {
      const request = this.indexedDB.open(`semel:${name}`);
      request.onsuccess = () => resolve(request.result);
    });
    return new Promise((resolve) => {
      const request = database.transaction("messages").objectStore("messages").getAll();
      request.onsuccess = () => (database.close(), resolve(request.result));
    });
  }

  /** What the browser does when a tab is gone. */
  release(tab: Tab): void {
    for (const queue of this.#queues.values())
      for (const entry of [...queue]) if (entry.tab === tab) queue.splice(queue.indexOf(entry), 1);
    for (const [name, holder] of [...this.#holders])
      if (holder.tab === tab) {
        this.#holders.delete(name);
        this.#grant(name);
      }
    for (const channel of [...this.channels]) if (channel.tab === tab) this.channels.delete(channel);
  }
}

export type Fate = "kill" | "freeze";

/** One tab. Every step of what runs in it is counted, and at one of them it can meet its fate. */
export class Tab {
  steps: string[] = [];
  isDead = false;
  isFrozen = false;
  page = new EventTarget();
  #held: (() => void)[] = [];
  #transactions = new Set<IDBTransaction>();
  #fate: { at: number; fate: Fate; then: () => void } | undefined;

  constructor(
    readonly device: Device,
    private readonly network: (url: string, init: RequestInit, tab: Tab) => Promise<Response>,
  ) {}

  get isStill(): boolean {
    return this.isDead || this.isFrozen;
  }

  meet(fate: Fate, at: number, then: () => void = () => {}): void {
    this.#fate = { at, fate, then };
  }

  /** Counts a step. After it, the tab may be gone. */
  step(name: string): void {
    this.device.activity++;
    if (this.isStill) return;
    this.steps.push(name);
    if (this.#fate?.at !== this.steps.length) return;
    const { fate, then } = this.#fate;
    if (fate === "kill") this.kill();
    else this.isFrozen = true;
    then();
  }

  kill(): void {
    this.isDead = true;
    for (const transaction of this.#transactions) {
      try {
        transaction.abort();
      } catch {
        // It was committed before.
      }
    }
    this.device.release(this);
  }

  freeze(): void {
    this.isFrozen = true;
  }

  thaw(): void {
    this.isFrozen = false;
    for (const work of this.#held.splice(0)) this.run(work);
  }

  /** Runs now, when thawed, or never. */
  run(work: () => void): void {
    this.device.activity++;
    if (this.isDead) return;
    if (this.isFrozen) this.#held.push(work);
    else work();
  }

  /** A promise of the outside as this tab sees it: two steps, before and after. */
  async outside<T>(name: string, work: () => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.step(`${name}?`);
      this.run(() =>
        void work().then(
          (value) => (this.step(`${name}!`), this.run(() => resolve(value))),
          (error) => (this.step(`${name}!`), this.run(() => reject(error))),
        ),
      );
    });
  }

  get environment(): Environment {
    const { device } = this;
    return {
      indexedDB: this.#factory(),
      locks: { request: (name, options, held) => device.request(name, options, held, this) },
      channel: (name) => this.#channel(name),
      fetch: ((url: string, init: RequestInit) =>
        this.outside("fetch", async () => this.#readable(await this.network(url, init, this)))) as typeof fetch,
      now: () => device.now,
      random: () => device.u,
      setTimeout: (work, millis) => device.setTimeout(work, millis, this),
      clearTimeout: (timer) => device.clearTimeout(timer),
      page: this.page,
      marks: { getItem: (name) => device.marks.get(name) ?? null, setItem: (name, value) => void device.marks.set(name, value) },
      persist: async () => true,
      report: (error) => console.error(error),
      load: async () => ({ ...sending, loadRequeueing: async () => requeueing }),
    };
  }

  /** An answer whose body takes a step of its own. */
  #readable(response: Response): Response {
    const reader = response.body?.getReader();
    if (!reader) return response;
    const body = { getReader: () => ({ read: () => this.outside("body", () => reader.read()), cancel: () => reader.cancel() }) };
    const json = async () => JSON.parse(new TextDecoder().decode((await reader.read()).value));
    return { type: response.type, status: response.status, headers: response.headers, body, json } as unknown as Response;
  }

  #channel(name: string) {
    const { device } = this;
    const own = {
      tab: this as Tab, name, onmessage: null as ((event: MessageEvent) => void) | null,
      postMessage: (data: unknown) => {
        if (this.isStill) return;
        const copy = structuredClone(data);
        for (const other of device.channels)
          if (other !== own && other.name === name)
            setImmediate(() => other.tab.run(() => other.onmessage?.({ data: copy } as MessageEvent)));
      },
      close: () => void device.channels.delete(own),
    };
    device.channels.add(own);
    return own;
  }

  #factory(): IDBFactory {
    const { device } = this;
    return {
      open: (name: string, version?: number) => {
        const request = device.indexedDB.open(name, version);
        request.addEventListener("success", () => this.#watch(request.result));
        return request;
      },
    } as IDBFactory;
  }

  #watch(database: IDBDatabase): void {
    const { device } = this;
    const begin = database.transaction.bind(database);
    database.transaction = ((...parameters: Parameters<typeof begin>) => {
      this.step("transaction?");
      const transaction = begin(...parameters);
      this.#transactions.add(transaction);
      device.transactions++;
      for (const name of ["complete", "abort"]) transaction.addEventListener(name, () => device.transactions--);
      if (this.isDead) transaction.abort();
      // Committed or not, the tab hears of it now, when it thaws, or never.
      const hear = (name: "complete" | "abort") => ({
        set: (handler: (event: Event) => void) =>
          transaction.addEventListener(name, (event) => {
            this.#transactions.delete(transaction);
            this.step("transaction!");
            this.run(() => handler(event));
          }),
      });
      Object.defineProperties(transaction, { oncomplete: hear("complete"), onabort: hear("abort") });
      return transaction;
    }) as typeof begin;
  }
}

export interface Arrival {
  key: string;
  at: number;
  url: string;
  method: string;
  headers: Headers;
  body: string;
  cookies: RequestCredentials | undefined;
}

export type Reply =
  | { status: number; headers?: Record<string, string>; body?: string }
  /** The request takes effect and its answer is lost; the request never arrives; no answer ever. */
  | "lost" | "unreachable" | "silent";

/** A service behind a gate: each key takes effect once, and is answered from the record after that. */
export class Gate {
  arrivals: Arrival[] = [];
  effects: string[] = [];
  /** What is answered instead, for the requests to come. */
  script: (Reply | undefined)[] = [];
  reply: (arrival: Arrival) => Reply | undefined = () => undefined;
  isReached = true;

  constructor(
    private readonly device: Device,
    private readonly name = "fenced",
  ) {}

  fetch = async (url: string, init: RequestInit): Promise<Response> => {
    await new Promise((resolve) => setImmediate(resolve));
    if (init.signal?.aborted) throw init.signal.reason;
    const headers = new Headers(init.headers as HeadersInit);
    const key = headers.get("idempotency-key") ?? headers.get("x-idempotency-key") ?? "";
    const body = init.body ? new TextDecoder().decode(init.body as ArrayBuffer) : "";
    const arrival = { key, at: this.device.now, url, method: init.method!, headers, body, cookies: init.credentials };
    const reply = this.script.length ? this.script.shift() : this.reply(arrival);
    if (!this.isReached || reply === "unreachable") throw new TypeError("fetch failed");
    this.arrivals.push(arrival);
    if (reply === "silent") return new Promise((_, reject) => init.signal?.addEventListener("abort", () => reject(init.signal!.reason)));
    if (!reply && url.includes("/.well-known/")) return answer({ status: 404 }, this.device.now);
    if (reply && reply !== "lost") return answer(reply, this.device.now);
    const isReplay = this.effects.includes(key);
    if (!isReplay) this.effects.push(key);
    if (reply === "lost") throw new TypeError("connection reset");
    const marks: Record<string, string> = isReplay ? { "idempotency-replayed": "true" } : {};
    return answer({ status: 201, headers: { "semel-guarantee": this.name, ...marks }, body: `{"key":"${key}"}` }, this.device.now);
  };
}

function answer({ status, headers, body }: Exclude<Reply, string>, now: number): Response {
  const all = new Headers({ date: new Date(now).toUTCString(), ...headers });
  if (!all.has("content-type")) all.set("content-type", "application/json");
  return new Response(status === 204 ? null : (body ?? "{}"), { status, headers: all });
}
