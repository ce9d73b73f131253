//! `semel serve relay` and `semel relay` as users run them: the real program before a stand-in for a score service.
//!
//! | what is promised | where it is tried |
//! | --- | --- |
//! | key required, up to 255 characters, unique for each principal | `accepting` |
//! | bodies of 200 and 202 (S2-67, S2-68), in `scores` and in other profiles | `accepting`, `walking` |
//! | replay is live: 202 while it waits, 200 after | `accepting`, `walking` |
//! | `X-Sync-Mode`: interactive at once, background merged (S2-65, S2-66) | `accepting` |
//! | unknown target 404; empty, too many, non-numeric, overflowing 400, nothing stored | `accepting`, `refusing` |
//! | `lanes?group=` over all principals; `pending?group=&session=` of the caller (S2-69) | `accepting`, `walking` |
//! | refusals are problems, whoever noticed | `refusing` |
//! | commands about something unknown fail, in words or JSON | `refusing` |
//! | list, show, resolve, requeue, audit export | `operating` |
//! | metrics by name (S2-94 to S2-96), health, graceful end | `operating` |
//! | bodies: one bound, a time, no strangers | `bodies` |
//! | lanes, credentials, addresses and outcomes are not mixed up | `guarding` |
//! | 429, 401 and release, one of three fails, `kill -9` | `failing` |
//! | SIGHUP: all settings or none | `reloading` |
//! | credentials by call, sealed; the usual profile; lists; the clock | `keeping` |
//! | several replicas | `../live_relay.rs` |
//! | Redis as a hint (S2-14, S2-15) | `../live_relay_hints.rs` |
//! | TLS, roles, migrations | `../live_relay_store.rs`, `../migrating.rs` |
//! | `semel up`, `semel check` | `../up.rs`, `../check.rs` |

mod accepting;
mod bodies;
mod failing;
mod guarding;
mod keeping;
mod operating;
mod refusing;
mod reloading;
mod walking;
mod world;
