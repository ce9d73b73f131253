// The scenarios of spec/once.json on Prisma under Fastify.

import { testOnce } from "./once.mjs";

testOnce("prisma", "fastify");
