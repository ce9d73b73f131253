// What the frameworks have in common: reading a request's bytes, lines and path parameters, and sending an answer after
// its commit.

import type { ServerResponse } from "node:http";
import type { Answer, HeaderLines, Reply } from "./answer.js";
import type { Caller } from "./arrival.js";
import { headerValue } from "./headers.js";
import type { Once } from "./once.js";
import { Problem } from "./problem.js";

/** What a handler is called and who its callers are. */
export interface Route<Req> {
  /** The stable name of the operation, such as `create-order`. */
  endpoint: string;
  /** Former names of the endpoint, so that keys used under them stay known. */
  was?: string[];
  /** Who sent a request, after authentication; undefined is answered 401. */
  identify: (request: Req) => Caller | undefined | Promise<Caller | undefined>;
  /** The path parameters as they stand in the path, where they cannot be read off the framework's pattern. */
  params?: (request: Req) => [string, string][];
}

/** A request as a framework gives it. */
export interface Received {
  method: string;
  /** Path and query as received. */
  url: string;
  /** The framework's pattern for the path. */
  pattern: string;
  headers: HeaderLines;
  body: Uint8Array;
  signal: AbortSignal | undefined;
}

/** Runs a route's handler once, and makes an answer of everything but the handler's own error. */
export async function serve<Tx, Req>(
  once: Once<Tx>,
  route: Route<Req>,
  request: Req,
  received: Received,
  handler: (tx: Tx, request: Req) => Promise<Reply>,
): Promise<Answer> {
  const requestId = headerValue(received.headers, "x-request-id");
  const caller = await route.identify(request);
  if (caller === undefined) return once.refuse(new Problem("identity-missing"), requestId);
  const at = received.url.indexOf("?");
  const [path, query] = at < 0 ? [received.url, ""] : [received.url.slice(0, at), received.url.slice(at + 1)];
  return once.run(
    {
      endpoint: route.endpoint,
      was: route.was ?? [],
      caller,
      method: received.method,
      params: route.params?.(request) ?? pathParams(received.pattern, path),
      query,
      headers: received.headers,
      body: received.body,
      signal: received.signal,
      ...(requestId !== undefined && { requestId }),
    },
    (tx) => handler(tx, request),
  );
}

/** Node's flat list of names and values as lines. */
export function linesOf(rawHeaders: string[]): HeaderLines {
  const lines: HeaderLines = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) lines.push([rawHeaders[at]!, rawHeaders[at + 1]!]);
  return lines;
}

interface ByteStream extends AsyncIterable<Uint8Array> {
  iterator?: (options: { destroyOnReturn: boolean }) => AsyncIterable<Uint8Array>;
}

/** Reads a body in full. One that is too large is refused, and its connection is left open for the refusal. */
export async function readStream(stream: ByteStream, maxBytes: number): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of stream.iterator?.({ destroyOnReturn: false }) ?? stream) {
    size += part.length;
    if (size > maxBytes) throw new Problem("body-too-large", `at most ${maxBytes} bytes are taken`);
    parts.push(part);
  }
  return Buffer.concat(parts);
}

/** Aborted when the client goes before it was answered. */
export function goneSignal(response: ServerResponse): AbortSignal {
  const gone = new AbortController();
  response.once("close", () => {
    if (!response.writableFinished) gone.abort();
  });
  return gone.signal;
}

/** Values by name, in the order of the lines. */
export function groupHeaders(headers: HeaderLines): Map<string, string | string[]> {
  const grouped = new Map<string, string | string[]>();
  for (const [name, value] of headers) {
    const before = grouped.get(name.toLowerCase());
    grouped.set(name.toLowerCase(), before === undefined ? value : [before, value].flat());
  }
  return grouped;
}

/** Sends an answer on Node's own response. */
export function send(response: ServerResponse, answer: Answer): void {
  response.statusCode = answer.status;
  for (const [name, value] of groupHeaders(answer.headers)) response.setHeader(name, value);
  response.end(answer.body);
}

/**
 * The parameters of a pattern (`/orders/:id`) as they stand in the path, percent-encoding untouched. The pattern may
 * begin below the point where its router is mounted, so segments are counted from the end.
 */
export function pathParams(pattern: string, path: string): [string, string][] {
  const names = pattern.split("/").filter((segment) => segment !== "");
  const values = path.split("/").filter((segment) => segment !== "");
  const isRest = names.at(-1)?.startsWith("*") ?? false;
  const first = isRest ? 0 : values.length - names.length;
  return names.flatMap((segment, at): [string, string][] => {
    if (segment.startsWith("*") && at === names.length - 1) {
      return [[segment.slice(1) || "*", values.slice(first + at).join("/")]];
    }
    const param = /^:([A-Za-z0-9_]+)(?:\(.*\)|\{.*\})?$/.exec(segment);
    if (param !== null) return [[param[1]!, values[first + at] ?? ""]];
    if (/[:*(){}]/.test(segment)) {
      throw new TypeError(`the parameters of ${JSON.stringify(pattern)} cannot be read off the path: give the route params`);
    }
    return [];
  });
}
