// The sender's half of every profile. Generated from spec/contract.md by `npm run generate`: do not edit.
import type { Profile } from "./profile.js";

export const ietf: Profile = {name: "ietf", header: "Idempotency-Key", format: "printable255", mint: "uuid4", isFifo: true, isDropped: false, window: 86400000, hasMargin: true, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 82800000}};
export const stripe: Profile = {name: "stripe", header: "Idempotency-Key", format: "printable255", mint: "uuid4", isFifo: true, isDropped: false, window: 86400000, hasMargin: false, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 82800000}};
export const walker: Profile = {name: "walker", header: "Idempotency-Key", format: "uuid4-lower", mint: "uuid4", isFifo: true, isDropped: true, window: 604800000, hasMargin: true, generatedAt: "clientGeneratedAt", schedule: {base: 5000, factor: 2, cap: 300000, jitter: 0.25, burst: 12, period: 900000, maxAge: 604800000}};
export const agents: Profile = {name: "agents", header: "X-Idempotency-Key", format: "printable255", mint: "uuid4", isFifo: true, isDropped: false, window: 86400000, hasMargin: false, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 82800000}};
export const scores: Profile = {name: "scores", header: "X-Idempotency-Key", format: "any255", mint: "uuid4", isFifo: true, isDropped: false, window: 82800000, hasMargin: true, schedule: {base: 1000, factor: 2, cap: 16000, jitter: 0, burst: 6, period: 300000, maxAge: 82800000}};
export const feed: Profile = {name: "feed", header: "Idempotency-Key", format: "token255", mint: "uuid4-ms", isFifo: true, isDropped: false, window: 86400000, hasMargin: false, schedule: {base: 1000, factor: 2, cap: 32000, jitter: 0, maxAge: 82800000}};
export const mesh: Profile = {name: "mesh", header: "Idempotency-Key", format: "printable255", mint: "ulid", isFifo: false, isDropped: false, window: 518400000, hasMargin: true, schedule: {base: 1000, factor: 2, cap: 300000, jitter: "full", maxAge: 518400000}};

export const profiles = { ietf, stripe, walker, agents, scores, feed, mesh };
