//! The OpenAPI document of the admin API. Written by hand as a table; a test holds it against the routes.

use axum::Json;
use serde_json::{Map, Value, json};

pub(crate) async fn serve() -> Json<Value> {
    Json(document())
}

/// What is here, for whoever asks for it as text.
pub(crate) fn index() -> String {
    let needs = |operation: &Operation| match operation.needs {
        Needs::Nothing => "",
        Needs::Read => " (a token, where one is set)",
        Needs::Change => " (the full token, where one is set)",
    };
    let line = |operation: &Operation| {
        let method = operation.method.to_uppercase();
        format!("{method:<5}{:<30}{}{}\n", operation.path, operation.summary, needs(operation))
    };
    let lines: String = OPERATIONS.iter().map(line).collect();
    format!(
        "semel {}: the admin address\n\n{lines}\nThe command line asks here: semel gate list, semel gate --help\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// What an operation needs.
#[derive(Clone, Copy)]
enum Needs {
    /// No token.
    Nothing,
    /// Either token.
    Read,
    /// The full token.
    Change,
}

struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    needs: Needs,
    /// Names in the query, what each is and whether it must be there.
    query: &'static [(&'static str, &'static str, bool)],
    /// Members of the body, the type of each, what it is and whether it must be there.
    body: &'static [(&'static str, &'static str, &'static str, bool)],
    /// Statuses beside 200, and what they mean.
    also: &'static [(u16, &'static str)],
}

const LIMIT: (&str, &str, bool) = ("limit", "Rows of a page, 1 to 1000; 50 unless said.", false);
const BEFORE: (&str, &str, bool) = ("before", "The `next` of the page before.", false);
const REASON: (&str, &str, &str, bool) = ("reason", "string", "Why; stands in the audit trail.", true);
const WHY: (&str, &str, &str, bool) = ("reason", "string", "Why; stands in the audit trail.", false);
const NO_RECORD: (u16, &str) = (404, "There is no such record.");

const OPERATIONS: &[Operation] = &[
    Operation {
        method: "get",
        path: "/",
        id: "index",
        summary: "The console; what is here as text, where that is what is asked for.",
        needs: Needs::Read,
        query: &[],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/healthz",
        id: "health",
        summary: "Whether the process lives.",
        needs: Needs::Nothing,
        query: &[],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/readyz",
        id: "readiness",
        summary: "Whether it can serve: 503 while the store is away or the process shuts down.",
        needs: Needs::Nothing,
        query: &[],
        body: &[],
        also: &[(503, "Not ready; why, for whoever has a token.")],
    },
    Operation {
        method: "get",
        path: "/metrics",
        id: "metrics",
        summary: "Metrics in the text form of Prometheus.",
        needs: Needs::Read,
        query: &[],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/openapi.json",
        id: "description",
        summary: "This document.",
        needs: Needs::Read,
        query: &[],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/v1/records",
        id: "listRecords",
        summary: "Records, the oldest first unless `order` says otherwise.",
        needs: Needs::Read,
        query: &[
            ("state", "Only these: claimed, settled, unkept, released, unknown, sealed.", false),
            ("principal", "Only this principal's.", false),
            ("route", "Only of this route (endpoint).", false),
            ("older_than", "Only created longer ago, such as 90s, 15m, 24h, 7d.", false),
            ("after", "The `next` of the page before.", false),
            ("order", "`oldest` or `newest`: which come first.", false),
            ("key", "Only with this key, whoever it belongs to.", false),
            ("request_id", "Only of the request with this id.", false),
            ("newer_than", "Only created since so long ago, such as 1h.", false),
            (
                "within",
                "Looks at so many records at most; `looked` and `complete` say how far, and `reading` that keys are still being \
                 read after a start.",
                false,
            ),
            LIMIT,
        ],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/v1/records/{id}",
        id: "showRecord",
        summary: "A record with its timeline and its rows of the audit trail.",
        needs: Needs::Read,
        query: &[("body", "`true`: with the kept body, in base64. Needs the full token.", false)],
        body: &[],
        also: &[NO_RECORD],
    },
    Operation {
        method: "post",
        path: "/v1/records/{id}/resolve",
        id: "resolveRecord",
        summary: "Says what became of an unknown outcome.",
        needs: Needs::Change,
        query: &[],
        body: &[
            ("as", "string", "`applied` or `not-applied`.", true),
            ("reason", "string", "Why; needed for `not-applied`.", false),
            ("status", "integer", "The status that retries are answered with.", false),
            ("headers", "array", "Pairs of name and value.", false),
            ("body", "string", "The body of that answer, as text.", false),
            ("body_base64", "string", "The same in base64.", false),
            ("keep", "string", "How long the record is kept; 30d unless said, and never less.", false),
        ],
        also: &[
            NO_RECORD,
            (
                409,
                "`not-unknown`; `too-early` with `not_before`: it could still take effect; or `superseded` with `record`: the \
                 key has a later attempt.",
            ),
        ],
    },
    Operation {
        method: "post",
        path: "/v1/records/{id}/seal",
        id: "sealRecord",
        summary: "Cancels the key of a released or expired record: a late arrival is refused.",
        needs: Needs::Change,
        query: &[],
        body: &[REASON],
        also: &[NO_RECORD, (409, "`key-in-use`: it may have taken effect.")],
    },
    Operation {
        method: "get",
        path: "/v1/search",
        id: "search",
        summary: "Records by their id, their request's id or their key, whoever they belong to. `complete` says whether all were searched: \
                  soon after a start older keys are still being read (`reading`), and only the newest `looked` were.",
        needs: Needs::Read,
        query: &[("q", "What to look for.", true)],
        body: &[],
        also: &[],
    },
    Operation {
        method: "post",
        path: "/v1/sweep",
        id: "sweep",
        summary: "Removes what has expired, now.",
        needs: Needs::Change,
        query: &[],
        body: &[
            ("grace", "string", "Only what has been expired for so long.", false),
            (
                "dry_run",
                "boolean",
                "`true`: tells how many of the oldest records have expired (`would_remove`), and removes nothing.",
                false,
            ),
            WHY,
        ],
        also: &[],
    },
    Operation {
        method: "post",
        path: "/v1/forget",
        id: "forget",
        summary: "Erases the finished records of a principal. Claims and unknown outcomes stay.",
        needs: Needs::Change,
        query: &[],
        body: &[
            ("principal", "string", "Whose.", true),
            (
                "tenant",
                "string",
                "Of which tenant; without it, the principal of that name without one.",
                false,
            ),
            (
                "dry_run",
                "boolean",
                "`true`: tells what would be erased (`would_forget`), and erases nothing.",
                false,
            ),
            ("reason", "string", "Why; stands in the audit trail, and so should name nobody.", false),
        ],
        also: &[(404, "`no-such-principal`: nothing is known of it.")],
    },
    Operation {
        method: "post",
        path: "/v1/restored",
        id: "restored",
        summary: "Says that the store was restored from a backup: what may have been lost becomes unknown.",
        needs: Needs::Change,
        query: &[],
        body: &[
            ("backup_time", "string", "When the backup was made, RFC 3339.", true),
            (
                "trust_undated",
                "boolean",
                "Runs keys whose client does not say when they were first sent.",
                false,
            ),
            WHY,
        ],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/v1/restores",
        id: "listRestores",
        summary: "Restores that were reported.",
        needs: Needs::Read,
        query: &[],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/v1/audit",
        id: "audit",
        summary: "The audit trail, the latest first.",
        needs: Needs::Read,
        query: &[("record", "Only of this record.", false), BEFORE, LIMIT],
        body: &[],
        also: &[NO_RECORD],
    },
    Operation {
        method: "get",
        path: "/v1/cleanups",
        id: "cleanups",
        summary: "Runs of the sweeper, the latest first.",
        needs: Needs::Read,
        query: &[BEFORE, LIMIT],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/v1/stale",
        id: "staleCounts",
        summary: "How many stale actions of each principal were put on record, the highest first.",
        needs: Needs::Read,
        query: &[
            ("principal", "Only of this one.", false),
            ("after", "Go on after this place: `next` of the page before.", false),
            LIMIT,
        ],
        body: &[],
        also: &[],
    },
    Operation {
        method: "get",
        path: "/v1/clock",
        id: "clock",
        summary: "The store's time, and whether it waits for a jump to be confirmed.",
        needs: Needs::Read,
        query: &[],
        body: &[],
        also: &[],
    },
    Operation {
        method: "post",
        path: "/v1/clock/confirm",
        id: "confirmClock",
        summary: "Confirms a jump of the clock: expiry and sweeping go on by the new time.",
        needs: Needs::Change,
        query: &[],
        body: &[REASON],
        also: &[(409, "`clock-not-frozen`: there is nothing to confirm.")],
    },
];

/// The OpenAPI document of the admin API.
pub fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.describe();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "semel admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Errors are application/problem+json with a stable `code`. Every POST leaves a row in the \
                audit trail; `Semel-Actor: NAME` says who acts. Times are RFC 3339 in UTC, by the store's clock. Ids \
                are texts: they are numbers of 64 bits.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "code", "detail"],
                    "properties": {
                        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
                        "code": {"type": "string"}, "detail": {"type": "string"},
                    },
                },
            },
        },
    })
}

impl Operation {
    fn describe(&self) -> Value {
        let mut responses = Map::new();
        let media = match self.path {
            "/metrics" => json!({"text/plain": {}}),
            _ => json!({"application/json": {}}),
        };
        responses.insert("200".to_owned(), json!({"description": "Done.", "content": media}));
        let mut refusals: Vec<(u16, &str)> = self.also.to_vec();
        match self.needs {
            Needs::Nothing => {}
            Needs::Read => refusals.push((401, "A token is needed.")),
            Needs::Change => {
                refusals.extend([(401, "A token is needed."), (403, "The full token is needed.")])
            }
        }
        if !self.query.is_empty() || !self.body.is_empty() {
            refusals.push((400, "Something was asked for that is not understood."));
        }
        let problem =
            json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        for (status, description) in refusals {
            let content =
                if self.path == "/readyz" { json!({"application/json": {}}) } else { problem.clone() };
            responses.insert(status.to_string(), json!({"description": description, "content": content}));
        }
        let mut described = json!({
            "operationId": self.id,
            "summary": self.summary,
            "parameters": self.parameters(),
            "responses": responses,
        });
        match self.needs {
            Needs::Nothing => {}
            Needs::Read | Needs::Change => described["security"] = json!([{"token": []}]),
        }
        if matches!(self.method, "post") {
            described["requestBody"] = self.request_body();
        }
        described
    }

    fn parameters(&self) -> Vec<Value> {
        let in_path = self.path.contains("{id}").then(|| {
            json!({"name": "id", "in": "path", "required": true, "description": "The record's id, such as 42.",
                "schema": {"type": "string", "pattern": "^[0-9]+$"}})
        });
        let in_query = self.query.iter().map(|(name, description, required)| {
            json!({"name": name, "in": "query", "required": required, "description": description,
                "schema": {"type": if *name == "limit" { "integer" } else { "string" }}})
        });
        in_path.into_iter().chain(in_query).collect()
    }

    fn request_body(&self) -> Value {
        let properties: Map<String, Value> = self
            .body
            .iter()
            .map(|(name, kind, what, _)| ((*name).to_owned(), json!({"type": kind, "description": what})))
            .collect();
        let required: Vec<&str> = self.body.iter().filter(|member| member.3).map(|member| member.0).collect();
        json!({
            "required": !required.is_empty(),
            "content": {"application/json": {"schema": {
                "type": "object", "additionalProperties": false,
                "properties": properties, "required": required,
            }}},
        })
    }
}
