// Runs a handler once for each key, inside the service's own PostgreSQL transaction: the effect, the record and the
// answer are committed together. Refuses to guess: a commit whose answer was lost is answered from the record.

import { randomBytes } from "node:crypto";
import { acceptedAnswer, answerOf, mark } from "./answer.js";
import type { Answer, Reply } from "./answer.js";
import { isSameRequest, readArrival } from "./arrival.js";
import type { Arrival, ArrivalSettings, Request } from "./arrival.js";
import { Flights } from "./flight.js";
import { Problem, renderProblem } from "./problem.js";
import { endOf, preset, withRetryWindow } from "./profile.js";
import type { Limit, PresetName, Profile } from "./profile.js";
import type { Database } from "./sql.js";
import { answerRow, Turn } from "./turn.js";

export interface OnceOptions {
  /** A preset's name, or a profile made of one. */
  profile?: PresetName | Profile;
  /** How long a client may go on retrying with one key; how long records live follows from it. */
  retryWindowMs?: number;
  /** How long a request waits for another one with its key; 25 s by default. */
  waitMs?: number;
  /** How long a handler may leave its transaction idle before the server ends it; 30 s by default. */
  holdMs?: number;
  /** Make fingerprints keyed, the current secret first, so that small payloads do not leak. */
  secrets?: Uint8Array[];
  /** Refuses requests whose Idempotency-First-Sent lies before the retry window. */
  refuseOld?: boolean;
  /** How many new keys a principal may use in a window. */
  limit?: Limit;
  /**
   * Leaves off the marker by which COMMIT fails unless the record was written. About a fifth cheaper; only for handlers
   * that never send COMMIT themselves.
   */
  owned?: boolean;
  /** Called at the steps of an attempt: `begun`, `entered`, `handled`, `left`, `committed`. */
  onStep?: (step: string) => void;
}

/**
 * Does the work of a request in a transaction that it neither commits nor rolls back. It may run more than once, since
 * serialisation failures and deadlocks are tried again; only what it does in this transaction is covered.
 */
export type Handler<Tx> = (tx: Tx) => Promise<Reply>;

const newRequestId = (): string => `req-${randomBytes(8).toString("hex")}`;

/** Verdicts that hold for everyone who sent the same request; others depend on the one who asked. */
const SHARED_VERDICTS = new Set(["replay", "not-kept", "mismatch", "sealed", "unknown"]);

export class Once<Tx> {
  readonly profile: Profile;
  private readonly settings: ArrivalSettings;
  private readonly flights = new Flights();
  private readonly onStep: (step: string) => void;

  constructor(
    readonly database: Database<Tx>,
    options: OnceOptions = {},
  ) {
    let profile = typeof options.profile === "object" ? options.profile : preset(options.profile ?? "ietf");
    if (options.retryWindowMs !== undefined) profile = withRetryWindow(profile, options.retryWindowMs);
    if (options.waitMs !== undefined && profile.inFlight === "wait") profile = { ...profile, waitMs: options.waitMs };
    if (options.limit !== undefined) profile = { ...profile, admission: options.limit };
    this.profile = profile;
    this.settings = {
      profile,
      secrets: options.secrets ?? [],
      holdMs: options.holdMs ?? 30_000,
      owned: options.owned ?? false,
      refuseOld: options.refuseOld ?? false,
    };
    this.onStep = options.onStep ?? (() => {});
  }

  /**
   * Runs a handler once for the request's key. Resolves with its answer, with that of the first run again, or with a
   * refusal in the profile's form; rejects with the handler's own error, and then nothing is committed. Nothing is
   * resolved before the commit is confirmed.
   */
  async run(request: Request, handler: Handler<Tx>): Promise<Answer> {
    const requestId = request.requestId ?? newRequestId();
    try {
      const arrival = readArrival(this.settings, request, requestId);
      if (arrival === undefined) return await this.runUnkeyed(handler);
      return await this.runKeyed(arrival, request.signal, handler);
    } catch (error) {
      if (error instanceof Problem) return this.refuse(error, requestId);
      throw error;
    }
  }

  /** A refusal as an answer. */
  refuse(problem: Problem, requestId = newRequestId()): Answer {
    if (problem.slug === "in-flight" && this.profile.inFlight === "accepted") {
      return mark(this.profile, acceptedAnswer(this.profile), "atomic");
    }
    return mark(this.profile, renderProblem(this.profile, problem, requestId), "atomic");
  }

  private async runKeyed(arrival: Arrival, signal: AbortSignal | undefined, handler: Handler<Tx>): Promise<Answer> {
    const until = Date.now() + (this.profile.inFlight === "wait" ? this.profile.waitMs : 25_000);
    for (;;) {
      // A caller that has gone while it waited never starts the handler.
      if (signal?.aborted) throw new Problem("in-flight", "the caller has gone", { retryAfterMs: 1000 });
      const finish = this.flights.lead(arrival);
      if (finish !== undefined) return this.lead(arrival, until, signal, handler, finish);
      if (this.profile.inFlight !== "wait") throw new Problem("in-flight", "", { retryAfterMs: 1000 });
      const news = await this.flights.wait(arrival, until, signal);
      if (news !== undefined && isSameRequest(news.of, arrival)) return answerRow(this.profile, arrival, news.row);
    }
  }

  /** Carries out a leader's turn, and wakes those who wait for it whatever happens. */
  private async lead(
    arrival: Arrival,
    until: number,
    signal: AbortSignal | undefined,
    handler: Handler<Tx>,
    finish: ReturnType<Flights["lead"]> & {},
  ): Promise<Answer> {
    const turn = new Turn(this.database, this.profile, arrival, handler, until, signal, this.onStep);
    try {
      const { answer, row } = await turn.run();
      const isShared = row !== undefined && SHARED_VERDICTS.has(row.verdict);
      finish(isShared ? { row, of: arrival } : undefined);
      // The refusal of a verdict is thrown only now, so that those who wait are told too.
      return answer ?? answerRow(this.profile, arrival, row!);
    } catch (error) {
      finish(undefined);
      throw error;
    }
  }

  /** A request that needs no key and has none: a plain transaction. */
  private async runUnkeyed(handler: Handler<Tx>): Promise<Answer> {
    let released: Answer | undefined;
    try {
      return await this.database.transaction(async (tx) => {
        const answer = mark(this.profile, answerOf(await handler(tx)), "none");
        if (endOf(this.profile, answer.status, undefined) === "commit") return answer;
        released = answer;
        throw new Error("rolled back");
      });
    } catch (error) {
      if (released !== undefined) return released;
      throw error;
    }
  }
}
