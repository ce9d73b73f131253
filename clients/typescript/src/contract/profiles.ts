// The sender's half of every profile. Generated from spec/contract.md by `npm run generate`: do not edit.
import type { Profile } from "./profile.js";

export const ietf: Profile = {name: "ietf", header: "Idempotency-Key", format: "printable255", mint: "uuid4", isFifo: true, isDropped: false, window: 86400000, hasMargin: true, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 82800000}};
export const ietfRules = "200-299 success|401 auth|408,425,429,503 retry-after|409 in-flight,too-many-waiters,outcome-unknown,superseded,idempotency-in-flight retry-after|500-599 retry|0-999 dead:rejected";

export const stripe: Profile = {name: "stripe", header: "Idempotency-Key", format: "printable255", mint: "uuid4", isFifo: true, isDropped: false, window: 86400000, hasMargin: false, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 82800000}};
export const stripeRules = "200-299 success|401 auth|408,425,429,503 retry-after|409 fingerprint-mismatch,key-sealed,credential-changed,answer-not-kept,idempotency-conflict,idempotency-key-reused dead:rejected|409 retry-after|500-599 retry|0-999 dead:rejected";

export const walker: Profile = {name: "walker", header: "Idempotency-Key", format: "uuid4-lower", mint: "uuid4", isFifo: true, isDropped: true, window: 604800000, hasMargin: true, generatedAt: "clientGeneratedAt", schedule: {base: 5000, factor: 2, cap: 300000, jitter: 0.25, burst: 12, period: 900000, maxAge: 604800000}};
export const walkerRules = "200-299 success|409 idempotency-conflict drop:idempotency-conflict|409 already-allocated,quest-already-completed,quest-already-in-progress success|409 in-flight,too-many-waiters,outcome-unknown,superseded,idempotency-in-flight retry-after|422 stale-action drop:stale-action|422 prerequisites-not-met drop:prereq-slipped|422 insufficient-points drop:points-changed|422 step-out-of-order,ordering-violation rebuild|422 retry:1:drop:unknown-422|400 drop:bad-request|401 auth|408,425,429,503 retry-after|500-599 retry|0-999 dead:rejected";

export const agents: Profile = {name: "agents", header: "X-Idempotency-Key", format: "printable255", mint: "uuid4", isFifo: true, isDropped: false, window: 86400000, hasMargin: false, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 82800000}};
export const agentsRules = "200-299 success|401 auth|408,425,429,503 retry-after|409 fingerprint-mismatch,key-sealed,credential-changed,answer-not-kept,idempotency-conflict,idempotency-key-reused dead:rejected|409 retry-after|500-599 retry|0-999 dead:rejected";

export const scores: Profile = {name: "scores", header: "X-Idempotency-Key", format: "any255", mint: "uuid4", isFifo: true, isDropped: false, window: 82800000, hasMargin: true, schedule: {base: 1000, factor: 2, cap: 16000, jitter: 0, burst: 6, period: 300000, maxAge: 82800000}};
export const scoresRules = "200-299 success|401 auth|409 fingerprint-mismatch,key-sealed,credential-changed,answer-not-kept,idempotency-conflict,idempotency-key-reused dead:rejected|408,409,425,429,503 retry-after|500-599 retry|0-999 dead:rejected";

export const feed: Profile = {name: "feed", header: "Idempotency-Key", format: "token255", mint: "uuid4-ms", isFifo: true, isDropped: false, window: 86400000, hasMargin: false, schedule: {base: 1000, factor: 2, cap: 32000, jitter: 0, maxAge: 82800000}};
export const feedRules = "200-299 success|401 auth|409 fingerprint-mismatch,key-sealed,credential-changed,answer-not-kept,idempotency-conflict,idempotency-key-reused dead:rejected|409 retry-after|422 dead:conflicting-payload|408,425,429,503 retry-after|500-599 retry|0-999 dead:rejected";

export const mesh: Profile = {name: "mesh", header: "Idempotency-Key", format: "printable255", mint: "ulid", isFifo: false, isDropped: false, window: 518400000, hasMargin: true, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 518400000}};
export const meshRules = "200-299 success|401 auth|403 identity-refused auth|403 retry:3:dead:forbidden|408,425,429,503 retry-after|409 in-flight,too-many-waiters,outcome-unknown,superseded,idempotency-in-flight retry-after|500-599 retry|0-999 dead:rejected";

export const profiles = { ietf, stripe, walker, agents, scores, feed, mesh };

export const rules: Record<string, string> = {
  ietf: ietfRules,
  stripe: stripeRules,
  walker: walkerRules,
  agents: agentsRules,
  scores: scoresRules,
  feed: feedRules,
  mesh: meshRules,
};
