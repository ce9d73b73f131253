// The trials in a real browser: chromium.
import { defineTrials } from "../support/trials.js";

defineTrials("chromium");
