// Scopes, ids and fingerprints: the bytes by which every implementation of the contract recognises a request.

import { createHash, createHmac } from "node:crypto";
import { isIP } from "node:net";
import { canonical, get, parseJson, remove } from "./json.js";
import type { Json } from "./json.js";
import { isUuid, trim } from "./key.js";
import { Problem } from "./problem.js";

export function sha256(bytes: Uint8Array): Buffer {
  return createHash("sha256").update(bytes).digest();
}

function lengthPrefixed(part: string | Uint8Array): Buffer {
  const bytes = Buffer.from(part as string);
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(bytes.length));
  return Buffer.concat([length, bytes]);
}

export interface ScopeParts {
  tenant?: string | undefined;
  principal?: string | undefined;
  endpoint?: string | undefined;
  host?: string | undefined;
}

/** Hashes those of tenant, principal, endpoint and host that are there. */
export function scopeOf(parts: ScopeParts): Buffer {
  const message = [lengthPrefixed("semel.scope.1")];
  for (const [letter, part] of [
    ["t", parts.tenant],
    ["p", parts.principal],
    ["e", parts.endpoint],
    ["h", parts.host],
  ] as const) {
    if (part !== undefined) message.push(Buffer.from(letter), lengthPrefixed(part));
  }
  return sha256(Buffer.concat(message));
}

/** A host as it counts in scopes: in lower case, without port and last dot; an address names nobody. */
export function hostOf(text: string): string {
  const port = /^(.*):[0-9]+$/.exec(text);
  let name = port !== null && (!port[1]!.includes(":") || port[1]!.endsWith("]")) ? port[1]! : text;
  name = name.replace(/\.$/, "").toLowerCase();
  const bare = /^\[(.*)\]$/.exec(name)?.[1] ?? name;
  return bare === "localhost" || isIP(bare) !== 0 ? "" : name;
}

/** Stands for a scope and key in the store: 16 bytes. */
export function idOf(scope: Buffer, key: string): Buffer {
  return sha256(Buffer.concat([scope, Buffer.from(key)])).subarray(0, 16);
}

/** The principal of a credential that is known by its hash alone. */
export function hashedPrincipal(identity: string, credential: string): string {
  return `${identity}:${sha256(Buffer.from(trim(credential))).toString("hex")}`;
}

export type Input = "method" | "route" | "params" | "query" | "principal" | "body";

/** What a fingerprint is made of. */
export interface Recipe {
  inputs: Input[];
  exclude: string[];
  include: string[];
}

/** What a fingerprint says of a request beside its body. */
export interface Described {
  method: string;
  route: string;
  params: [string, string][];
  query: string;
  principal: string;
}

/** A body as it counts, with its content after the pointers. */
export interface BodyForm {
  form: "none" | "json" | "raw";
  content: Uint8Array;
}

/** Whether a Content-Type may be JSON; an absent one may. */
export function isJsonType(contentType: string | undefined): boolean {
  if (contentType === undefined) return true;
  const essence = trim(contentType.split(";")[0]!).toLowerCase();
  return essence === "application/json" || essence.endsWith("+json");
}

export function readBody(recipe: Recipe, contentType: string | undefined, body: Uint8Array): BodyForm {
  if (body.length === 0) return { form: "none", content: body };
  const document = isJsonType(contentType) ? parseJson(body) : undefined;
  if (document !== undefined && !document.repeatsName && !document.losesInteger) {
    return { form: "json", content: Buffer.from(canonical(applyPointers(recipe, document.root))) };
  }
  if (recipe.exclude.length + recipe.include.length > 0) {
    throw new Problem("body-not-json", "parts of the body count here, so it must be plain JSON");
  }
  return { form: "raw", content: body };
}

function applyPointers(recipe: Recipe, root: Json): Json {
  const left = recipe.exclude.reduce(remove, root);
  if (recipe.include.length === 0) return left;
  const pointers = [...recipe.include].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  return pointers.flatMap((pointer): Json[] => {
    const value = get(left, pointer);
    return value === undefined ? [] : [[pointer, value]];
  });
}

/** Makes the 32 bytes; with a secret they are keyed. */
export function fingerprintOf(recipe: Recipe, request: Described, body: BodyForm, secret?: Uint8Array): Buffer {
  const message = messageOf(recipe, request, body);
  return secret === undefined ? sha256(message) : createHmac("sha256", secret).update(message).digest();
}

function messageOf(recipe: Recipe, request: Described, body: BodyForm): Uint8Array {
  // Without framing, so that sha256sum can check it.
  if (recipe.inputs.length === 1 && recipe.inputs[0] === "body") return body.content;
  const contents: [Input, string, string | Uint8Array][] = [
    ["method", "m", request.method],
    ["route", "r", request.route],
    ["params", "p", Buffer.concat(request.params.flatMap((pair) => pair.map(lengthPrefixed)))],
    ["query", "q", request.query],
    ["principal", "s", request.principal],
    ["body", "b", Buffer.concat([Buffer.from(body.form[0]!), body.content])],
  ];
  const parts = contents
    .filter(([input]) => recipe.inputs.includes(input))
    .flatMap(([, letter, content]) => [Buffer.from(letter), lengthPrefixed(content)]);
  return Buffer.concat([lengthPrefixed("semel.fingerprint.1"), ...parts]);
}

/** Recognises the same request under another credential: of a key that nobody else makes. */
export function rotationMark(endpoint: string, key: string, fingerprint: Uint8Array): Buffer | undefined {
  if (!isUuid(key)) return undefined;
  const parts = [endpoint, key.toLowerCase(), fingerprint].map(lengthPrefixed);
  return sha256(Buffer.concat(parts)).subarray(0, 16);
}
