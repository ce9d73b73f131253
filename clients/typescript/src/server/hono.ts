// Hono: a handler that runs once for each key and answers with a Response.

import type { Answer, HeaderLines, Reply } from "./answer.js";
import { linesOf, readStream, serve } from "./http.js";
import type { Route } from "./http.js";
import type { Once } from "./once.js";
import { Problem } from "./problem.js";

export interface HonoContextLike {
  req: { raw: Request; method: string; url: string; routePath: string };
  env: any;
}

/**
 * A handler for Hono: `app.post("/orders", honoHandler(once, route, async (tx, c) => c.json(…, 201)))`. The body was read
 * to tell requests apart; the handler reads it again from the context as usual.
 */
export function honoHandler<Tx, C extends HonoContextLike = any>(
  once: Once<Tx>,
  route: Route<C>,
  handler: (tx: Tx, context: C) => Promise<Response | Reply>,
): (context: C) => Promise<Response> {
  return async (context) => {
    try {
      const { raw, method, url, routePath } = context.req;
      const body = await readCopy(raw, once.profile.maxBodyBytes);
      const { pathname, search } = new URL(url);
      // Headers joins repeated lines; Node's server keeps them apart.
      const rawHeaders = context.env?.incoming?.rawHeaders as string[] | undefined;
      const received = {
        method,
        url: pathname + search,
        pattern: routePath,
        headers: rawHeaders === undefined ? ([...raw.headers] as HeaderLines) : linesOf(rawHeaders),
        body,
        signal: raw.signal,
      };
      const reply = async (tx: Tx, one: C): Promise<Reply> => replyOf(await handler(tx, one));
      return responseOf(await serve(once, route, context, received, reply));
    } catch (error) {
      if (error instanceof Problem) return responseOf(once.refuse(error));
      throw error;
    }
  };
}

/** The body's bytes, which the handler can still read. What is declared too large is not read at all. */
async function readCopy(raw: Request, maxBytes: number): Promise<Buffer> {
  if (Number(raw.headers.get("content-length") ?? 0) > maxBytes) {
    throw new Problem("body-too-large", `at most ${maxBytes} bytes are taken`);
  }
  const copy = raw.clone().body;
  try {
    return copy === null ? Buffer.alloc(0) : await readStream(copy as never, maxBytes);
  } catch (error) {
    // What nobody reads would keep the answer from being sent.
    raw.body?.pipeTo(new WritableStream()).catch(() => {});
    throw error;
  }
}

async function replyOf(made: Response | Reply): Promise<Reply> {
  if (!(made instanceof Response)) return made;
  return { status: made.status, headers: [...made.headers], body: new Uint8Array(await made.arrayBuffer()) };
}

function responseOf(answer: Answer): Response {
  const headers = new Headers();
  for (const [name, value] of answer.headers) headers.append(name, value);
  const isBodiless = answer.status === 204 || answer.status === 205 || answer.status === 304;
  return new Response(isBodiless ? null : new Uint8Array(answer.body), { status: answer.status, headers });
}
