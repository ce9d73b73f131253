// The part of the outbox that only the tab that sends needs. It is loaded when a tab begins to send.
/** Loads what few pages need: looking at messages, taking them back, requeueing, building a lane again. */
export const loadRequeueing = () => import("./requeue.js");
export { setPaused } from "./lanes.js";
export { Senders } from "./senders.js";
export { readSnapshot } from "./state.js";
