// The scenarios of spec/once.json on postgres.js under Hono.

import { testOnce } from "./once.mjs";

testOnce("postgres", "hono");
