// Fastify: a route's options that run its handler once for each key. The bytes of the body are kept before they are parsed.

import type { IncomingMessage, ServerResponse } from "node:http";
import { Readable } from "node:stream";
import type { Answer, Reply } from "./answer.js";
import { goneSignal, groupHeaders, linesOf, readStream, serve } from "./http.js";
import type { Route } from "./http.js";
import type { Once } from "./once.js";
import { Problem } from "./problem.js";

export interface FastifyRequestLike {
  method: string;
  originalUrl: string;
  raw: IncomingMessage;
  routeOptions: { url?: string | undefined };
  body: unknown;
}

export interface FastifyReplyLike {
  raw: ServerResponse;
  code(status: number): unknown;
  header(name: string, value: unknown): unknown;
  send(body: unknown): unknown;
}

/** The options of a Fastify route: `app.post("/orders", fastifyRoute(once, route, handler))`. */
export function fastifyRoute<Tx, Req extends FastifyRequestLike = any>(
  once: Once<Tx>,
  route: Route<Req>,
  handler: (tx: Tx, request: Req) => Promise<Reply>,
): {
  preParsing: (request: any, reply: any, payload: AsyncIterable<Uint8Array>) => Promise<any>;
  handler: (request: any, reply: any) => Promise<unknown>;
} {
  const bodies = new WeakMap<object, Buffer>();
  return {
    async preParsing(request: Req, reply: FastifyReplyLike, payload) {
      try {
        const body = await readStream(payload, once.profile.maxBodyBytes);
        bodies.set(request.raw, body);
        return Object.assign(Readable.from([body], { objectMode: false }), { receivedEncodedLength: body.length });
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        return sendReply(reply, once.refuse(error));
      }
    },
    async handler(request: Req, reply: FastifyReplyLike) {
      const received = {
        method: request.method,
        url: request.originalUrl,
        pattern: request.routeOptions.url ?? "",
        headers: linesOf(request.raw.rawHeaders),
        body: bodies.get(request.raw) ?? Buffer.alloc(0),
        signal: goneSignal(reply.raw),
      };
      return sendReply(reply, await serve(once, route, request, received, handler));
    },
  };
}

function sendReply(reply: FastifyReplyLike, answer: Answer): unknown {
  reply.code(answer.status);
  for (const [name, value] of groupHeaders(answer.headers)) reply.header(name, value);
  reply.send(answer.body);
  return reply;
}
