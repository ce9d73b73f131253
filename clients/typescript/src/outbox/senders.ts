// The two senders of a tab: one for what is on the disk, while this tab leads, and one for what is in memory. Owns what they are
// given, and decides nothing about delivery.
import { takeEpoch } from "./claims.js";
import { isLikelyFromService } from "./judge.js";
import { Sender, type Host } from "./sender.js";
import type { Store } from "./store.js";
import type { OutboxOptions, Row } from "./types.js";

const KEEP_MS = 7 * 86_400_000;

/** What the outbox lends them. */
export interface Lent extends Pick<Host, "environment" | "profile" | "maxAge" | "clock" | "tell" | "lose"> {
  readonly durable: Store;
  readonly memory: Store;
  readonly options: OutboxOptions;
}

export class Senders {
  #durable: Sender;
  #memory: Sender | undefined;

  constructor(
    private readonly lent: Lent,
    private readonly loadRequeueing: Host["loadRequeueing"],
  ) {
    this.#durable = new Sender(this.hostOf(lent.durable));
  }

  /** Begins to send what is on the disk, if that is still wanted when the epoch is taken. */
  async lead(isWanted: () => boolean): Promise<void> {
    const { durable, environment, options } = this.lent;
    const now = environment.now();
    const epoch = await durable.run("readwrite", (tx) => takeEpoch(tx, now, options.keep ?? KEEP_MS));
    if (isWanted()) await this.#durable.start(epoch);
  }

  follow(): void {
    this.#durable.stop();
  }

  /** Sends what is in memory, from now on. */
  async sendMemory(): Promise<void> {
    const { memory } = this.lent;
    if (this.#memory) return this.#memory.wake();
    this.#memory = new Sender(this.hostOf(memory));
    await this.#memory.start(await memory.run("readwrite", (tx) => takeEpoch(tx, 0, 0)));
  }

  wake(): void {
    this.#durable.wake();
    this.#memory?.wake();
  }

  kick(): void {
    this.#durable.kick();
    this.#memory?.kick();
  }

  cancel(principal: string): void {
    this.#durable.cancel(principal);
    this.#memory?.cancel(principal);
  }

  async drain(isLeader: boolean): Promise<void> {
    if (isLeader) await this.#durable.drain();
    await this.#memory?.drain();
  }

  stop(): void {
    this.#durable.stop();
    this.#memory?.stop();
  }

  hostOf(store: Store): Host {
    const { durable, memory, options, ...lent } = this.lent;
    const { credentials, timeout = 30_000, parallel = 4, rebuild } = options;
    const other = store === durable ? memory : durable;
    return {
      ...lent, store, credentials, timeout, parallel, rebuild,
      isAgeUnsafe: !!options.unsafeMaxAge,
      doesBlock: options.onDead === "block",
      isFromService: options.isFromService ?? isLikelyFromService,
      loadRequeueing: this.loadRequeueing,
      isBehind: async (row) => {
        const first = await other.run("readonly", (tx) => tx.first("q", row.lane)).catch(() => undefined);
        // Of two tabs' messages of the same moment, that on the disk goes first.
        const tie = store.isDurable ? 0 : 1;
        return !!first && orderOf(first) < orderOf(row) + tie;
      },
    };
  }
}

function orderOf({ order, acceptedAt }: Row): number {
  return order ?? acceptedAt;
}
