// Headers of requests and answers: reading lines, and packing what is kept of an answer. Values are Latin-1 texts, one
// character for each byte, as Node gives and takes them.

import type { HeaderLines } from "./answer.js";

export function headerValues(headers: HeaderLines, name: string): string[] {
  const wanted = name.toLowerCase();
  return headers.filter(([one]) => one.toLowerCase() === wanted).map(([, value]) => value);
}

/** The value of a header that is there exactly once. */
export function headerValue(headers: HeaderLines, name: string): string | undefined {
  const values = headerValues(headers, name);
  return values.length === 1 ? values[0]!.replace(/^[ \t]+|[ \t]+$/g, "") : undefined;
}

/**
 * Headers of an answer that belong to one connection, one moment or one person. Those that begin with `proxy-` are not
 * kept either, nor are semel's own, which begin with `semel-`.
 */
const NEVER_KEPT = new Set([
  "authorization",
  "connection",
  "content-length",
  "date",
  "keep-alive",
  "set-cookie",
  "set-cookie2",
  "te",
  "traceparent",
  "tracestate",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "www-authenticate",
  "authentication-info",
]);

/** What is kept of an answer's headers, names in lower case, in their order. */
export function filterHeaders(headers: HeaderLines): HeaderLines {
  const dropped = new Set(
    headerValues(headers, "connection").flatMap((value) => value.split(",").map((name) => name.trim().toLowerCase())),
  );
  return headers
    .map(([name, value]): [string, string] => [name.toLowerCase(), value])
    .filter(([name]) => !NEVER_KEPT.has(name) && !dropped.has(name) && !/^(?:semel|proxy)-/.test(name));
}

/**
 * Writes headers as the store keeps them: for each the length of the name (2 bytes), the name, the length of the value
 * (4 bytes), the value.
 */
export function packHeaders(headers: HeaderLines): Buffer {
  const parts = headers.flatMap(([name, value]) => {
    if (!/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(name) || /[^\t\x20-\x7e\x80-\xff]/.test(value)) {
      throw new TypeError(`the header ${JSON.stringify(name)} cannot be sent`);
    }
    const bytes = Buffer.from(value, "latin1");
    const lengths = [Buffer.alloc(2), Buffer.alloc(4)] as const;
    lengths[0].writeUInt16BE(name.length);
    lengths[1].writeUInt32BE(bytes.length);
    return [lengths[0], Buffer.from(name, "latin1"), lengths[1], bytes];
  });
  return Buffer.concat(parts);
}

/** Reads what packHeaders wrote. */
export function unpackHeaders(packed: Buffer): HeaderLines {
  const headers: HeaderLines = [];
  let at = 0;
  const take = (width: 2 | 4): string => {
    const length = packed.readUIntBE(at, width);
    const from = at + width;
    at = from + length;
    if (at > packed.length) throw new RangeError("the record's headers cannot be read");
    return packed.toString("latin1", from, at);
  };
  while (at < packed.length) headers.push([take(2), take(4)]);
  return headers;
}
