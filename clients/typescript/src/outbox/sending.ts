// The part of the outbox that only the tab that sends needs. It is loaded when a tab begins to send.
export { hasten, takeEpoch } from "./claims.js";
export { isLikelyFromService } from "./judge.js";
/** Loads what few pages ever need: requeueing, building a lane again, reading a request. */
export const loadRequeueing = () => import("./requeue.js");
export { Sender } from "./sender.js";
export { readSnapshot } from "./state.js";
