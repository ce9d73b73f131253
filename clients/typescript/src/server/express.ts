// Express: a handler that runs once for each key.

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Answer, Reply } from "./answer.js";
import { headerValue } from "./headers.js";
import { goneSignal, linesOf, readStream, send, serve } from "./http.js";
import type { Route } from "./http.js";
import type { Once } from "./once.js";
import { Problem } from "./problem.js";

/** Express's request, as far as it is used. */
export interface ExpressRequest extends IncomingMessage {
  originalUrl: string;
  body?: any;
  rawBody?: unknown;
  route?: { path?: unknown };
}

/**
 * A handler for Express that runs once for each key. It reads the body itself: put it before body parsers, or let them
 * keep the bytes in `rawBody`; a parsed body cannot tell requests apart.
 */
export function expressHandler<Tx, Req extends ExpressRequest>(
  once: Once<Tx>,
  route: Route<Req>,
  handler: (tx: Tx, request: Req) => Promise<Reply>,
): (request: Req, response: ServerResponse, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    const answer = async (): Promise<Answer> => {
      const headers = linesOf(request.rawHeaders);
      const body = await readExpressBody(request, once.profile.maxBodyBytes);
      return serve(
        once,
        route,
        request,
        {
          method: request.method ?? "POST",
          url: request.originalUrl,
          pattern: typeof request.route?.path === "string" ? request.route.path : "",
          headers,
          body,
          signal: goneSignal(response),
        },
        handler,
      );
    };
    answer()
      .catch((error: unknown) => {
        if (error instanceof Problem) return once.refuse(error);
        throw error;
      })
      .then((done) => send(response, done), next);
  };
}

async function readExpressBody(request: ExpressRequest, maxBytes: number): Promise<Buffer> {
  for (const kept of [request.rawBody, request.body]) {
    if (kept instanceof Uint8Array) return Buffer.from(kept);
  }
  const isRead = request.readableDidRead || request.readableEnded;
  if (isRead && request.body !== undefined) {
    throw new TypeError(
      "the body was parsed before semel could read its bytes: put the handler before the body parser, or keep the bytes " +
        "with express.json({ verify: (req, res, bytes) => { req.rawBody = bytes } })",
    );
  }
  const body = await readStream(request, maxBytes);
  request.body = parsedBody(headerValue(linesOf(request.rawHeaders), "content-type"), body);
  return body;
}

/** The body as handlers expect it: a value where it is JSON, the bytes otherwise. */
function parsedBody(contentType: string | undefined, body: Buffer): unknown {
  if (body.length === 0 || (contentType !== undefined && !/\bjson\b/i.test(contentType))) return body;
  try {
    return JSON.parse(body.toString("utf8"));
  } catch {
    return body;
  }
}
