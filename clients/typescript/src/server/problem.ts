// Problems: what the library refuses, and how it is written on the wire. Every kind has a page under spec/problems.

import type { Answer, HeaderLines } from "./answer.js";
import type { Profile } from "./profile.js";

export type Retry = "same-key" | "new-key" | "never";

/** The problems that a server library can meet, as spec/contract.md lists them. */
export const PROBLEMS = {
  "identity-missing": [401, "never", "The request has no verified identity"],
  "identity-refused": [403, "never", "The caller may not send this request"],
  "key-missing": [400, "never", "An idempotency key is required"],
  "key-invalid": [400, "never", "The idempotency key is malformed"],
  "key-ambiguous": [400, "never", "More than one idempotency key was given"],
  "key-too-weak": [400, "never", "The idempotency key could be guessed"],
  "header-missing": [400, "never", "A required header is missing or malformed"],
  "body-not-json": [400, "never", "The body must be JSON here"],
  "body-too-large": [413, "never", "The body is too large"],
  "timestamp-invalid": [400, "never", "A timestamp is missing or malformed"],
  "first-sent-in-future": [400, "never", "The first attempt lies in the future"],
  "stale-action": [422, "never", "The action is too old or too far in the future"],
  "too-old": [422, "never", "The request was first sent too long ago"],
  "fingerprint-mismatch": [422, "new-key", "The key was used for a different request"],
  "in-flight": [409, "same-key", "A request with this key is being processed"],
  "too-many-waiters": [409, "same-key", "Too many requests wait for this key"],
  "outcome-unknown": [409, "same-key", "It is not known whether the first request took effect"],
  superseded: [409, "same-key", "Another attempt holds this key now"],
  "key-sealed": [409, "new-key", "The key was cancelled"],
  "credential-changed": [409, "never", "The key was used with another credential"],
  "answer-not-kept": [409, "never", "The answer to this request was not kept"],
  "admission-limited": [429, "same-key", "Too many new keys"],
  overloaded: [503, "same-key", "Too much work is in progress"],
  "store-unavailable": [503, "same-key", "The record store cannot be reached"],
  "settlement-pending": [503, "same-key", "The answer is being recorded"],
  "not-settled": [500, "same-key", "The handler did not record its answer"],
} as const satisfies Record<string, readonly [number, Retry, string]>;

export type Slug = keyof typeof PROBLEMS;

/** One refusal, with the words and fields of this case. */
export class Problem extends Error {
  readonly slug: Slug;
  readonly detail: string;
  /** When to come back, in milliseconds. */
  readonly retryAfterMs: number | undefined;
  /** Fields of this kind, shown as they are. */
  readonly fields: Record<string, unknown>;

  constructor(
    slug: Slug,
    detail = "",
    more: { retryAfterMs?: number; fields?: Record<string, unknown>; cause?: unknown } = {},
  ) {
    const title = PROBLEMS[slug][2];
    super(detail === "" ? title : `${title}: ${detail}`, { cause: more.cause });
    this.name = "Problem";
    this.slug = slug;
    this.detail = detail;
    this.retryAfterMs = more.retryAfterMs;
    this.fields = more.fields ?? {};
  }

  get retry(): Retry {
    return PROBLEMS[this.slug][1];
  }
}

/** Writes a problem in the profile's form. */
export function renderProblem(profile: Profile, problem: Problem, requestId: string): Answer {
  const status = problem.slug === "fingerprint-mismatch" ? profile.mismatchStatus : PROBLEMS[problem.slug][0];
  const [contentType, body] = renderBody(profile, problem, status, requestId);
  const shouldRetry = String(problem.retry === "same-key");
  const headers: HeaderLines = [
    ["content-type", contentType],
    ["link", `</.well-known/semel/problems/${problem.slug}>; rel="describedby"`],
    ["x-should-retry", shouldRetry],
  ];
  if (problem.retryAfterMs !== undefined) headers.push(["retry-after", String(wholeSeconds(problem.retryAfterMs))]);
  if (profile.stripeHeaders) headers.push(["stripe-should-retry", shouldRetry]);
  if ("outcome" in problem.fields) headers.push(["semel-outcome", "unknown"]);
  return { status, headers, body: Buffer.from(body), replayed: false };
}

function renderBody(profile: Profile, problem: Problem, status: number, requestId: string): [string, string] {
  const { code, text: ownText } = profile.wording[problem.slug] ?? {};
  const text = ownText ?? problem.message;
  const json = (value: unknown): [string, string] => ["application/json", JSON.stringify(value)];
  switch (profile.form) {
    case "problem":
      return ["application/problem+json", JSON.stringify(problemDocument(problem, status, requestId))];
    case "envelope":
      return json({
        error: code ?? problem.slug.toUpperCase().replaceAll("-", "_"),
        message: text,
        details: problem.fields,
        requestId,
      });
    case "error":
      return json({ error: text, ...(problem.retryAfterMs !== undefined && { retry_after: problem.retryAfterMs }) });
    case "message":
      return json({ message: text, ...(!text.includes(problem.detail) && { detail: problem.detail }) });
    case "text":
      return ["text/plain; charset=utf-8", text];
    case "mesh":
      return json({ reason: text, ...problem.fields, error: code ?? problem.slug.replaceAll("-", "_") });
  }
}

function problemDocument(problem: Problem, status: number, requestId: string): Record<string, unknown> {
  return {
    type: `urn:semel:problem:${problem.slug}`,
    title: PROBLEMS[problem.slug][2],
    status,
    ...(problem.detail !== "" && { detail: problem.detail }),
    retry: problem.retry,
    request_id: requestId,
    ...(problem.retryAfterMs !== undefined && { retry_after: wholeSeconds(problem.retryAfterMs) }),
    ...(Object.keys(problem.fields).length > 0 && { details: problem.fields }),
  };
}

/** Rounds up: coming back early would only be refused again. */
function wholeSeconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
