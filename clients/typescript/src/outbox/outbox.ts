// The outbox that applications use: it accepts in every tab, sends in one, tells all. It puts the parts together and decides
// nothing about delivery itself. What only the sending tab needs is loaded beside it, so that pages are small.
import type { Profile } from "../contract/profile.js";
import { profiles } from "../contract/profiles.js";
import { browserEnvironment, type Environment } from "./environment.js";
import { chooseId, freeze, type Draft } from "./freeze.js";
import { Intake } from "./intake.js";
import { Leadership } from "./leadership.js";
import { MemoryStore } from "./memory.js";
import type { RequeueOptions } from "./requeue.js";
import { receiptOf } from "./rows.js";
import type { Host } from "./sender.js";
import type { Senders } from "./senders.js";
import type * as sending from "./sending.js";
import type { Summaries } from "./state.js";
import { IndexedStore, type Store, type Tx } from "./store.js";
import {
  OutboxError, type EventType, type ListFilter, type OutboxEvent, type OutboxOptions, type Receipt, type Row, type SendOptions,
  type Sent, type Snapshot,
} from "./types.js";
import { Waiters, type Waiter } from "./waiters.js";

type Sending = typeof sending;

/** Six days: Safari deletes after seven what pages store. */
const AGE_MS_MAX = 518_400_000;
const REFRESH_MS = 50;

export class Outbox {
  readonly name: string;
  readonly profile: Profile;
  #environment: Environment;
  #options: OutboxOptions;
  #durable: Store;
  #memory: Store;
  #senders: Senders | undefined;
  #parts: Promise<Sending> | undefined;
  #maxAge: number;
  #clock: { ahead: number | null } = { ahead: null };
  #lastOrder = 0;
  #intake: Intake;
  #leadership: Leadership;
  #listeners = new Set<(event: OutboxEvent) => void>();
  #subscribers = new Set<() => void>();
  #waiters: Waiters;
  #turns = new Map<string, Promise<void>>();
  #snapshot: Snapshot = { waiting: 0, sending: 0, held: 0, dead: 0, durable: true, isSender: false, lanes: [] };
  #summaries: Summaries = new Map();
  #refreshing: unknown;
  #isDisposed = false;
  #leading: Promise<void> | undefined;
  #hasAsked = false;
  #undo: (() => void)[] = [];

  /** Opens the queue of this name. Nothing is waited for: the database is opened when it is needed. */
  static open(options: OutboxOptions): Outbox {
    return new Outbox(options);
  }

  private constructor(options: OutboxOptions) {
    const { name, profile = "ietf" } = options;
    this.name = name;
    this.profile = typeof profile === "string" ? profiles[profile] : profile;
    this.#options = options;
    this.#environment = { ...browserEnvironment(), ...options.environment };
    this.#maxAge = chooseMaxAge(this.profile, options);
    this.#durable = new IndexedStore(name, this.#environment, () => this.#loseStorage());
    this.#memory = new MemoryStore();
    this.#waiters = new Waiters(this.#stores, this.#environment);
    this.#intake = new Intake(this.#durable, this.#memory, options.maxMessages ?? 10_000);
    this.#leadership = new Leadership(name, this.#environment, {
      lead: () => this.#lead(),
      follow: () => this.#senders?.follow(),
      hasWork: async () => {
        const count = (store: Store) => store.run("readonly", (tx) => tx.count("q"));
        // When these were accepted, the part that sends could perhaps not be loaded.
        if (await count(this.#memory)) this.#sendMemory();
        return (await count(this.#durable)) > 0;
      },
      hear: (what) => this.#hear(what as OutboxEvent & { ahead: number | null }),
    }, () => this.#senders?.kick());
    // Early, while the page itself is being loaded; what fails is tried again when it is needed.
    void this.#load().catch(() => {});
    if (options.sends === "on-drain") this.#leadership.listen();
    else this.#leadership.compete();
    this.#watchPage();
    this.#refresh();
  }

  /** Takes a request over. The id is known at once; `accepted` is decided by the commit, not by the caller's waiting. */
  send(input: RequestInfo | URL, options: SendOptions & { init?: RequestInit } = {}): Sent {
    const now = this.#environment.now();
    let id = options.id ?? "";
    let accepting: Promise<Receipt>;
    let resolve!: Waiter["resolve"];
    let reject!: Waiter["reject"];
    const done = new Promise<Receipt>((...ends) => ([resolve, reject] = ends));
    try {
      id = chooseId(options, this.profile, now);
      const freezing = freeze(new Request(input, options.init), id, options, this.profile, now);
      accepting = this.#inTurn(options, freezing).then((draft) => this.#accept(draft, { id, resolve, reject }));
    } catch (error) {
      accepting = Promise.reject(asRefusal(error));
    }
    // A caller that looks at one promise only is not told of the other's rejection.
    accepting.catch(reject);
    done.catch(() => {});
    return { id, accepted: accepting, done };
  }

  /** Lets what was sent first be accepted first: freezing one body may take longer than the next. */
  #inTurn({ lane, principal }: SendOptions, freezing: Promise<Draft>): Promise<Draft> {
    const name = lane ?? principal ?? "default";
    const turn = (this.#turns.get(name) ?? Promise.resolve()).then(() => freezing);
    const ended = turn.catch(() => {}).then(() => {
      if (this.#turns.get(name) === ended) this.#turns.delete(name);
    });
    this.#turns.set(name, ended);
    freezing.catch(() => {});
    return turn;
  }

  async #accept(draft: Draft, waiter: Waiter): Promise<Receipt> {
    if (this.#isDisposed) throw new OutboxError("disposed", "the outbox was closed");
    draft.row.ahead = this.#clock.ahead;
    this.#order(draft);
    const { row, store } = await this.#intake.accept(draft);
    this.#waiters.add(row, waiter, store.isDurable);
    this.#announce(row, store, row.ids.at(-1) === draft.row.ids[0]);
    return receiptOf(row, store.isDurable, waiter.id);
  }

  /** Lets no two messages of this tab be of the same moment, so that those in memory and those on the disk can be told apart. */
  #order({ row }: Draft): void {
    row.order = this.#lastOrder = Math.max(row.acceptedAt, this.#lastOrder + 1);
  }

  /** Tells of a message that was accepted, and wakes its sender. */
  #announce(row: Row, store: Store, isNew: boolean): void {
    if (isNew) this.#tell("queued", row);
    if (store.isDurable) {
      if (!this.#hasAsked && this.#options.persist !== false) void this.#environment.persist().catch(() => {});
      this.#hasAsked = true;
      if (this.#leadership.isLeader) this.#senders?.wake();
      else this.#leadership.kick();
      return;
    }
    if (isNew) this.#tell("not-durable", row, "It is lost if this page is closed before it is sent.");
    this.#sendMemory();
  }

  get #stores(): Store[] {
    return [this.#durable, this.#memory];
  }

  /** What is known of a message. */
  async get(id: string): Promise<Receipt | undefined> {
    for (const store of this.#stores) {
      const row = await store.run("readonly", (tx) => tx.first("ids", id)).catch(() => undefined);
      if (row) return receiptOf(row, store.isDurable, id);
    }
    return undefined;
  }

  /** What a message asks for, so that a page can show it. It is gone when the message is done or taken back. */
  async request(id: string): Promise<Request | undefined> {
    const store = await this.#storeOf(id);
    return (await this.#loadRequeueing()).readRequest(store, id);
  }

  /** Messages in the order in which they were accepted, at most 1,000. */
  async list(filter: ListFilter = {}): Promise<Receipt[]> {
    return (await this.#loadRequeueing()).list(this.#stores, filter);
  }

  /** Tries a waiting message again now. */
  async retry(id: string): Promise<Receipt> {
    return this.#change(id, "hasten");
  }

  /** Takes a message back that is not being sent. */
  async abort(id: string): Promise<Receipt> {
    return this.#change(id, "abort", "aborted");
  }

  /** Puts a new message in the place of one that waits or was given up; seals the old key at the server first. */
  async requeue(id: string, options: RequeueOptions = {}): Promise<Receipt> {
    const store = await this.#storeOf(id);
    const { requeue } = await this.#loadRequeueing();
    const row = await requeue(this.#senders!.hostOf(store), id, options);
    this.#tell("aborted", { ...row, ids: [id] });
    this.#announce(row, store, true);
    return receiptOf(row, store.isDurable);
  }

  /** Stops everything, a lane or a principal, in every tab and across reloads. What is under way ends. */
  async pause(what: { lane?: string; principal?: string } = {}): Promise<void> {
    await this.#setPaused(true, what);
  }

  /** Lets it go on; a lane that a dead message blocks goes on without it. */
  async resume(what: { lane?: string; principal?: string } = {}): Promise<void> {
    await this.#setPaused(false, what).finally(() => this.kick());
  }

  /** Parks the messages of a principal, until `resume({ principal })`. Nothing is deleted. */
  async signOut(principal: string): Promise<void> {
    this.#senders?.cancel(principal);
    await this.#setPaused(true, { principal }).finally(() => {
      this.#tell("held", null, `${principal} has signed out.`);
      // Another tab may be sending.
      this.#leadership.say({ signedOut: principal });
    });
  }

  /** Something changed: the network is back, somebody signed in. Tries what waits for that. */
  kick(): void {
    this.#senders?.kick();
    this.#leadership.kick();
    this.#refresh();
  }

  /** Sends until nothing is due, and says what is left. */
  async drain(): Promise<Snapshot> {
    this.#leadership.compete();
    await this.#leadership.check();
    this.kick();
    await this.#leading?.catch(() => {});
    await this.#senders?.drain(this.#leadership.isLeader);
    if (this.#options.sends === "on-drain") this.#leadership.resign();
    return (this.#snapshot = await this.#readSnapshot());
  }

  /** Closes this instance. What waits stays in the queue. */
  dispose(): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#environment.clearTimeout(this.#refreshing);
    for (const undo of this.#undo) undo();
    this.#leadership.close();
    this.#senders?.stop();
    this.#durable.close();
    this.#waiters.rejectAll("disposed", "the outbox was closed");
  }

  /** Calls back after every change of what `getSnapshot` returns. */
  readonly subscribe = (onChange: () => void): (() => void) => {
    this.#subscribers.add(onChange);
    return () => this.#subscribers.delete(onChange);
  };

  /** The queue in short. The same object until something changes. */
  readonly getSnapshot = (): Snapshot => this.#snapshot;

  /** Calls back for every event, in every tab. */
  on(listener: (event: OutboxEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Tells every tab of something that concerns the whole queue; for `semel/worker`. */
  report(type: EventType, reason: string): void {
    this.#tell(type, null, reason);
  }

  /** Runs one transaction on the queue's database that accepts messages besides, or on what is in memory; for `semel/snapshot`. */
  async transact<T>(work: (tx: Tx) => Promise<{ result: T; rows: Row[] }>, isInMemory?: boolean): Promise<T> {
    const { result, rows } = await (isInMemory ? this.#memory : this.#durable).run("readwrite", work);
    for (const row of rows) this.#announce(row, this.#durable, true);
    return result;
  }

  /** Freezes a request as `send` does; for `semel/snapshot`. */
  async freeze(input: RequestInfo | URL, options: SendOptions & { init?: RequestInit }): Promise<Draft> {
    const now = this.#environment.now();
    const draft = await freeze(new Request(input, options.init), chooseId(options, this.profile, now), options, this.profile, now);
    this.#order(draft);
    return draft;
  }

  #load(): Promise<Sending> {
    return (this.#parts ??= this.#environment.load().then(
      (parts) => {
        const { profile } = this;
        const lent = {
          profile, environment: this.#environment, durable: this.#durable, memory: this.#memory, options: this.#options,
          maxAge: this.#maxAge, clock: this.#clock,
          tell: (...event: Parameters<Host["tell"]>) => this.#tell(...event),
          lose: () => this.#leadership.lose(),
        };
        this.#senders = new parts.Senders(lent, parts.loadRequeueing);
        return parts;
      },
      (error) => {
        this.#parts = undefined;
        throw error;
      },
    ));
  }

  async #loadRequeueing() {
    return (await this.#load()).loadRequeueing();
  }

  #lead(): Promise<void> {
    const started = this.#load().then(() => this.#senders!.lead(() => this.#leadership.isLeader));
    return (this.#leading = started.then(() => this.#refresh()));
  }

  /** Begins to send what is kept in memory. */
  #sendMemory(): void {
    this.#load().then<unknown>(() => this.#isDisposed || this.#senders!.sendMemory()).catch(() => {});
  }

  async #storeOf(id: string): Promise<Store> {
    const row = await this.#memory.run("readonly", (tx) => tx.first("ids", id));
    return row ? this.#memory : this.#durable;
  }

  async #change(id: string, how: "hasten" | "abort", event?: EventType): Promise<Receipt> {
    const parts = await this.#loadRequeueing();
    const store = await this.#storeOf(id);
    const row = await store.run("readwrite", (tx) => parts[how](tx, id, this.#environment.now()));
    if (event) this.#tell(event, row);
    this.#senders?.wake();
    this.#leadership.kick();
    return receiptOf(row, store.isDurable, id);
  }

  async #setPaused(on: boolean, what: { lane?: string; principal?: string }): Promise<void> {
    const { setPaused } = await this.#load();
    await this.#memory.run("readwrite", (tx) => setPaused(tx, on, what));
    try {
      await this.#durable.run("readwrite", (tx) => setPaused(tx, on, what));
    } catch (error) {
      // Where there is no storage, nothing waits in it.
      if (this.#durable.mayHold || error instanceof OutboxError) throw error;
    } finally {
      this.#refresh();
    }
  }

  #tell(type: EventType, row: Row | null, reason = row?.reason, ids?: string[]): void {
    const event: OutboxEvent = {
      type,
      at: this.#environment.now(),
      ...(row && { id: row.ids[0]!, lane: row.lane, principal: row.principal, clientTxId: row.txId }),
      ...(row?.operation && { operation: row.operation }),
      ...(ids && { ids }),
      ...(reason && { reason }),
    };
    this.#emit(event);
    this.#leadership.say({ ...event, ahead: this.#clock.ahead });
    // What is kept in memory may wait for what is kept on the disk, and the other way round.
    if (type !== "queued") this.#senders?.wake();
  }

  #hear(said: (OutboxEvent & { ahead: number | null }) | { signedOut: string }): void {
    if ("signedOut" in said) return this.#senders?.cancel(said.signedOut);
    const { ahead, ...event } = said;
    this.#clock.ahead ??= ahead;
    this.#emit(event);
  }

  #emit(event: OutboxEvent): void {
    this.#callAll(this.#listeners, event);
    this.#refresh(event.ids ?? (event.id ? [event.id] : []));
  }

  /** Calls the application's functions. What one of them throws is none of the others' business, and none of the queue's. */
  #callAll<T>(called: Iterable<(told: T) => void>, told: T): void {
    for (const call of called)
      try {
        call(told);
      } catch (error) {
        this.#environment.report(error);
      }
  }

  /** Settles promises, and brings the snapshot up to date soon. */
  #refresh(ids?: string[]): void {
    void this.#waiters.settle(ids);
    if (this.#isDisposed || this.#refreshing) return;
    this.#refreshing = this.#environment.setTimeout(async () => {
      this.#refreshing = undefined;
      const found = await this.#readSnapshot().catch(() => this.#snapshot);
      if (this.#isDisposed || JSON.stringify(found) === JSON.stringify(this.#snapshot)) return;
      this.#snapshot = found;
      this.#callAll(this.#subscribers, undefined);
    }, REFRESH_MS);
  }

  async #readSnapshot(): Promise<Snapshot> {
    const { readSnapshot } = await this.#load();
    return readSnapshot(this.#stores, this.#summaries, this.#leadership.isLeader, this.#environment.now());
  }

  #loseStorage(): void {
    const why = "The browser has deleted what this site stored.";
    this.#waiters.rejectAll("storage-lost", why);
    this.#tell("storage-lost", null, why);
  }

  #watchPage(): void {
    const { page } = this.#environment;
    const hear = (name: string, work: () => void) => {
      page?.addEventListener(name, work, true);
      this.#undo.push(() => page?.removeEventListener(name, work, true));
    };
    const isSending = this.#options.sends !== "on-drain";
    for (const name of ["online", "visibilitychange"]) hear(name, () => this.kick());
    // A page that is put away keeps its locks, and its timers stand still: let another one send.
    for (const name of ["pagehide", "freeze"]) hear(name, () => this.#leadership.resign());
    for (const name of ["pageshow", "resume"])
      hear(name, () => {
        if (isSending) this.#leadership.compete();
        this.kick();
      });
  }
}

function asRefusal(error: unknown): OutboxError {
  return error instanceof OutboxError ? error : new OutboxError("malformed", (error as Error).message);
}

/** The age at which messages are given up. Refuses one at which browsers or servers would have forgotten. */
function chooseMaxAge(profile: Profile, { maxAge, unsafeMaxAge }: OutboxOptions): number {
  const most = Math.min(AGE_MS_MAX, profile.window);
  const age = maxAge ?? Math.min(profile.schedule.maxAge ?? most, most);
  if (age > most && !unsafeMaxAge)
    throw new OutboxError("malformed", `maxAge is at most ${most} ms unless unsafeMaxAge is set`);
  return age;
}
