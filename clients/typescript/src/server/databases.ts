// The drivers that are shipped: node-postgres and Prisma. Typed by what is used of them, so that nothing is imported.

import type { Database, Param } from "./sql.js";

/** How long the server may take to answer COMMIT before its answer counts as lost. */
const COMMIT_MS = 25_000;

export interface PgClient {
  query(sql: string, params?: unknown[]): Promise<{ rows: any[]; command: string }>;
  on(event: "error", listener: (error: Error) => void): unknown;
  off(event: "error", listener: (error: Error) => void): unknown;
  release(destroy?: boolean | Error): void;
}

export interface PgPool<C extends PgClient> {
  query(sql: string, params?: unknown[]): Promise<{ rows: any[] }>;
  connect(): Promise<C>;
}

export type Isolation = "read committed" | "repeatable read" | "serializable";

/** A pool of node-postgres. Statements are unnamed, so that pgbouncer in transaction mode may stand between. */
export function pgDatabase<C extends PgClient>(pool: PgPool<C>, options: { isolation?: Isolation } = {}): Database<C> {
  const begin = options.isolation === undefined ? "BEGIN" : `BEGIN ISOLATION LEVEL ${options.isolation.toUpperCase()}`;
  return {
    confirmsCommit: true,
    query: async (sql, params) => (await pool.query(sql, params)).rows,
    async transaction(work) {
      const client = await pool.connect();
      // A connection that breaks while no statement runs must not end the process; the next statement tells.
      const ignore = () => {};
      client.on("error", ignore);
      let isClean = false;
      try {
        await client.query(begin);
        const query = async (sql: string, params: Param[]) => (await client.query(sql, params)).rows;
        const result = await work(client, query).catch(async (error: unknown) => {
          isClean = await client.query("ROLLBACK").then(
            () => true,
            () => false,
          );
          throw error;
        });
        const { command } = await within(COMMIT_MS, client.query("COMMIT"));
        isClean = true;
        if (command !== "COMMIT") {
          throw Object.assign(new Error("a failed statement made COMMIT a rollback"), { code: "25P02" });
        }
        return result;
      } finally {
        client.off("error", ignore);
        // A connection in an unknown state is thrown away.
        client.release(!isClean);
      }
    },
  };
}

async function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the server did not answer COMMIT within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

interface PrismaQueries {
  $queryRawUnsafe(sql: string, ...params: any[]): Promise<unknown>;
}

export interface PrismaClientLike<Tx extends PrismaQueries> extends PrismaQueries {
  $transaction<T>(work: (tx: Tx) => Promise<T>, options?: any): Promise<T>;
}

export interface PrismaOptions {
  /** How long the transaction may take; 30 s by default, where Prisma's own default is 5 s. */
  timeout?: number;
  /** How long to wait for a connection; 5 s by default. */
  maxWait?: number;
  isolationLevel?: "ReadCommitted" | "RepeatableRead" | "Serializable";
}

/**
 * A client of Prisma. It does not tell a commit from the rollback of a failed transaction, so the record is asked after
 * every commit.
 */
export function prismaDatabase<Tx extends PrismaQueries>(
  client: PrismaClientLike<Tx>,
  options: PrismaOptions = {},
): Database<Tx> {
  const run = async (on: PrismaQueries, sql: string, params: Param[]) =>
    (await on.$queryRawUnsafe(sql, ...params)) as Record<string, unknown>[];
  const settings = { timeout: 30_000, maxWait: 5_000, ...options };
  return {
    query: (sql, params) => run(client, sql, params),
    transaction: (work) => client.$transaction((tx) => work(tx, (sql, params) => run(tx, sql, params)), settings),
  };
}
