// semel/server: requests that take effect once, inside the service's own PostgreSQL transaction.

export type { Answer, HeaderLines, Reply } from "./answer.js";
export { authorizationCaller, cookieCaller, sharedCaller } from "./arrival.js";
export type { Caller, Request } from "./arrival.js";
export { pgDatabase, prismaDatabase } from "./databases.js";
export type { Isolation, PgClient, PgPool, PrismaClientLike, PrismaOptions } from "./databases.js";
export { expressHandler } from "./express.js";
export { fastifyRoute } from "./fastify.js";
export { honoHandler } from "./hono.js";
export type { Route } from "./http.js";
export { Once } from "./once.js";
export type { Handler, OnceOptions } from "./once.js";
export { Problem } from "./problem.js";
export type { Retry, Slug } from "./problem.js";
export { preset, withRetryWindow } from "./profile.js";
export type { Limit, PresetName, Profile } from "./profile.js";
export type { Database, Param, Query } from "./sql.js";
