//! JSON Web Tokens: taken apart, verified against keys, and their claims checked. Time arrives as an argument.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use semel_contract::identity::Caller;
use serde_json::{Map, Value};

use super::keys::{Algorithm, Key};
use super::spec::Spec;

/// The longest token that is looked at.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Keys that are tried for a token that names none.
const KEYS_TRIED_MAX: usize = 16;
/// By how many seconds clocks may differ.
const LEEWAY_SECONDS: f64 = 5.0;

/// A token that was taken apart and not verified yet.
pub(crate) struct Token<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    /// The key that it says it was signed with.
    pub(crate) kid: Option<String>,
    claims: Map<String, Value>,
}

/// Why a token is not accepted. The words are for the client and tell nothing about keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// No key fits it; another look at the keys may help.
    NoKey,
    /// It is not acceptable.
    Bad(&'static str),
}

impl<'a> Token<'a> {
    /// Takes a token apart.
    pub(crate) fn parse(text: &'a str) -> Result<Self, Rejected> {
        let bad = Rejected::Bad("the token is not a JSON Web Token");
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Rejected::Bad("the token is too long"));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or_else(|| bad.clone())?;
        let (header, claims) = signed.split_once('.').ok_or_else(|| bad.clone())?;
        let object = |part: &str| -> Option<Map<String, Value>> {
            match serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()? {
                Value::Object(object) => Some(object),
                _ => None,
            }
        };
        let header = object(header).ok_or_else(|| bad.clone())?;
        let claims = object(claims).ok_or_else(|| bad.clone())?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| bad)?;
        if header.contains_key("crit") {
            return Err(Rejected::Bad("the token has critical extensions, and none is understood"));
        }
        let named = header.get("alg").and_then(Value::as_str).and_then(Algorithm::of_name);
        let algorithm =
            named.ok_or(Rejected::Bad("the token's algorithm is not HS256, RS256, ES256 or EdDSA"))?;
        let kid = header.get("kid").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { signed, signature, algorithm, kid, claims })
    }

    /// The caller that the token stands for, once a key proves it and its claims hold now (seconds since 1970).
    pub(crate) fn verify(&self, keys: &[Key], spec: &Spec, now: f64) -> Result<Caller, Rejected> {
        // The key says which algorithm it is for; the token's word must be the same.
        let fits = |key: &&Key| key.algorithm() == self.algorithm && key.may_be(self.kid.as_deref());
        let mut fitting = keys.iter().filter(fits).take(KEYS_TRIED_MAX).peekable();
        if fitting.peek().is_none() {
            return Err(Rejected::NoKey);
        }
        if !fitting.any(|key| key.verifies(self.signed.as_bytes(), &self.signature)) {
            return Err(Rejected::Bad("the token's signature does not verify"));
        }
        self.check_times(now)?;
        self.check_parties(spec)?;
        let principal = self.text(&spec.principal).ok_or(Rejected::Bad("the token names no principal"))?;
        let tenant = self.text(spec.tenant.as_deref().unwrap_or("tenant"));
        if spec.tenant.is_some() && tenant.is_none() {
            return Err(Rejected::Bad("the token names no tenant"));
        }
        Caller::verified(tenant, principal)
            .map_err(|_| Rejected::Bad("the token's principal or tenant cannot be one"))
    }

    fn text(&self, claim: &str) -> Option<String> {
        match self.claims.get(claim)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) if number.is_u64() => Some(number.to_string()),
            _ => None,
        }
    }

    fn check_times(&self, now: f64) -> Result<(), Rejected> {
        let time = |claim: &str| match self.claims.get(claim) {
            None => Ok(None),
            Some(value) => {
                value.as_f64().map(Some).ok_or(Rejected::Bad("a time of the token is not a number"))
            }
        };
        if time("exp")?.is_some_and(|expires| now >= expires + LEEWAY_SECONDS) {
            return Err(Rejected::Bad("the token has expired"));
        }
        if time("nbf")?.is_some_and(|begins| now + LEEWAY_SECONDS < begins) {
            return Err(Rejected::Bad("the token is not valid yet"));
        }
        Ok(())
    }

    fn check_parties(&self, spec: &Spec) -> Result<(), Rejected> {
        if let Some(issuer) = &spec.issuer
            && self.claims.get("iss").and_then(Value::as_str) != Some(issuer)
        {
            return Err(Rejected::Bad("the token is of another issuer"));
        }
        let Some(audience) = &spec.audience else { return Ok(()) };
        let is_for_us = match self.claims.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one.as_str() == Some(audience)),
            _ => false,
        };
        if is_for_us { Ok(()) } else { Err(Rejected::Bad("the token is for another audience")) }
    }
}
