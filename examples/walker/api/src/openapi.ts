// The API's document, made of one table: what is sent, what comes back, and every refusal that a client has to know.

const text = (description: string, more: object = {}) => ({ type: "string", description, ...more });
const generatedAt = text("When the walker did it, an instant such as 2026-05-01T08:00:00Z. More than 7 days and 6 hours ago, or more than 6 hours ahead, is STALE_ACTION.", { format: "date-time" });
const submittedAt = text("When it was sent. Written to the log, decides nothing, and may differ from attempt to attempt.", { format: "date-time" });
const questId = { type: "integer", minimum: 1 };
const tree = {
  type: "object",
  required: ["treePointsBanked", "allocations"],
  properties: { treePointsBanked: { type: "integer", minimum: 0 }, allocations: { type: "array", items: { $ref: "#/components/schemas/Allocation" } } },
};

/** Refusals of the three actions that are behind a key, whatever they do. */
const KEYED: Record<number, string[]> = {
  400: ["IDEMPOTENCY_KEY_REQUIRED", "IDEMPOTENCY_KEY_INVALID", "TIMESTAMP_INVALID", "BAD_REQUEST"],
  401: ["IDENTITY_MISSING", "UNAUTHENTICATED"],
  409: ["IDEMPOTENCY_CONFLICT", "IDEMPOTENCY_IN_FLIGHT"],
  422: ["STALE_ACTION"],
  503: ["STORE_UNAVAILABLE", "SETTLEMENT_PENDING"],
};

interface Operation {
  id: string;
  summary: string;
  isKeyed?: boolean;
  params?: string[];
  body?: Record<string, object>;
  answer: object;
  refusals?: Record<number, string[]>;
}

const operations: Record<string, Operation> = {
  "post /session": { id: "session", summary: "Signs in by a name.", body: { name: text("The walker's name.") }, answer: { type: "object" } },
  "get /tree/state": { id: "tree.state", summary: "The tree as it is.", answer: tree },
  "post /tree/allocate": {
    id: "tree.allocate",
    summary: "Spends points in the tree: all that is asked for, or nothing.",
    isKeyed: true,
    body: { allocations: { type: "array", minItems: 1, maxItems: 50, items: { $ref: "#/components/schemas/Allocation" } } },
    answer: tree,
    refusals: { 409: ["ALREADY_ALLOCATED"], 422: ["INSUFFICIENT_POINTS", "PREREQUISITES_NOT_MET"] },
  },
  "get /quest/available": { id: "quest.available", summary: "Every quest, how far it is, and its next step.", answer: { type: "object" } },
  "post /quest/start": {
    id: "quest.start",
    summary: "Begins a quest. It needs no key.",
    body: { questId },
    answer: { type: "object" },
    refusals: { 404: ["NOT_FOUND"], 409: ["QUEST_ALREADY_IN_PROGRESS", "QUEST_ALREADY_COMPLETED"], 422: ["PREREQUISITES_NOT_MET"] },
  },
  "post /quest/{id}/step/{n}/advance": {
    id: "quest.advance",
    summary: "Goes one step on.",
    isKeyed: true,
    params: ["id", "n"],
    body: {},
    answer: { type: "object", required: ["questId", "step", "steps"] },
    refusals: { 404: ["NOT_FOUND"], 409: ["QUEST_ALREADY_COMPLETED"], 422: ["STEP_OUT_OF_ORDER", "PREREQUISITES_NOT_MET"] },
  },
  "post /quest/complete": {
    id: "quest.complete",
    summary: "Completes a quest after its last step, and banks its points.",
    isKeyed: true,
    body: { questId },
    answer: { type: "object", required: ["questId", "pointsAwarded", "treePointsBanked"] },
    refusals: { 404: ["NOT_FOUND"], 409: ["QUEST_ALREADY_COMPLETED"], 422: ["STEP_OUT_OF_ORDER", "PREREQUISITES_NOT_MET"] },
  },
  "post /step/ingest": {
    id: "step.ingest",
    summary: "Counts steps. Its key stands in the body, and the larger count stays.",
    body: { idempotencyKey: text("The phone's key."), steps: { type: "integer", minimum: 0 } },
    answer: { type: "object" },
  },
  "delete /walker": { id: "walker.delete", summary: "Deletes the walker with everything, keys included.", answer: { type: "object" } },
};

const header = (name: string, required: boolean, description: string) => ({ name, in: "header", required, description, schema: { type: "string" } });
const keyHeader = { ...header("Idempotency-Key", true, "A version 4 UUID in lower case, made when the walker acts, the same for every attempt."), schema: { type: "string", format: "uuid" } };
const replayed = { "Idempotency-Replayed": { description: "`true`: this is the first attempt's answer again.", schema: { type: "string" } } };

function describe({ id, summary, isKeyed = false, params = [], body, answer, refusals = {} }: Operation): object {
  const statuses = [...new Set([...Object.keys(isKeyed ? KEYED : { 401: 0, 400: 0 }), ...Object.keys(refusals)].map(Number))].sort();
  const codes = (status: number) => [...((isKeyed && KEYED[status]) || []), ...(refusals[status] ?? [])];
  const properties = { ...body, ...(isKeyed && { clientGeneratedAt: generatedAt, clientSubmittedAt: submittedAt }) };
  const required = Object.keys(properties).filter((name) => name !== "clientSubmittedAt");
  const refusal = (status: number) => ({
    description: codes(status).join(", ") || "Refused.",
    content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
  });
  return {
    operationId: id,
    summary,
    parameters: [...(isKeyed ? [keyHeader] : []), ...params.map((name) => ({ name, in: "path", required: true, schema: { type: "integer" } }))],
    ...(body && { requestBody: { required: true, content: { "application/json": { schema: { type: "object", required, properties } } } } }),
    responses: {
      200: { description: "Done.", ...(isKeyed && { headers: replayed }), content: { "application/json": { schema: answer } } },
      ...Object.fromEntries(statuses.map((status) => [status, refusal(status)])),
    },
  };
}

export function openapi(): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const [name, operation] of Object.entries(operations)) {
    const [method, path] = name.split(" ") as [string, string];
    (paths[path] ??= {})[method] = describe(operation);
  }
  return {
    openapi: "3.1.0",
    info: { title: "Walker", version: "1", description: "Three actions are behind a key: however often one is sent, it takes effect once, and every attempt gets the first answer." },
    security: [{ bearer: [] }],
    paths,
    components: {
      securitySchemes: { bearer: { type: "http", scheme: "bearer" } },
      schemas: {
        Allocation: { type: "object", required: ["node", "points"], properties: { node: { type: "string" }, points: { type: "integer", minimum: 1 } } },
        Error: {
          type: "object",
          required: ["error", "message", "details", "requestId"],
          properties: { error: text("The code."), message: text("For people."), details: { type: "object" }, requestId: { type: "string" } },
        },
      },
    },
  };
}
