//! What people may do to stored records: one table for every part. The console makes its forms from it, the admin API its
//! rights, and tests hold the routes and the commands of the command line against it.

use crate::access::Right;

/// Whether a reason is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It must be.
    Needed,
    /// It may be.
    Welcome,
}

/// What a field of a form becomes in the body of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A text of several lines.
    Lines,
    /// A text that is not shown while it is typed.
    Secret,
    /// A number.
    Number,
    /// Yes or no.
    Flag,
    /// One of these.
    Choice(&'static [(&'static str, &'static str)]),
    /// A list of texts, a line each.
    List,
    /// Lines `Name: value`, as a list of pairs.
    Pairs,
    /// Lines `Name: value`, as an object.
    Object,
    /// A text, as base64.
    Base64,
}

/// A field of an action's form.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the body, or in the path where that has a place for it.
    pub name: &'static str,
    /// What people call it.
    pub label: &'static str,
    /// What is typed and what it becomes.
    pub kind: Kind,
    /// Whether it must be filled in.
    pub is_needed: bool,
}

/// When an action is offered: what a member of the thing it is done to says, or that there is no such condition.
#[derive(Clone, Copy, Debug)]
pub enum Offered {
    /// Always.
    Always,
    /// Where one of these JSON pointers leads to one of the words.
    Where(&'static [(&'static str, &'static [&'static str])]),
}

/// Something that people may do.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// The part whose records it changes.
    pub part: &'static str,
    /// Its name, unique in its part.
    pub name: &'static str,
    /// What the button says.
    pub label: &'static str,
    /// What it is done to, such as `record`; the part itself where it is empty.
    pub on: &'static str,
    /// What becomes of what, before it is done.
    pub previews: &'static str,
    /// Where what it will touch can be looked at first.
    pub subject: Option<&'static str>,
    /// Whether the call itself can say what it would do (`dry_run`).
    pub dry_run: bool,
    /// Who may do it.
    pub role: Right,
    /// Whether it asks for a reason.
    pub reason: Reason,
    /// The method of the call.
    pub method: &'static str,
    /// The path of the call.
    pub path: &'static str,
    /// The same on the command line, after `semel`.
    pub command: Option<&'static str>,
    /// What is filled in.
    pub fields: &'static [Field],
    /// When it is offered.
    pub offered: Offered,
    /// The page that is shown afterwards.
    pub page: &'static str,
}

const fn field(name: &'static str, label: &'static str, kind: Kind) -> Field {
    Field { name, label, kind, is_needed: false }
}

const fn needed(name: &'static str, label: &'static str, kind: Kind) -> Field {
    Field { name, label, kind, is_needed: true }
}

/// What most actions have in common.
const COMMON: Action = Action {
    part: "",
    name: "",
    label: "",
    on: "",
    previews: "",
    subject: None,
    dry_run: false,
    role: Right::Change,
    reason: Reason::Welcome,
    method: "POST",
    path: "",
    command: None,
    fields: &[],
    offered: Offered::Always,
    page: "/",
};

const GATE: Action = Action { part: "gate", page: "/requests", ..COMMON };
const OUTBOX: Action = Action { part: "outbox", page: "/outbox", ..COMMON };
const RELAY: Action = Action { part: "relay", page: "/relay", ..COMMON };
const BROKER: Action = Action { part: "broker", page: "/broker", ..COMMON };

/// Every action of every part.
pub const ACTIONS: &[Action] = &[
    Action {
        name: "resolve",
        label: "Say what became of it",
        on: "record",
        previews: "Applied: every retry gets the answer that you give, or 409 answer-not-kept where you give none, and nothing \
                   runs. Not applied: the key is free, and the next retry runs the request; refused while it could still take \
                   effect. Look at the service first.",
        subject: Some("/v1/records/{id}"),
        path: "/v1/records/{id}/resolve",
        command: Some("gate resolve"),
        fields: &[
            needed(
                "as",
                "It was",
                Kind::Choice(&[
                    ("applied", "applied: it took effect"),
                    ("not-applied", "not applied: it had no effect (say why)"),
                ]),
            ),
            field("status", "Status of its answer (applied only)", Kind::Number),
            field(
                "headers",
                "Headers of its answer, a line each, such as content-type: application/json",
                Kind::Pairs,
            ),
            field("body", "Body of its answer", Kind::Lines),
            field("keep", "Keep the record for (such as 60d)", Kind::Text),
        ],
        offered: Offered::Where(&[("/standing", &["unknown"]), ("/answer/outcome_unknown", &["true"])]),
        page: "/requests/{id}",
        ..GATE
    },
    Action {
        name: "seal",
        label: "Seal the key",
        on: "record",
        previews: "The key is cancelled for good: a copy of the request that is still under way is refused. Only a released or \
                   expired record can be sealed.",
        subject: Some("/v1/records/{id}"),
        reason: Reason::Needed,
        path: "/v1/records/{id}/seal",
        command: Some("gate seal"),
        offered: Offered::Where(&[("/standing", &["released", "expired", "absent"])]),
        page: "/requests/{id}",
        ..GATE
    },
    Action {
        name: "sweep",
        label: "Sweep expired records",
        previews: "Removes what has expired, now. Nothing that still counts goes: no live record, no unknown outcome.",
        dry_run: true,
        path: "/v1/sweep",
        command: Some("gate sweep"),
        fields: &[field("grace", "Only what expired at least so long ago (such as 1h)", Kind::Text)],
        ..GATE
    },
    Action {
        name: "forget",
        label: "Erase a principal's records",
        previews: "Erases the finished records of a principal. Open claims and unknown outcomes stay until they are settled. \
                   Late retries are still refused. This cannot be undone.",
        dry_run: true,
        path: "/v1/forget",
        command: Some("gate forget"),
        fields: &[
            needed("principal", "Principal, in full", Kind::Text),
            field("tenant", "Tenant, where there is one", Kind::Text),
        ],
        ..GATE
    },
    Action {
        name: "restored",
        label: "Report a restored backup",
        previews: "Says that the store was restored from a backup. Keys without a record are then answered outcome-unknown \
                   unless their client says that it first sent them after the restore.",
        path: "/v1/restored",
        command: Some("gate restored"),
        fields: &[
            needed("backup_time", "Time of the backup, such as 2026-01-31T08:30:00Z", Kind::Text),
            field("trust_undated", "Run keys whose age nobody can tell", Kind::Flag),
        ],
        ..GATE
    },
    Action {
        name: "confirm-clock",
        label: "Confirm the clock",
        previews: "Says that the machine's clock is right after its jump: records expire again by it.",
        subject: Some("/v1/clock"),
        reason: Reason::Needed,
        path: "/v1/clock/confirm",
        command: Some("gate clock"),
        page: "/",
        ..GATE
    },
    Action {
        name: "requeue",
        label: "Send again under a new id",
        on: "message",
        previews: "Seals the old id at the server where it can, then puts a new message with a new id in its place. A message \
                   that is possibly delivered is refused unless forced: look at the server first.",
        subject: Some("/v1/messages/{id}"),
        path: "/v1/messages/{id}/requeue",
        command: Some("outbox requeue"),
        fields: &[
            field("new_client_id", "New id (one is made where it is empty)", Kind::Text),
            field("patch_body_base64", "New body, where the server refused the old one", Kind::Base64),
            field("force", "Also where the old one was possibly delivered", Kind::Flag),
        ],
        offered: Offered::Where(&[("/status", &["pending", "held", "dead", "aborted"])]),
        page: "/outbox",
        ..OUTBOX
    },
    Action {
        name: "abort",
        label: "Take it back",
        on: "message",
        previews: "The message is not sent any more, and its id is never free again.",
        subject: Some("/v1/messages/{id}"),
        path: "/v1/messages/{id}/abort",
        command: Some("outbox abort"),
        offered: Offered::Where(&[("/status", &["pending", "held", "dead"])]),
        page: "/outbox/messages/{id}",
        ..OUTBOX
    },
    Action {
        name: "pause",
        label: "Pause a lane",
        on: "lane",
        previews: "Nothing more is sent from the lane until it is resumed; what is in flight ends.",
        path: "/v1/lanes/{lane}/pause",
        command: Some("outbox pause"),
        fields: &[needed("lane", "Lane", Kind::Text)],
        page: "/outbox/lanes",
        ..OUTBOX
    },
    Action {
        name: "resume",
        label: "Resume a lane",
        on: "lane",
        previews: "The lane sends again, past a dead head as well.",
        path: "/v1/lanes/{lane}/resume",
        command: Some("outbox resume"),
        fields: &[needed("lane", "Lane", Kind::Text)],
        page: "/outbox/lanes",
        ..OUTBOX
    },
    Action {
        name: "credentials",
        label: "Give a credential",
        on: "credential",
        previews: "Messages of this principal are sent with these headers from now on, and what was held goes on. The credential \
                   is kept in memory only.",
        path: "/v1/credentials",
        command: Some("outbox credentials"),
        fields: &[
            field("principal", "Principal (default)", Kind::Text),
            field("origin", "Origin, such as https://api.example.com (the upstream's)", Kind::Text),
            needed("headers", "Headers, a line each, such as Authorization: Bearer …", Kind::Object),
        ],
        page: "/outbox/credentials",
        ..OUTBOX
    },
    Action {
        name: "release",
        label: "Try held messages again",
        on: "credential",
        previews: "Held messages of this principal are tried again now, with the credential that there is.",
        subject: Some("/v1/credentials"),
        path: "/v1/release",
        command: Some("outbox release"),
        fields: &[
            field("principal", "Principal (default)", Kind::Text),
            field("origin", "Origin", Kind::Text),
        ],
        page: "/outbox/credentials",
        ..OUTBOX
    },
    Action {
        name: "confirm-clock",
        label: "Confirm the clock",
        previews: "Says that the machine's clock is right after its jump: messages age by it again.",
        subject: Some("/v1/clock"),
        reason: Reason::Needed,
        path: "/v1/clock/confirm",
        command: Some("outbox clock"),
        ..OUTBOX
    },
    Action {
        name: "acknowledge",
        label: "Acknowledge it",
        on: "received",
        previews: "The message is listed no more, and never received again.",
        subject: Some("/v1/inbox/{sender}/{client_message_id}"),
        path: "/v1/inbox/{sender}/{client_message_id}/ack",
        command: Some("inbox ack"),
        page: "/outbox/inbox",
        ..OUTBOX
    },
    Action {
        name: "resolve",
        label: "Say what became of it",
        on: "lane",
        previews: "Applied: the batch counts as written and the lane goes on. Not applied: the batch is sent again. Look at the \
                   target first, after the late window; an earlier answer is refused.",
        subject: Some("/v1/relay/lanes/{id}"),
        path: "/v1/relay/lanes/{id}/resolve",
        command: Some("relay resolve"),
        fields: &[needed(
            "outcome",
            "The write was",
            Kind::Choice(&[("applied", "applied"), ("not-applied", "not applied")]),
        )],
        offered: Offered::Where(&[("/state", &["in-doubt"])]),
        page: "/relay/lanes/{id}",
        ..RELAY
    },
    Action {
        name: "requeue",
        label: "Send dead changes again",
        on: "lane",
        previews: "Dead changes of the lane are appended again, and a blocked lane is opened. A lane in doubt is refused.",
        subject: Some("/v1/relay/lanes/{id}"),
        path: "/v1/relay/lanes/{id}/requeue",
        command: Some("relay requeue"),
        offered: Offered::Where(&[("/state", &["open", "blocked"])]),
        page: "/relay/lanes/{id}",
        ..RELAY
    },
    Action {
        name: "release",
        label: "Release parked changes",
        previews: "Changes that a principal has parked at a target are sent again, under the same credential.",
        path: "/v1/relay/release",
        command: Some("relay release"),
        fields: &[needed("target", "Target", Kind::Text), needed("principal", "Principal", Kind::Text)],
        ..RELAY
    },
    Action {
        name: "credentials",
        label: "Give or take back a credential",
        previews: "The credential is kept sealed, for every replica and every start, and what waited for it is released.",
        path: "/v1/relay/credentials",
        command: Some("relay credentials"),
        fields: &[
            needed("target", "Target", Kind::Text),
            needed("principal", "Principal", Kind::Text),
            field("header", "Header (Authorization)", Kind::Text),
            field("value", "Value", Kind::Secret),
            field("take_back", "Take back the one that was given", Kind::Flag),
        ],
        ..RELAY
    },
    Action {
        name: "confirm-clock",
        label: "Confirm the clock",
        previews: "Says that the machine's clock is right after its jump: the relay sweeps again by it.",
        subject: Some("/v1/relay/clock"),
        reason: Reason::Needed,
        path: "/v1/relay/clock/confirm",
        command: Some("relay clock"),
        ..RELAY
    },
    Action {
        name: "confirm-clock",
        label: "Confirm the clock",
        previews: "Says that the clock is right after its jump: ids and messages expire again by it.",
        subject: Some("/v1/clock"),
        reason: Reason::Needed,
        path: "/v1/clock/confirm",
        command: Some("broker clock"),
        page: "/broker/clock",
        ..BROKER
    },
    Action {
        name: "put-mesh",
        label: "Make or change a mesh",
        previews: "Makes the mesh, or changes what it may keep.",
        method: "PUT",
        path: "/v1/meshes/{mesh}",
        command: Some("broker meshes add"),
        fields: &[
            needed("mesh", "Mesh", Kind::Text),
            field("limits.bytes", "Bytes that it may keep (no limit where empty)", Kind::Number),
            field(
                "search",
                "Its messages",
                Kind::Choice(&[("true", "can be searched"), ("false", "cannot be searched")]),
            ),
        ],
        ..BROKER
    },
    Action {
        name: "remove-mesh",
        label: "Remove the mesh",
        on: "mesh",
        previews: "The mesh goes with its members, topics, messages, history and webhooks. This cannot be undone.",
        subject: Some("/v1/meshes/{mesh}"),
        method: "DELETE",
        path: "/v1/meshes/{mesh}",
        command: Some("broker meshes remove"),
        ..BROKER
    },
    Action {
        name: "put-member",
        label: "Add or change a member",
        on: "mesh",
        previews: "Says all of the member: its role and the hashes of its tokens. Tokens that are not named open nothing any \
                   more. `printf %s TOKEN | sha256sum` makes a hash.",
        method: "PUT",
        path: "/v1/meshes/{mesh}/members/{member}",
        command: Some("broker members add"),
        fields: &[
            needed("member", "Member", Kind::Text),
            needed("role", "Role", Kind::Choice(&[("member", "member"), ("owner", "owner")])),
            field("token_sha256", "SHA-256 of its tokens in hex, a line each", Kind::List),
        ],
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "remove-member",
        label: "Remove the member",
        on: "member",
        previews: "The member's tokens open nothing any more, and its subscriptions go.",
        subject: Some("/v1/meshes/{mesh}/members/{member}"),
        method: "DELETE",
        path: "/v1/meshes/{mesh}/members/{member}",
        command: Some("broker members remove"),
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "put-topic",
        label: "Add or change a topic",
        on: "mesh",
        previews: "Makes the topic, or changes who may publish to it.",
        method: "PUT",
        path: "/v1/meshes/{mesh}/topics/{topic}",
        command: Some("broker topics add"),
        fields: &[
            needed("topic", "Topic", Kind::Text),
            needed(
                "publish",
                "Who may publish",
                Kind::Choice(&[("subscribers", "subscribers"), ("members", "all members")]),
            ),
        ],
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "remove-topic",
        label: "Remove the topic",
        on: "topic",
        previews: "The topic goes with its subscriptions and its history.",
        subject: Some("/v1/meshes/{mesh}/topics/{topic}"),
        method: "DELETE",
        path: "/v1/meshes/{mesh}/topics/{topic}",
        command: Some("broker topics remove"),
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "subscribe",
        label: "Subscribe a member",
        on: "topic",
        previews: "The member gets every message of the topic from now on.",
        method: "PUT",
        path: "/v1/meshes/{mesh}/topics/{topic}/subscriptions/{member}",
        command: Some("broker subscriptions add"),
        fields: &[needed("member", "Member", Kind::Text)],
        page: "/broker/meshes/{mesh}/topics/{topic}",
        ..BROKER
    },
    Action {
        name: "unsubscribe",
        label: "End a subscription",
        on: "topic",
        previews: "The member gets no further message of the topic.",
        method: "DELETE",
        path: "/v1/meshes/{mesh}/topics/{topic}/subscriptions/{member}",
        command: Some("broker subscriptions remove"),
        fields: &[needed("member", "Member", Kind::Text)],
        page: "/broker/meshes/{mesh}/topics/{topic}",
        ..BROKER
    },
    Action {
        name: "put-webhook",
        label: "Add or change a webhook",
        on: "mesh",
        previews: "Messages of the topic are sent to the URL, signed with the secrets.",
        method: "PUT",
        path: "/v1/meshes/{mesh}/webhooks/{webhook}",
        command: Some("broker webhooks add"),
        fields: &[
            needed("webhook", "Name", Kind::Text),
            needed("url", "URL", Kind::Text),
            needed("topic", "Topic", Kind::Text),
            field("secrets", "Secrets, a line each, such as whsec_…", Kind::List),
            field(
                "ordered",
                "Order",
                Kind::Choice(&[
                    ("true", "a message waits for the one before"),
                    ("false", "messages do not wait"),
                ]),
            ),
        ],
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "remove-webhook",
        label: "Remove the webhook",
        on: "webhook",
        previews: "Nothing is sent there any more, and what waits for it goes.",
        subject: Some("/v1/meshes/{mesh}/webhooks/{webhook}"),
        method: "DELETE",
        path: "/v1/meshes/{mesh}/webhooks/{webhook}",
        command: Some("broker webhooks remove"),
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "requeue-webhook",
        label: "Send dead deliveries again",
        on: "webhook",
        previews: "Deliveries that were given up are sent again; the receiver knows each by its id.",
        subject: Some("/v1/meshes/{mesh}/webhooks/{webhook}"),
        path: "/v1/meshes/{mesh}/webhooks/{webhook}/requeue",
        command: Some("broker webhooks requeue"),
        page: "/broker/meshes/{mesh}/webhooks/{webhook}",
        ..BROKER
    },
    Action {
        name: "moderate",
        label: "Moderate a message",
        on: "mesh",
        previews: "The body of the message is taken out of the history; its id stays used.",
        path: "/v1/meshes/{mesh}/messages/{id}/moderation",
        command: Some("broker moderate"),
        fields: &[needed("id", "Message id", Kind::Text)],
        page: "/broker/meshes/{mesh}",
        ..BROKER
    },
    Action {
        name: "orphans",
        label: "Look for orphans",
        previews: "Compares every id with its message, history and deliveries, and says what is missing. Changes nothing; may \
                   take a while on a large store.",
        path: "/v1/orphans",
        command: Some("broker orphans"),
        ..BROKER
    },
    Action {
        name: "rebuild",
        label: "Rebuild lines",
        previews: "Numbers of lines are computed anew from the messages that are there.",
        path: "/v1/rebuild",
        command: Some("broker rebuild"),
        ..BROKER
    },
    Action {
        name: "restored",
        label: "Report a restored backup",
        previews: "A new epoch begins: readers are told that there is a gap, instead of missing messages silently.",
        path: "/v1/restored",
        command: Some("broker restored"),
        ..BROKER
    },
    Action {
        name: "sweep",
        label: "Sweep expired messages",
        previews: "Removes messages and ids whose time is over, now.",
        path: "/v1/sweep",
        command: Some("broker sweep"),
        ..BROKER
    },
];

impl Action {
    /// The action of a part.
    pub fn find(part: &str, name: &str) -> Option<&'static Action> {
        ACTIONS.iter().find(|action| action.part == part && action.name == name)
    }

    /// Those of a part that are done to such a thing.
    pub fn on(part: &'static str, on: &'static str) -> impl Iterator<Item = &'static Action> {
        ACTIONS.iter().filter(move |action| action.part == part && action.on == on)
    }
}
