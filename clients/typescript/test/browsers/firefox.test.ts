// The trials in a real browser: firefox.
import { defineTrials } from "../support/trials.js";

defineTrials("firefox");
