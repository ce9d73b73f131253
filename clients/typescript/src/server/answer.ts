// Answers: what a handler says, what is given again from the record, and the headers that mark both.

import { unpackHeaders } from "./headers.js";
import { parseJson } from "./json.js";
import type { Profile } from "./profile.js";
import type { Row } from "./sql.js";

/** Header lines in their order; a name may occur more than once. */
export type HeaderLines = [name: string, value: string][];

/** What every retry is told again, with whether this is the first time. */
export interface Answer {
  status: number;
  headers: HeaderLines;
  body: Buffer;
  /** It was given again from the record, not made by this call. */
  replayed: boolean;
}

/** What a handler returns: a status, headers, and a body or a value that is sent as JSON. */
export interface Reply {
  status?: number;
  headers?: HeaderLines | Record<string, string | string[]>;
  body?: Uint8Array | string;
  json?: unknown;
}

/** A handler's reply as an answer. */
export function answerOf(reply: Reply): Answer {
  const headers: HeaderLines = Array.isArray(reply.headers)
    ? [...reply.headers]
    : Object.entries(reply.headers ?? {}).flatMap(([name, value]) =>
        (Array.isArray(value) ? value : [value]).map((one): [string, string] => [name, one]),
      );
  let body = reply.body ?? "";
  if (reply.json !== undefined) {
    if (reply.body !== undefined) throw new TypeError("a reply has a body or json, not both");
    body = JSON.stringify(reply.json);
    if (!headers.some(([name]) => name.toLowerCase() === "content-type")) {
      headers.unshift(["content-type", "application/json"]);
    }
  }
  const status = reply.status ?? 200;
  if (!Number.isInteger(status) || status < 200 || status > 599) throw new RangeError(`no answer has the status ${status}`);
  return { status, headers, body: typeof body === "string" ? Buffer.from(body) : Buffer.from(body), replayed: false };
}

/** Adds what is promised about a keyed answer. */
export function mark(profile: Profile, answer: Answer, guarantee: string): Answer {
  const marks: HeaderLines = [["semel-guarantee", guarantee]];
  if (guarantee !== "none") marks.push(["semel-retention", String(Math.floor(profile.retryWindowMs / 1000))]);
  return { ...answer, headers: [...answer.headers, ...marks] };
}

/** The answer of a settled record, marked as given again. */
export function replay(profile: Profile, row: Row): Answer {
  const headers = unpackHeaders(row.headers);
  let { status, body } = row;
  if (row.outcomeUnknown) {
    headers.push(["semel-outcome", "unknown"]);
  } else if (profile.duplicate !== undefined && status < 400) {
    status = profile.duplicate;
    body = sayAgain(body);
  }
  headers.push(["idempotency-replayed", "true"]);
  if (profile.stripeHeaders) headers.push(["idempotent-replayed", "true"]);
  return mark(profile, { status, headers, body, replayed: true }, row.guarantee);
}

/** Adds the member that tells a repeated JSON object from the first one; everything else stays as it is spelled. */
function sayAgain(body: Buffer): Buffer {
  const root = parseJson(body)?.root;
  if (!(root instanceof Map) || root.has("duplicate")) return body;
  const text = body.toString("utf8").trim();
  return Buffer.from(`${text.slice(0, -1)}${root.size === 0 ? "" : ","}"duplicate":true}`);
}

/** Tells that the first attempt is still under way. It is no acknowledgement: that attempt may still end without effect. */
export function acceptedAnswer(profile: Profile): Answer {
  const headers: HeaderLines = [
    ["content-type", "application/json"],
    ["semel-outcome", "pending"],
    ["retry-after", "1"],
  ];
  return { status: 202, headers, body: Buffer.from(JSON.stringify({ status: profile.claimedName })), replayed: false };
}
