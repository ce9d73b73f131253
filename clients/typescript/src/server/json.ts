// JSON as the contract reads it: RFC 8259 in UTF-8, canonicalised by RFC 8785. Parses, addresses and writes documents;
// never decides what a body means.

/** The deepest document that is canonicalised; deeper bodies are fingerprinted raw. */
const DEPTH_MAX = 127;

export type Json =
  | null
  | boolean
  | number
  | string
  | Json[]
  | Map<string, Json>;

/** A parsed body, with what keeps it from being canonicalised. */
export interface Document {
  root: Json;
  /** An object has two members of one name, so readers disagree about what it says. */
  repeatsName: boolean;
  /** An integer literal would not survive a double. */
  losesInteger: boolean;
}

class NotJson extends Error {}

/** Reads a whole body; undefined where it is not JSON. */
export function parseJson(body: Uint8Array): Document | undefined {
  let text: string;
  try {
    // A byte order mark is not in the grammar; it must not be swallowed.
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
    return new Parser(text).parse();
  } catch (error) {
    if (error instanceof NotJson || error instanceof TypeError) return undefined;
    throw error;
  }
}

class Parser {
  private at = 0;
  private depth = 0;
  private repeatsName = false;
  private losesInteger = false;

  constructor(private readonly text: string) {}

  parse(): Document {
    const root = this.value();
    this.skipSpace();
    if (this.at !== this.text.length) throw new NotJson();
    return { root, repeatsName: this.repeatsName, losesInteger: this.losesInteger };
  }

  private skipSpace(): void {
    while (this.at < this.text.length && " \t\n\r".includes(this.text[this.at]!)) this.at++;
  }

  private value(): Json {
    this.skipSpace();
    const c = this.text[this.at];
    switch (c) {
      case "{":
        return this.nested(() => this.object());
      case "[":
        return this.nested(() => this.array());
      case '"':
        return this.string();
      case "t":
        return this.word("true", true);
      case "f":
        return this.word("false", false);
      case "n":
        return this.word("null", null);
      default:
        return this.number();
    }
  }

  private word(word: string, value: Json): Json {
    if (!this.text.startsWith(word, this.at)) throw new NotJson();
    this.at += word.length;
    return value;
  }

  private nested(read: () => Json): Json {
    if (++this.depth > DEPTH_MAX) throw new NotJson();
    this.at++;
    const value = read();
    this.depth--;
    return value;
  }

  /** Whether a list goes on after an item; steps over the comma or the closing character. */
  private goesOn(closing: string): boolean {
    this.skipSpace();
    const c = this.text[this.at++];
    if (c !== "," && c !== closing) throw new NotJson();
    return c === ",";
  }

  private isEmpty(closing: string): boolean {
    this.skipSpace();
    if (this.text[this.at] !== closing) return false;
    this.at++;
    return true;
  }

  private array(): Json {
    const items: Json[] = [];
    if (this.isEmpty("]")) return items;
    do items.push(this.value());
    while (this.goesOn("]"));
    return items;
  }

  private object(): Json {
    const members = new Map<string, Json>();
    if (this.isEmpty("}")) return members;
    do {
      this.skipSpace();
      if (this.text[this.at] !== '"') throw new NotJson();
      const name = this.string();
      this.skipSpace();
      if (this.text[this.at++] !== ":") throw new NotJson();
      const value = this.value();
      this.repeatsName ||= members.has(name);
      members.set(name, value);
    } while (this.goesOn("}"));
    return members;
  }

  private number(): number {
    const form = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
    form.lastIndex = this.at;
    const match = form.exec(this.text);
    if (match === null) throw new NotJson();
    this.at += match[0].length;
    const value = Number(match[0]);
    if (!Number.isFinite(value)) throw new NotJson();
    if (match[1] === undefined && match[2] === undefined) {
      const digits = match[0].replace("-", "");
      // More than 17 digits are beyond 2^53 in any case: JSON has no leading zeros.
      this.losesInteger ||= digits.length > 17 || BigInt(digits) > 2n ** 53n;
    }
    return value;
  }

  private string(): string {
    const form = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
    form.lastIndex = this.at;
    const match = form.exec(this.text);
    if (match === null) throw new NotJson();
    this.at += match[0].length;
    const text = JSON.parse(match[0]) as string;
    // An unpaired surrogate is no character.
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text)) throw new NotJson();
    return text;
  }
}

/** Writes a value as RFC 8785 says. Numbers and strings are written there as ECMAScript writes them. */
export function canonical(value: Json): string {
  if (value instanceof Map) {
    // Plain comparison of strings goes by UTF-16 code units, as the RFC demands.
    const names = [...value.keys()].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
    return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value.get(name)!)}`).join(",")}}`;
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  return JSON.stringify(value);
}

function pointerTokens(pointer: string): string[] {
  if (pointer === "") return [];
  return pointer
    .split("/")
    .slice(1)
    .map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~"));
}

function step(value: Json, token: string): Json | undefined {
  if (value instanceof Map) return value.get(token);
  if (Array.isArray(value) && /^(?:0|[1-9][0-9]*)$/.test(token)) return value[Number(token)];
  return undefined;
}

/** What an RFC 6901 pointer addresses; undefined where it addresses nothing. */
export function get(root: Json, pointer: string): Json | undefined {
  let value: Json | undefined = root;
  for (const token of pointerTokens(pointer)) {
    value = step(value, token);
    if (value === undefined) return undefined;
  }
  return value;
}

/** The document without what the pointer addresses. An array element becomes null, so that the others keep their places. */
export function remove(root: Json, pointer: string): Json {
  const tokens = pointerTokens(pointer);
  const last = tokens.pop();
  if (last === undefined) return null;
  let parent: Json | undefined = root;
  for (const token of tokens) {
    parent = step(parent, token);
    if (parent === undefined) return root;
  }
  if (parent instanceof Map) parent.delete(last);
  else if (Array.isArray(parent) && step(parent, last) !== undefined) parent[Number(last)] = null;
  return root;
}
