// Reads a request: who sent it, under which key, for what. Pure: it asks no database.

import { randomBytes, randomUUID } from "node:crypto";
import type { HeaderLines } from "./answer.js";
import { fingerprintOf, hashedPrincipal, hostOf, idOf, readBody, rotationMark, scopeOf, sha256 } from "./fingerprint.js";
import type { BodyForm } from "./fingerprint.js";
import { headerValue, headerValues } from "./headers.js";
import { checkKey, isRandomUuid, readKey, readRequired, trim } from "./key.js";
import { Problem } from "./problem.js";
import { lifetimeMs } from "./profile.js";
import type { Profile } from "./profile.js";
import { parseTimestamp, readGeneratedAt } from "./time.js";

/** Who sent a request, as the service itself has verified it. */
export interface Caller {
  /** The group that the principal belongs to, where there is one. */
  tenant?: string;
  principal: string;
  /** How the principal is known; `verified` where it is left out. */
  kind?: "verified" | "shared" | "hashed";
}

/**
 * One principal for everybody, in so many words. Its keys must be version 4 UUIDs, since only their random bits keep
 * strangers apart.
 */
export function sharedCaller(name: string): Caller {
  return { principal: `shared:${name}`, kind: "shared" };
}

/** A caller known by the hash of the Authorization header. It cannot know revocation: verify first. */
export function authorizationCaller(header: string): Caller {
  return { principal: hashedPrincipal("authorization", header), kind: "hashed" };
}

/** A caller known by the hash of a cookie's value. It cannot know revocation: verify first. */
export function cookieCaller(name: string, value: string): Caller {
  return { principal: hashedPrincipal(`cookie:${name}`, value), kind: "hashed" };
}

/** The longest name of a principal or tenant, in characters. */
const CALLER_CHARS_MAX = 255;

function checkCaller(caller: Caller): void {
  const kind = caller.kind ?? "verified";
  if (!caller.principal || (kind === "verified" && /^(?:authorization|cookie|shared):/.test(caller.principal))) {
    throw new Problem("identity-missing", "the verified principal is empty or has a reserved prefix");
  }
  for (const name of [caller.principal, caller.tenant ?? ""]) {
    if ([...name].length > CALLER_CHARS_MAX || /\p{Cc}/u.test(name)) {
      const words = `a principal or tenant has at most ${CALLER_CHARS_MAX} characters and no control characters`;
      throw new Problem("identity-missing", words);
    }
  }
}

/** One arrival. */
export interface Request {
  /** The stable name of the operation, such as `create-order`. */
  endpoint: string;
  /** Former names of the endpoint, so that keys used under them stay known. */
  was?: string[];
  caller: Caller;
  /** The key, where it does not come from the headers or the body. */
  key?: string;
  method?: string;
  /** The path parameters in the order of the pattern, percent-encoding untouched. */
  params?: [string, string][];
  /** As received, without its question mark. */
  query?: string;
  /** As received. */
  headers?: HeaderLines;
  body?: Uint8Array | string;
  /** Kept with the record, for people. */
  requestId?: string;
  /** Aborted when the client has gone: one that only waits then never starts the handler. */
  signal?: AbortSignal | undefined;
}

/** Settings of a Once, as far as arrivals depend on them. */
export interface ArrivalSettings {
  profile: Profile;
  secrets: Uint8Array[];
  holdMs: number;
  owned: boolean;
  refuseOld: boolean;
}

/** A request as the store is asked about it. */
export interface Arrival {
  id: Buffer;
  scope: Buffer;
  key: string;
  fingerprints: Buffer[];
  payloadHash: Buffer | undefined;
  about: Record<string, unknown>;
  options: Record<string, unknown>;
  generatedAt: number | undefined;
  requestId: string;
}

/** A request under one name of its endpoint. */
interface Shape {
  scope: Buffer;
  fingerprints: Buffer[];
  rotation: Buffer | undefined;
}

/** Makes an arrival of a request; undefined where it is not keyed. */
export function readArrival(settings: ArrivalSettings, request: Request, requestId: string): Arrival | undefined {
  const { profile } = settings;
  checkCaller(request.caller);
  const body = Buffer.from(request.body ?? "");
  if (body.length > profile.maxBodyBytes) {
    throw new Problem("body-too-large", `at most ${profile.maxBodyBytes} bytes are taken`);
  }
  const headers = request.headers ?? [];
  const key = findKey(profile, request, headers, body);
  if (key === undefined) return undefined;
  if (request.caller.kind === "shared" && !isRandomUuid(key)) {
    throw new Problem("key-too-weak", "a shared identity demands a version 4 UUID as key");
  }
  const form = readBody(profile.recipe, headerValue(headers, "content-type"), body);
  const current = shapeAs(settings, request, request.endpoint, key, form);
  const arrival: Arrival = {
    id: idOf(current.scope, key),
    scope: current.scope,
    key,
    fingerprints: current.fingerprints,
    payloadHash: profile.reveal === "payload-hashes" ? sha256(form.content) : undefined,
    about: { endpoint: request.endpoint, principal: request.caller.principal, request_id: requestId },
    options: optionsOf(settings, current),
    generatedAt: profile.guard === undefined ? undefined : readGeneratedAt(profile.guard, body),
    requestId,
  };
  describe(settings, arrival, request, headers);
  const formers = (request.was ?? []).map((name) => shapeAs(settings, request, name, key, form));
  if (formers.length > 0) arrival.options["formers"] = formers.map(writeFormer);
  return arrival;
}

function findKey(profile: Profile, request: Request, headers: HeaderLines, body: Buffer): string | undefined {
  if (request.key !== undefined) {
    checkKey(profile.key.format, request.key);
    return request.key;
  }
  const found = readKey(profile.key, headers, body);
  return found?.key ?? (profile.key.presence === "mint" ? mintKey(profile) : undefined);
}

function shapeAs(settings: ArrivalSettings, request: Request, endpoint: string, key: string, form: BodyForm): Shape {
  const { profile, secrets } = settings;
  const { caller } = request;
  const tenant = profile.scope.tenant ? caller.tenant : undefined;
  const scope = scopeOf({
    tenant,
    // Every scope belongs to somebody.
    principal: profile.scope.principal || tenant === undefined ? caller.principal : undefined,
    endpoint: profile.scope.endpoint ? endpoint : undefined,
    host: countedHost(request.headers ?? []),
  });
  const described = {
    method: request.method ?? "POST",
    route: endpoint,
    params: request.params ?? [],
    query: request.query ?? "",
    principal: caller.principal,
  };
  const print = (version: number, secret?: Uint8Array): Buffer =>
    Buffer.concat([Buffer.from([version]), fingerprintOf(profile.recipe, described, form, secret)]);
  const fingerprints = [...secrets.map((secret) => print(2, secret)), print(1)];
  // By the oldest secret, so that a new one does not hide what was recorded before it came.
  const oldest = fingerprints[Math.max(secrets.length - 1, 0)]!.subarray(1);
  const rotation = caller.kind === "hashed" ? rotationMark(endpoint, key, oldest) : undefined;
  return { scope, fingerprints, rotation };
}

/** The fence of a gateway's claim. */
function fenceOf(headers: HeaderLines): string | undefined {
  const fence = headerValue(headers, "semel-fence");
  return fence !== undefined && /^[1-9][0-9]{0,18}-[0-9a-f]{16}$/.test(fence) ? fence : undefined;
}

/** The host that a gateway counts in the scopes of its keys. Without its claim nobody chooses where a key is looked up. */
function countedHost(headers: HeaderLines): string | undefined {
  const host = fenceOf(headers) === undefined ? undefined : headerValue(headers, "semel-host");
  return host === undefined ? undefined : hostOf(host);
}

function writeFormer(shape: Shape): Record<string, unknown> {
  return {
    scope: shape.scope.toString("hex"),
    fingerprints: shape.fingerprints.map((print) => print.toString("hex")),
    ...(shape.rotation && { rotation: shape.rotation.toString("hex") }),
  };
}

/** The options of semel.enter and semel.look for this profile. */
function optionsOf(settings: ArrivalSettings, current: Shape): Record<string, unknown> {
  const { profile } = settings;
  const statuses = Array.from({ length: 300 }, (_, at) => 200 + at);
  return {
    lifetime_ms: lifetimeMs(profile),
    anchor: profile.anchor,
    max_response_bytes: profile.maxResponseBytes,
    // The guard's own refusal is recorded, whatever the profile says of a handler's answer with its status.
    releases: profile.guard === undefined ? statuses.filter(profile.releases) : [],
    retry_window_ms: profile.retryWindowMs,
    skew_ms: profile.skewMs,
    hold_ms: settings.holdMs,
    owned: settings.owned,
    ...(current.rotation && { rotation: current.rotation.toString("hex") }),
  };
}

function describe(settings: ArrivalSettings, arrival: Arrival, request: Request, headers: HeaderLines): void {
  const { about, options } = arrival;
  if (request.caller.tenant !== undefined) about["tenant"] = request.caller.tenant;
  if (arrival.payloadHash !== undefined) about["payload_hash"] = arrival.payloadHash.toString("hex");
  if (arrival.generatedAt !== undefined) about["client_generated_at"] = arrival.generatedAt;
  const clientTx = readRequired(settings.profile.key, headers).get("x-client-tx-id");
  if (clientTx !== undefined) about["client_tx_id"] = clientTx;
  const fence = fenceOf(headers);
  if (fence !== undefined) options["fence"] = fence;
  const sent = settings.refuseOld ? headerValues(headers, "idempotency-first-sent") : [];
  if (sent[0] === undefined) return;
  if (sent.length > 1) throw new Problem("timestamp-invalid", "Idempotency-First-Sent is given twice");
  const at = parseTimestamp(trim(sent[0]));
  if (at === undefined) throw new Problem("timestamp-invalid", "Idempotency-First-Sent is not an RFC 3339 date-time");
  options["first_sent"] = at;
}

function mintKey(profile: Profile): string {
  switch (profile.mints) {
    case "uuid4":
      return randomUUID();
    case "uuid4-ms":
      return `${randomUUID()}-${Date.now()}`;
    case "ulid": {
      const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
      const time = Array.from({ length: 10 }, (_, at) => digits[Math.floor(Date.now() / 32 ** (9 - at)) % 32]);
      return [...time, ...Array.from(randomBytes(16), (byte) => digits[byte % 32])].join("");
    }
  }
}

/** Whether two arrivals of one id are the same request. */
export function isSameRequest(one: Arrival, other: Arrival): boolean {
  return one.fingerprints[0]!.equals(other.fingerprints[0]!);
}
