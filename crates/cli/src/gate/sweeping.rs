//! Sweeping for as long as a service runs that has no gate: a run whenever it is due, each with a way to the store of its own, so
//! that a store that goes away is found again. Never ends by itself.

use std::io::Write;
use std::time::{Duration, SystemTime};

use semel_contract::profile::SweepWhen;
use semel_gate::until_next;
use tokio::time::sleep;

use super::upkeep::{self, SweepArgs};
use super::way::Way;
use super::{At, Said};
use crate::exit::{Exit, Stop};
use crate::output_failed;

/// How long is slept at most before the clock is looked at again: machines are put to sleep, and clocks are set.
const LOOK: Duration = Duration::from_secs(20);

/// Sweeps whenever it is due. A run that failed is tried again soon; whatever the store's return does not mend ends it.
pub(super) async fn sweep_for_ever(at: &At, args: &SweepArgs, when: SweepWhen) -> Result<Said, Stop> {
    let mut is_due = matches!(when, SweepWhen::Every(_));
    loop {
        if !is_due {
            wait(when).await;
        }
        is_due = match try_sweep(at, args).await {
            Ok(said) => {
                let shown = if at.json { format!("{}\n", said.value) } else { said.text };
                let mut output = std::io::stdout();
                let written = output.write_all(shown.as_bytes()).and_then(|()| output.flush());
                written.map_err(|error| output_failed(&error))?;
                false
            }
            Err(stop) if stop.exit != Exit::Unreachable => return Err(stop),
            Err(stop) => {
                let words = format!("failed to sweep: {}; it is tried again soon\n", stop.message);
                // Whoever does not read it still wants the sweeps.
                let _ = std::io::stderr().write_all(words.as_bytes());
                sleep(LOOK).await;
                true
            }
        };
    }
}

async fn try_sweep(at: &At, args: &SweepArgs) -> Result<Said, Stop> {
    let way = Way::find(at).await?;
    upkeep::sweep(&way, args).await
}

/// Waits for the next run, by the clock on the wall.
async fn wait(when: SweepWhen) {
    let due = SystemTime::now() + until_next(when, wall_millis());
    while let Ok(left) = due.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        sleep(left.min(LOOK)).await;
    }
}

fn wall_millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
