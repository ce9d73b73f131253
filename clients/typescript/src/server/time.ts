// Times on the wire, and the guard against old actions. Reads no clock.

import { get, parseJson } from "./json.js";
import { Problem } from "./problem.js";

const DAY = 86_400_000;
const HOUR = 3_600_000;
const FORM =
  /^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))$/;

/** An RFC 3339 date-time as milliseconds since 1970; undefined where it is none. */
export function parseTimestamp(text: string): number | undefined {
  const match = FORM.exec(text);
  if (match === null) return undefined;
  const part = (group: number): number => Number(match[group] ?? 0);
  const [year, month, date, hour, minute, second] = [1, 2, 3, 4, 5, 6].map(part) as [
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  if (hour > 23 || minute > 59 || second > 60 || part(9) > 23 || part(10) > 59) return undefined;
  const midnight = new Date(0);
  midnight.setUTCFullYear(year, month - 1, date);
  // A date that does not exist is moved to one that does.
  if (year === 0 || midnight.getUTCMonth() !== month - 1 || midnight.getUTCDate() !== date) return undefined;
  const offset = (part(9) * 60 + part(10)) * (match[8] === "-" ? -1 : 1);
  const millis = Number(`${match[7] ?? ""}000`.slice(0, 3));
  const at = midnight.getTime() + ((hour * 60 + minute - offset) * 60 + second) * 1000 + millis;
  return at >= -62_135_596_800_000 && at <= 253_402_300_799_999 ? at : undefined;
}

/** Refuses actions that are too old, by the time that the client wrote into the body. */
export interface Guard {
  /** Where that time stands. */
  generatedAt: string;
  capMs: number;
  graceMs: number;
}

/** Compares an action's time with now; both bounds themselves are fresh. */
export function judgeAge(guard: Guard, generatedAt: number, now: number): "fresh" | "stale" | "future" {
  const age = now - generatedAt;
  if (age > guard.capMs + guard.graceMs) return "stale";
  return age < -guard.graceMs ? "future" : "fresh";
}

/** Finds the action's time in a body. */
export function readGeneratedAt(guard: Guard, body: Uint8Array): number {
  const document = parseJson(body);
  const value = document === undefined ? undefined : get(document.root, guard.generatedAt);
  const at = typeof value === "string" ? parseTimestamp(value) : undefined;
  if (at === undefined) throw new Problem("timestamp-invalid", `${guard.generatedAt} must be an RFC 3339 date-time`);
  return at;
}

/** The guard's refusal of an action; undefined where it is fresh. */
export function refuseStale(guard: Guard, generatedAt: number, now: number): Problem | undefined {
  const verdict = judgeAge(guard, generatedAt, now);
  if (verdict === "fresh") return undefined;
  const fields = {
    clientGeneratedAt: new Date(generatedAt).toISOString(),
    serverNow: new Date(now).toISOString(),
    graceHours: Math.floor(guard.graceMs / HOUR),
    ...(verdict === "stale" && {
      ageDays: Math.floor((now - generatedAt) / DAY),
      capDays: Math.floor(guard.capMs / DAY),
    }),
  };
  return new Problem("stale-action", "", { fields });
}
