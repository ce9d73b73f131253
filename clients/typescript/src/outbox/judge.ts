// Decides what becomes of a message after an attempt, or instead of one. Pure: times, randomness and what is known arrive as
// arguments. The reasons are words for a person.
import { classify, codeOf, type Class } from "../contract/classify.js";
import type { Profile } from "../contract/profile.js";
import { rules } from "../contract/rules.js";
import { effectsOf, knowsKeysAgain, linkedCode, type Answer } from "../contract/refusal.js";
import { next, type Cause } from "../contract/schedule.js";
import { httpDate, shouldRetry, toldWait } from "../contract/wait.js";
import type { Row } from "./types.js";

const HOUR = 3_600_000;
/** Clocks that differ by less are one clock. */
const SKEW_MAX = 60_000;
/** Header lines that belong to the connection or to somebody's session. */
const NOT_KEPT = /^(connection|keep-alive|trailer|transfer-encoding|upgrade|set-cookie|.*authenticate|authorization)$/;

/** What is known when a message is judged. */
export interface Facts {
  row: Row;
  profile: Profile;
  now: number;
  /** How far servers' clocks were ahead when it was accepted, at its first attempt, and are now, as far as known. */
  aheadThen: number | null;
  aheadFirst: number | null;
  aheadNow: number | null;
  /** The age at which messages are given up, and how long this server knows a key again, as far as it said. */
  maxAge: number;
  retention: number | null;
}

export interface Verdict {
  to: "done" | "retry" | "held" | "dead" | "dropped" | "expired";
  /** What is written into the row. */
  change: Partial<Row>;
}

/** The age at which this message is given up: its own, and less where the server forgets sooner. */
function maxAgeOf({ profile, maxAge, retention }: Facts): number {
  if (retention === null || (maxAge <= retention && profile.hasMargin)) return maxAge;
  return Math.min(maxAge, retention - retention / 24);
}

/** What passed since then, by clocks that may be wrong; 0 where nothing tells: then the server is the judge. */
function elapsed({ now, aheadNow }: Facts, then: number, aheadThen: number | null): number {
  const isKnown = aheadThen === null || aheadNow !== null || Math.abs(aheadThen) <= SKEW_MAX;
  const correction = aheadThen === null || aheadNow === null ? 0 : aheadNow - aheadThen;
  return isKnown ? Math.max(0, now - then + correction) : 0;
}

export function ageOf(facts: Facts): number {
  return elapsed(facts, facts.row.acceptedAt, facts.aheadThen);
}

function sinceFirst(facts: Facts): number {
  return elapsed(facts, facts.row.firstAt ?? facts.now, facts.aheadFirst);
}

/** Whether a message is too old to be sent at all. */
export function findExpired(facts: Facts): Verdict | null {
  const max = maxAgeOf(facts);
  return ageOf(facts) > max || sinceFirst(facts) > max ? expire(facts) : null;
}

function expire(facts: Facts, said?: string): Verdict {
  const hours = Math.round(maxAgeOf(facts) / HOUR);
  const age = hours > 48 ? `${Math.round(hours / 24)} days` : `${hours} hours`;
  const reason = `It waited for ${age} and was given up.` + (said ? ` Last: ${said}` : "");
  return { to: "expired", change: { reason } };
}

/** No answer came: nobody knows whether the request arrived. */
export function judgeSilence(facts: Facts, why: string, u: number): Verdict {
  const verdict = retry(facts, {}, "failed", 0, `There was no answer from the server (${why}).`, u);
  Object.assign(verdict.change, { ambiguous: true, noAnswer: true });
  return verdict;
}

/** What becomes of a message after this answer. `u` lies in [0, 1). */
export function judgeAnswer(facts: Facts, answer: Answer, isFromService: (answer: Answer) => boolean, u: number): Verdict {
  const { row } = facts;
  const code = codeOf(answer.body)?.replace(/^.* .*$/s, "") || linkedCode(answer.headers.link);
  const same = `${answer.status} ${code ?? ""}`.trim();
  const sameCount = (row.same === same ? row.sameCount : 0) + 1;
  let found = classOf(facts.profile, answer, code);
  if (found.then && sameCount > found.max!) found = found.then;
  const isForeign = (found.class === "dead" || found.class === "drop" || found.class === "success") && !isFromService(answer);
  if (isForeign) found = { class: "retry" };
  const said = `HTTP ${same}`;
  const counted = { same, sameCount, noAnswer: false };
  const verdict = follow(facts, found, answer, counted, isForeign ? `${said}, and not from the service` : said, code, u);
  const effects = effectsOf(answer, row.ids[0]!, answer.status === 409 && found.class === "retry-after");
  const isFinal = verdict.to === "done" || verdict.to === "dead" || verdict.to === "dropped";
  verdict.change = {
    ...counted,
    ...verdict.change,
    // No answer speaks for the message whose place it took, under another key: what was delivered may then be there twice.
    deduplicated: !row.inherited && (row.deduplicated || knowsKeysAgain(answer)),
    ambiguous: effects === "taken" || effects === "possible" || (row.ambiguous && !(effects === "all" && isFinal && !row.inherited)),
    answer: { ...answer, headers: Object.fromEntries(Object.entries(answer.headers).filter(([name]) => !NOT_KEPT.test(name))) },
  };
  if (effects === "taken") verdict.change.reason = `It took effect, and its answer was not kept (${said}).`;
  return verdict;
}

function follow(
  facts: Facts, found: Class, answer: Answer, counted: Partial<Row>, said: string, code: string | null, u: number,
): Verdict {
  const { row, profile, now } = facts;
  const header = (name: string) => answer.headers[name];
  const cause: Cause = code === "blocked" ? "blocked" : "failed";
  const told = toldWait(header, answer.body, now + (facts.aheadNow ?? 0));
  switch (found.class) {
    case "success":
      return { to: "done", change: { reason: `Delivered (${said}).` } };
    case "retry":
      return retry(facts, counted, cause, told ?? 0, `The server could not do it (${said}).`, u);
    case "retry-after": {
      // A 409 says that it is being worked on: that is no failure, and it will not take long.
      const wait = told ?? (answer.status === 409 ? profile.schedule.base : null);
      return retry(facts, counted, wait ?? cause, 0, `The server asks to come back later (${said}).`, u);
    }
    case "auth":
      return { to: "held", change: { heldFor: "auth", reason: `${row.principal} has to sign in again (${said}).` } };
    case "rebuild":
      return { to: "held", change: { heldFor: "rebuild", reason: `The server wants earlier steps first (${said}).` } };
    case "drop":
      return { to: found.reason === "stale-action" ? "expired" : "dropped", change: { reason: `Refused: ${found.reason} (${said}).` } };
    case "dead":
      return { to: "dead", change: { reason: `Refused: ${found.reason} (${said}).` } };
  }
}

function classOf(profile: Profile, answer: Answer, code: string | null): Class {
  // Our clock ran ahead when the first attempt was stamped; the answer's date has put that right by now.
  if (code === "first-sent-in-future") return { class: "retry", max: 2, then: { class: "dead", reason: code } };
  const linked = linkedCode(answer.headers.link);
  const table = profile.rules ?? rules[profile.name]!;
  // An earlier attempt still runs, and may end without an effect: whatever the status is, that is no acknowledgement.
  if (answer.headers["semel-outcome"] === "pending") return { class: "retry-after" };
  const found = classify(table, answer.status, [codeOf(answer.body), linked]);
  // Some 409 says "later" and some says "never"; where no code tells them apart, the server's word does.
  const isForbidden = found.class === "retry-after" && answer.status === 409 && !linked;
  return isForbidden && shouldRetry((name) => answer.headers[name]) === false ? classify(table, 999) : found;
}

function retry(facts: Facts, counted: Partial<Row>, cause: Cause, atLeast: number, said: string, u: number): Verdict {
  const { row, profile, now } = facts;
  const isFailure = cause === "failed";
  const failures = row.failures + (isFailure ? 1 : 0);
  const inBurst = row.inBurst + (isFailure ? 1 : 0);
  const burstAt = row.burstAt ?? now;
  const progress = {
    attempts: failures, inBurst, burstElapsed: Math.max(0, now - burstAt), age: Math.max(ageOf(facts), sinceFirst(facts)),
  };
  const found = next({ ...profile.schedule, maxAge: maxAgeOf(facts) }, progress, cause, u);
  if ("giveUp" in found) {
    const given = found.giveUp === "age" ? expire(facts, said) : undefined;
    return given ?? { to: profile.isDropped ? "dropped" : "dead", change: { ...counted, reason: `Given up after ${failures} attempts. ${said}` } };
  }
  const wait = Math.max("after" in found ? found.after : found.period, atLeast);
  const burst = "period" in found ? { inBurst: 0, burstAt: 0 } : { inBurst, burstAt };
  return { to: "retry", change: { ...counted, failures, ...burst, nextAt: now + wait, reason: said } };
}

/** How far a server's clock is ahead, as an answer shows it: its date has whole seconds, so half of one is likeliest. */
export function clockAhead(answer: Answer, now: number): number | null {
  const date = httpDate(answer.headers.date);
  if (date === null) return null;
  const ahead = date + 500 - now;
  return Math.abs(ahead) < 2000 ? 0 : ahead;
}

/** An HTML page in the place of a refusal comes from something in between, unless the answer shows a gate's hand. */
export function isLikelyFromService(answer: Answer): boolean {
  const isPage = /^text\/html/i.test(answer.headers["content-type"] ?? "");
  return (answer.status >= 200 && answer.status < 300) || !isPage || knowsKeysAgain(answer) || linkedCode(answer.headers.link) !== null;
}
