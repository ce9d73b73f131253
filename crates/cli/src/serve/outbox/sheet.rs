//! What the console shows of an outbox: messages with their attempts, lanes, refused credentials.

use semel_console::part::{
    Chart, Column, Filter, Notice, PANEL, Panel, Shape, Sheet, Show, View, column, level, rate, tile,
};

const MESSAGE: &str = "/outbox/messages/{id}";
const RECEIVED: &str = "/outbox/inbox/{sender}/{client_message_id}";
const ROW: &[Column] = &[
    column("Row", "/id", Show::Link(MESSAGE)),
    column("Message", "/client_message_id", Show::Code),
    column("State", "/status", Show::State),
    column("Lane", "/lane", Show::Text),
    column("To", "/url", Show::Text),
    column("Attempts", "/attempts", Show::Text),
    column("Waits for", "/waits_for", Show::Text),
    column("Last error", "/last_error", Show::Text),
    column("Accepted", "/enqueued_at", Show::Time),
];
const WHOLE: &[Column] = &[
    column("State", "/status", Show::State),
    column("Message", "/client_message_id", Show::Code),
    column("Waits for", "/waits_for", Show::Text),
    column("Held for", "/held_for", Show::Text),
    column("Last error", "/last_error", Show::Text),
    column("Possibly delivered", "/possibly_delivered", Show::Text),
    column("Possibly repeated", "/possibly_repeated", Show::Text),
    column("Lane", "/lane", Show::Text),
    column("Principal", "/principal", Show::Text),
    column("Logical key", "/logical_key", Show::Code),
    column("Method", "/method", Show::Text),
    column("To", "/url", Show::Text),
    column("Attempts", "/attempts", Show::Text),
    column("Made", "/client_generated_at", Show::Time),
    column("Accepted", "/enqueued_at", Show::Time),
    column("First attempt", "/first_attempt_at", Show::Time),
    column("Next attempt", "/next_attempt_at", Show::Time),
    column("Delivered", "/delivered_at", Show::Time),
    column("Taken back", "/aborted_at", Show::Time),
    column("Taken back by", "/aborted_by", Show::Text),
    column("Instead of", "/supersedes", Show::Code),
    column("Replaced by", "/superseded_by", Show::Code),
    column("Answer", "/response/status", Show::Text),
    column("Body of the answer", "/response/body", Show::Body),
];

/// What was done by hand.
const AUDITED: &[Column] = &[
    column("When", "/at", Show::Time),
    column("Who", "/actor", Show::Text),
    column("What", "/action", Show::Text),
    column("To what", "/subject", Show::Code),
    column("What came of it", "/detail", Show::Text),
    column("Why", "/reason", Show::Text),
];

/// The outbox's pages.
pub(crate) static SHEET: Sheet = Sheet {
    name: "outbox",
    title: "Outbox",
    health: "/healthz",
    numbers: Some("/metrics"),
    views: &[
        View {
            path: "/outbox",
            title: "Outbox",
            on: "",
            beside: &[
                ("/outbox?state=held", "Held"),
                ("/outbox?state=dead", "Dead"),
                ("/outbox/lanes", "Lanes"),
                ("/outbox/inbox", "Inbox"),
                ("/outbox/credentials", "Credentials"),
                ("/outbox/clock", "Clock"),
            ],
            panels: &[Panel {
                api: "/v1/messages",
                at: "/messages",
                columns: ROW,
                filters: &[
                    Filter {
                        name: "state",
                        label: "State",
                        choices: &["pending", "held", "inflight", "done", "dead", "aborted"],
                    },
                    Filter { name: "lane", label: "Lane", choices: &[] },
                    Filter { name: "key", label: "Message id", choices: &[] },
                ],
                next: &[("next_before", "before")],
                always: "order=newest",
                empty: "No message fits.",
                ..PANEL
            }],
        },
        View {
            path: MESSAGE,
            title: "Message {id}",
            on: "message",
            beside: &[],
            panels: &[
                Panel { api: "/v1/messages/{id}", shape: Shape::Record, columns: WHOLE, ..PANEL },
                Panel {
                    title: "Attempts",
                    api: "/v1/messages/{id}",
                    at: "/log",
                    columns: &[
                        column("Attempt", "/number", Show::Text),
                        column("Began", "/started_at", Show::Time),
                        column("Ended", "/ended_at", Show::Time),
                        column("Outcome", "/outcome", Show::Text),
                        column("Status", "/status", Show::Text),
                        column("Error", "/error", Show::Text),
                    ],
                    empty: "It was not tried yet.",
                    ..PANEL
                },
                Panel {
                    title: "What it replaced and what replaced it",
                    api: "/v1/messages/{id}",
                    at: "/chain",
                    columns: &[
                        column("Row", "/id", Show::Link(MESSAGE)),
                        column("Message", "/client_message_id", Show::Code),
                        column("State", "/status", Show::State),
                        column("Possibly delivered", "/possibly_delivered", Show::Text),
                    ],
                    ..PANEL
                },
            ],
        },
        View {
            path: "/outbox/lanes",
            title: "Lanes of the outbox",
            on: "lane",
            beside: &[("/outbox", "Messages")],
            panels: &[Panel {
                api: "/v1/lanes",
                at: "/lanes",
                columns: &[
                    column("Lane", "/lane", Show::Text),
                    column("Waiting", "/depth", Show::Text),
                    column("Paused", "/paused", Show::Text),
                    column("Blocked by", "/blocked_by", Show::Text),
                    column("First message", "/head_client_message_id", Show::Code),
                    column("Its state", "/head_status", Show::State),
                    column("Waits for", "/waits_for", Show::Text),
                ],
                next: &[("next_after", "after")],
                empty: "No lane waits, is paused or blocked.",
                ..PANEL
            }],
        },
        View {
            path: "/outbox/inbox",
            title: "Inbox",
            on: "inbox",
            beside: &[("/outbox", "Messages to send")],
            panels: &[
                Panel {
                    api: "/v1/inbox",
                    at: "/messages",
                    columns: &[
                        column("Message", "/client_message_id", Show::Link(RECEIVED)),
                        column("Sender", "/sender", Show::Text),
                        column("Mesh", "/mesh", Show::Text),
                        column("Received", "/received_at", Show::Time),
                    ],
                    next: &[("next_after", "after")],
                    empty: "Nothing waits to be acknowledged.",
                    ..PANEL
                },
                Panel {
                    title: "Lines that are followed",
                    api: "/v1/inbox",
                    at: "/lines",
                    columns: &[
                        column("Line", "/line", Show::Text),
                        column("Mesh", "/mesh", Show::Text),
                        column("State", "/state", Show::State),
                        column("Why", "/why", Show::Text),
                    ],
                    empty: "No line of a mesh is followed.",
                    ..PANEL
                },
            ],
        },
        View {
            path: RECEIVED,
            title: "Message {client_message_id} of {sender}",
            on: "received",
            beside: &[],
            panels: &[Panel {
                api: "/v1/inbox/{sender}/{client_message_id}",
                shape: Shape::Record,
                columns: &[
                    column("Message", "/client_message_id", Show::Code),
                    column("Sender", "/sender", Show::Text),
                    column("Mesh", "/mesh", Show::Text),
                    column("Received", "/received_at", Show::Time),
                    column("Acknowledged", "/acknowledged_at", Show::Time),
                    column("Body", "/body", Show::Body),
                ],
                ..PANEL
            }],
        },
        View {
            path: "/outbox/credentials",
            title: "Credentials of the outbox",
            on: "credential",
            beside: &[("/outbox?state=held", "Held messages")],
            panels: &[
                Panel {
                    title: "Refused",
                    api: "/v1/credentials",
                    at: "/holds",
                    columns: &[
                        column("Principal", "/principal", Show::Text),
                        column("Origin", "/origin", Show::Text),
                        column("Messages held", "/held", Show::Text),
                    ],
                    empty: "No credential is refused.",
                    ..PANEL
                },
                Panel {
                    title: "Given by call",
                    api: "/v1/credentials",
                    at: "/given",
                    columns: &[
                        column("Principal", "/principal", Show::Text),
                        column("Origin", "/origin", Show::Text),
                    ],
                    empty: "None was given.",
                    ..PANEL
                },
            ],
        },
        View {
            path: "/outbox/clock",
            title: "The outbox's clock",
            on: "",
            beside: &[],
            panels: &[Panel {
                api: "/v1/clock",
                shape: Shape::Record,
                columns: &[column("Time", "/now", Show::Time), column("Ahead (ms)", "/jump_ms", Show::Text)],
                ..PANEL
            }],
        },
    ],
    notices: &[
        Notice {
            api: "/v1/messages?state=held&limit=100",
            at: "/messages",
            one: "message of the outbox is held: its credential is refused",
            many: "messages of the outbox are held: a credential is refused",
            page: "/outbox?state=held",
        },
        Notice {
            api: "/v1/messages?state=dead&limit=100",
            at: "/messages",
            one: "message of the outbox is dead",
            many: "messages of the outbox are dead",
            page: "/outbox?state=dead",
        },
        Notice {
            api: "/v1/clock",
            at: "/jump_ms",
            one: "The outbox's clock jumped ahead: nothing is given up for its age until it is confirmed",
            many: "",
            page: "/outbox/clock",
        },
    ],
    tiles: &[
        tile("messages delivered", "semel_outbox_messages_total", "outcome=\"done\"", "/outbox?state=done"),
        tile("messages that wait", "semel_outbox_depth", "status=\"pending\"", "/outbox?state=pending"),
        tile("received messages that wait", "semel_inbox_waiting", "", "/outbox/inbox"),
    ],
    charts: &[
        Chart {
            title: "Messages of the outbox",
            unit: "a second",
            lines: &[
                rate("delivered", "semel_outbox_messages_total", "outcome=\"done\""),
                rate("given up", "semel_outbox_messages_total", "outcome=\"dead\""),
                rate("attempts", "semel_outbox_attempts_total", ""),
            ],
        },
        Chart {
            title: "Waiting in the outbox",
            unit: "messages",
            lines: &[
                level("pending", "semel_outbox_depth", "status=\"pending\""),
                level("held", "semel_outbox_depth", "status=\"held\""),
                level("dead", "semel_outbox_depth", "status=\"dead\""),
            ],
        },
        Chart {
            title: "Oldest message of the outbox",
            unit: "seconds",
            lines: &[level("waits", "semel_outbox_oldest_age_seconds", "")],
        },
    ],
    recent: None,
    audit: Some(Panel {
        api: "/v1/audit",
        at: "/audit",
        columns: AUDITED,
        next: &[("next", "before")],
        empty: "Nothing was done by hand.",
        ..PANEL
    }),
};
