// Sends: walks the heads of the lanes, claims, asks for the credential, transmits, judges, settles. It runs in one tab at a
// time; the epoch it was started with is presented in every transaction, and when that is old it stops.
import { uuid } from "../contract/mint.js";
import type { Profile } from "../contract/profile.js";
import type { Answer } from "../contract/refusal.js";
import type { Environment } from "./environment.js";
import { clockAhead, findExpired, judgeAnswer, judgeSilence, type Facts, type Verdict } from "./judge.js";
import { STALE, claim, settle, unclaim, type Clocks } from "./claims.js";
import type * as requeueing from "./requeue.js";
import { isPaused, readPaused } from "./lanes.js";
import { isStorageFull, type Store } from "./store.js";
import { transmit } from "./transmit.js";
import type { Credential, Credentials, EventType, Frozen, OutboxOptions, Row } from "./types.js";

/** How long to wait before storage that failed is tried again, and before a provider is asked again. */
const AFTER_FAILURE_MS = 1000;
const ASK_AGAIN_MS = 60_000;
const HEADS_MAX = 2000;
const CLOCKS_KEPT_MAX = 20;

/** What a sender is given. */
export interface Host {
  readonly store: Store;
  readonly environment: Environment;
  readonly profile: Profile;
  readonly credentials: Credentials;
  readonly maxAge: number;
  readonly isAgeUnsafe: boolean;
  readonly doesBlock: boolean;
  readonly parallel: number;
  readonly timeout: number;
  isFromService(answer: Answer): boolean;
  tell(type: EventType, row: Row | null, reason?: string, ids?: string[]): void;
  /** The application builds a refused message again. */
  readonly rebuild: OutboxOptions["rebuild"];
  loadRequeueing(): Promise<typeof requeueing>;
  /** How far servers' clocks are ahead, as far as this sender knows. */
  readonly clock: { ahead: number | null };
  /** Another sender has taken over. */
  lose(): void;
  /** Whether a message must wait for one that is kept elsewhere. */
  isBehind(row: Row): Promise<boolean>;
}

interface Learned {
  clocks: Clocks;
  /** How long servers know a key again, in milliseconds, by origin. */
  retentions: Record<string, number>;
}

export class Sender {
  #epoch = 0;
  #learned: Learned = { clocks: [], retentions: {} };
  #startedAt = 0;
  #kickedAt = -Infinity;
  #busy = new Map<string, { principal: string; controller: AbortController }>();
  #asked = new Map<number, number>();
  #refused = new Map<string, string>();
  #expired: Row[] = [];
  #wake: (() => void) | undefined;
  #isWoken = false;
  #idle: (() => void)[] = [];

  constructor(private readonly host: Host) {}

  async start(epoch: number): Promise<void> {
    this.#epoch = epoch;
    this.#startedAt = this.host.environment.now();
    this.#kickedAt = this.#startedAt;
    // Before it is needed: after a release a server may no longer have this one's parts.
    if (this.host.rebuild) void this.host.loadRequeueing().catch(() => {});
    this.#learned = (await this.host.store.run("readonly", (tx) => tx.get<Learned>("meta", "learned"))) ?? this.#learned;
    void this.#drive(epoch);
  }

  stop(): void {
    this.#epoch = 0;
    for (const { controller } of this.#busy.values()) controller.abort(new Error("the page stops sending"));
    this.wake();
    this.#becomeIdle();
  }

  /** Something changed: try what waits for the network or for a credential, without passing over the schedule. */
  kick(): void {
    this.#kickedAt = this.host.environment.now();
    this.wake();
  }

  wake(): void {
    this.#isWoken = true;
    this.#wake?.();
  }

  /** Ends attempts that run on behalf of a principal. Whether they arrived stays open. */
  cancel(principal: string): void {
    for (const running of this.#busy.values())
      if (running.principal === principal) running.controller.abort(new Error(`${principal} has signed out`));
  }

  /** Waits until nothing runs and nothing is due. */
  drain(): Promise<void> {
    return new Promise((resolve) => {
      this.#idle.push(resolve);
      this.wake();
    });
  }

  async #drive(epoch: number): Promise<void> {
    const { environment } = this.host;
    while (this.#epoch === epoch) {
      this.#isWoken = false;
      let until: number;
      try {
        until = await this.#startDue(epoch);
      } catch {
        until = environment.now() + AFTER_FAILURE_MS;
      }
      if (this.#epoch !== epoch) return this.#becomeIdle();
      if (!this.#busy.size) this.#becomeIdle();
      if (!this.#isWoken) await this.#sleep(until - environment.now());
    }
    this.#becomeIdle();
  }

  #becomeIdle(): void {
    const [expired, idle] = [this.#expired, this.#idle];
    [this.#expired, this.#idle] = [[], []];
    const ids = expired.map((row) => row.ids[0]!);
    if (ids.length) this.host.tell("expired", expired[0]!, `${ids.length} waited too long and were given up.`, ids);
    for (const resolve of idle) resolve();
  }

  #sleep(millis: number): Promise<void> {
    const { setTimeout, clearTimeout } = this.host.environment;
    return new Promise((resolve) => {
      const timer = Number.isFinite(millis) ? setTimeout(() => this.#wake?.(), Math.max(0, millis)) : undefined;
      this.#wake = () => {
        this.#wake = undefined;
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Starts what is due, as far as there is room; says when the next is due. */
  async #startDue(epoch: number): Promise<number> {
    const now = this.host.environment.now();
    const { heads, paused } = await this.host.store.run("readonly", async (tx) => {
      const heads: Row[] = [];
      await tx.scan({ index: "q", isUnique: true }, (row) => heads.push(row) >= HEADS_MAX);
      return { heads, paused: await readPaused(tx) };
    });
    let until = Infinity;
    for (const head of heads) {
      if (this.#busy.has(head.lane) || isPaused(paused, head)) continue;
      const at = this.#dueAt(head);
      if (at > now) until = Math.min(until, at);
      else if (this.#busy.size >= this.host.parallel) break;
      else if (!(await this.host.isBehind(head))) this.#begin(head, epoch);
    }
    return until;
  }

  #dueAt(row: Row): number {
    const { base } = this.host.profile.schedule;
    if (row.status === "pending") {
      // The network is back: what had no answer need not wait for its turn, but never comes sooner than the first delay.
      const isFresh = row.noAnswer && this.#kickedAt >= (row.lastAt ?? 0) + base;
      return isFresh ? this.#kickedAt : row.nextAt;
    }
    // It was claimed, and this sender does not know of it: every attempt that it knows of has a busy lane.
    if (row.status === "inflight") return -Infinity;
    if (row.status !== "held" || (row.heldFor === "rebuild" && !this.host.rebuild)) return Infinity;
    const asked = this.#asked.get(row.n) ?? -Infinity;
    return this.#kickedAt > asked ? this.#kickedAt : asked + ASK_AGAIN_MS;
  }

  #begin(head: Row, epoch: number): void {
    const controller = new AbortController();
    this.#busy.set(head.lane, { principal: head.principal, controller });
    const end = () => {
      this.#busy.delete(head.lane);
      this.wake();
    };
    this.#process(head, epoch, controller.signal).then(end, () => {
      // Storage failed before anything was sent: leave it some time.
      this.host.environment.setTimeout(end, AFTER_FAILURE_MS);
    });
  }

  async #process(head: Row, epoch: number, signal: AbortSignal): Promise<void> {
    const { store, environment } = this.host;
    if (head.status === "inflight") {
      const freed = await store.run("readwrite", (tx) => unclaim(tx, head, epoch, environment.now()));
      return freed === STALE ? this.host.lose() : undefined;
    }
    const expired = findExpired(this.#facts(head));
    if (expired) return this.#settle(head, null, epoch, expired);
    if (head.heldFor === "rebuild") return this.#rebuild(head);
    const credential = await this.#credentialOf(head, signal);
    if (typeof credential === "string") {
      if (head.status === "held" && head.reason === credential) return;
      return this.#settle(head, null, epoch, { to: "held", change: { heldFor: "auth", reason: credential } });
    }
    const token = uuid();
    const claimed = await store.run("readwrite", async (tx) => {
      const row = await claim(tx, head.n, token, epoch, environment.now());
      return row === STALE ? row : row && { row, request: (await tx.get<Frozen>("requests", head.n))! };
    });
    if (claimed === STALE) return this.host.lose();
    if (!claimed) return;
    if (head.status === "held") this.host.tell("released", claimed.row);
    await this.#settle(claimed.row, token, epoch, await this.#attempt(claimed.row, claimed.request, credential, signal));
  }

  async #attempt(row: Row, request: Frozen, credential: Credential, signal: AbortSignal): Promise<Verdict> {
    const { environment } = this.host;
    try {
      return await this.#send(row, request, credential, signal);
    } catch (error) {
      // A mistake of the application's code, such as `isFromService`. What was sent may have arrived all the same.
      environment.report(error);
      return judgeSilence(this.#facts(row), "what came could not be judged", environment.random());
    }
  }

  async #send(row: Row, request: Frozen, given: Credential, signal: AbortSignal): Promise<Verdict> {
    const { environment, profile, timeout } = this.host;
    // Cookies are the browser's: somebody else's may have come while the claim was written.
    const credential = given.cookies ? await this.#credentialOf(row, signal) : given;
    if (typeof credential === "string") return { to: "held", change: { heldFor: "auth", reason: credential } };
    const sent = await transmit({ row, request, credential, profile, timeout, signal, ahead: this.#aheadAt(row, row.firstAt) ?? this.host.clock.ahead ?? 0 }, environment);
    const u = environment.random();
    if (sent.type === "silence") return judgeSilence(this.#facts(row), sent.why, u);
    if (sent.type === "redirect") {
      const reason = `The server led elsewhere instead of answering; perhaps ${row.principal} has to sign in.`;
      return { to: "held", change: { heldFor: "auth", reason, ambiguous: true } };
    }
    await this.#learn(row, sent.answer);
    const verdict = judgeAnswer(this.#facts(row), sent.answer, this.host.isFromService, u);
    const place = `${row.principal} ${new URL(row.url).origin}`;
    if (verdict.to === "held" && verdict.change.heldFor === "auth") this.#refused.set(place, JSON.stringify(credential.headers));
    else this.#refused.delete(place);
    return verdict;
  }

  /** The credential for a message, or why there is none. */
  async #credentialOf(row: Row, signal: AbortSignal): Promise<Credential | string> {
    const { credentials, environment, timeout } = this.host;
    const { principal, url } = row;
    this.#asked.set(row.n, environment.now());
    if (credentials === "none") return { principal };
    const { origin } = new URL(url);
    let given: Credential | null | undefined;
    try {
      given = await Promise.race([
        credentials({ principal, origin, url, signal }),
        new Promise<never>((_, reject) => environment.setTimeout(() => reject(new Error("it does not answer")), timeout)),
      ]);
    } catch (error) {
      return `The sign-in of ${principal} failed: ${(error as Error)?.message ?? error}.`;
    }
    if (!given) return `It waits for ${principal} to sign in.`;
    if (given.principal !== principal) return `It waits for ${principal} to sign in: ${given.principal} is signed in now.`;
    const isRefused = given.headers && this.#refused.get(`${principal} ${origin}`) === JSON.stringify(given.headers);
    return isRefused ? `${principal} has to sign in again: ${origin} refused the credential.` : given;
  }

  /** Writes what became of an attempt, as often as it takes: what was sent cannot be taken back. */
  async #settle(row: Row, token: string | null, epoch: number, verdict: Verdict): Promise<void> {
    const { store, environment, doesBlock } = this.host;
    while (this.#epoch === epoch) {
      try {
        const now = environment.now();
        const settled = await store.run("readwrite", (tx) => settle(tx, row, token, epoch, verdict, now, doesBlock));
        if (settled === STALE) this.host.lose();
        else if (settled) await this.#report(settled, verdict);
        return;
      } catch (error) {
        // The answer is worth less than the fact that there was one.
        if (isStorageFull(error)) delete verdict.change.answer;
        await new Promise<void>((resolve) => environment.setTimeout(resolve, AFTER_FAILURE_MS));
      }
    }
  }

  async #report(row: Row, { to }: Verdict): Promise<void> {
    if (to !== "held") this.#asked.delete(row.n);
    if (to === "expired") return void this.#expired.push(row);
    if (row.heldFor === "rebuild") {
      this.host.tell("rebuild", row);
      return this.host.rebuild && this.#rebuild(row);
    }
    this.host.tell(to, row);
  }

  /** Lets the application build the lane again. What fails, or dies with its tab, is asked for again. */
  async #rebuild(row: Row): Promise<void> {
    this.#asked.set(row.n, this.host.environment.now());
    await this.host.loadRequeueing().then(({ rebuild }) => rebuild(this.host, row)).catch(() => {});
  }

  /** Keeps what an answer teaches about the server's clock and its retention. */
  async #learn(row: Row, answer: Answer): Promise<void> {
    const now = this.host.environment.now();
    const seconds = Number(answer.headers["semel-retention"]);
    const { origin } = new URL(row.url);
    const retention = seconds > 0 ? seconds * 1000 : undefined;
    const ahead = clockAhead(answer, now);
    const { clocks, retentions } = this.#learned;
    const isClockNews = ahead !== null && (this.host.clock.ahead === null || Math.abs(ahead - this.host.clock.ahead) >= 2000);
    if (!isClockNews && (retention === undefined || retentions[origin] === retention)) return;
    if (retention !== undefined) retentions[origin] = retention;
    if (isClockNews) {
      // It held since this sender began; after a change meanwhile, since then.
      const from = this.host.clock.ahead === null ? this.#startedAt : now;
      clocks.push({ from: Math.min(from, row.acceptedAt >= this.#startedAt ? row.acceptedAt : from), to: now, ahead });
      this.host.clock.ahead = ahead;
    }
    clocks.splice(0, clocks.length - CLOCKS_KEPT_MAX);
    // Without it the next session learns again.
    await this.host.store.run("readwrite", (tx) => tx.put("meta", this.#learned, "learned")).catch(() => {});
  }

  #facts(row: Row): Facts {
    const { profile, maxAge, environment, isAgeUnsafe, clock } = this.host;
    const retention = this.#learned.retentions[new URL(row.url).origin];
    return {
      row, profile, maxAge, now: environment.now(),
      aheadThen: this.#aheadAt(row, row.acceptedAt),
      aheadFirst: this.#aheadAt(row, row.firstAt),
      aheadNow: clock.ahead,
      retention: isAgeUnsafe ? null : (retention ?? null),
    };
  }

  /** How far servers' clocks were ahead at a time on the local clock, as far as known. */
  #aheadAt(row: Row, at = row.acceptedAt): number | null {
    const known = this.#learned.clocks.find(({ from, to }) => from <= at && at <= to);
    return known?.ahead ?? row.ahead;
  }
}
