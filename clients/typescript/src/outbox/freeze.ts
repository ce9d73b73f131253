// Freezes what a caller hands in: past here a message is data, well formed, and carries no credential. Nothing that is
// refused here uses up an id.
import { hex, isKey, mint, uuid } from "../contract/mint.js";
import type { Profile } from "../contract/profile.js";
import { OutboxError, type Frozen, type Row, type SendOptions } from "./types.js";

const BODY_BYTES_MAX = 1 << 20;
const HEADERS_BYTES_MAX = 16 << 10;
const URL_CHARS_MAX = 8 << 10;
const CREDENTIALS = /^((proxy-)?authorization|cookie)$/i;
const OWN = /^((x-)?idempotency-(key|first-sent)|semel-supersedes|x-client-tx-id)$/i;

/** A message that may be accepted. */
export interface Draft {
  row: Omit<Row, "n">;
  request: Frozen;
}

/** The id of a message, checked. */
export function chooseId(options: SendOptions, profile: Profile, now: number): string {
  const id = options.id ?? mint(profile.mint, now);
  if (!isKey(profile.format, id)) throw malformed(`the id is not ${profile.format}`);
  return id;
}

/** Freezes a request. `id` was chosen before, so that the caller has it at once. */
export async function freeze(
  request: Request,
  id: string,
  options: SendOptions,
  profile: Profile,
  now: number,
): Promise<Draft> {
  const { principal = "default", logicalKey, operation } = options;
  const lane = options.lane ?? (profile.isFifo ? principal : `message:${id}`);
  for (const name of [lane, principal, logicalKey ?? "-", operation ?? "-"])
    if (!/^\P{Cc}{1,300}$/u.test(name)) throw malformed("a name is too long or not printable");
  const generatedAt = Number(options.generatedAt ?? now);
  const frozen = await freezeRequest(request, profile, generatedAt);
  const row: Omit<Row, "n"> = {
    ids: [id], txId: request.headers.get("x-client-tx-id") ?? uuid(), print: await fingerprint(frozen), lane, q: lane, principal,
    method: frozen.method, url: frozen.url, generatedAt, acceptedAt: now, ahead: null, status: "pending", attempts: 0,
    failures: 0, inBurst: 0, sameCount: 0, nextAt: now, ambiguous: false, deduplicated: false,
    ...(logicalKey && { logicalKey, lk: logicalKey }),
    ...(operation && { operation }),
  };
  return { row, request: frozen };
}

async function freezeRequest(request: Request, profile: Profile, generatedAt: number): Promise<Frozen> {
  const headers = [...request.headers].filter(([name]) => !OWN.test(name));
  const credential = headers.find(([name]) => CREDENTIALS.test(name));
  if (credential) {
    throw new OutboxError("credential-in-request", `${credential[0]} is never stored: give it by the credentials provider`);
  }
  if (!/^https?:/.test(request.url)) throw malformed("that is not an address");
  const bytes = headers.reduce((sum, [name, value]) => sum + name.length + value.length, 0);
  const body = stamp(await request.arrayBuffer(), profile, headers, generatedAt);
  if (request.url.length > URL_CHARS_MAX || bytes > HEADERS_BYTES_MAX || body.byteLength > BODY_BYTES_MAX)
    throw new OutboxError("too-large", `a message has at most ${BODY_BYTES_MAX} bytes`);
  return { method: request.method, url: request.url, headers, body: body.byteLength ? body : null };
}

/** Writes into a JSON body when the action happened, where the profile has a place for it and the caller left it empty. */
function stamp(body: ArrayBuffer, profile: Profile, headers: [string, string][], generatedAt: number): ArrayBuffer {
  const isJson = headers.some(([name, value]) => name === "content-type" && /\bjson\b/.test(value));
  if (!profile.generatedAt || !isJson) return body;
  try {
    const parsed = JSON.parse(new TextDecoder().decode(body));
    if (typeof parsed !== "object" || !parsed || Array.isArray(parsed) || profile.generatedAt in parsed) return body;
    const text = JSON.stringify({ ...parsed, [profile.generatedAt]: new Date(generatedAt).toISOString() });
    return new TextEncoder().encode(text).buffer as ArrayBuffer;
  } catch {
    return body;
  }
}

/** What an id was used for: method, address and body, byte for byte. */
async function fingerprint({ method, url, body }: Frozen): Promise<string> {
  const head = new TextEncoder().encode(`${method} ${url}\n`);
  const bytes = new Uint8Array(head.length + (body?.byteLength ?? 0));
  bytes.set(head);
  if (body) bytes.set(new Uint8Array(body), head.length);
  if (crypto.subtle) return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
  // Pages without TLS have no digest. This one only tells two requests under one id apart, on this device.
  let [a, b] = [7, 11];
  for (const byte of bytes) [a, b] = [Math.imul(a ^ byte, 0x01000193), Math.imul(b ^ byte, 0x5bd1e995) ^ (b >>> 15)];
  return `${bytes.length}:${a}:${b}`;
}

function malformed(why: string): OutboxError {
  return new OutboxError("malformed", why);
}
