//! The id of an event: `epoch.number.check`. The check is four hex digits of the message id, so that a number of a restored
//! or another database is noticed. Pure.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Where a reader is in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The run of numbers; a restored database begins another one.
    pub epoch: i64,
    /// The number in the line.
    pub number: i64,
    /// Digits of the message that has this number.
    pub check: u16,
}

impl EventId {
    /// The id of a message.
    pub fn of(epoch: i64, number: i64, broker_message_id: &str) -> Self {
        Self { epoch, number, check: check_of(broker_message_id) }
    }
}

/// The digits of a message. The first characters of a ULID are its time, which neighbours share: a hash tells them apart.
pub(crate) fn check_of(broker_message_id: &str) -> u16 {
    let digest = Sha256::digest(broker_message_id.as_bytes());
    u16::from_be_bytes([digest[0], digest[1]])
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:04x}", self.epoch, self.number, self.check)
    }
}

/// The text is not the id of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnEventId;

impl FromStr for EventId {
    type Err = NotAnEventId;

    fn from_str(text: &str) -> Result<Self, NotAnEventId> {
        let mut parts = text.split('.');
        let mut next = || parts.next().ok_or(NotAnEventId);
        let (epoch, number, check) = (next()?, next()?, next()?);
        let is_plain = |part: &str| part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit());
        if parts.next().is_some() || check.len() != 4 || !is_plain(epoch) || !is_plain(number) {
            return Err(NotAnEventId);
        }
        if !check.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAnEventId);
        }
        let number_of = |part: &str| part.parse::<i64>().map_err(|_| NotAnEventId);
        let check = u16::from_str_radix(check, 16).map_err(|_| NotAnEventId)?;
        Ok(Self { epoch: number_of(epoch)?, number: number_of(number)?, check })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_as_it_was_written() {
        let id = EventId::of(3, 41, "01ARYZ6S410000000000000000");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("1.2.00ff".parse(), Ok(EventId { epoch: 1, number: 2, check: 255 }));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "1",
            "1.2",
            "1.2.ff",
            "1.2.00fg",
            "1.2.+0ff",
            "-1.2.00ff",
            "1.+2.00ff",
            "1.2.00ff.3",
            "a.b.cdef",
            "9999999999999999999.1.00ff",
        ] {
            assert_eq!(text.parse::<EventId>(), Err(NotAnEventId), "{text:?}");
        }
    }

    #[test]
    fn neighbours_have_other_digits() {
        assert_ne!(check_of("01ARYZ6S410000000000000000"), check_of("01ARYZ6S410000000000000001"));
    }
}
