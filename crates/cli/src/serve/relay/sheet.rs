//! What the console shows of a relay: lanes, what is frozen and held, the audit trail.

use semel_console::part::{
    Chart, Column, Filter, Notice, PANEL, Panel, Shape, Sheet, Show, View, column, level, rate, tile,
};

const LANE: &str = "/relay/lanes/{id}";
const LANES: &[Column] = &[
    column("Lane", "/id", Show::Link(LANE)),
    column("Name", "/lane", Show::Text),
    column("Target", "/target", Show::Text),
    column("State", "/standing", Show::State),
    column("Waiting", "/pending", Show::Text),
    column("Parked", "/parked", Show::Text),
    column("Dead", "/dead", Show::Text),
    column("Last error", "/last_error", Show::Text),
];
const ENTRY: &[Column] = &[
    column("Number", "/seq", Show::Text),
    column("Request", "/request", Show::Code),
    column("Principal", "/principal", Show::Text),
    column("Value", "/value", Show::Text),
    column("Since", "/since", Show::Time),
];
const HELD: &[Column] = &[
    column("Number", "/seq", Show::Text),
    column("State", "/state", Show::State),
    column("Why", "/why", Show::Text),
    column("Request", "/request", Show::Code),
    column("Principal", "/principal", Show::Text),
    column("Value", "/value", Show::Text),
    column("Since", "/since", Show::Time),
];
const AUDITED: &[Column] = &[
    column("When", "/at", Show::Time),
    column("What", "/event", Show::Text),
    column("Target", "/target", Show::Text),
    column("Lane", "/lane", Show::Text),
    column("Request", "/request", Show::Code),
    column("Principal", "/principal", Show::Text),
    column("Value", "/value", Show::Text),
    column("Before", "/before", Show::Text),
    column("After", "/after", Show::Text),
    column("Detail", "/detail", Show::Text),
    column("Why", "/reason", Show::Text),
];

/// The relay's pages.
pub(crate) static SHEET: Sheet = Sheet {
    name: "relay",
    title: "Relay",
    health: "/readyz",
    numbers: Some("/metrics"),
    views: &[
        View {
            path: "/relay",
            title: "Relay",
            on: "",
            beside: &[
                ("/relay?state=in-doubt", "In doubt"),
                ("/relay?state=parked", "Parked"),
                ("/relay?state=dead", "Dead"),
                ("/relay/clock", "Clock"),
            ],
            panels: &[Panel {
                api: "/v1/relay/lanes",
                at: "/lanes",
                columns: LANES,
                filters: &[
                    Filter {
                        name: "state",
                        label: "State",
                        choices: &["open", "blocked", "in-doubt", "dead", "parked", "pending"],
                    },
                    Filter { name: "target", label: "Target", choices: &[] },
                    Filter { name: "lane", label: "Lane", choices: &[] },
                    Filter { name: "key", label: "Key of a request", choices: &[] },
                ],
                next: &[("next_before", "before")],
                always: "order=newest",
                empty: "No lane fits.",
                ..PANEL
            }],
        },
        View {
            path: LANE,
            title: "Lane {id}",
            on: "lane",
            beside: &[],
            panels: &[
                Panel {
                    api: "/v1/relay/lanes/{id}",
                    shape: Shape::Record,
                    columns: &[
                        column("State", "/state", Show::State),
                        column("Target", "/target", Show::Text),
                        column("Group", "/group", Show::Text),
                        column("Lane", "/lane", Show::Text),
                        column("Label", "/label", Show::Text),
                        column("Applied", "/applied", Show::Text),
                        column("Written up to", "/watermark", Show::Text),
                        column("Attempts", "/attempts", Show::Text),
                        column("Due", "/due_at", Show::Time),
                        column("Last error", "/last_error", Show::Text),
                    ],
                    ..PANEL
                },
                Panel {
                    title: "The batch that is being written",
                    api: "/v1/relay/lanes/{id}",
                    at: "/intent",
                    shape: Shape::Record,
                    columns: &[
                        column("Sent as", "/sender", Show::Text),
                        column("After number", "/after_seq", Show::Text),
                        column("Up to number", "/up_to_seq", Show::Text),
                        column("Value before", "/before", Show::Text),
                        column("Value after", "/after", Show::Text),
                        column("Key", "/key", Show::Code),
                        column("Tries", "/tries", Show::Text),
                        column("First try", "/first_at", Show::Time),
                        column("Last try", "/last_at", Show::Time),
                        column("Request", "/request", Show::Body),
                    ],
                    ..PANEL
                },
                Panel {
                    title: "Evidence",
                    api: "/v1/relay/lanes/{id}",
                    at: "/intent/evidence",
                    columns: &[column("When", "/at", Show::Time), column("What", "/what", Show::Text)],
                    empty: "There is none.",
                    ..PANEL
                },
                Panel {
                    title: "Waiting",
                    api: "/v1/relay/lanes/{id}",
                    at: "/entries",
                    columns: ENTRY,
                    empty: "Nothing waits.",
                    ..PANEL
                },
                Panel {
                    title: "Held",
                    api: "/v1/relay/lanes/{id}",
                    at: "/held",
                    columns: HELD,
                    empty: "Nothing is parked or dead.",
                    ..PANEL
                },
                Panel {
                    title: "Audit",
                    api: "/v1/relay/lanes/{id}",
                    at: "/audit",
                    columns: AUDITED,
                    empty: "Nothing was written yet.",
                    ..PANEL
                },
            ],
        },
        View {
            path: "/relay/clock",
            title: "The relay's clock",
            on: "",
            beside: &[],
            panels: &[Panel {
                api: "/v1/relay/clock",
                shape: Shape::Record,
                columns: &[column("Time", "/now", Show::Time), column("Ahead (ms)", "/jump_ms", Show::Text)],
                ..PANEL
            }],
        },
    ],
    notices: &[
        Notice {
            api: "/v1/relay/lanes?state=in-doubt&limit=100",
            at: "/lanes",
            one: "lane of the relay is in doubt: look at the target, then say so",
            many: "lanes of the relay are in doubt: look at the target, then say so",
            page: "/relay?state=in-doubt",
        },
        Notice {
            api: "/v1/relay/lanes?state=parked&limit=100",
            at: "/lanes",
            one: "lane of the relay has parked changes: a credential is refused",
            many: "lanes of the relay have parked changes: credentials are refused",
            page: "/relay?state=parked",
        },
        Notice {
            api: "/v1/relay/lanes?state=dead&limit=100",
            at: "/lanes",
            one: "lane of the relay has dead changes",
            many: "lanes of the relay have dead changes",
            page: "/relay?state=dead",
        },
        Notice {
            api: "/v1/relay/clock",
            at: "/jump_ms",
            one: "The relay's clock jumped ahead: it sweeps nothing until it is confirmed",
            many: "",
            page: "/relay/clock",
        },
    ],
    tiles: &[
        tile("requests the relay took", "semel_relay_accepted_total", "", "/relay"),
        tile("requests the relay knew already", "semel_relay_replayed_total", "", "/relay"),
        tile("calls saved by merging changes", "semel_relay_calls_saved_total", "", "/relay"),
    ],
    charts: &[
        Chart {
            title: "Requests of the relay",
            unit: "a second",
            lines: &[
                rate("accepted", "semel_relay_accepted_total", ""),
                rate("known already", "semel_relay_replayed_total", ""),
            ],
        },
        Chart {
            title: "Calls of targets",
            unit: "a second",
            lines: &[
                rate("calls", "semel_relay_calls_total", ""),
                rate("saved", "semel_relay_calls_saved_total", ""),
                rate("tried again", "semel_relay_retries_total", ""),
            ],
        },
        Chart {
            title: "Waiting in the relay",
            unit: "changes",
            lines: &[
                level("pending", "semel_relay_entries", "state=\"pending\""),
                level("parked", "semel_relay_entries", "state=\"parked\""),
                level("dead", "semel_relay_entries", "state=\"dead\""),
            ],
        },
    ],
    recent: None,
    audit: Some(Panel {
        api: "/v1/relay/audit",
        at: "/rows",
        columns: AUDITED,
        next: &[("next_after", "after")],
        empty: "Nothing was written yet.",
        ..PANEL
    }),
};
