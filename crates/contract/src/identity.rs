//! The pure half of identity: which kinds there are and what principal a credential stands for. Verifying a token or
//! asking another service is the gate's work, not done here.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::key::is_header_name;
use crate::limits::CALLER_CHARS_MAX;
use crate::problem::{Kind, Problem};
use crate::request::{Headers, trimmed};

/// Where a request's principal comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The hashed `Authorization` header. Cannot know revocation.
    Authorization,
    /// A hashed cookie. Cannot know revocation.
    Cookie(String),
    /// A header set by an authenticating proxy in front.
    Trusted(String),
    /// A verified JSON Web Token; the text names its keys.
    Jwt(String),
    /// An authorisation sub-request to this URL.
    Check(String),
    /// One principal for everybody, in so many words.
    Shared(String),
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The group the principal belongs to, where there is one.
    pub tenant: Option<String>,
    /// The principal.
    pub principal: String,
}

/// Prefixes that only semel's own hashed and shared principals carry.
const RESERVED_PREFIXES: [&str; 3] = ["authorization:", "cookie:", "shared:"];

impl Caller {
    /// A caller verified elsewhere. Refuses names that would pose as another kind of identity.
    pub fn verified(tenant: Option<String>, principal: String) -> Result<Self, Problem> {
        if principal.is_empty() || RESERVED_PREFIXES.iter().any(|prefix| principal.starts_with(prefix)) {
            return Err(Problem::new(
                Kind::IdentityMissing,
                "the verified principal is empty or has a reserved prefix",
            ));
        }
        let caller = Self { tenant, principal };
        caller.check().map(|()| caller)
    }

    /// Refuses names that a store could not keep: too long for an index, or with control characters.
    pub fn check(&self) -> Result<(), Problem> {
        let is_bad = |name: &String| match name.is_ascii() {
            // Most are, and need not be taken apart.
            true => name.len() > CALLER_CHARS_MAX || name.bytes().any(|byte| byte.is_ascii_control()),
            false => name.chars().count() > CALLER_CHARS_MAX || name.chars().any(char::is_control),
        };
        match [Some(&self.principal), self.tenant.as_ref()].into_iter().flatten().any(is_bad) {
            true => Err(Problem::new(
                Kind::IdentityMissing,
                format!(
                    "a principal or tenant has at most {CALLER_CHARS_MAX} characters and no control characters"
                ),
            )),
            false => Ok(()),
        }
    }
}

/// What can be said of a caller without leaving the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The caller.
    Known(Caller),
    /// Only a verification (a token's signature, a sub-request) can tell.
    NeedsVerification,
}

impl Identity {
    /// The header in which an authenticating proxy or layer in front names the caller, such as `X-User`. It must also
    /// remove the header from what comes in.
    ///
    /// ```
    /// use semel_contract::identity::Identity;
    /// assert_eq!(Identity::header("X-User"), "trusted:X-User".parse()?);
    /// # Ok::<(), semel_contract::identity::IdentityError>(())
    /// ```
    pub fn header(name: impl Into<String>) -> Self {
        Identity::Trusted(name.into())
    }

    /// Reads the caller off the request's headers.
    pub fn read<H: Headers + ?Sized>(&self, headers: &H) -> Result<Reading, Problem> {
        let known = |principal| Ok(Reading::Known(Caller { tenant: None, principal }));
        match self {
            Identity::Authorization => match only_value(headers, "authorization")? {
                Some(value) => known(["authorization:", &hashed(value)].concat()),
                None => Err(missing("the Authorization header", self)),
            },
            Identity::Cookie(name) => match cookie(headers, name)? {
                Some(value) => known(format!("cookie:{name}:{}", hashed(value))),
                None => Err(missing(&format!("the cookie {name}"), self)),
            },
            Identity::Trusted(name) => {
                let value =
                    only_value(headers, name)?.ok_or_else(|| missing(&format!("the {name} header"), self))?;
                let value = std::str::from_utf8(value).map_err(|_| missing("a readable principal", self))?;
                Caller::verified(None, value.to_owned()).map(Reading::Known)
            }
            Identity::Shared(name) => known(["shared:", name].concat()),
            Identity::Jwt(_) | Identity::Check(_) => Ok(Reading::NeedsVerification),
        }
    }

    /// Whether everybody is one principal, so that only the key keeps requests apart.
    pub fn is_shared(&self) -> bool {
        matches!(self, Identity::Shared(_))
    }
}

fn missing(what: &str, identity: &Identity) -> Problem {
    let detail = match identity {
        Identity::Trusted(_) => format!("{what} is required: it says who is calling"),
        Identity::Authorization
        | Identity::Cookie(_)
        | Identity::Shared(_)
        | Identity::Jwt(_)
        | Identity::Check(_) => {
            format!("{what} is required: send the credential that says who is calling")
        }
    };
    Problem::new(Kind::IdentityMissing, detail)
}

fn only_value<'a, H: Headers + ?Sized>(headers: &'a H, name: &'a str) -> Result<Option<&'a [u8]>, Problem> {
    let mut lines = headers.values(name);
    let first = lines.next();
    if lines.next().is_some() {
        return Err(Problem::new(Kind::IdentityMissing, format!("{name} is given on more than one line")));
    }
    Ok(first.map(trimmed).filter(|value| !value.is_empty()))
}

fn cookie<'a, H: Headers + ?Sized>(headers: &'a H, name: &str) -> Result<Option<&'a [u8]>, Problem> {
    let pairs = headers.values("cookie").flat_map(|line| line.split(|b| *b == b';')).map(trimmed);
    let mut named = pairs.filter_map(|pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        (trimmed(&pair[..at]) == name.as_bytes()).then(|| trimmed(&pair[at + 1..]))
    });
    let first = named.next();
    if named.next().is_some() {
        return Err(Problem::new(Kind::IdentityMissing, format!("the cookie {name} is given twice")));
    }
    Ok(first.filter(|value| !value.is_empty()))
}

fn hashed(credential: &[u8]) -> String {
    hex(&Sha256::digest(credential))
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Authorization => f.write_str("authorization"),
            Identity::Cookie(name) => write!(f, "cookie:{name}"),
            Identity::Trusted(name) => write!(f, "trusted:{name}"),
            Identity::Jwt(keys) => write!(f, "jwt:{keys}"),
            Identity::Check(url) => write!(f, "check:{url}"),
            Identity::Shared(name) => write!(f, "shared:{name}"),
        }
    }
}

/// Why a text names no identity, with what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityError(String);

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IdentityError {}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        match text.split_once(':') {
            None if text == "authorization" => Ok(Identity::Authorization),
            Some(("cookie", name)) if is_header_name(name) => Ok(Identity::Cookie(name.to_owned())),
            Some(("trusted", name)) if is_header_name(name) => Ok(Identity::Trusted(name.to_owned())),
            Some(("jwt", keys)) if !keys.is_empty() => Ok(Identity::Jwt(keys.to_owned())),
            Some(("check", url)) if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(Identity::Check(url.to_owned()))
            }
            Some(("shared", name)) if !name.is_empty() => Ok(Identity::Shared(name.to_owned())),
            _ => Err(IdentityError(format!(
                "unknown identity {text:?}: expected authorization, cookie:NAME, trusted:HEADER, jwt:KEYS, check:URL or shared:NAME"
            ))),
        }
    }
}
