// The game's API: three actions behind a key, and what belongs around them.
import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { readFile } from "node:fs/promises";
import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "@prisma/client";
import express, { type NextFunction, type Request, type Response } from "express";
import { expressHandler, Once, prismaDatabase, type Reply } from "semel/server";
import { advance, allocate, complete, ingestSteps, readAvailable, readTree, startQuest, type Tx } from "./game.js";
import { openapi } from "./openapi.js";
import { Refusal } from "./refusal.js";
import { FIRST_POINTS } from "./world.js";

const { DATABASE_URL = "", SECRET_FILE = "", PORT = "3100" } = process.env;
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: DATABASE_URL, max: 20 }) });
const secret = (await readFile(SECRET_FILE, "utf8")).trim();
// The walker's profile: keys are UUIDs, records live for the seven days of an offline walk, and too old an action is refused.
const once = new Once(prismaDatabase(prisma), { profile: "walker" });
const app = express();
app.disable("x-powered-by");

/** A token names its walker and is signed. It stands in for your own sign-in. */
const sign = (id: string) => `${id}.${createHmac("sha256", secret).update(id).digest("base64url")}`;

/** Whose token it is; asks no database, so that handlers may use it inside their transaction. */
function tokenOf(request: Request): string | undefined {
  const token = /^Bearer (([0-9a-f-]{36})\.[\w-]{43})$/.exec(request.get("Authorization") ?? "");
  return token && timingSafeEqual(Buffer.from(token[1]!), Buffer.from(sign(token[2]!))) ? token[2] : undefined;
}

/** The walker who asks, if it is still there. */
async function walkerOf(request: Request): Promise<string | undefined> {
  const id = tokenOf(request);
  return id && (await prisma.walker.findUnique({ where: { id }, select: { id: true } }))?.id;
}

async function required(request: Request): Promise<string> {
  const id = await walkerOf(request);
  if (!id) throw new Refusal("UNAUTHENTICATED", "sign in first");
  return id;
}

// Every request has a number, which stands in its log line and in every refusal.
app.use((request, response, next) => {
  const requestId = request.get("X-Request-Id") ?? `req-${randomUUID()}`;
  request.headers["x-request-id"] = requestId;
  if (!request.rawHeaders.some((name) => name.toLowerCase() === "x-request-id")) request.rawHeaders.push("X-Request-Id", requestId);
  response.on("finish", () => {
    const { clientGeneratedAt, clientSubmittedAt } = (request.body ?? {}) as Record<string, unknown>;
    const line = { at: new Date().toISOString(), requestId, method: request.method, path: request.originalUrl, status: response.statusCode };
    console.log(JSON.stringify({ ...line, replayed: response.hasHeader("Idempotency-Replayed"), clientGeneratedAt, clientSubmittedAt }));
  });
  next();
});

/** An action behind a key. A refusal of the game frees it: the same key may succeed later. */
function action(path: string, endpoint: string, work: (tx: Tx, walker: string, request: Request) => Promise<object>): void {
  const identify = async (request: Request) => {
    const principal = await walkerOf(request);
    return principal === undefined ? undefined : { principal };
  };
  const handler = async (tx: Tx, request: Request): Promise<Reply> => {
    try {
      return { json: await work(tx, tokenOf(request)!, request) };
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return { status: error.status, json: error.body(request.get("X-Request-Id")!) };
    }
  };
  app.post(path, expressHandler(once, { endpoint, identify }, handler));
}

action("/tree/allocate", "tree.allocate", (tx, walker, request) => allocate(tx, walker, request.body));
action("/quest/:id/step/:n/advance", "quest.advance", (tx, walker, { params }) => advance(tx, walker, Number(params.id), Number(params.n)));
action("/quest/complete", "quest.complete", (tx, walker, request) => complete(tx, walker, request.body));

app.use(express.json());
app.get("/healthz", (_, response) => void response.send("ok\n"));
app.get("/openapi.json", (_, response) => void response.json(openapi()));
app.get("/tree/state", async (request, response) => void response.json(await readTree(prisma, await required(request))));
app.get("/quest/available", async (request, response) => void response.json(await readAvailable(prisma, await required(request))));
app.post("/step/ingest", async (request, response) => void response.json(await ingestSteps(prisma, await required(request), request.body)));

app.post("/quest/start", async (request, response) => {
  const walker = await required(request);
  response.json(await prisma.$transaction((tx) => startQuest(tx, walker, request.body?.questId)));
});

app.post("/session", async (request, response) => {
  const name = String(request.body?.name ?? "").trim();
  if (name.length < 1 || name.length > 40) throw new Refusal("BAD_REQUEST", "a name has 1 to 40 characters");
  await prisma.walker.createMany({ data: [{ id: randomUUID(), name, treePointsBanked: FIRST_POINTS }], skipDuplicates: true });
  const { id } = await prisma.walker.findUniqueOrThrow({ where: { name } });
  response.json({ walkerId: id, token: sign(id) });
});

/** Tree, quests and keys go with the row. */
app.delete("/walker", async (request, response) => {
  const deleted = await prisma.walker.deleteMany({ where: { id: await required(request) } });
  response.json({ deleted: deleted.count });
});

app.use((request: Request) => {
  throw new Refusal("NOT_FOUND", `there is no ${request.method} ${request.path}`);
});
app.use((error: any, request: Request, response: Response, _: NextFunction) => {
  const isOurs = error instanceof Refusal;
  const isMalformed = error?.type === "entity.parse.failed";
  if (!isOurs && !isMalformed) console.error(error);
  const refusal = isOurs ? error : isMalformed ? new Refusal("BAD_REQUEST", "the body is not JSON") : new Refusal("INTERNAL", "it could not be done just now");
  response.status(refusal.status).json(refusal.body(request.get("X-Request-Id") ?? ""));
});

app.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${PORT}`));
