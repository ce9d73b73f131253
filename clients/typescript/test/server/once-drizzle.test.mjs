// The scenarios of spec/once.json on Drizzle under Express.

import { testOnce } from "./once.mjs";

testOnce("drizzle", "express");
