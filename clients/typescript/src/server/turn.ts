// A leader's turn: enter, the handler, leave, COMMIT; waiting while another process holds the key; and finding out from
// the record what came of a commit whose answer was lost.

import { answerOf, mark, replay } from "./answer.js";
import type { Answer } from "./answer.js";
import type { Arrival } from "./arrival.js";
import { isAway, isRetriable, isServerGone, isUncommitted, sqlState } from "./errors.js";
import { sleep } from "./flight.js";
import { filterHeaders, headerValue, packHeaders, unpackHeaders } from "./headers.js";
import type { Handler } from "./once.js";
import { Problem, renderProblem } from "./problem.js";
import { endOf } from "./profile.js";
import type { Profile } from "./profile.js";
import { admit, enter, leave, look } from "./sql.js";
import type { Database, Query, Row } from "./sql.js";
import { refuseStale } from "./time.js";

const TRIES_MAX = 5;
const POLL_FIRST_MS = 10;
const POLL_LONGEST_MS = 250;

/** What an attempt came to: an answer, or the row of a verdict; with the row that others may be told, and its record. */
interface Outcome {
  answer?: Answer;
  row?: Row;
  fence?: string;
}

/** Ends a transaction with nothing committed. */
class RollBack extends Error {
  constructor(readonly outcome: Outcome) {
    super("semel rolls back this transaction");
  }
}

/** Nothing was committed, and the transaction may be run again. */
class Again extends Error {
  constructor(cause: unknown) {
    super("the transaction is run again", { cause });
  }
}

/** COMMIT was sent, and whether it was carried out is not known. */
class Lost extends Error {
  constructor(cause: unknown) {
    super("the answer to COMMIT was lost", { cause });
  }
}

type Phase = "begin" | "enter" | "handle" | "leave" | "commit";

export class Turn<Tx> {
  /** A COMMIT was sent whose answer was lost, so that only the record may answer. */
  private isResolving = false;
  private phase: Phase = "begin";

  constructor(
    private readonly database: Database<Tx>,
    private readonly profile: Profile,
    private readonly arrival: Arrival,
    private readonly handler: Handler<Tx>,
    private readonly until: number,
    private readonly signal: AbortSignal | undefined,
    private readonly onStep: (step: string) => void,
  ) {}

  async run(): Promise<Outcome> {
    await this.admit();
    let pause = POLL_FIRST_MS;
    for (let tries = 1; ; ) {
      try {
        const outcome = await this.attempt();
        if (outcome.row?.verdict !== "in-flight") return outcome;
        const row = await this.wait();
        if (row.verdict !== "execute") return { row };
      } catch (error) {
        if (error instanceof Lost) {
          this.isResolving = true;
        } else if (error instanceof Again) {
          if (++tries > TRIES_MAX) throw error.cause;
          await sleep(Math.random() * 20 * tries);
        } else if (this.isResolving) {
          // The record cannot be read yet, so nothing can be said yet.
          if (Date.now() + pause > this.until) throw settlementPending(error);
          await sleep(pause);
          pause = Math.min(pause * 2, POLL_LONGEST_MS);
        } else {
          throw error;
        }
      }
    }
  }

  /** One transaction. */
  private async attempt(): Promise<Outcome> {
    this.phase = "begin";
    let rolledBack: Outcome | undefined;
    let outcome: Outcome;
    try {
      outcome = await this.database.transaction(async (tx, query) => {
        try {
          return await this.transact(tx, query);
        } catch (error) {
          if (error instanceof RollBack) rolledBack = error.outcome;
          throw error;
        }
      });
    } catch (error) {
      // What was to be rolled back is rolled back, also where the connection broke over it.
      if (rolledBack !== undefined) return rolledBack;
      throw this.judge(error);
    }
    if (this.database.confirmsCommit !== true) outcome = await this.confirm(outcome);
    this.onStep("committed");
    return outcome;
  }

  private async transact(tx: Tx, query: Query): Promise<Outcome> {
    this.onStep("begun");
    this.phase = "enter";
    const row = await enter(query, this.arrival);
    this.onStep("entered");
    if (row.verdict !== "execute") throw new RollBack({ row });
    // The lost transaction would need the lock that this one holds: it has ended without a commit.
    this.isResolving = false;
    this.phase = "handle";
    const stale = this.refuseStale(row.now);
    if (stale !== undefined) return this.record(query, stale);
    const answer = answerOf(await this.handler(tx));
    this.onStep("handled");
    switch (endOf(this.profile, answer.status, headerValue(answer.headers, "semel-outcome"))) {
      case "commit":
        return this.record(query, answer);
      case "roll-back":
        throw new RollBack({ answer: mark(this.profile, answer, "atomic") });
      case "refuse": {
        const words = `the handler says that its answer ${answer.status} took effect, which cannot be recorded`;
        throw new Problem("not-settled", words);
      }
    }
  }

  /** Writes the record. What is returned may be told only after COMMIT. */
  private async record(query: Query, answer: Answer): Promise<Outcome> {
    const headers = packHeaders(filterHeaders(answer.headers));
    const marked = mark(this.profile, answer, "atomic");
    this.phase = "leave";
    let left: { isKept: boolean; fence: string };
    try {
      left = await leave(query, this.arrival.id, answer.status, headers, answer.body);
    } catch (error) {
      if (sqlState(error) === "SM005") throw new RollBack({ answer: marked });
      throw error;
    }
    this.onStep("left");
    this.phase = "commit";
    const { isKept, fence } = left;
    if (!isKept) return { answer: marked, fence };
    const row: Row = {
      verdict: "replay",
      status: answer.status,
      headers,
      body: answer.body,
      outcomeUnknown: false,
      guarantee: "atomic",
      fence,
      fingerprint: this.arrival.fingerprints[0]!,
      now: 0,
      payloadHash: Buffer.alloc(0),
    };
    return { answer: marked, row, fence };
  }

  /**
   * Says what an error means, by the phase in which it was met. Before COMMIT nothing was committed; of COMMIT itself only
   * some errors prove that.
   */
  private judge(error: unknown): unknown {
    if (error instanceof Problem) return error;
    if (isRetriable(error)) return new Again(error);
    const breaksConstraint = /^23/.test(sqlState(error) ?? "");
    switch (this.phase) {
      case "begin":
      case "enter":
        return isAway(error) ? storeAway(error) : error;
      case "handle":
        return isServerGone(error) ? storeAway(error) : error;
      case "leave":
        return isAway(error) ? storeAway(error) : notSettled(error);
      case "commit":
        if (!isUncommitted(error)) return new Lost(error);
        return breaksConstraint ? error : notSettled(error);
    }
  }

  /**
   * Asks the record whether COMMIT was carried out, for a driver that cannot tell it from a rollback. After a rollback
   * another process may have run the key, and what it committed is the answer.
   */
  private async confirm(outcome: Outcome): Promise<Outcome> {
    let row: Row;
    try {
      row = await look(this.database.query, this.arrival);
    } catch (error) {
      throw new Lost(error);
    }
    if (row.verdict !== "replay" && row.verdict !== "not-kept") {
      throw new Again(new Error("the transaction was rolled back at COMMIT: a statement in it failed"));
    }
    return isRecordOf(outcome, row) ? outcome : { row };
  }

  /** Polls until the key is no longer in flight. No connection is held between two looks. */
  private async wait(): Promise<Row> {
    const refuse = (): Problem =>
      this.isResolving ? settlementPending() : new Problem("in-flight", "", { retryAfterMs: 1000 });
    if (this.profile.inFlight !== "wait" && !this.isResolving) throw refuse();
    for (let pause = POLL_FIRST_MS; ; pause = Math.min(pause * 2, POLL_LONGEST_MS)) {
      if (Date.now() + pause > this.until) throw refuse();
      await sleep(pause, this.signal);
      if (this.signal?.aborted) throw refuse();
      try {
        const row = await look(this.database.query, this.arrival);
        if (row.verdict !== "in-flight") return row;
      } catch (error) {
        if (!isAway(error)) throw error;
      }
    }
  }

  /** Asks the limits about a new key, apart from the transaction, which would hold the budget until it ends. */
  private async admit(): Promise<void> {
    const limit = this.profile.admission;
    if (limit === undefined) return;
    let waitMs: number | undefined;
    try {
      if ((await look(this.database.query, this.arrival)).verdict !== "execute") return;
      const limits = { admission: { count: limit.count, window_ms: limit.windowMs } };
      waitMs = await admit(this.database.query, this.arrival, limits);
    } catch (error) {
      throw isAway(error) ? storeAway(error) : error;
    }
    if (waitMs === undefined) return;
    const words = `at most ${limit.count} new keys are taken`;
    throw new Problem("admission-limited", words, { retryAfterMs: Math.max(waitMs, 1000) });
  }

  /** The guard's refusal, which is recorded like an answer, so that a retry is told the same. */
  private refuseStale(now: number): Answer | undefined {
    if (this.profile.guard === undefined || this.arrival.generatedAt === undefined) return undefined;
    const problem = refuseStale(this.profile.guard, this.arrival.generatedAt, now);
    return problem && renderProblem(this.profile, problem, this.arrival.requestId);
  }
}

/** Whether a record is the one that this attempt wrote. Attempts behind one gateway's claim share its fence. */
function isRecordOf({ fence, row: own }: Outcome, row: Row): boolean {
  if (fence !== row.fence || (own === undefined) !== (row.verdict === "not-kept")) return false;
  return own === undefined || (own.status === row.status && own.body.equals(row.body));
}

function storeAway(cause: unknown): Problem {
  return new Problem("store-unavailable", "", { retryAfterMs: 1000, cause });
}

function notSettled(cause: unknown): Problem {
  // A savepoint that is still open is inside of the transaction.
  const isOutside = sqlState(cause) === "SM003" && !/savepoint/.test(String(cause));
  const words = isOutside
    ? "the handler ended its transaction by itself; what it wrote since may stand without a record"
    : "the answer could not be recorded with its effect; the transaction was rolled back";
  return new Problem("not-settled", words, { cause });
}

function settlementPending(cause?: unknown): Problem {
  const words = "whether the transaction was committed is not known yet";
  return new Problem("settlement-pending", words, { retryAfterMs: 2000, cause });
}

/** What a verdict other than execute and in-flight leads to: the record's answer, or a refusal that is thrown. */
export function answerRow(profile: Profile, arrival: Arrival, row: Row): Answer {
  switch (row.verdict) {
    case "replay":
      return replay(profile, row);
    case "not-kept":
      throw refuseNotKept(row);
    case "mismatch":
      throw refuseMismatch(profile, arrival, row);
    case "unknown": {
      const words = "ask again later with the same key; a new key could do it twice";
      throw new Problem("outcome-unknown", words, { retryAfterMs: 30_000 });
    }
    case "sealed":
      throw new Problem("key-sealed");
    case "credential-changed":
      throw new Problem(
        "credential-changed",
        "this key was used for the same request with another credential; it is not run again",
      );
    case "too-old":
      throw new Problem("too-old");
    case "first-sent-in-future":
      throw new Problem("first-sent-in-future", "the first attempt is said to lie in the future");
    case "stale":
      throw new Problem("superseded", "", { retryAfterMs: 1000 });
    default:
      throw new Error(`the store gave a verdict that this library does not know: ${JSON.stringify(row.verdict)}`);
  }
}

function refuseNotKept(row: Row): Problem {
  let words = "it took effect; do not send it again under another key";
  if (row.outcomeUnknown || row.status >= 500) words = "it ended in a server error; whether it took effect is not known";
  else if (row.status >= 400) words = "it was refused by the service, with an answer too large to keep";
  const location = headerValue(unpackHeaders(row.headers), "location");
  return new Problem("answer-not-kept", words, {
    fields: {
      ...(row.outcomeUnknown && { outcome: "unknown" }),
      // Zero: somebody found out that it took effect, but not with which answer.
      ...(row.status !== 0 && { originalStatus: row.status }),
      ...(location !== undefined && { location }),
    },
  });
}

function refuseMismatch(profile: Profile, arrival: Arrival, row: Row): Problem {
  const words = "the key was first used for a request with another method, path, query or body";
  let fields: Record<string, unknown> = {};
  if (profile.reveal === "prefix8") fields = { request_fingerprint: row.fingerprint.subarray(1, 9).toString("hex") };
  if (profile.reveal === "payload-hashes") {
    const expectedHash = row.payloadHash.length > 0 ? row.payloadHash.toString("hex") : null;
    fields = { expectedHash, receivedHash: arrival.payloadHash?.toString("hex") };
  }
  return new Problem("fingerprint-mismatch", words, { fields });
}
