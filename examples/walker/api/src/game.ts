// The rules of the game. Each action gets the transaction that semel commits together with the key's record; it takes the lock of the
// walker's row first, so that whoever spends or advances does so one after the other. A refusal rolls everything back.
import type { Prisma, PrismaClient } from "@prisma/client";
import { Refusal } from "./refusal.js";
import { QUESTS, TREE, type Quest } from "./world.js";

export type Tx = Prisma.TransactionClient;

/** Locks the walker's row until the transaction ends, and reads the balance. */
async function lockWalker(tx: Tx, id: string): Promise<number> {
  const rows = await tx.$queryRaw<{ points: number }[]>`SELECT tree_points_banked AS points FROM walker WHERE id = ${id}::uuid FOR UPDATE`;
  if (!rows[0]) throw new Refusal("UNAUTHENTICATED", "there is no such walker");
  return rows[0].points;
}

export async function readTree(db: Tx | PrismaClient, walkerId: string): Promise<object> {
  const walker = await db.walker.findUniqueOrThrow({ where: { id: walkerId }, include: { allocations: { orderBy: { node: "asc" } } } });
  const allocations = walker.allocations.map(({ node, points }) => ({ node, points }));
  return { treePointsBanked: walker.treePointsBanked, allocations };
}

/** Spends points in the tree: all that is asked for, or nothing. */
export async function allocate(tx: Tx, walkerId: string, body: any): Promise<object> {
  const wanted = readAllocations(body?.allocations);
  const banked = await lockWalker(tx, walkerId);
  const known = await tx.allocation.findMany({ where: { walkerId } });
  const points = new Map(known.map(({ node, points }) => [node, points]));
  for (const { node, points: more } of wanted) {
    const { cost, needs } = TREE[node]!;
    const now = points.get(node) ?? 0;
    if (now >= cost) throw new Refusal("ALREADY_ALLOCATED", `${node} is full`, { node });
    if (now + more > cost) throw new Refusal("BAD_REQUEST", `${node} takes ${cost - now} more points`, { node });
    const missing = needs.filter((one) => (points.get(one) ?? 0) < TREE[one]!.cost);
    if (missing.length > 0) throw new Refusal("PREREQUISITES_NOT_MET", `${node} needs ${missing.join(" and ")}`, { node, missing });
    points.set(node, now + more);
  }
  const needed = wanted.reduce((sum, { points }) => sum + points, 0);
  if (needed > banked) throw new Refusal("INSUFFICIENT_POINTS", `${needed} points are needed, ${banked} are banked`, { needed, banked });
  for (const { node } of wanted) {
    const total = points.get(node)!;
    await tx.allocation.upsert({ where: { walkerId_node: { walkerId, node } }, create: { walkerId, node, points: total }, update: { points: total } });
  }
  await tx.walker.update({ where: { id: walkerId }, data: { treePointsBanked: banked - needed } });
  return readTree(tx, walkerId);
}

function readAllocations(value: unknown): { node: string; points: number }[] {
  const isOne = (one: any) => typeof one?.node === "string" && Object.hasOwn(TREE, one.node) && Number.isInteger(one.points) && one.points > 0;
  if (Array.isArray(value) && value.length > 0 && value.length <= 50 && value.every(isOne)) return value;
  throw new Refusal("BAD_REQUEST", "allocations is a list of {node, points}, with nodes of the tree", { nodes: Object.keys(TREE) });
}

function findQuest(id: unknown): Quest {
  const quest = Number.isInteger(id) ? QUESTS[id as number] : undefined;
  if (!quest) throw new Refusal("NOT_FOUND", `there is no quest ${String(id)}`);
  return quest;
}

/** The walker's run of a quest that is under way. */
async function runOf(tx: Tx, walkerId: string, questId: number): Promise<{ step: number }> {
  const run = await tx.questRun.findUnique({ where: { walkerId_questId: { walkerId, questId } } });
  if (!run) throw new Refusal("PREREQUISITES_NOT_MET", `quest ${questId} was not started`, { questId });
  if (run.completedAt) throw new Refusal("QUEST_ALREADY_COMPLETED", `quest ${questId} is completed`, { questId });
  return run;
}

/** Begins a quest. Not behind a key: that it is under way is known by itself. */
export async function startQuest(tx: Tx, walkerId: string, questId: unknown): Promise<object> {
  const quest = findQuest(questId);
  await lockWalker(tx, walkerId);
  const runs = await tx.questRun.findMany({ where: { walkerId } });
  const run = runs.find((one) => one.questId === questId);
  if (run?.completedAt) throw new Refusal("QUEST_ALREADY_COMPLETED", `quest ${questId} is completed`, { questId });
  if (run) throw new Refusal("QUEST_ALREADY_IN_PROGRESS", `quest ${questId} is under way`, { questId, step: run.step });
  const missing = quest.needs.filter((id) => !runs.some((one) => one.questId === id && one.completedAt));
  if (missing.length > 0) throw new Refusal("PREREQUISITES_NOT_MET", `quest ${questId} needs quest ${missing.join(" and ")}`, { questId, missing });
  await tx.questRun.create({ data: { walkerId, questId: questId as number } });
  return { questId, step: 0, steps: quest.steps };
}

/** Goes one step on. Steps are taken in their order. */
export async function advance(tx: Tx, walkerId: string, questId: number, step: number): Promise<object> {
  const quest = findQuest(questId);
  await lockWalker(tx, walkerId);
  const run = await runOf(tx, walkerId, questId);
  if (step !== run.step + 1 || step > quest.steps) throw outOfOrder(questId, run.step, quest.steps, step);
  await tx.questRun.update({ where: { walkerId_questId: { walkerId, questId } }, data: { step } });
  return { questId, step, steps: quest.steps };
}

/** Completes a quest after its last step, and banks what it awards. */
export async function complete(tx: Tx, walkerId: string, body: any): Promise<object> {
  const questId = body?.questId;
  const quest = findQuest(questId);
  const banked = await lockWalker(tx, walkerId);
  const run = await runOf(tx, walkerId, questId);
  if (run.step !== quest.steps) throw outOfOrder(questId, run.step, quest.steps, quest.steps + 1);
  await tx.questRun.update({ where: { walkerId_questId: { walkerId, questId } }, data: { completedAt: new Date() } });
  await tx.walker.update({ where: { id: walkerId }, data: { treePointsBanked: banked + quest.points } });
  return { questId, pointsAwarded: quest.points, treePointsBanked: banked + quest.points };
}

function outOfOrder(questId: number, step: number, steps: number, received: number): Refusal {
  const expected = Math.min(step + 1, steps);
  return new Refusal("STEP_OUT_OF_ORDER", `quest ${questId} is at step ${step} of ${steps}`, { questId, step, expected, received });
}

/** What a walker may do next: by this a client builds a queue again that was out of order. */
export async function readAvailable(db: PrismaClient, walkerId: string): Promise<object> {
  const runs = await db.questRun.findMany({ where: { walkerId } });
  const isDone = (id: number) => runs.some((run) => run.questId === id && run.completedAt);
  const quests = Object.entries(QUESTS).map(([key, { title, steps, points, needs }]) => {
    const id = Number(key);
    const run = runs.find(({ questId }) => questId === id);
    const status = isDone(id) ? "completed" : run ? "in-progress" : needs.every(isDone) ? "available" : "locked";
    const step = run?.step ?? 0;
    return { questId: id, title, status, step, steps, points, ...(status === "in-progress" && step < steps && { nextStep: step + 1 }) };
  });
  return { quests };
}

/** Counts steps of a phone. It brings a key of its own in the body and merges: the larger count stays. */
export async function ingestSteps(db: PrismaClient, walkerId: string, body: any): Promise<object> {
  const { idempotencyKey: key, steps } = body ?? {};
  if (typeof key !== "string" || key.length < 1 || key.length > 255 || !Number.isInteger(steps) || steps < 0 || steps > 1e6)
    throw new Refusal("BAD_REQUEST", "idempotencyKey is a text, steps a whole number");
  const [row] = await db.$queryRaw<{ steps: number }[]>`
    INSERT INTO step_count (walker_id, key, steps) VALUES (${walkerId}::uuid, ${key}, ${steps})
    ON CONFLICT (walker_id, key) DO UPDATE SET steps = greatest(step_count.steps, excluded.steps) RETURNING steps`;
  return { steps: row!.steps };
}
