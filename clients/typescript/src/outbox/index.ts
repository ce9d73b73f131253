// `semel/outbox`: a queue in the browser that survives reloads and delivers in order, once.
export { Outbox } from "./outbox.js";
export type { RequeueOptions } from "./requeue.js";
export type { Environment, Locks, Channel } from "./environment.js";
export type { Profile } from "../contract/profile.js";
export {
  OutboxError, type Credential, type CredentialRequest, type Credentials, type ErrorCode, type EventType, type LaneState, type ListFilter,
  type OutboxEvent, type OutboxOptions, type Rebuilt, type Receipt, type SendOptions, type Sent, type Snapshot, type Status,
} from "./types.js";
