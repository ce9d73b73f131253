// The page that real browsers load: it opens outboxes when a test asks for one, and hands the parts out.
import { fetchOnce } from "../../dist/semel/index.js";
import { Outbox } from "../../dist/outbox/index.js";
import { WorkingValues } from "../../dist/snapshot/index.js";
import { wakeWorker } from "../../dist/worker/index.js";

const boxes = {};

globalThis.semel = { Outbox, fetchOnce, WorkingValues, wakeWorker };
globalThis.events = [];
globalThis.box = (name, options = {}) => {
  if (!boxes[name]) {
    boxes[name] = Outbox.open({ name, credentials: "none", persist: false, ...options });
    boxes[name].on((event) => globalThis.events.push(event));
  }
  return boxes[name];
};
