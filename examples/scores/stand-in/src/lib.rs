//! A stand-in for the external score service, with its bad habits: it limits, blocks, signs people out, answers late,
//! applies late and loses answers. It keeps scores and tokens in a file, if it has one, so that it may be killed too.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use semel_delivery::Entropy;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What everybody's password is.
pub const PASSWORD: &str = "campfire";

/// What it does with the next write. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    AnswerLate(u64),
    /// Does not answer in time, and applies it so much later.
    ApplyLate(u64),
    /// Applies it, and answers with an error.
    LoseAnswer,
}

#[derive(Default)]
struct Books {
    kept: Kept,
    writes: Vec<(String, i64, String)>,
    habits: VecDeque<Habit>,
    file: Option<PathBuf>,
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    patrols: BTreeMap<String, Patrol>,
    /// Whose a token is.
    tokens: BTreeMap<String, String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Patrol {
    section: String,
    name: String,
    score: i64,
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

#[derive(Deserialize)]
struct Login {
    leader: String,
    password: String,
}

impl Service {
    /// A service that keeps its books in a file. A new one has a camp of four patrols.
    ///
    /// # Errors
    /// The file is none of its own.
    pub fn of_file(file: PathBuf) -> Result<Self, Box<dyn std::error::Error>> {
        let service = Self::default();
        if file.exists() {
            service.books().kept = serde_json::from_slice(&std::fs::read(&file)?)?;
        }
        service.books().file = Some(file);
        if service.books().kept.patrols.is_empty() {
            for (id, score) in [("eagles", 100), ("foxes", 85), ("otters", 120), ("wolves", 95)] {
                service.set(id, score);
            }
        }
        Ok(service)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is kept. It is in the file before anybody is answered.
    fn change<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        let mut books = self.books();
        let result = change(&mut books.kept);
        if let Some(file) = &books.file {
            let (new, text) =
                (file.with_extension("new"), serde_json::to_vec(&books.kept).unwrap_or_default());
            let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
            assert!(written.is_ok(), "the books of the external service cannot be written: {written:?}");
        }
        result
    }

    /// The next writes are treated so.
    pub fn next(&self, habits: &[Habit]) {
        self.books().habits.extend(habits);
    }

    /// Signs a leader out: the leader's tokens are answered with 401.
    pub fn revoke(&self, leader: &str) {
        self.change(|kept| kept.tokens.retain(|_, whose| whose != leader));
    }

    /// A patrol's score.
    pub fn score(&self, patrol: &str) -> i64 {
        self.books().kept.patrols.get(patrol).map_or(0, |patrol| patrol.score)
    }

    /// Sets a patrol's score, as somebody else would.
    pub fn set(&self, patrol: &str, score: i64) {
        let name = patrol[..1].to_uppercase() + &patrol[1..];
        let new = || Patrol { section: "7".to_owned(), name, score };
        self.change(|kept| kept.patrols.entry(patrol.to_owned()).or_insert_with(new).score = score);
    }

    /// Every write that arrived: patrol, score and whose token.
    pub fn writes(&self) -> Vec<(String, i64, String)> {
        self.books().writes.clone()
    }

    /// Its routes.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/login", post(login))
            .route("/sections/{section}/patrols", get(list))
            .route("/patrols/{patrol}", get(read).post(write))
            .route("/habits", post(learn))
            .route("/tokens/{leader}", delete(sign_out))
            .with_state(self.clone())
    }

    fn caller(&self, headers: &HeaderMap) -> Result<String, StatusCode> {
        let line = headers.get(header::AUTHORIZATION).and_then(|line| line.to_str().ok()).unwrap_or_default();
        let token = line.strip_prefix("Bearer ").unwrap_or_default();
        self.books().kept.tokens.get(token).cloned().ok_or(StatusCode::UNAUTHORIZED)
    }
}

async fn login(State(service): State<Service>, Json(login): Json<Login>) -> Response {
    if login.password != PASSWORD || login.leader.is_empty() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let token = format!("{:032x}", Entropy::system().bits());
    service.change(|kept| kept.tokens.insert(token.clone(), login.leader));
    Json(json!({"token": token})).into_response()
}

/// For whoever tries the example: its next writes are treated so.
async fn learn(State(service): State<Service>, Json(habits): Json<Vec<Habit>>) {
    service.next(&habits);
}

async fn sign_out(State(service): State<Service>, Path(leader): Path<String>) {
    service.revoke(&leader);
}

async fn list(
    State(service): State<Service>,
    Path(section): Path<String>,
    headers: HeaderMap,
) -> Result<Response, StatusCode> {
    service.caller(&headers)?;
    let books = service.books();
    let here = books.kept.patrols.iter().filter(|(_, patrol)| patrol.section == section);
    let patrols: Vec<_> =
        here.map(|(id, patrol)| json!({"id": id, "name": patrol.name, "score": patrol.score})).collect();
    Ok(Json(json!({"patrols": patrols})).into_response())
}

async fn read(
    State(service): State<Service>,
    Path(patrol): Path<String>,
    headers: HeaderMap,
) -> Result<Response, StatusCode> {
    service.caller(&headers)?;
    Ok(Json(json!({"patrol": patrol, "score": service.score(&patrol)})).into_response())
}

async fn write(
    State(service): State<Service>,
    Path(patrol): Path<String>,
    headers: HeaderMap,
    Json(Written { score }): Json<Written>,
) -> Result<Response, StatusCode> {
    let leader = service.caller(&headers)?;
    let habit = {
        let mut books = service.books();
        books.writes.push((patrol.clone(), score, leader));
        books.habits.pop_front()
    };
    let late = |by| tokio::time::sleep(Duration::from_millis(by));
    match habit {
        Some(Habit::Limit(seconds)) => {
            let told = [(header::RETRY_AFTER, seconds.to_string())];
            return Ok((StatusCode::TOO_MANY_REQUESTS, told).into_response());
        }
        Some(Habit::Block) => {
            return Ok((StatusCode::FORBIDDEN, Json(json!({"error": "blocked"}))).into_response());
        }
        Some(Habit::Refuse) => return Err(StatusCode::UNPROCESSABLE_ENTITY),
        Some(Habit::Fail) => return Err(StatusCode::SERVICE_UNAVAILABLE),
        Some(Habit::ApplyLate(by)) => {
            let other = service.clone();
            tokio::spawn(async move {
                late(by).await;
                other.set(&patrol, score);
            });
            tokio::time::sleep(Duration::from_secs(60)).await;
            return Err(StatusCode::GATEWAY_TIMEOUT);
        }
        Some(Habit::AnswerLate(by)) => {
            service.set(&patrol, score);
            late(by).await;
        }
        Some(Habit::LoseAnswer) => {
            service.set(&patrol, score);
            return Err(StatusCode::BAD_GATEWAY);
        }
        None => service.set(&patrol, score),
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
