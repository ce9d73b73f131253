// Makes keys and checks them. Randomness comes from the platform's generator; no key is ever made from a counter or a clock
// alone.

const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/** A fresh key, made as the profile says: `uuid4`, `uuid4-ms` or `ulid`. */
export function mint(how: string, now: number): string {
  if (how === "ulid") return ulid(now);
  return how === "uuid4-ms" ? `${uuid()}-${now}` : uuid();
}

/** A random UUID. `crypto.randomUUID` is missing on pages without TLS, so it is made here. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function ulid(now: number): string {
  let time = "";
  for (let left = now, n = 0; n < 10; n++, left = Math.floor(left / 32)) time = DIGITS[left % 32] + time;
  return time + Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => DIGITS[byte % 32]).join("");
}

const FORMATS: Record<string, RegExp> = {
  "uuid4-lower": /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
  token255: /^[\w-]{1,255}$/,
  printable255: /^[ -~]{1,255}$/,
  any255: /^\P{Cc}{1,255}$/u,
};

/** Whether a key has the profile's format. */
export function isKey(format: string, key: string): boolean {
  return FORMATS[format]?.test(key) ?? false;
}
