// The idempotency key: where it stands in a request, how it is written, what it may look like.

import type { HeaderLines } from "./answer.js";
import { headerValues } from "./headers.js";
import { get, parseJson } from "./json.js";
import { Problem } from "./problem.js";

/** The longest key in characters, whatever the format. */
const KEY_CHARS_MAX = 255;

/**
 * The headers by which clients everywhere send keys. A key in one of them is never ignored: a key that is ignored is a
 * retry that runs again.
 */
const KEY_HEADERS = ["Idempotency-Key", "X-Idempotency-Key"];

export interface KeyPolicy {
  /** Where to look, in order: `header:NAME` or `json:/POINTER`. */
  sources: string[];
  syntax: "bare" | "sf-string" | "both";
  /** `uuid4-lower`, `uuid`, `token255`, `printable255`, `any255`, `ulid` or `regex:PATTERN`. */
  format: string;
  presence: "required" | "optional" | "mint";
  /** Headers, with their format, that must come with the key. */
  requireHeaders: [string, string][];
}

export interface FoundKey {
  key: string;
  source: string;
  syntax: "bare" | "sf-string";
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const UUID4_LOWER = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const FORMATS: Record<string, [RegExp, string]> = {
  "uuid4-lower": [UUID4_LOWER, "a version 4 UUID in lower case with dashes"],
  uuid: [UUID, "a UUID with dashes"],
  token255: [/^[A-Za-z0-9_-]+$/, "1 to 255 letters, digits, dashes or underscores"],
  printable255: [/^[ -~]+$/, "1 to 255 printable ASCII characters"],
  any255: [/^/, "1 to 255 characters without control characters"],
  ulid: [/^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$/, "a ULID"],
};

/** Finds the key of a request; undefined where there is none and none is required. */
export function readKey(policy: KeyPolicy, headers: HeaderLines, body: Uint8Array): FoundKey | undefined {
  const readsHeaders = policy.sources.some((source) => source.startsWith("header:"));
  const sources = readsHeaders ? policy.sources : [...policy.sources, ...KEY_HEADERS.map((name) => `header:${name}`)];
  let found: FoundKey | undefined;
  let isUnread = false;
  for (const source of sources) {
    const name = source.slice(source.indexOf(":") + 1);
    let next: Omit<FoundKey, "source"> | undefined;
    if (source.startsWith("header:")) {
      next = readHeader(policy, headers, name);
    } else {
      const document = parseJson(body);
      if (document === undefined || document.repeatsName) isUnread ||= body.length > 0;
      else next = readPointer(document.root, name);
    }
    if (next === undefined) continue;
    if (found !== undefined && found.key !== next.key) {
      throw new Problem("key-ambiguous", `${found.source} and ${source} disagree`);
    }
    found ??= { ...next, source };
  }
  if (found === undefined) {
    refuseMissing(policy, headers, isUnread);
    return undefined;
  }
  checkKey(policy.format, found.key);
  return found;
}

function refuseMissing(policy: KeyPolicy, headers: HeaderLines, isUnread: boolean): void {
  if (isUnread) {
    throw new Problem("body-not-json", "the key is read from the body, which must be JSON without repeated names");
  }
  const wanted = policy.sources
    .map((source) => (source.startsWith("header:") ? `the ${source.slice(7)} header` : source.slice(5)))
    .join(" or ");
  const given = KEY_HEADERS.find((name) => headerValues(headers, name).length > 0);
  if (given !== undefined) throw new Problem("key-missing", `${given} is not read here: send the key in ${wanted}`);
  if (policy.presence === "required") throw new Problem("key-missing", `send a key in ${wanted}`);
}

function readHeader(policy: KeyPolicy, headers: HeaderLines, name: string): Omit<FoundKey, "source"> | undefined {
  const lines = headerValues(headers, name);
  if (lines.length > 1) throw new Problem("key-ambiguous", `${name} is given on more than one line`);
  if (lines[0] === undefined) return undefined;
  const value = trim(lines[0]);
  if (policy.syntax === "sf-string" || (policy.syntax === "both" && value.startsWith('"'))) {
    return { key: parseStructuredString(value), syntax: "sf-string" };
  }
  return { key: decodeUtf8(value), syntax: "bare" };
}

function readPointer(root: Parameters<typeof get>[0], pointer: string): Omit<FoundKey, "source"> | undefined {
  const value = get(root, pointer);
  if (value === undefined) return undefined;
  if (typeof value !== "string") throw new Problem("key-invalid", "the key in the body must be a string");
  return { key: value, syntax: "bare" };
}

/** HTTP's white space is space and tab. */
export function trim(value: string): string {
  return value.replace(/^[ \t]+|[ \t]+$/g, "");
}

/** Node gives header bytes as Latin-1 characters; a key is the UTF-8 text of those bytes. */
function decodeUtf8(value: string): string {
  if (/^[\x00-\x7f]*$/.test(value)) return value;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.from(value, "latin1"));
  } catch {
    throw new Problem("key-invalid", "the key is not UTF-8 text");
  }
}

/** Refuses a key that its format does not accept. */
export function checkKey(format: string, key: string): void {
  if (key === "") throw new Problem("key-invalid", "the key is empty");
  if (!formatAccepts(format, key)) throw new Problem("key-invalid", `the key must be ${formatInWords(format)}`);
}

function formatAccepts(format: string, text: string): boolean {
  if (text === "" || [...text].length > KEY_CHARS_MAX || /\p{Cc}/u.test(text)) return false;
  const known = FORMATS[format];
  if (known !== undefined) return known[0].test(text);
  if (!format.startsWith("regex:")) throw new TypeError(`no such key format: ${format}`);
  return compile(format.slice(6)).test(text);
}

/** A whole-key pattern. `(?s)` in front, which other languages write, is the flag s here. */
function compile(pattern: string): RegExp {
  const isDotAll = pattern.startsWith("(?s)");
  return new RegExp(`^(?:${isDotAll ? pattern.slice(4) : pattern})$`, isDotAll ? "us" : "u");
}

function formatInWords(format: string): string {
  return FORMATS[format]?.[1] ?? `at most 255 characters matching ${format.slice(6)}`;
}

/** Whether a key carries the 122 random bits of a version 4 UUID. */
export function isRandomUuid(key: string): boolean {
  return UUID4_LOWER.test(key.toLowerCase());
}

export function isUuid(key: string): boolean {
  return UUID.test(key);
}

/** Checks the headers that must come with the key, and returns their values by lower-case name. */
export function readRequired(policy: KeyPolicy, headers: HeaderLines): Map<string, string> {
  const kept = new Map<string, string>();
  for (const [name, format] of policy.requireHeaders) {
    const lines = headerValues(headers, name);
    if (lines[0] === undefined) throw new Problem("header-missing", `${name} is required`);
    if (lines.length > 1) throw new Problem("header-missing", `${name} is given twice`);
    const value = trim(lines[0]);
    if (!formatAccepts(format, value)) throw new Problem("header-missing", `${name} must be ${formatInWords(format)}`);
    kept.set(name.toLowerCase(), value);
  }
  return kept;
}

const SF_TEXT = /^"((?:[ !#-[\]-~]|\\["\\])*)"/;
const SF_KEY = /^[a-z*][a-z0-9_.*-]*/;
const SF_ITEM =
  /^(?:-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}|"(?:[ !#-[\]-~]|\\["\\])*"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*|:[A-Za-z0-9+/=]*:|\?[01])/;

/** Reads an RFC 8941 Item whose bare item is a String. Its parameters must be well formed, and are ignored. */
function parseStructuredString(value: string): string {
  const refuse = () => new Problem("key-invalid", "the key is not a structured string");
  const match = SF_TEXT.exec(value);
  if (match === null) throw refuse();
  let rest = value.slice(match[0].length);
  while (rest.startsWith(";")) {
    rest = rest.slice(1).replace(/^ +/, "");
    const name = SF_KEY.exec(rest)?.[0];
    if (name === undefined) throw refuse();
    rest = rest.slice(name.length);
    if (!rest.startsWith("=")) continue;
    const item = SF_ITEM.exec(rest.slice(1))?.[0];
    if (item === undefined) throw refuse();
    rest = rest.slice(1 + item.length);
  }
  if (rest.replace(/ +$/, "") !== "") throw refuse();
  return match[1]!.replace(/\\(["\\])/g, "$1");
}
