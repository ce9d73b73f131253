// Profiles: the presets of spec/contract.md, as far as a service needs them, and the one table that says what an answer
// does to the handler's transaction.

import type { Recipe } from "./fingerprint.js";
import type { KeyPolicy } from "./key.js";
import type { Guard } from "./time.js";

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export type PresetName = "ietf" | "stripe" | "walker" | "agents" | "scores" | "feed" | "mesh";

/** Everything that differs between services. */
export interface Profile {
  name: string;
  key: KeyPolicy;
  scope: { tenant: boolean; principal: boolean; endpoint: boolean };
  recipe: Recipe;
  mismatchStatus: number;
  reveal: "nothing" | "payload-hashes" | "prefix8";
  inFlight: "wait" | "reject" | "accepted";
  /** How long a request waits for another one with its key. */
  waitMs: number;
  form: "problem" | "envelope" | "error" | "message" | "text" | "mesh";
  /** What is said differently about a kind of problem. */
  wording: Record<string, { code?: string; text?: string }>;
  stripeHeaders: boolean;
  retryWindowMs: number;
  skewMs: number;
  marginMs: number;
  anchor: "settled" | "created";
  /** Whether an answer with this status frees the key. */
  releases: (status: number) => boolean;
  /** The status of a replay that is not verbatim. */
  duplicate: number | undefined;
  claimedName: string;
  mints: "uuid4" | "uuid4-ms" | "ulid";
  guard: Guard | undefined;
  /** How many new keys a principal may use in a window. */
  admission: Limit | undefined;
  maxBodyBytes: number;
  maxResponseBytes: number;
}

export interface Limit {
  count: number;
  windowMs: number;
}

const TRANSIENT = new Set([401, 403, 408, 409, 425, 429, 503]);
const releasesTransient = (status: number): boolean => TRANSIENT.has(status);
const releasesClientErrors = (status: number): boolean => status === 503 || (status >= 400 && status <= 499);

const ietf: Profile = {
  name: "ietf",
  key: {
    sources: ["header:Idempotency-Key"],
    syntax: "both",
    format: "printable255",
    presence: "required",
    requireHeaders: [],
  },
  scope: { tenant: true, principal: true, endpoint: true },
  recipe: { inputs: ["method", "route", "params", "query", "body"], exclude: [], include: [] },
  mismatchStatus: 422,
  reveal: "nothing",
  inFlight: "wait",
  waitMs: 25 * SECOND,
  form: "problem",
  wording: {},
  stripeHeaders: false,
  retryWindowMs: DAY,
  skewMs: 5 * MINUTE,
  marginMs: HOUR,
  anchor: "settled",
  releases: releasesTransient,
  duplicate: undefined,
  claimedName: "in_progress",
  mints: "uuid4",
  guard: undefined,
  admission: undefined,
  maxBodyBytes: 1 << 20,
  maxResponseBytes: 1 << 20,
};

const dayFromCreation = { retryWindowMs: DAY, skewMs: 0, marginMs: 0, anchor: "created" } as const;
const refusesAtOnce = { inFlight: "reject", waitMs: SECOND } as const;

const PRESETS: Record<PresetName, Profile> = {
  ietf,
  stripe: {
    ...ietf,
    ...dayFromCreation,
    ...refusesAtOnce,
    key: { ...ietf.key, presence: "optional" },
    mismatchStatus: 400,
    stripeHeaders: true,
  },
  walker: {
    ...ietf,
    key: { ...ietf.key, syntax: "bare", format: "uuid4-lower" },
    scope: { ...ietf.scope, tenant: false },
    recipe: { ...ietf.recipe, exclude: ["/clientSubmittedAt"] },
    mismatchStatus: 409,
    reveal: "payload-hashes",
    form: "envelope",
    wording: {
      "key-missing": { code: "IDEMPOTENCY_KEY_REQUIRED" },
      "key-invalid": { code: "IDEMPOTENCY_KEY_INVALID" },
      "key-ambiguous": { code: "IDEMPOTENCY_KEY_INVALID" },
      "key-too-weak": { code: "IDEMPOTENCY_KEY_INVALID" },
      "fingerprint-mismatch": { code: "IDEMPOTENCY_CONFLICT" },
      "in-flight": { code: "IDEMPOTENCY_IN_FLIGHT" },
    },
    retryWindowMs: 7 * DAY,
    skewMs: 6 * HOUR,
    marginMs: 12 * HOUR,
    anchor: "created",
    releases: releasesClientErrors,
    guard: { generatedAt: "/clientGeneratedAt", capMs: 7 * DAY, graceMs: 6 * HOUR },
  },
  agents: {
    ...ietf,
    ...dayFromCreation,
    ...refusesAtOnce,
    key: { ...ietf.key, sources: ["header:X-Idempotency-Key"], syntax: "bare", presence: "optional" },
    scope: { ...ietf.scope, endpoint: false },
    form: "text",
    wording: { "in-flight": { text: "Request is being processed" } },
  },
  scores: {
    ...ietf,
    key: { ...ietf.key, sources: ["header:X-Idempotency-Key"], syntax: "bare", format: "any255" },
    scope: { ...ietf.scope, endpoint: false },
    inFlight: "accepted",
    claimedName: "processing",
    form: "message",
    wording: { "key-missing": { text: "Idempotency key required" } },
    retryWindowMs: 23 * HOUR,
    skewMs: 0,
  },
  feed: {
    ...ietf,
    ...refusesAtOnce,
    key: { ...ietf.key, syntax: "bare", format: "token255", requireHeaders: [["X-Client-Tx-Id", "token255"]] },
    scope: { ...ietf.scope, tenant: false },
    claimedName: "processing",
    mints: "uuid4-ms",
    form: "error",
    wording: {
      "key-missing": { text: "Missing Idempotency-Key header" },
      "key-invalid": { text: "Invalid Idempotency-Key format" },
      "key-ambiguous": { text: "Invalid Idempotency-Key format" },
      "fingerprint-mismatch": { text: "Idempotency key reused with different payload" },
      "in-flight": { text: "Request already being processed" },
    },
    skewMs: 0,
    marginMs: 0,
    releases: releasesClientErrors,
    admission: { count: 1000, windowMs: HOUR },
  },
  mesh: {
    ...ietf,
    key: {
      ...ietf.key,
      sources: ["json:/client_message_id", "header:Idempotency-Key"],
      syntax: "bare",
      presence: "mint",
    },
    scope: { tenant: true, principal: false, endpoint: false },
    recipe: { ...ietf.recipe, inputs: [...ietf.recipe.inputs, "principal"] },
    mismatchStatus: 409,
    reveal: "prefix8",
    inFlight: "accepted",
    claimedName: "inflight",
    mints: "ulid",
    form: "mesh",
    wording: { "fingerprint-mismatch": { code: "idempotency_key_reused" } },
    retryWindowMs: 6 * DAY,
    skewMs: 0,
    marginMs: DAY,
    releases: releasesClientErrors,
    duplicate: 200,
  },
};

/** A preset by its name. */
export function preset(name: PresetName): Profile {
  const found = PRESETS[name];
  if (found === undefined) throw new TypeError(`no profile is called ${JSON.stringify(name)}`);
  return { ...found, name };
}

/** The same with another retry window, the one number that users set; how long records live follows from it. */
export function withRetryWindow(profile: Profile, retryWindowMs: number): Profile {
  // Clients that may be away for days deserve a margin of a day.
  const marginMs = retryWindowMs > DAY && profile.marginMs > 0 ? Math.max(profile.marginMs, DAY) : profile.marginMs;
  return { ...profile, retryWindowMs, marginMs };
}

/** How long a record lives. */
export function lifetimeMs(profile: Profile): number {
  return profile.retryWindowMs + 2 * profile.skewMs + profile.marginMs;
}

/**
 * What becomes of the handler's transaction. `commit`: the record is written and committed with the effect.
 * `roll-back`: nothing stays, the key is free, and the answer is handed on. `refuse`: nothing stays, since the handler
 * says that an answer which cannot be recorded took effect.
 */
export type Ending = "commit" | "roll-back" | "refuse";

/** The one table of what an answer does to its transaction. `outcome` is what the handler itself says by Semel-Outcome. */
export function endOf(profile: Profile, status: number, outcome: string | undefined): Ending {
  if (outcome === "not-applied") return "roll-back";
  if (status >= 200 && status <= 499 && !profile.releases(status)) return "commit";
  return outcome === "applied" ? "refuse" : "roll-back";
}
