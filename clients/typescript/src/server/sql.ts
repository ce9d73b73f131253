// The SQL of the store: four functions, their arguments and their results, over one small interface to a driver. Every
// parameter is cast, so that unnamed statements and any driver find the function.

import type { Arrival } from "./arrival.js";

export type Param = string | number | Uint8Array;

/** Runs one statement with numbered parameters and returns its rows. */
export type Query = (sql: string, params: Param[]) => Promise<Record<string, unknown>[]>;

/** What the library needs of a driver. */
export interface Database<Tx> {
  /** One statement in a transaction of its own. */
  query: Query;
  /**
   * Runs work in one transaction on one connection: commits when it resolves and rolls back when it rejects. The query
   * beside the driver's own transaction runs inside it.
   */
  transaction<T>(work: (tx: Tx, query: Query) => Promise<T>): Promise<T>;
  /**
   * Whether `transaction` resolves only after the server has said COMMIT. A driver that does not look would take the
   * rollback of a failed transaction for a commit; the library then asks the record before it answers.
   */
  confirmsCommit?: boolean;
}

/** What the store says of a key. */
export interface Row {
  verdict: string;
  status: number;
  headers: Buffer;
  body: Buffer;
  outcomeUnknown: boolean;
  guarantee: string;
  /** Which attempt's record it is. */
  fence: string;
  fingerprint: Buffer;
  now: number;
  /** The hash of the payload that the key stands for: after a mismatch, where it is kept. */
  payloadHash: Buffer;
}

const COLUMNS = "verdict, status, headers, body, outcome_unknown, guarantee, fence, fingerprint, now, payload_hash";
const ENTER = `SELECT ${COLUMNS} FROM semel.enter($1::bytea, $2::bytea, $3::text, $4::text::bytea[], $5::text::jsonb, $6::text::jsonb)`;
const LOOK = `SELECT ${COLUMNS} FROM semel.look($1::bytea, $2::bytea, $3::text, $4::text::bytea[], $5::text::jsonb)`;
const LEAVE = "SELECT verdict, fence FROM semel.leave($1::bytea, $2::integer, $3::bytea, $4::bytea)";
const ADMIT = "SELECT verdict, retry_after_ms FROM semel.admit($1::bytea, $2::text::jsonb, $3::text::jsonb)";

export async function enter(query: Query, arrival: Arrival): Promise<Row> {
  const { id, scope, key, fingerprints, about, options } = arrival;
  const params = [id, scope, key, byteaArray(fingerprints), JSON.stringify(about), JSON.stringify(options)];
  return rowOf(await query(ENTER, params));
}

export async function look(query: Query, arrival: Arrival): Promise<Row> {
  const { id, scope, key, fingerprints, options } = arrival;
  return rowOf(await query(LOOK, [id, scope, key, byteaArray(fingerprints), JSON.stringify(options)]));
}

/** Writes the record; says whether the answer is kept, and which record it is. */
export async function leave(
  query: Query,
  id: Buffer,
  status: number,
  headers: Buffer,
  body: Buffer,
): Promise<{ isKept: boolean; fence: string }> {
  const [row] = await query(LEAVE, [id, status, headers, body]);
  return { isKept: row!["verdict"] === "settled", fence: String(row!["fence"]) };
}

/** Asks the limits about a new key; the milliseconds to wait where there is no room. */
export async function admit(query: Query, arrival: Arrival, limits: object): Promise<number | undefined> {
  const [row] = await query(ADMIT, [arrival.id, JSON.stringify(arrival.about), JSON.stringify(limits)]);
  return row!["verdict"] === "admitted" ? undefined : Number(row!["retry_after_ms"] ?? 0);
}

function rowOf(rows: Record<string, unknown>[]): Row {
  const row = rows[0];
  if (row === undefined) throw new Error("the store's function gave no row");
  return {
    verdict: String(row["verdict"]),
    status: Number(row["status"] ?? 0),
    headers: bufferOf(row["headers"]),
    body: bufferOf(row["body"]),
    outcomeUnknown: row["outcome_unknown"] === true,
    guarantee: String(row["guarantee"] ?? "atomic"),
    fence: String(row["fence"] ?? ""),
    fingerprint: bufferOf(row["fingerprint"]),
    now: Number(row["now"] ?? 0),
    payloadHash: bufferOf(row["payload_hash"]),
  };
}

/** Drivers give bytes as a Buffer, as another Uint8Array, or as PostgreSQL's text. */
function bufferOf(value: unknown): Buffer {
  if (value === null || value === undefined) return Buffer.alloc(0);
  if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  if (typeof value === "string" && value.startsWith("\\x")) return Buffer.from(value.slice(2), "hex");
  throw new TypeError("the driver gives bytea in a form that is not known here");
}

/** Writes an array as PostgreSQL's own text, which every driver can pass on. */
function byteaArray(values: Buffer[]): string {
  return `{${values.map((value) => `"\\\\x${value.toString("hex")}"`).join(",")}}`;
}
