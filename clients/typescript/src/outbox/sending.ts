// The part of the outbox that only the tab that sends needs. It is loaded when a tab begins to send.
export { replace, takeEpoch } from "./claims.js";
export { isLikelyFromService } from "./judge.js";
export { readRequest, requeue } from "./requeue.js";
export { Sender } from "./sender.js";
export { readSnapshot } from "./state.js";
