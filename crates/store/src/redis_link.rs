//! The link to Redis: one way to connect for everybody who uses it. Never waits long; what Redis does not answer in time is
//! an error, and whoever asked goes on without it.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, RedisError};

use crate::claims::StoreError;

/// The longest pause between two attempts to connect again.
const RECONNECT_MILLIS_MAX: u64 = 200;

/// A client and a connection that comes back by itself. Connects with the first call, so that semel starts also while
/// Redis is away. Call it within a tokio runtime.
pub(crate) fn open(url: &str, patience: Duration) -> Result<(Client, ConnectionManager), StoreError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(patience))
        .set_response_timeout(Some(patience))
        .set_max_delay(Duration::from_millis(RECONNECT_MILLIS_MAX))
        .set_number_of_retries(1);
    let client = Client::open(url).map_err(unavailable)?;
    let manager = ConnectionManager::new_lazy_with_config(client.clone(), config).map_err(unavailable)?;
    Ok((client, manager))
}

/// What an answer within the patience says.
pub(crate) async fn in_time<T>(
    patience: Duration,
    asked: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(patience, asked).await {
        Ok(answer) => answer.map_err(unavailable),
        Err(_) => Err(StoreError::Unavailable("Redis did not answer in time".to_owned())),
    }
}

/// Redis cannot be used now.
pub(crate) fn unavailable(error: RedisError) -> StoreError {
    StoreError::Unavailable(format!("Redis: {error}"))
}
