// One leader for each key and process: it alone talks to the database about that key, runs the handler or polls. The
// others wait for it in memory, holding no connection.

import type { Arrival } from "./arrival.js";
import { Problem } from "./problem.js";
import type { Row } from "./sql.js";

const LEADERS_MAX = 10_000;
const WAITERS_MAX = 100_000;
const WAITERS_PER_KEY_MAX = 10_000;

/** What a leader leaves to those who waited for it; undefined where the key has to be asked about again. */
export type News = { row: Row; of: Arrival } | undefined;

interface Flight {
  done: Promise<News>;
  waiters: number;
}

export class Flights {
  private readonly byId = new Map<string, Flight>();
  private waiters = 0;

  /** Makes the caller the leader of a key, unless there is one. */
  lead(arrival: Arrival): ((news: News) => void) | undefined {
    const id = arrival.id.toString("hex");
    if (this.byId.has(id)) return undefined;
    if (this.byId.size >= LEADERS_MAX) {
      throw new Problem("overloaded", "too many keys are in progress", { retryAfterMs: 1000 });
    }
    let finish: (news: News) => void = () => {};
    const done = new Promise<News>((resolve) => (finish = resolve));
    this.byId.set(id, { done, waiters: 0 });
    return (news) => {
      this.byId.delete(id);
      finish(news);
    };
  }

  /** Waits for the present leader's news, until a time or until the caller has gone. */
  async wait(arrival: Arrival, until: number, signal: AbortSignal | undefined): Promise<News> {
    const flight = this.byId.get(arrival.id.toString("hex"));
    if (flight === undefined) return undefined;
    if (flight.waiters >= WAITERS_PER_KEY_MAX || this.waiters >= WAITERS_MAX) {
      throw new Problem("too-many-waiters", "", { retryAfterMs: 1000 });
    }
    flight.waiters++;
    this.waiters++;
    const sleeping = new AbortController();
    try {
      return await Promise.race([flight.done, sleep(until - Date.now(), signal, sleeping.signal).then(refuseWait)]);
    } finally {
      flight.waiters--;
      this.waiters--;
      sleeping.abort();
    }
  }
}

function refuseWait(): never {
  throw new Problem("in-flight", "", { retryAfterMs: 1000 });
}

/** Resolves after a time, or when one of the signals is aborted. */
export function sleep(ms: number, ...signals: (AbortSignal | undefined)[]): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      for (const signal of signals) signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, Math.max(ms, 0));
    for (const signal of signals) {
      if (signal?.aborted) return end();
      signal?.addEventListener("abort", end);
    }
  });
}
