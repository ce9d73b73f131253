// A small site for real browsers: pages that load the package's bundle, and a service that counts effects. Keys are honoured by a
// real gate where SEMEL_BIN names the program, else by the site itself. Answers are lost on the way to the browser.
import { build } from "esbuild";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { fileURLToPath } from "node:url";
import { startGate } from "./gate.js";

const PAGE = `<!doctype html><meta charset="utf-8"><title>semel</title>
<script type="module" src="/page.js"></script>`;

export interface Effect {
  key: string;
  lane: string;
  body: string;
  authorization: string | undefined;
  cookie: string | undefined;
  mode: string | undefined;
}

export interface Site {
  origin: string;
  /** Where messages are sent to; another origin where there is a gate. */
  api: string;
  effects: Effect[];
  /** Requests that came from browsers. */
  requests: number;
  /** Every n-th answer is lost; 0: none. */
  loseEvery: number;
  /** Answers are held back. */
  isSlow: boolean;
  isRedirecting: boolean;
  /** Requests do not get through: the network is gone. */
  isDown: boolean;
  close(): Promise<void>;
}

interface Reply {
  status: number;
  headers: Record<string, string | string[]>;
  body: Buffer;
}

async function bundle(entry: string): Promise<string> {
  const path = fileURLToPath(new URL(`../../test/pages/${entry}`, import.meta.url));
  const result = await build({ entryPoints: [path], bundle: true, format: "esm", write: false, target: "es2022" });
  return result.outputFiles[0]!.text;
}

async function listen(serve: (request: IncomingMessage, response: ServerResponse) => Promise<void>): Promise<{ server: Server; port: number }> {
  const server = createServer((request, response) => void serve(request, response).catch(() => response.destroy()));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, port: (server.address() as { port: number }).port };
}

async function read(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

export async function startSite(): Promise<Site> {
  const scripts: Record<string, string> = { "/page.js": await bundle("page.js"), "/worker.js": await bundle("worker.js") };
  const records = new Map<string, Reply>();
  const site: Site = { origin: "", api: "", effects: [], requests: 0, loseEvery: 0, isSlow: false, isRedirecting: false, isDown: false, close: async () => {} };

  /** The service: every request that reaches it is an effect. */
  const apply = (request: IncomingMessage, body: Buffer): Reply => {
    const { authorization, cookie, "idempotency-key": key, "x-sync-mode": mode } = request.headers;
    site.effects.push({ key: String(key), lane: request.url!.slice(5), body: String(body), authorization, cookie, mode: mode as string });
    return { status: 201, headers: { "content-type": "application/json" }, body: Buffer.from(`{"effect":${site.effects.length}}`) };
  };

  /** A gate in short: each key reaches the service once. */
  const applyOnce = (request: IncomingMessage, body: Buffer): Reply => {
    const key = String(request.headers["idempotency-key"]);
    const known = records.get(key);
    if (known) return { ...known, headers: { ...known.headers, "idempotency-replayed": "true" } };
    const reply = apply(request, body);
    reply.headers["semel-guarantee"] = "fenced";
    records.set(key, reply);
    return reply;
  };

  const upstream = await listen(async (request, response) => {
    const { status, headers, body } = apply(request, await read(request));
    response.writeHead(status, headers).end(body);
  });

  /** The way to the service, on which answers are lost. */
  const carry = async (request: IncomingMessage, response: ServerResponse) => {
    if (site.isDown) return void request.socket.destroy();
    const body = await read(request);
    if (request.method !== "OPTIONS") site.requests++;
    const number = site.requests;
    if (site.isRedirecting) return void response.writeHead(302, { location: "/" }).end();
    const reply = gate ? await forward(gate.address, request, body) : applyOnce(request, body);
    if (request.method !== "OPTIONS" && site.loseEvery && number % site.loseEvery === 0) return void request.socket.destroy();
    while (site.isSlow && request.method !== "OPTIONS" && !request.socket.destroyed) await new Promise((resolve) => setTimeout(resolve, 20));
    response.writeHead(reply.status, reply.headers).end(reply.body);
  };

  const pages = await listen(async (request, response) => {
    const path = request.url!.split("?")[0]!;
    if (path.startsWith("/api/")) return carry(request, response);
    const script = scripts[path];
    response.writeHead(200, { "content-type": script ? "text/javascript" : "text/html" }).end(script ?? PAGE);
  });
  const way = await listen(carry);
  site.origin = `http://localhost:${pages.port}`;
  const gate = process.env.SEMEL_BIN ? await startGate(process.env.SEMEL_BIN, `http://127.0.0.1:${upstream.port}`, site.origin) : undefined;
  site.api = gate ? `http://localhost:${way.port}` : site.origin;
  site.close = async () => {
    await gate?.close();
    for (const { server } of [upstream, pages, way]) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  };
  return site;
}

async function forward(address: string, request: IncomingMessage, body: Buffer): Promise<Reply> {
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers))
    if (value !== undefined && !["host", "connection", "content-length", "transfer-encoding", "accept-encoding"].includes(name)) headers.set(name, String(value));
  const answer = await fetch(`${address}${request.url}`, { method: request.method!, headers, ...(body.length ? { body: new Uint8Array(body) } : {}) });
  const kept = [...answer.headers].filter(([name]) => !["connection", "transfer-encoding", "content-length", "keep-alive"].includes(name));
  return { status: answer.status, headers: Object.fromEntries(kept), body: Buffer.from(await answer.arrayBuffer()) };
}
