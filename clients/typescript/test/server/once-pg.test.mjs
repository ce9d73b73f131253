// The scenarios of spec/once.json on node-postgres under Express.

import { testOnce } from "./once.mjs";

testOnce("pg", "express");
