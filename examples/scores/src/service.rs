//! A stand-in for the external score service, with its bad habits: it limits, blocks, revokes, answers late, applies late
//! and loses answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

/// What it does with the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Asks for a pause of so many seconds.
    Limit(u64),
    /// Says that it blocks us.
    Block,
    /// Says that it will never do it.
    Refuse,
    /// Fails without having done anything.
    Fail,
    /// Applies it, and answers so much later.
    AnswerLate(Duration),
    /// Does not answer in time, and applies it so much later.
    ApplyLate(Duration),
    /// Applies it, and answers with an error.
    LoseAnswer,
}

#[derive(Default)]
struct Books {
    scores: BTreeMap<String, i64>,
    writes: Vec<(String, i64, String)>,
    habits: VecDeque<Habit>,
    revoked: BTreeSet<String>,
}

/// The service.
#[derive(Clone, Default)]
pub struct Service(Arc<Mutex<Books>>);

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Service")
    }
}

#[derive(Deserialize)]
struct Written {
    score: i64,
}

impl Service {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next writes are treated so.
    pub fn next(&self, habits: &[Habit]) {
        self.books().habits.extend(habits);
    }

    /// A token that is answered with 401.
    pub fn revoke(&self, token: &str) {
        self.books().revoked.insert(format!("Bearer {token}"));
    }

    /// A patrol's score.
    pub fn score(&self, patrol: &str) -> i64 {
        self.books().scores.get(patrol).copied().unwrap_or(0)
    }

    /// Sets a patrol's score, as somebody else would.
    pub fn set(&self, patrol: &str, score: i64) {
        self.books().scores.insert(patrol.to_owned(), score);
    }

    /// Every write that arrived: patrol, score and credential.
    pub fn writes(&self) -> Vec<(String, i64, String)> {
        self.books().writes.clone()
    }

    /// Its routes.
    pub fn router(&self) -> Router {
        Router::new().route("/patrols/{patrol}", get(read).post(write)).with_state(self.clone())
    }
}

fn token(headers: &HeaderMap) -> String {
    headers.get(header::AUTHORIZATION).and_then(|line| line.to_str().ok()).unwrap_or_default().to_owned()
}

async fn read(State(service): State<Service>, Path(patrol): Path<String>, headers: HeaderMap) -> Response {
    if service.books().revoked.contains(&token(&headers)) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(json!({"patrol": patrol, "score": service.score(&patrol)})).into_response()
}

async fn write(
    State(service): State<Service>,
    Path(patrol): Path<String>,
    headers: HeaderMap,
    Json(Written { score }): Json<Written>,
) -> Response {
    let token = token(&headers);
    let habit = {
        let mut books = service.books();
        if books.revoked.contains(&token) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        books.writes.push((patrol.clone(), score, token));
        books.habits.pop_front()
    };
    match habit {
        Some(Habit::Limit(seconds)) => {
            (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds.to_string())]).into_response()
        }
        Some(Habit::Block) => (StatusCode::FORBIDDEN, Json(json!({"error": "blocked"}))).into_response(),
        Some(Habit::Refuse) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Some(Habit::Fail) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Some(Habit::ApplyLate(by)) => {
            let late = service.clone();
            tokio::spawn(async move {
                tokio::time::sleep(by).await;
                late.set(&patrol, score);
            });
            tokio::time::sleep(Duration::from_secs(60)).await;
            StatusCode::GATEWAY_TIMEOUT.into_response()
        }
        Some(Habit::AnswerLate(by)) => {
            service.set(&patrol, score);
            tokio::time::sleep(by).await;
            StatusCode::NO_CONTENT.into_response()
        }
        Some(Habit::LoseAnswer) => {
            service.set(&patrol, score);
            StatusCode::BAD_GATEWAY.into_response()
        }
        None => {
            service.set(&patrol, score);
            StatusCode::NO_CONTENT.into_response()
        }
    }
}
