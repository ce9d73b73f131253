// The trials in a real browser: webkit.
import { defineTrials } from "../support/trials.js";

defineTrials("webkit");
