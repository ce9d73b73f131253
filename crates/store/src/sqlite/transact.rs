//! A handler's closure and its settlement in one savepoint: both become durable with the batch, or neither. A closure
//! that fails, panics or takes too long leaves nothing behind and harms no other member.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, ErrorCode};
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, State};

use super::claim_tx::ClaimTx;
use super::engine::{Fault, is_full};
use super::transitions::{Holds, holds, write};
use super::work::{TransactOutcome, Work, WorkError, has_dangling_references};
use crate::claims::{Id, Settlement};

type Result<T> = std::result::Result<T, Fault>;
type Worked<T> = std::result::Result<(T, Settlement), WorkError>;

/// Runs the closure for the holder of `fence`, then settles.
pub(super) fn transact<T>(
    tx: &mut ClaimTx<'_>,
    id: &Id,
    fence: Fence,
    lifetime: &Lifetime,
    work: &dyn Fn(&Work<'_>) -> Worked<T>,
) -> Result<TransactOutcome<T>> {
    let kept = match holds(tx, id, fence)? {
        Holds::Open(kept) => kept,
        // Running it again would repeat its effect: an earlier commit of unknown result was a commit.
        Holds::Ended(entry) => return Ok(ended(entry.record.state)),
        Holds::No => return Ok(TransactOutcome::Superseded),
    };
    let connection = tx.connection();
    connection.execute_batch("SAVEPOINT semel_work")?;
    let worked = run(tx, work);
    if connection.is_autocommit() {
        // The whole batch is gone with it. Whatever the closure says, nothing of it is there.
        return refused(tx, worked.err().unwrap_or(WorkError::RolledBack));
    }
    match worked {
        Ok(_) if has_dangling_references(connection) => {
            undo(connection)?;
            refused(tx, WorkError::DanglingReferences)
        }
        Ok((value, settlement)) => {
            if matches!(settlement, Settlement::Release) {
                // Released means surely without effect, so the closure's writes must not stay.
                connection.execute_batch("ROLLBACK TO semel_work")?;
            }
            connection.execute_batch("RELEASE semel_work")?;
            write(tx, kept, &settlement, lifetime)?;
            Ok(TransactOutcome::Done(value))
        }
        Err(error) => {
            undo(connection)?;
            refused(tx, error)
        }
    }
}

fn ended<T>(state: State) -> TransactOutcome<T> {
    match state {
        State::Settled | State::Unkept => TransactOutcome::AlreadyDone,
        State::Claimed | State::Released | State::Unknown | State::Sealed => TransactOutcome::Superseded,
    }
}

fn run<T>(tx: &ClaimTx<'_>, work: &dyn Fn(&Work<'_>) -> Worked<T>) -> Worked<T> {
    let at_work = tx.guard().work();
    let worked = catch_unwind(AssertUnwindSafe(|| work(&Work::new(tx.connection()))));
    // Also a closure that spent its time outside of SQLite, where nothing could interrupt it, is too slow.
    if at_work.is_too_slow() {
        return Err(WorkError::TooSlow);
    }
    worked.unwrap_or_else(|panic| Err(WorkError::Panicked(message(&*panic))))
}

fn undo(connection: &Connection) -> Result<()> {
    connection.execute_batch("ROLLBACK TO semel_work")?;
    connection.execute_batch("RELEASE semel_work")?;
    Ok(())
}

fn refused<T>(tx: &mut ClaimTx<'_>, error: WorkError) -> Result<TransactOutcome<T>> {
    match error {
        WorkError::Sqlite(error) if is_full(&error) => Err(error.into()),
        WorkError::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            tx.let_answer_stand();
            Ok(TransactOutcome::Failed(WorkError::TooSlow))
        }
        WorkError::Sqlite(_)
        | WorkError::Handler(_)
        | WorkError::TooSlow
        | WorkError::Panicked(_)
        | WorkError::RolledBack
        | WorkError::DanglingReferences => {
            tx.let_answer_stand();
            Ok(TransactOutcome::Failed(error))
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
