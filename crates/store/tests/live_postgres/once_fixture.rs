//! What the tests of `semel.enter` and `semel.leave` share: a database with a table of effects, and the calls as any
//! language makes them.

use semel_store::Id;
use tokio_postgres::{Client, Error, GenericClient, Row};

use crate::fixture::{Postgres, id, postgres};

pub(crate) const ENTER: &str = "SELECT * FROM semel.enter($1::bytea, $2::bytea, $3::text, $4::bytea[], $5::text::jsonb, $6::text::jsonb)";
pub(crate) const LOOK: &str =
    "SELECT * FROM semel.look($1::bytea, $2::bytea, $3::text, $4::bytea[], $5::text::jsonb)";
pub(crate) const LEAVE: &str = "SELECT * FROM semel.leave($1::bytea, $2::integer, $3::bytea, $4::bytea)";
pub(crate) const ABOUT: &str = r#"{"endpoint": "create-order", "principal": "alice", "request_id": "r-1"}"#;
pub(crate) const EFFECT: &str = "INSERT INTO public.effect VALUES ('paid')";

/// The database of one test.
pub(crate) struct Shop {
    pub(crate) here: Postgres,
}

pub(crate) async fn shop() -> Shop {
    let here = postgres().await;
    here.client.batch_execute("CREATE TABLE public.effect (what text)").await.expect("a table of effects");
    Shop { here }
}

impl Shop {
    pub(crate) async fn session(&self) -> Client {
        self.here.database.client().await
    }

    pub(crate) async fn effects(&self) -> i64 {
        self.here.number("SELECT count(*) FROM public.effect").await
    }

    pub(crate) async fn records(&self) -> i64 {
        self.here.number("SELECT count(*) FROM semel.record").await
    }

    /// Runs one request to its end.
    pub(crate) async fn run(&self, call: &Call) -> Result<String, Error> {
        let session = self.session().await;
        session.batch_execute("BEGIN").await?;
        let verdict = call.enter(&session).await?;
        if verdict == "execute" {
            session.batch_execute(EFFECT).await?;
            call.leave(&session, 201, b"made").await?;
        }
        session.batch_execute("COMMIT").await.map(|()| verdict)
    }
}

/// One request: its key, what it is for, and how it enters.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) id: Id,
    pub(crate) prints: Vec<Vec<u8>>,
    pub(crate) about: String,
    pub(crate) options: String,
}

/// A fingerprint of this version.
pub(crate) fn print(version: u8, byte: u8) -> Vec<u8> {
    [&[version][..], &[byte; 32]].concat()
}

impl Call {
    pub(crate) fn new(name: &str) -> Self {
        Self::of(id(name))
    }

    pub(crate) fn of(id: Id) -> Self {
        Self { id, prints: vec![print(1, 7)], about: ABOUT.to_owned(), options: "{}".to_owned() }
    }

    pub(crate) fn with(&self, options: &str) -> Self {
        Self { options: options.to_owned(), ..self.clone() }
    }

    pub(crate) fn printed(&self, prints: &[Vec<u8>]) -> Self {
        Self { prints: prints.to_vec(), ..self.clone() }
    }

    pub(crate) async fn enter_row(&self, session: &impl GenericClient) -> Result<Row, Error> {
        let (hash, scope) = (self.id.hash(), self.id.scope);
        let key = self.id.key.as_str();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&hash.as_slice(), &scope.as_bytes().as_slice(), &key, &self.prints, &self.about, &self.options];
        session.query_one(ENTER, &values).await
    }

    pub(crate) async fn enter(&self, session: &impl GenericClient) -> Result<String, Error> {
        Ok(self.enter_row(session).await?.get("verdict"))
    }

    pub(crate) async fn look(&self, session: &impl GenericClient) -> Row {
        let (hash, scope) = (self.id.hash(), self.id.scope);
        let key = self.id.key.as_str();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&hash.as_slice(), &scope.as_bytes().as_slice(), &key, &self.prints, &self.options];
        session.query_one(LOOK, &values).await.expect("a look")
    }

    pub(crate) async fn look_verdict(&self, session: &impl GenericClient) -> String {
        self.look(session).await.get("verdict")
    }

    pub(crate) async fn leave(
        &self,
        session: &impl GenericClient,
        status: i32,
        body: &[u8],
    ) -> Result<Row, Error> {
        let hash = self.id.hash();
        session.query_one(LEAVE, &[&hash.as_slice(), &status, &b"".as_slice(), &body]).await
    }

    /// Begins a transaction and enters; it must be to execute.
    pub(crate) async fn begin(&self, session: &Client) {
        session.batch_execute("BEGIN").await.expect("a transaction");
        assert_eq!(self.enter(session).await.expect("it enters"), "execute");
    }
}

/// The SQLSTATE of a failure.
pub(crate) fn code<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(_) => "00000".to_owned(),
        Err(error) => error.code().map_or_else(|| "no answer".to_owned(), |code| code.code().to_owned()),
    }
}

/// Waits for a condition, not for a time: at most so many looks.
pub(crate) async fn until<F, C>(what: &str, mut holds: C)
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    for _ in 0..1200 {
        if holds().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("waited in vain: {what}");
}
