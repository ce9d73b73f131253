// The drivers under test, each as a database for Once and as a plain `query` for handlers. `node-postgres` and Prisma are
// shipped; postgres.js and Drizzle are shown in the guide, with this very code.

import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "@prisma/client";
import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import pg from "pg";
import postgres from "postgres";
import { pgDatabase, prismaDatabase } from "semel/server";

function pgDriver(url, options) {
  const pool = new pg.Pool({ connectionString: url, max: 20 });
  pool.on("error", () => {});
  return {
    database: pgDatabase(pool, options),
    rows: async (tx, text, ...params) => (await tx.query(text, params)).rows,
  };
}

function prismaDriver(url) {
  const client = new PrismaClient({ adapter: new PrismaPg({ connectionString: url, max: 20 }) });
  return {
    database: prismaDatabase(client),
    rows: (tx, text, ...params) => tx.$queryRawUnsafe(text, ...params),
  };
}

// postgres.js, as docs/guides/once-node.md shows it.
export function postgresJsDatabase(client) {
  return {
    query: (text, params) => client.unsafe(text, params),
    transaction: (work) => client.begin((tx) => work(tx, (text, params) => tx.unsafe(text, params))),
  };
}

function postgresJsDriver(url) {
  // Unnamed statements, as behind pgbouncer; and the proxy finds their text.
  const client = postgres(url, { max: 20, prepare: false, onnotice: () => {} });
  return {
    database: postgresJsDatabase(client),
    rows: (tx, text, ...params) => tx.unsafe(text, params),
  };
}

// Drizzle, as docs/guides/once-node.md shows it.
const bind = (text, params) =>
  sql.join(text.split(/\$(\d+)/).map((part, at) => (at % 2 ? sql`${params[part - 1]}` : sql.raw(part))));
export function drizzleDatabase(db) {
  const query = async (on, text, params) => (await on.execute(bind(text, params))).rows;
  return {
    query: (text, params) => query(db, text, params),
    transaction: (work) => db.transaction((tx) => work(tx, (text, params) => query(tx, text, params))),
  };
}

function drizzleDriver(url) {
  const pool = new pg.Pool({ connectionString: url, max: 20 });
  pool.on("error", () => {});
  pool.on("connect", (client) => client.on("error", () => {}));
  return {
    database: drizzleDatabase(drizzle(pool)),
    rows: async (tx, text, ...params) => (await tx.execute(bind(text, params))).rows,
  };
}

export const drivers = { pg: pgDriver, prisma: prismaDriver, postgres: postgresJsDriver, drizzle: drizzleDriver };
