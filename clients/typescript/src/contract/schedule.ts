// Says when to try again. Pure arithmetic: the caller brings the progress so far and a random number.
import type { Schedule } from "./profile.js";

const RETRY_AFTER_MAX = 86_400_000;

export interface Progress {
  /** Attempts so far, the failed one included. */
  attempts: number;
  inBurst: number;
  /** Milliseconds since the burst began, and since the message was accepted. */
  burstElapsed: number;
  age: number;
}

/** Why another attempt is needed: it failed, the receiver blocks us, or it said how long to wait. */
export type Cause = "failed" | "blocked" | number;

export type Next = { after: number } | { period: number } | { giveUp: "attempts" | "age" };

/** When to try again. `u` lies in [0, 1). */
export function next(schedule: Schedule, progress: Progress, cause: Cause, u: number): Next {
  const found = nextByCause(schedule, progress, cause, u);
  const wait = "after" in found ? found.after : "period" in found ? found.period : 0;
  return progress.age + wait > (schedule.maxAge ?? Infinity) && !("giveUp" in found) ? { giveUp: "age" } : found;
}

function nextByCause(schedule: Schedule, progress: Progress, cause: Cause, u: number): Next {
  // A receiver that says "at once" again and again must not be hammered for it.
  if (typeof cause === "number") return { after: Math.min(Math.max(cause, schedule.base), RETRY_AFTER_MAX) };
  if (cause === "blocked") return { after: schedule.blocked ?? 600_000 };
  if (progress.attempts >= (schedule.maxAttempts ?? Infinity)) return { giveUp: "attempts" };
  const after = delay(schedule, progress.inBurst, u);
  const isOver =
    progress.inBurst >= (schedule.burst ?? Infinity) || progress.burstElapsed + after > (schedule.burstBudget ?? Infinity);
  return isOver ? { period: schedule.period ?? 0 } : { after };
}

/** The delay after the `attempt`-th failure of a burst, counted from 1. */
export function delay({ base, factor, cap, jitter }: Schedule, attempt: number, u: number): number {
  let nominal = Math.min(base, cap);
  // Multiplying step by step gives the same bits in every language; a power does not.
  for (let n = 1; n < attempt && nominal < cap && factor > 1; n++) nominal = Math.min(nominal * factor, cap);
  const spread = jitter === "full" ? nominal * u : Math.min(cap, nominal * (1 - jitter + 2 * jitter * u));
  return Math.floor(spread);
}
