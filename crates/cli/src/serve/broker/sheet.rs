//! What the console shows of a broker: meshes, members, topics, history, webhooks.

use semel_console::part::{
    Chart, Column, Filter, Notice, PANEL, Panel, Shape, Sheet, Show, View, column, level, rate, tile,
};

const MESH: &str = "/broker/meshes/{mesh}";
const TOPIC: &str = "/broker/meshes/{mesh}/topics/{topic}";
const MEMBER: &str = "/broker/meshes/{mesh}/members/{member}";
const WEBHOOK: &str = "/broker/meshes/{mesh}/webhooks/{webhook}";

/// What was done by hand.
const AUDITED: &[Column] = &[
    column("When", "/at", Show::Time),
    column("Who", "/actor", Show::Text),
    column("What", "/action", Show::Text),
    column("Mesh", "/mesh", Show::Text),
    column("To what", "/subject", Show::Code),
    column("What came of it", "/detail", Show::Text),
    column("Why", "/reason", Show::Text),
];

/// The broker's pages.
pub(crate) static SHEET: Sheet = Sheet {
    name: "broker",
    title: "Broker",
    health: "/readyz",
    numbers: Some("/metrics"),
    views: &[
        View {
            path: "/broker",
            title: "Broker",
            on: "",
            beside: &[("/broker/clock", "Clock")],
            panels: &[Panel {
                title: "Meshes",
                api: "/v1/meshes",
                at: "/meshes",
                columns: &[
                    column("Mesh", "/mesh", Show::Link(MESH)),
                    column("Keeps", "/bytes", Show::Bytes),
                    column("May keep", "/limits/bytes", Show::Bytes),
                    column("Search", "/search", Show::Text),
                    column("Made", "/created_at", Show::Time),
                ],
                next: &[("next_after", "after")],
                empty: "There is no mesh yet.",
                ..PANEL
            }],
        },
        View {
            path: MESH,
            title: "Mesh {mesh}",
            on: "mesh",
            beside: &[],
            panels: &[
                Panel {
                    api: "/v1/meshes/{mesh}",
                    shape: Shape::Record,
                    columns: &[
                        column("Mesh", "/mesh", Show::Text),
                        column("Keeps", "/bytes", Show::Bytes),
                        column("May keep", "/limits/bytes", Show::Bytes),
                        column("Search", "/search", Show::Text),
                        column("Made", "/created_at", Show::Time),
                    ],
                    ..PANEL
                },
                Panel {
                    title: "Topics",
                    api: "/v1/meshes/{mesh}/topics",
                    at: "/topics",
                    columns: &[
                        column("Topic", "/topic", Show::Link(TOPIC)),
                        column("Who publishes", "/publish", Show::Text),
                        column("Messages", "/messages", Show::Text),
                        column("Subscribers", "/subscribers", Show::Text),
                        column("Made", "/created_at", Show::Time),
                    ],
                    next: &[("next_after", "after")],
                    cursor: "topics_after",
                    empty: "There is no topic.",
                    ..PANEL
                },
                Panel {
                    title: "Members",
                    api: "/v1/meshes/{mesh}/members",
                    at: "/members",
                    columns: &[
                        column("Member", "/member", Show::Link(MEMBER)),
                        column("Role", "/role", Show::Text),
                        column("Tokens", "/tokens", Show::Text),
                        column("Joined", "/joined_at", Show::Time),
                    ],
                    next: &[("next_after", "after")],
                    cursor: "members_after",
                    empty: "There is no member.",
                    ..PANEL
                },
                Panel {
                    title: "Webhooks",
                    api: "/v1/meshes/{mesh}/webhooks",
                    at: "/webhooks",
                    columns: &[
                        column("Webhook", "/webhook", Show::Link(WEBHOOK)),
                        column("URL", "/url", Show::Text),
                        column("Topic", "/topic", Show::Text),
                        column("Waiting", "/pending", Show::Text),
                        column("Dead", "/dead", Show::Text),
                    ],
                    next: &[("next_after", "after")],
                    cursor: "webhooks_after",
                    empty: "There is no webhook.",
                    ..PANEL
                },
            ],
        },
        View {
            path: TOPIC,
            title: "Topic {topic} of {mesh}",
            on: "topic",
            beside: &[],
            panels: &[
                Panel {
                    api: "/v1/meshes/{mesh}/topics/{topic}",
                    shape: Shape::Record,
                    columns: &[
                        column("Topic", "/topic", Show::Text),
                        column("Who publishes", "/publish", Show::Text),
                        column("Messages", "/messages", Show::Text),
                        column("Subscribers", "/subscribers", Show::Text),
                        column("Made", "/created_at", Show::Time),
                    ],
                    ..PANEL
                },
                Panel {
                    title: "Subscriptions",
                    api: "/v1/meshes/{mesh}/topics/{topic}/subscriptions",
                    at: "/subscriptions",
                    columns: &[
                        column("Member", "/member", Show::Link(MEMBER)),
                        column("Since number", "/since", Show::Text),
                    ],
                    next: &[("next_after", "after")],
                    cursor: "subscriptions_after",
                    empty: "Nobody is subscribed.",
                    ..PANEL
                },
                Panel {
                    title: "History",
                    api: "/v1/meshes/{mesh}/topics/{topic}/history",
                    at: "/messages",
                    columns: &[
                        column("Event", "/id", Show::Code),
                        column("Message", "/client_message_id", Show::Code),
                        column("Sender", "/sender", Show::Text),
                        column("Published", "/created_at", Show::Time),
                        column("Moderated", "/moderated", Show::Text),
                        column("Body", "/body", Show::Body),
                    ],
                    filters: &[Filter { name: "after", label: "After this event", choices: &[] }],
                    next: &[("next_after", "after")],
                    empty: "Nothing was published.",
                    ..PANEL
                },
            ],
        },
        View {
            path: MEMBER,
            title: "Member {member} of {mesh}",
            on: "member",
            beside: &[],
            panels: &[Panel {
                api: "/v1/meshes/{mesh}/members/{member}",
                shape: Shape::Record,
                columns: &[
                    column("Member", "/member", Show::Text),
                    column("Role", "/role", Show::Text),
                    column("Tokens", "/tokens", Show::Text),
                    column("Joined", "/joined_at", Show::Time),
                ],
                ..PANEL
            }],
        },
        View {
            path: WEBHOOK,
            title: "Webhook {webhook} of {mesh}",
            on: "webhook",
            beside: &[],
            panels: &[Panel {
                api: "/v1/meshes/{mesh}/webhooks/{webhook}",
                shape: Shape::Record,
                columns: &[
                    column("URL", "/url", Show::Text),
                    column("Topic", "/topic", Show::Text),
                    column("In order", "/ordered", Show::Text),
                    column("Secrets", "/secrets", Show::Text),
                    column("Waiting", "/pending", Show::Text),
                    column("Dead", "/dead", Show::Text),
                    column("Last error", "/last_error", Show::Text),
                ],
                ..PANEL
            }],
        },
        View {
            path: "/broker/clock",
            title: "The broker's clock",
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
            api: "/v1/clock",
            at: "/jump_ms",
            one: "The broker's clock jumped ahead: nothing expires until it is confirmed",
            many: "",
            page: "/broker/clock",
        },
        Notice {
            api: "/metrics",
            at: "semel_broker_orphans",
            one: "orphan was found by the last look: rows without those that belong to them",
            many: "orphans were found by the last look: rows without those that belong to them",
            page: "/broker",
        },
        Notice {
            api: "/metrics",
            at: "semel_broker_delivery_dead_total",
            one: "delivery of a webhook was given up since the start",
            many: "deliveries of webhooks were given up since the start",
            page: "/broker",
        },
    ],
    tiles: &[
        tile("messages published", "semel_broker_publishes_total", "outcome=\"accepted\"", "/broker"),
        tile("publishes known already", "semel_broker_publishes_total", "outcome=\"duplicate\"", "/broker"),
        tile("deliveries to webhooks", "semel_broker_deliveries_total", "", "/broker"),
    ],
    charts: &[
        Chart {
            title: "Publishes",
            unit: "a second",
            lines: &[
                rate("accepted", "semel_broker_publishes_total", "outcome=\"accepted\""),
                rate("known already", "semel_broker_publishes_total", "outcome=\"duplicate\""),
                rate("refused", "semel_broker_publishes_total", "outcome=\"refused\""),
            ],
        },
        Chart {
            title: "Deliveries to webhooks",
            unit: "a second",
            lines: &[
                rate("delivered", "semel_broker_deliveries_total", ""),
                rate("failed", "semel_broker_delivery_failures_total", ""),
                rate("given up", "semel_broker_delivery_dead_total", ""),
            ],
        },
        Chart {
            title: "Readers and webhooks of the broker",
            unit: "now",
            lines: &[
                level("deliveries that wait", "semel_broker_delivery_pending", ""),
                level("open streams", "semel_broker_streams", ""),
            ],
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
