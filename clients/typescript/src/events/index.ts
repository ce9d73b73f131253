// `semel/events`: a broker's lines in the browser. It resumes after the last event that was handled, says when there is a gap,
// and recognises one's own echo by `client_tx_id`. It keeps nothing: receivers that need every message across reloads keep `lastId`.
import type { Outbox } from "../outbox/index.js";

/** A message of a line, as the broker writes it. */
export interface LineMessage {
  /** Its place in the line; give the last one as `after` to go on from there. */
  id: string;
  line: string;
  broker_message_id: string;
  client_message_id: string;
  sender: string;
  client_tx_id?: string | null;
  supersedes?: string | null;
  body?: unknown;
  body_base64?: string;
  content_type?: string | null;
  created_at: string;
  /** Whether this client sent it. */
  isOwn: boolean;
}

/** Messages that cannot be had: read the state afresh, then go on. */
export interface Gap {
  id: string;
  line: string;
  from: string | null;
  oldest: string | null;
  reason: string;
}

export interface EventsOptions {
  /** Such as `https://broker.example/v1/meshes/shop/events?line=topic:orders&line=direct`. */
  url: string | URL;
  /** Header lines of each connection, such as `Authorization`; asked for whenever it connects. */
  headers?: () => Record<string, string> | Promise<Record<string, string>>;
  /** The event after which to begin; `0`: the first one that is kept; without it, what comes from now on. */
  after?: string;
  consumer?: string;
  /** A message. The next one waits until this has ended; when it fails, the message comes again. */
  onMessage: (message: LineMessage) => void | Promise<void>;
  onGap?: (gap: Gap) => void | Promise<void>;
  /** Whether it is connected, and if not, why not, in words for a person. */
  onState?: (state: "open" | "waiting" | "closed", reason?: string) => void;
  /** Which transactions are this client's: see `ownTransactions`. */
  own?: { has(txId: string): boolean };
  /** How long a connection may be silent, in milliseconds. Default: 60,000. */
  silence?: number;
  fetch?: typeof fetch;
}

const WAIT_MS_MAX = 30_000;
const EVENT_CHARS_MAX = 4 << 20;
const OWN_MAX = 1000;

export class Events {
  /** The last event that was handled. */
  lastId: string | undefined;
  #options: EventsOptions;
  #stop = new AbortController();
  #failures = 0;

  /** Connects, and again whenever the connection ends. */
  static open(options: EventsOptions): Events {
    const events = new Events(options);
    void events.#run();
    return events;
  }

  private constructor(options: EventsOptions) {
    this.#options = options;
    this.lastId = options.after;
  }

  close(): void {
    this.#stop.abort(new Error("closed"));
  }

  async #run(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const reason = await this.#connect().then(() => "The connection ended.", (error: Error) => error.message);
      if (this.#stop.signal.aborted) break;
      this.#say("waiting", reason);
      const most = Math.min(WAIT_MS_MAX, 1000 * 2 ** this.#failures++);
      await this.#sleep(most / 2 + (most / 2) * Math.random());
    }
    this.#say("closed");
  }

  /** Tells the application. What it throws must not end the connection for ever. */
  #say(...told: Parameters<NonNullable<EventsOptions["onState"]>>): void {
    try {
      this.#options.onState?.(...told);
    } catch (error) {
      (globalThis.reportError ?? console.error)(error);
    }
  }

  async #connect(): Promise<void> {
    const { url, headers, consumer, fetch: send = fetch, silence = 60_000 } = this.#options;
    const address = new URL(url, globalThis.location?.href);
    if (this.lastId !== undefined) address.searchParams.set("after", this.lastId);
    if (consumer) address.searchParams.set("consumer", consumer);
    const connection = new AbortController();
    const abort = () => connection.abort(this.#stop.signal.reason);
    this.#stop.signal.addEventListener("abort", abort);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => connection.abort(new Error("The connection was silent.")), silence);
    };
    const silent = new Promise<never>((_, reject) => {
      connection.signal.addEventListener("abort", () => reject(connection.signal.reason));
    });
    silent.catch(() => {});
    try {
      listen();
      const response = await send(address, {
        // A sign-in that does not answer is tried again like a broker that does not.
        headers: { ...(await Promise.race([headers?.(), silent])), Accept: "text/event-stream" },
        credentials: "omit",
        cache: "no-store",
        signal: connection.signal,
      });
      const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
      if (!response.ok || !response.body || !isStream) throw new Error(`The broker answered HTTP ${response.status}.`);
      this.#say("open");
      await this.#read(response.body, listen);
    } finally {
      clearTimeout(timer);
      connection.abort();
      this.#stop.signal.removeEventListener("abort", abort);
    }
  }

  async #read(body: ReadableStream<Uint8Array>, listen: () => void): Promise<void> {
    const decoder = new TextDecoder();
    const reader = body.getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      // An event that was cut off is not handled: it comes again.
      if (done) return;
      listen();
      text += decoder.decode(value, { stream: true });
      const blocks = text.split(/\r\n\r\n|\n\n|\r\r/);
      text = blocks.pop()!;
      if (text.length > EVENT_CHARS_MAX) throw new Error("An event was too long.");
      for (const block of blocks) await this.#handle(parseEvent(block));
    }
  }

  async #handle({ id, event, data }: { id?: string; event: string; data: string }): Promise<void> {
    if (!data || this.#stop.signal.aborted) return;
    const said = JSON.parse(data);
    if (event === "gap") await this.#options.onGap?.({ ...said, id });
    else if (event === "message") {
      const isOwn = !!said.client_tx_id && !!this.#options.own?.has(said.client_tx_id);
      await this.#options.onMessage({ ...said, id, isOwn });
    }
    // Only now: what failed is read again.
    if (id) this.lastId = id;
    this.#failures = 0;
  }

  #sleep(millis: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, millis);
      this.#stop.signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }
}

/** Reads one block of server-sent events. */
function parseEvent(block: string): { id?: string; event: string; data: string } {
  const event: { id?: string; event: string; data: string } = { event: "message", data: "" };
  const data: string[] = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line)!;
    if (name === "data") data.push(value!);
    else if (name === "id") event.id = value!;
    else if (name === "event") event.event = value!;
  }
  return { ...event, data: data.join("\n") };
}

/** The transactions of an outbox, of all tabs, so that their echo is known. The newest 1,000 are remembered. */
export function ownTransactions(outbox: Outbox): { has(txId: string): boolean; stop(): void } {
  const own = new Set<string>();
  const add = (txId: string | undefined) => {
    if (!txId) return;
    own.add(txId);
    if (own.size > OWN_MAX) own.delete(own.values().next().value!);
  };
  const stop = outbox.on(({ clientTxId }) => add(clientTxId));
  outbox.list().then((receipts) => receipts.forEach(({ clientTxId }) => add(clientTxId)), () => {});
  return { has: (txId) => own.has(txId), stop };
}
