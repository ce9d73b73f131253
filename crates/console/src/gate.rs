//! What the console shows of a gate: its records, and what is counted.

use crate::part::{
    Chart, Column, Draw, Filter, Line, Notice, PANEL, Panel, Shape, Sheet, Show, View, column, rate, tile,
};

const STATES: &[&str] = &["claimed", "unknown", "settled", "unkept", "released", "sealed"];

const RECORD: &str = "/requests/{id}";

/// Of a record in a list.
const ROW: &[Column] = &[
    column("Record", "/id", Show::Link(RECORD)),
    column("Key", "/key", Show::Code),
    column("State", "/standing", Show::State),
    column("Answer", "/answer/status", Show::Text),
    column("Took (ms)", "/took_ms", Show::Text),
    column("Route", "/route", Show::Text),
    column("Principal", "/principal", Show::Text),
    column("Claimed", "/created_at", Show::Time),
];

/// Of a record on its page.
const WHOLE: &[Column] = &[
    column("State", "/standing", Show::State),
    column("Key", "/key", Show::Code),
    column("Route", "/route", Show::Text),
    column("Principal", "/principal", Show::Text),
    column("Tenant", "/tenant", Show::Text),
    column("Request", "/request_id", Show::Code),
    column("Guarantee", "/guarantee", Show::Text),
    column("Claimed", "/created_at", Show::Time),
    column("Lease until", "/lease_until", Show::Time),
    column("Can take effect until", "/late_until", Show::Time),
    column("Settled", "/settled_at", Show::Time),
    column("Took (ms)", "/took_ms", Show::Text),
    column("Replayed since the start (about)", "/replays", Show::Text),
    column("Expires", "/expires_at", Show::Time),
    column("First sent", "/client_generated_at", Show::Time),
    column("Headers of the request", "/request_headers", Show::Body),
    column("Answer", "/answer/status", Show::Text),
    column("Kept, but of unknown outcome", "/answer/outcome_unknown", Show::Text),
    column("Headers of the answer", "/answer/headers", Show::Body),
    column("Size of its body", "/answer/body_bytes", Show::Bytes),
    column("Body of the answer", "/answer/body_base64", Show::Body),
];

const AUDITED: &[Column] = &[
    column("When", "/at", Show::Time),
    column("Who", "/actor", Show::Text),
    column("What", "/action", Show::Text),
    column("Record", "/record", Show::Link("/requests/{record}")),
    column("Records", "/count", Show::Text),
    column("Why", "/reason", Show::Text),
];

const FILTERS: &[Filter] = &[
    Filter { name: "key", label: "Key", choices: &[] },
    Filter { name: "request_id", label: "Request id", choices: &[] },
    Filter { name: "principal", label: "Principal", choices: &[] },
    Filter { name: "route", label: "Route", choices: &[] },
    Filter { name: "state", label: "State", choices: STATES },
    Filter { name: "newer_than", label: "Not older than (such as 1h)", choices: &[] },
    Filter { name: "older_than", label: "Older than (such as 15m)", choices: &[] },
];

/// The gate's pages.
pub(crate) static SHEET: Sheet = Sheet {
    name: "gate",
    title: "Requests",
    health: "/readyz",
    numbers: None,
    views: &[
        View {
            path: "/requests",
            title: "Requests",
            on: "",
            beside: &[
                ("/requests?state=unknown", "Unknown outcomes"),
                ("/upkeep", "Sweeps, restores and the clock"),
                ("/stale", "Stale actions"),
            ],
            panels: &[Panel {
                api: "/v1/records",
                at: "/records",
                columns: ROW,
                filters: FILTERS,
                next: &[("next", "after")],
                always: "order=newest&within=100000",
                empty: "No record fits.",
                ..PANEL
            }],
        },
        View {
            path: RECORD,
            title: "Record {id}",
            on: "record",
            beside: &[],
            panels: &[
                Panel {
                    api: "/v1/records/{id}",
                    for_bodies: "body=true",
                    shape: Shape::Record,
                    columns: WHOLE,
                    ..PANEL
                },
                Panel {
                    title: "Timeline",
                    api: "/v1/records/{id}",
                    at: "/timeline",
                    shape: Shape::Timeline,
                    ..PANEL
                },
                Panel {
                    title: "What was done by hand",
                    api: "/v1/records/{id}",
                    at: "/audit",
                    columns: &[
                        column("When", "/at", Show::Time),
                        column("Who", "/actor", Show::Text),
                        column("What", "/action", Show::Text),
                        column("Why", "/reason", Show::Text),
                    ],
                    empty: "Nothing was done to it by hand.",
                    ..PANEL
                },
            ],
        },
        View {
            path: "/upkeep",
            title: "Sweeps, restores and the clock",
            on: "",
            beside: &[],
            panels: &[
                Panel {
                    title: "The store's clock",
                    api: "/v1/clock",
                    shape: Shape::Record,
                    columns: &[
                        column("Time", "/now", Show::Time),
                        column("Frozen", "/frozen", Show::Text),
                        column("Ahead (ms)", "/jump_ms", Show::Text),
                    ],
                    ..PANEL
                },
                Panel {
                    title: "Restores from a backup",
                    api: "/v1/restores",
                    at: "/restores",
                    columns: &[
                        column("Restored", "/restored_at", Show::Time),
                        column("Backup of", "/backup_time", Show::Time),
                        column("Undated keys", "/undated", Show::Text),
                    ],
                    empty: "No restore was reported.",
                    ..PANEL
                },
                Panel {
                    title: "Runs of the sweeper",
                    api: "/v1/cleanups",
                    at: "/cleanups",
                    columns: &[
                        column("When", "/at", Show::Time),
                        column("Took (ms)", "/took_ms", Show::Text),
                        column("Removed", "/removed", Show::Text),
                        column("Became unknown", "/unknown", Show::Text),
                        column("Released", "/released", Show::Text),
                    ],
                    next: &[("next", "before")],
                    empty: "The sweeper has not removed anything yet.",
                    ..PANEL
                },
            ],
        },
        View {
            path: "/stale",
            title: "Stale actions",
            on: "stale",
            beside: &[],
            panels: &[Panel {
                api: "/v1/stale",
                at: "/stale",
                columns: &[
                    column("Principal", "/principal", Show::Text),
                    column("Tenant", "/tenant", Show::Text),
                    column("Count", "/count", Show::Text),
                    column("First", "/first_at", Show::Time),
                    column("Last", "/last_at", Show::Time),
                ],
                filters: &[Filter { name: "principal", label: "Principal", choices: &[] }],
                next: &[("next", "after")],
                empty: "No action was refused as too old.",
                ..PANEL
            }],
        },
    ],
    notices: &[
        Notice {
            api: "/v1/records?state=unknown&limit=100",
            at: "/records",
            one: "outcome is unknown: find out at the service, then say so",
            many: "outcomes are unknown: find out at the service, then say so",
            page: "/requests?state=unknown",
        },
        Notice {
            api: "/v1/clock",
            at: "/frozen",
            one: "The clock is frozen: it jumped ahead, and nothing expires until it is mended or confirmed",
            many: "",
            page: "/upkeep",
        },
        Notice {
            api: "/v1/restores",
            at: "/in_force_until",
            one: "A restored backup is in force: keys without a record are unknown",
            many: "",
            page: "/upkeep",
        },
    ],
    tiles: &[
        tile("requests run", "semel_gate_answers_total", "executed", "/requests"),
        tile(
            "retries answered from the record",
            "semel_gate_answers_total",
            "replayed",
            "/requests?state=settled",
        ),
        tile("requests refused", "semel_gate_answers_total", "refused", "/requests"),
        tile("retries that waited for the first", "semel_gate_waits_total", "", "/requests?state=claimed"),
        tile(
            "requests with a key that no route protects",
            "semel_gate_unprotected_total",
            "",
            "/configuration",
        ),
        tile("outcomes that became unknown", "semel_gate_unknown_total", "", "/requests?state=unknown"),
    ],
    charts: &[
        Chart {
            title: "Requests under a key",
            unit: "a second",
            lines: &[
                rate("run", "semel_gate_answers_total", "executed"),
                rate("replayed", "semel_gate_answers_total", "replayed"),
                rate("refused", "semel_gate_answers_total", "refused"),
            ],
        },
        Chart {
            title: "Time of an answer",
            unit: "ms",
            lines: &[
                Line {
                    label: "p50",
                    metric: "semel_gateway_request_seconds",
                    labelled: "",
                    draw: Draw::Quantile(0.5),
                },
                Line {
                    label: "p99",
                    metric: "semel_gateway_request_seconds",
                    labelled: "",
                    draw: Draw::Quantile(0.99),
                },
            ],
        },
        Chart {
            title: "Conflicts and unknown outcomes",
            unit: "a second",
            lines: &[
                rate("conflicts", "semel_gate_problems_total", ""),
                rate("waits", "semel_gate_waits_total", ""),
                rate("unknown", "semel_gate_unknown_total", ""),
            ],
        },
        Chart {
            title: "Time of a call of the store",
            unit: "ms",
            lines: &[
                Line {
                    label: "p50",
                    metric: "semel_gate_store_seconds",
                    labelled: "",
                    draw: Draw::Quantile(0.5),
                },
                Line {
                    label: "p99",
                    metric: "semel_gate_store_seconds",
                    labelled: "",
                    draw: Draw::Quantile(0.99),
                },
            ],
        },
    ],
    recent: Some(Panel {
        title: "The newest requests",
        api: "/v1/records",
        at: "/records",
        columns: ROW,
        always: "order=newest&limit=10",
        empty: "No request with a key has come yet.",
        ..PANEL
    }),
    audit: Some(Panel {
        api: "/v1/audit",
        at: "/audit",
        columns: AUDITED,
        next: &[("next", "before")],
        empty: "Nothing was done by hand.",
        ..PANEL
    }),
};
