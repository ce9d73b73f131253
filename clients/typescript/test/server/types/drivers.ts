// Compiled, never run: the shipped drivers and frameworks fit the types of the real packages.

import type { PrismaClient } from "@prisma/client";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import pg from "pg";
import { expressHandler, fastifyRoute, honoHandler, Once, pgDatabase, prismaDatabase } from "semel/server";

declare const prisma: PrismaClient;
const byPg = new Once(pgDatabase(new pg.Pool(), { isolation: "serializable" }), { profile: "stripe" });
const byPrisma = new Once(prismaDatabase(prisma, { isolationLevel: "Serializable" }));

express().post(
  "/orders",
  expressHandler(
    byPg,
    { endpoint: "create-order", identify: (request: express.Request) => ({ principal: request.get("X-User") ?? "" }) },
    async (tx, request) => {
      const { rows } = await tx.query("INSERT INTO orders (item) VALUES ($1) RETURNING id", [request.body.item]);
      return { status: 201, json: rows[0] };
    },
  ),
);

fastify().post(
  "/orders",
  fastifyRoute(byPrisma, { endpoint: "create-order", identify: (request) => ({ principal: String(request.headers["x-user"]) }) }, async (tx) => {
    const order = await tx.order.create({ data: { item: "tea" } });
    return { status: 201, json: order };
  }),
);

new Hono().post(
  "/orders",
  honoHandler(byPg, { endpoint: "create-order", identify: (c) => ({ principal: c.req.header("X-User") ?? "" }) }, async (tx, c) => {
    await tx.query("SELECT 1");
    return c.json({}, 201);
  }),
);
