// Decides which tab sends. A Web Lock names one; since a frozen tab keeps its lock, the others ask over a channel whether it
// is alive and take the lock away after two silent seconds. Safety does not rest on this: the epoch in the database does.
import type { Channel, Environment } from "./environment.js";

const SILENCE_MS_MAX = 2000;
const WATCH_MS = 5000;

export interface Candidate {
  /** This tab may send now. */
  lead(): Promise<void>;
  /** This tab must stop. */
  follow(): void;
  /** Whether there is something to send. A tab that froze may have stored it without a word. */
  hasWork(): Promise<boolean>;
  /** Something that another tab said. */
  hear(message: unknown): void;
}

type Message = { t: "ping" | "pong" | "kick" } | { t: "say"; what: unknown };

export class Leadership {
  isLeader = false;
  #channel: Channel | undefined;
  #request: AbortController | undefined;
  #release: (() => void) | undefined;
  #heardAt = -Infinity;
  #watching: unknown;
  #checking: Promise<void> | undefined;
  #isStopped = true;
  #news: (() => void) | undefined;

  constructor(
    private readonly name: string,
    private readonly environment: Environment,
    private readonly candidate: Candidate,
    private readonly onKick: () => void,
  ) {}

  /** Stands for election, until `resign`. */
  compete(): void {
    if (!this.#isStopped) return;
    this.#isStopped = false;
    this.listen();
    if (this.environment.locks) void this.#queue(false);
    void this.check();
    this.#watch();
  }

  /** Stops sending and lets another tab take over. */
  resign(): void {
    this.#isStopped = true;
    this.environment.clearTimeout(this.#watching);
    this.#news?.();
    this.#stepDown();
    this.#request?.abort();
    this.#request = undefined;
  }

  close(): void {
    this.resign();
    if (this.#channel) this.#channel.onmessage = null;
    this.#channel?.close();
    this.#channel = undefined;
  }

  /** Tells the other tabs. */
  say(what: unknown): void {
    this.#post({ t: "say", what });
  }

  /** Wakes the tab that sends, and makes sure that there is one. */
  kick(): void {
    if (this.isLeader) return this.onKick();
    this.#post({ t: "kick" });
    void this.check();
  }

  /** The epoch was old: another tab sends. */
  lose(): void {
    if (!this.isLeader) return;
    this.#stepDown();
    if (!this.#isStopped && this.environment.locks) void this.#queue(false);
  }

  /** Asks whether the sender is alive, and takes its place if it is silent. Ends when there is a sender, or nobody answers. */
  check(): Promise<void> {
    if (this.isLeader || this.#isStopped) return Promise.resolve();
    return (this.#checking ??= this.#check().finally(() => (this.#checking = undefined)));
  }

  async #check(): Promise<void> {
    const askedAt = this.environment.now();
    this.#post({ t: "ping" });
    // Spread, so that not every tab takes over at once.
    await this.#pause(SILENCE_MS_MAX + this.environment.random() * 300);
    const isSilent = this.#heardAt < askedAt;
    // A tab that was suspended itself heard nothing either, and asks again.
    const wasSuspended = this.environment.now() - askedAt > 2 * SILENCE_MS_MAX;
    if (this.isLeader || this.#isStopped || !isSilent || wasSuspended) return;
    if (!this.environment.locks) return this.#lead();
    const tooLong = new Promise<void>((resolve) => this.environment.setTimeout(resolve, SILENCE_MS_MAX));
    await Promise.race([this.#queue(true), tooLong]);
  }

  /** Stands in the line for the lock, or takes it away. Ends when this tab leads, or will not. */
  #queue(steal: boolean): Promise<void> {
    this.#request?.abort();
    const controller = (this.#request = new AbortController());
    const isMine = () => this.#request === controller && !this.#isStopped;
    const options = steal ? { steal } : { signal: controller.signal };
    return new Promise((decided) => {
      const held = async () => {
        if (!isMine()) return;
        const released = new Promise<void>((resolve) => (this.#release = resolve));
        await this.#lead();
        decided();
        await released;
      };
      const requested = this.environment.locks!.request(`semel:${this.name}`, options, held).catch(() => {
        // Stolen: another tab thought that this one was dead. Stand behind it.
        if (!isMine()) return;
        this.#stepDown();
        void this.#queue(false);
      });
      void requested.then(() => decided());
    });
  }

  async #lead(): Promise<void> {
    this.isLeader = true;
    this.#post({ t: "pong" });
    this.#news?.();
    try {
      await this.candidate.lead();
    } catch {
      // Without storage there is nothing to send; the next check tries again.
      this.#stepDown();
    }
  }

  #stepDown(): void {
    if (this.isLeader) this.candidate.follow();
    this.isLeader = false;
    this.#release?.();
    this.#release = undefined;
  }

  /** Opens the channel, which does not stand for election. */
  listen(): void {
    this.#channel ??= this.environment.channel(`semel:${this.name}`);
    if (this.#channel) this.#channel.onmessage = ({ data }: MessageEvent<Message>) => this.#hear(data);
  }

  #hear(message: Message): void {
    if (message.t === "say") return this.candidate.hear(message.what);
    if (message.t === "pong") {
      this.#heardAt = this.environment.now();
      this.#news?.();
    } else if (this.isLeader) {
      this.#post({ t: "pong" });
      if (message.t === "kick") this.onKick();
    }
  }

  #watch(): void {
    this.#watching = this.environment.setTimeout(() => {
      this.#watch();
      if (!this.isLeader) this.candidate.hasWork().then((has) => void (has && this.check()), () => {});
    }, WATCH_MS);
  }

  #post(message: Message): void {
    this.#channel?.postMessage(message);
  }

  /** Waits, but no longer than until there is a sender. */
  #pause(millis: number): Promise<void> {
    const { setTimeout, clearTimeout } = this.environment;
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#news?.(), millis);
      this.#news = () => {
        this.#news = undefined;
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
