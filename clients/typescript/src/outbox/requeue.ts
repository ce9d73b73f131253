// Requeue: an old message gives way to a new one under a new id. Where an attempt of the old one may have taken effect, its key
// is sealed at the server first, so that no late arrival can run it beside the new one.
import { mint } from "../contract/mint.js";
import { freeze, type Draft } from "./freeze.js";
import { abort, find } from "./operate.js";
import { findAction, receiptOf } from "./rows.js";
import type { Host } from "./sender.js";
import type { Store, Tx } from "./store.js";
import { OutboxError, type Frozen, type Row } from "./types.js";

export { abort, hasten, list } from "./operate.js";

export interface RequeueOptions {
  /** The new id; without one, a fresh one. */
  id?: string;
  /** What is sent instead of the same body. */
  body?: BodyInit;
  /** Goes on even where the old message may have been delivered. */
  force?: boolean;
}

/** What a message asks for; nothing, where that is gone with its end. */
export async function readRequest(store: Store, id: string): Promise<Request | undefined> {
  const frozen = await store.run("readonly", async (tx) => tx.get<Frozen>("requests", (await find(tx, id)).n));
  return frozen && new Request(frozen.url, frozen);
}

/** `isUsed`: the server knows of an attempt that may have had its effect, whatever the row says. */
type Seal = "sealed" | { why: string; isUsed?: boolean };

const FORGOTTEN: Seal = {
  why: "it was first sent so long ago that the server may have forgotten its key: a seal says nothing then",
};

/** How long servers said that they know keys again, by origin. */
type Retentions = Record<string, number>;

/** Whether the server may have forgotten what became of the message's key. */
const mayBeForgotten = ({ profile, environment }: Host, { firstAt, url }: Row, retentions: Retentions = {}): boolean => {
  const kept = Math.min(profile.window, ((retentions[new URL(url).origin] ?? Infinity) * 23) / 24);
  return firstAt !== undefined && environment.now() - firstAt >= kept;
};

/** Puts a new message in the place of one that waits, is held or was given up. */
export async function requeue(host: Host, id: string, options: RequeueOptions): Promise<Row> {
  const { store, environment } = host;
  const { row, request, learned } = await store.run("readonly", async (tx) => {
    const row = await find(tx, id);
    const learned = await tx.get<{ retentions: Retentions }>("meta", "learned");
    return { row, request: await tx.get<Frozen>("requests", row.n), learned };
  });
  if (row.status === "inflight" || row.status === "done" || row.status === "aborted" || !request)
    throw new OutboxError("state", `the message ${id} is ${row.status}: it cannot be requeued`);
  const untried: Seal = row.inherited ? { why: "the message whose place it took was not sealed" } : "sealed";
  const asked = row.attempts ? await sealKey(host, row) : untried;
  const seal = asked === "sealed" && mayBeForgotten(host, row, learned?.retentions) ? FORGOTTEN : asked;
  const isUsed = seal !== "sealed" && !!seal.isUsed;
  if (seal !== "sealed" && (row.ambiguous || isUsed) && !options.force)
    throw new OutboxError("possibly-delivered", `it may have been delivered, and ${seal.why}; find out, then force it or abort it`);
  const draft = await successor(host, row, request, options);
  return store.run("readwrite", async (tx) => {
    const now = await find(tx, id);
    // An attempt began while the server was asked. Tokens do not tell: an attempt that died with its tab has none any more.
    if (now.attempts !== row.attempts && !now.supersededBy) throw new OutboxError("state", "it changed meanwhile: look again");
    const written = await replace(tx, id, draft, environment.now());
    if (written.attempts || (seal !== "sealed" && !isUsed)) return written;
    const inherited = isUsed || !!row.inherited;
    const told = { ...written, ambiguous: inherited, inherited };
    await tx.put("messages", told);
    return told;
  });
}

async function successor({ profile, environment }: Host, row: Row, old: Frozen, options: RequeueOptions): Promise<Draft> {
  const now = environment.now();
  const body = options.body ?? old.body;
  const request = new Request(old.url, { method: old.method, headers: old.headers, ...(body === null ? {} : { body }) });
  const { lane, principal, logicalKey, operation, generatedAt } = row;
  const kept = { lane, principal, generatedAt, ...(logicalKey ? { logicalKey } : {}), ...(operation ? { operation } : {}) };
  return freeze(request, options.id ?? mint(profile.mint, now), kept, profile, now);
}

/** Asks the server to cancel the message's key. */
async function sealKey({ environment, credentials }: Host, row: Row): Promise<Seal> {
  const { origin, pathname } = new URL(row.url);
  const failed = (why: string): Seal => ({ why: `its key could not be sealed at the server: ${why}` });
  try {
    const signal = AbortSignal.timeout(10_000);
    const { principal, url } = row;
    const credential = credentials === "none" ? { principal } : await credentials({ principal, origin, url, signal });
    if (credential?.principal !== principal) return failed(`${principal} is not signed in`);
    const endpoint = encodeURIComponent(`${row.method} ${pathname}`);
    const answer = await environment.fetch(
      `${origin}/.well-known/semel/keys/${encodeURIComponent(row.ids[0]!)}/seal?endpoint=${endpoint}`,
      { method: "POST", headers: credential.headers ?? {}, credentials: credential.cookies ? "include" : "omit", redirect: "manual", signal },
    );
    if (answer.status !== 200) return failed(`HTTP ${answer.status}`);
    const told = await answer.json();
    if (told.sealed !== true) {
      // A refusal that the server has kept had no effect.
      const isRefusal = told.state === "settled" && told.status >= 400 && told.status < 500;
      return { why: `the server says that its key is ${told.state}`, isUsed: !isRefusal };
    }
    // Under another credential the key may have been used, and may yet be, where credentials are only hashed.
    return told.identity === "verified" || told.identity === "shared" ? "sealed" : failed("a seal reaches one credential only");
  } catch (error) {
    return failed((error as Error).message);
  }
}

/** Lets the application build a lane again that the server refused as out of order. Without its help the lane waits. */
export async function rebuild(host: Host, row: Row): Promise<void> {
  const { store, profile, environment, tell } = host;
  const behind: Row[] = [];
  await store.run("readonly", (tx) => tx.scan({ index: "q", key: row.lane }, (other) => behind.push(other) > 1000));
  const [refused, ...others] = behind.map((other) => receiptOf(other, store.isDurable));
  const built = refused && (await host.rebuild?.(refused, others));
  if (!built) return;
  const { drop = [], with: instead } = built;
  const now = environment.now();
  const options = { lane: row.lane, principal: row.principal, ...instead?.options };
  const draft = instead &&
    (await freeze(new Request(instead.request, instead.init), options.id ?? mint(profile.mint, now), options, profile, now));
  const isBuilt = await store.run("readwrite", async (tx) => {
    const { status, token, heldFor, supersededBy } = await find(tx, row.ids[0]!);
    // This ran before, or another tab was faster.
    if (status === "aborted") return supersededBy === draft?.row.ids[0];
    // What was sent again since the application was asked may have taken effect.
    if (heldFor !== "rebuild" || token !== row.token) return false;
    for (const id of drop) await abort(tx, id, now, "No longer wanted.");
    const waits = draft && (await findAction(tx, draft.row));
    // The same action, where it waits already, is not done twice.
    if (draft && (!waits || waits.ids[0] === row.ids[0])) await replace(tx, row.ids[0]!, draft, now);
    else await abort(tx, row.ids[0]!, now, "No longer wanted.");
    return true;
  });
  if (!isBuilt) return;
  for (const id of [row.ids[0]!, ...drop]) tell("aborted", { ...row, ids: [id] }, "Built again.");
}

/** Puts a new message in the place of another, which is taken back. */
async function replace(tx: Tx, id: string, draft: Draft, now: number): Promise<Row> {
  const known = await tx.first("ids", draft.row.ids[0]!);
  const { status, ids } = await find(tx, id);
  // `id` may be that of a double tap.
  if (known && known.supersedes === ids[0]) return known;
  if (known) throw new OutboxError("id-reused", "the new id is taken: choose another");
  // Somebody else took it back or replaced it: a second successor would do the same thing twice.
  if (status === "aborted") throw new OutboxError("state", `the message ${id} is aborted`);
  const same = await findAction(tx, draft.row);
  if (same && same.ids[0] !== ids[0]) throw new OutboxError("state", `the same action waits already: it is the message ${same.ids[0]}`);
  const old = await abort(tx, id, now, "Replaced by another message.", draft.row.ids[0]);
  // The new one takes the old one's number, and with it its place in the lane.
  await tx.delete("messages", old.n);
  const { n, ...moved } = old;
  await tx.put("messages", moved);
  const before = old.ids[0]!;
  const first = old.first ?? old.supersedes ?? before;
  const order = old.order ?? old.acceptedAt;
  const row: Row = { ...draft.row, n, order, supersedes: before, first, ambiguous: old.ambiguous, inherited: old.ambiguous };
  await tx.put("messages", row);
  await tx.put("requests", draft.request, n);
  return row;
}
