// The page that real browsers load: it opens outboxes when a test asks for one, and hands the parts out.
import { fetchOnce } from "../../dist/semel/index.js";
import { Outbox } from "../../dist/outbox/index.js";
import { WorkingValues } from "../../dist/snapshot/index.js";
import { wakeWorker } from "../../dist/worker/index.js";

const boxes = {};

// A page that is closed is told so, and its outbox makes way for another. One that dies is not: `isDying` keeps it from hearing.
for (const name of ["pagehide", "freeze"])
  addEventListener(name, (event) => globalThis.isDying && event.stopImmediatePropagation(), true);

// Every database that the page has open, so that a test can close it under the page as browsers do.
globalThis.databases = [];
const open = IDBFactory.prototype.open;
IDBFactory.prototype.open = function (...parameters) {
  const request = open.apply(this, parameters);
  request.addEventListener("success", () => databases.push(request.result));
  return request;
};

globalThis.semel = { Outbox, fetchOnce, WorkingValues, wakeWorker };
globalThis.events = [];
globalThis.box = (name, options = {}) => {
  if (!boxes[name]) {
    boxes[name] = Outbox.open({ name, credentials: "none", persist: false, ...options });
    boxes[name].on((event) => globalThis.events.push(event));
  }
  return boxes[name];
};
