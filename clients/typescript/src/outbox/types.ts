// The words of the outbox: messages, receipts, events, settings. Types and the error class only.
import type { Profile } from "../contract/profile.js";
import type { Answer } from "../contract/refusal.js";
import type { profiles } from "../contract/profiles.js";
import type { Environment } from "./environment.js";

export type Status = "pending" | "inflight" | "held" | "done" | "dead" | "aborted";

/** What is sent, frozen when it was accepted. Credentials are no part of it. */
export interface Frozen {
  method: string;
  url: string;
  headers: [string, string][];
  body: ArrayBuffer | null;
}

/** A message as it is kept. */
export interface Row {
  /** Its number; within a lane, order is by number. */
  n: number;
  /** The id that callers know it by, which is also its key; then those of double taps that stand for the same action. */
  ids: string[];
  txId: string;
  /** What the id was used for. */
  print: string;
  lane: string;
  /** The lane, while the message stands in it; the index of lanes is made of this. */
  q?: string;
  principal: string;
  logicalKey?: string;
  /** The logical key, while the message is live. Other principals may have the same. */
  lk?: string;
  operation?: string;
  method: string;
  url: string;
  generatedAt: number;
  acceptedAt: number;
  /** Tells which of two stores' messages came first: the time of accepting, made greater for each. Older releases left it out. */
  order?: number;
  /** How far servers' clocks were ahead when it was accepted, as far as known. */
  ahead: number | null;
  status: Status;
  heldFor?: "auth" | "rebuild";
  attempts: number;
  failures: number;
  inBurst: number;
  burstAt?: number;
  same?: string;
  sameCount: number;
  nextAt: number;
  firstAt?: number;
  lastAt?: number;
  /** Whether the last attempt had no answer. */
  noAnswer?: boolean;
  /** Names the attempt that runs, or the last one. */
  token?: string;
  reason?: string;
  /** Some attempt may have taken effect although nobody knows. */
  ambiguous: boolean;
  /** The message whose place it took may have taken effect: no answer to this one speaks for that. */
  inherited?: boolean;
  /** The server showed that it knows keys again. */
  deduplicated: boolean;
  answer?: Answer;
  endedAt?: number;
  supersedes?: string;
  /** The first of all those that gave way to one another before it: receivers are told this one, whichever of them arrived. */
  first?: string;
  supersededBy?: string;
}

/** What is known of a message. Times are in milliseconds since 1970. */
export interface Receipt {
  id: string;
  /** The message that this id stands for, where a double tap found one waiting. */
  aliasOf?: string;
  clientTxId: string;
  lane: string;
  principal: string;
  operation?: string;
  logicalKey?: string;
  method: string;
  url: string;
  status: Status;
  attempts: number;
  generatedAt: number;
  acceptedAt: number;
  firstAttemptAt?: number;
  nextAttemptAt?: number;
  endedAt?: number;
  /** Why it waits, or how it ended, in words for a person. */
  reason?: string;
  /** Whether it survives a reload. */
  durable: boolean;
  /** `once` where the server showed that it knows keys again. */
  guarantee: "once" | "at-least-once";
  /** It may have taken effect without an answer. */
  possiblyDelivered: boolean;
  /** It was delivered, and may have taken effect more than once. */
  possiblyRepeated: boolean;
  response?: Answer;
  supersedes?: string;
  supersededBy?: string;
}

export interface Sent {
  id: string;
  /** Fulfilled when the message is durable here; rejected when it was refused and nothing was stored, but for `storage-failed`. */
  accepted: Promise<Receipt>;
  /** Fulfilled when the message is final, also if it was given up: look at `status`. */
  done: Promise<Receipt>;
}

export type EventType =
  | "queued" | "retry" | "held" | "released" | "rebuild" | "done" | "dead" | "dropped" | "expired" | "aborted"
  | "storage-lost" | "not-durable" | "no-credentials";

export interface OutboxEvent {
  type: EventType;
  at: number;
  id?: string;
  /** All messages that one drain found too old, for `expired`. */
  ids?: string[];
  lane?: string;
  principal?: string;
  operation?: string;
  clientTxId?: string;
  /** In words for a person. */
  reason?: string;
}

export interface LaneState {
  lane: string;
  waiting: number;
  state: "ready" | "sending" | "waiting" | "held" | "blocked" | "paused";
  /** The message that the others wait for. */
  head: string;
  reason?: string;
  nextAttemptAt?: number;
}

export interface Snapshot {
  waiting: number;
  sending: number;
  held: number;
  dead: number;
  /** Whether everything that waits survives a reload. */
  durable: boolean;
  /** Whether this tab sends. */
  isSender: boolean;
  /** The first lanes; `waiting` counts all. */
  lanes: LaneState[];
}

/** Which messages `list` shows. */
export interface ListFilter {
  status?: Status;
  lane?: string;
  /** Messages after this one. */
  after?: string;
  limit?: number;
}

/** For whom a credential speaks, and what it adds to a request. */
export interface Credential {
  principal: string;
  headers?: Record<string, string>;
  /** Whether the browser's cookies are sent. */
  cookies?: boolean;
}

export interface CredentialRequest {
  principal: string;
  origin: string;
  url: string;
  signal: AbortSignal;
}

/** Gives the credential of whoever is signed in; `null` when that is nobody. `"none"`: messages need no credential. */
export type Credentials =
  | "none"
  | ((request: CredentialRequest) => Credential | null | undefined | Promise<Credential | null | undefined>);

export interface SendOptions {
  /** The id and key; without one, a fresh one is made. */
  id?: string;
  /** The queue; without one, the principal's. */
  lane?: string;
  /** On whose behalf. Default: `default`. */
  principal?: string;
  /** The action: while one waits, a second one is the same. */
  logicalKey?: string;
  /** When the action happened. Default: now. */
  generatedAt?: Date | number;
  /** What the application calls it. */
  operation?: string;
}

/** What an application makes of a lane that the server wants rebuilt. */
export interface Rebuilt {
  /** Ids of waiting messages that are no longer wanted. */
  drop?: string[];
  /** What takes the place of the message that was refused; nothing: it is dropped. */
  with?: { request: RequestInfo | URL; init?: RequestInit; options?: SendOptions };
}

export interface OutboxOptions {
  /** Names the queue; every tab that opens this name shares it. */
  name: string;
  profile?: keyof typeof profiles | Profile;
  credentials: Credentials;
  /** The age in milliseconds at which a message is given up; at most 6 days. */
  maxAge?: number;
  /** Takes the risk of an age beyond 6 days, after which Safari deletes what pages store, or beyond the server's retention. */
  unsafeMaxAge?: boolean;
  /** What happens to a lane when a message of it is given up. Default: `skip`. */
  onDead?: "skip" | "block";
  /** Lanes that are sent from at once. Default: 4. */
  parallel?: number;
  /** How long one attempt may take, in milliseconds. Default: 30,000. */
  timeout?: number;
  /** How long receipts are kept, in milliseconds. Default: 7 days. */
  keep?: number;
  /** Messages that may wait. Default: 10,000. */
  maxMessages?: number;
  /** Whether to ask the browser to keep the storage. Default: true. */
  persist?: boolean;
  /** Whether this instance may send: always, or only while it drains (service workers). */
  sends?: "always" | "on-drain";
  /** Whether an answer is the service's own, and not that of something in between. */
  isFromService?: (answer: Answer) => boolean;
  /**
   * Builds a lane again that the server refused as out of order. While it fails or gives nothing, the lane waits and it is asked
   * again after a minute or a `kick`. Two tabs may ask at once: what is built first counts.
   */
  rebuild?: (refused: Receipt, behind: Receipt[]) => Rebuilt | undefined | Promise<Rebuilt | undefined>;
  environment?: Partial<Environment>;
}

export type ErrorCode =
  | "malformed" | "too-large" | "credential-in-request" | "id-reused" | "id-spent" | "full" | "not-found" | "state"
  | "possibly-delivered" | "disposed" | "storage-lost" | "storage-failed";

/**
 * Something was refused, and nothing was changed; or a promise cannot be kept, and `message` says why. After `storage-failed` the
 * message may be kept all the same: send it again with the same `id`.
 */
export class OutboxError extends Error {
  override name = "OutboxError";
  constructor(
    readonly code: ErrorCode,
    message: string,
    /** The id of a message that may have been accepted. */
    readonly id?: string,
  ) {
    super(message);
  }
}
