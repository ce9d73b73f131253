//! Sessions of leaders: sealed under the program's key and kept nowhere, so that every replica reads them, also after a
//! restart. What signs a leader in at the external service is not in them; the relay's store has it.

use semel_store::at_rest::KeyRing;

/// How long a session lasts, in milliseconds.
const LASTS: i64 = 12 * 60 * 60 * 1000;
/// What a sealed session is for. It opens as nothing else.
const PLACE: &[&str] = &["scores.session"];

/// A new session of a leader.
///
/// # Errors
/// It could not be sealed.
pub fn begin(keys: &KeyRing, leader: &str, now: i64) -> Result<String, String> {
    let sealed = keys.seal(PLACE, format!("{}\n{leader}", now + LASTS).as_bytes())?;
    Ok(sealed.replace(' ', "~"))
}

/// Whose a session is; nobody's when it is over or none of ours.
pub fn leader(keys: &KeyRing, session: &str, now: i64) -> Option<String> {
    let text = String::from_utf8(keys.unseal(PLACE, &session.replace('~', " ")).ok()?).ok()?;
    let (until, leader) = text.split_once('\n')?;
    (until.parse::<i64>().ok()? > now).then(|| leader.to_owned())
}
