//! The text after `jwt:`: where the keys are, and what tokens must say. Pure.

use std::path::PathBuf;

use http::Uri;

/// What `jwt:KEYS[,name=value…]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Where the keys are.
    pub(crate) keys: Place,
    /// The claim that names the principal.
    pub(crate) principal: String,
    /// The claim that names the tenant; then every token must have it. Without it, `tenant` where it is there.
    pub(crate) tenant: Option<String>,
    /// Who must have made it.
    pub(crate) issuer: Option<String>,
    /// Whom it must be for.
    pub(crate) audience: Option<String>,
    /// Whose certificates are believed when the keys are fetched.
    pub(crate) ca: Option<PathBuf>,
}

/// Where keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    File(PathBuf),
    Url(Uri),
}

impl Spec {
    /// Reads the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: String| {
            format!(
                "bad identity jwt:{text}: {why}; expected jwt:PATH-or-URL, then any of ,principal=CLAIM ,tenant=CLAIM \
                 ,issuer=TEXT ,audience=TEXT ,ca=PATH"
            )
        };
        let mut parts = text.split(',');
        let place =
            parts.next().filter(|place| !place.is_empty()).ok_or_else(|| bad("no keys".to_owned()))?;
        let keys = if place.starts_with("http://") || place.starts_with("https://") {
            Place::Url(place.parse().map_err(|_| bad(format!("{place:?} is not a URL")))?)
        } else {
            Place::File(PathBuf::from(place))
        };
        let mut spec =
            Self { keys, principal: "sub".to_owned(), tenant: None, issuer: None, audience: None, ca: None };
        for part in parts {
            let (name, value) = part
                .split_once('=')
                .filter(|(_, value)| !value.is_empty())
                .ok_or_else(|| bad(format!("{part:?} is not name=value")))?;
            let value = value.to_owned();
            match name {
                "principal" => spec.principal = value,
                "tenant" => spec.tenant = Some(value),
                "issuer" => spec.issuer = Some(value),
                "audience" => spec.audience = Some(value),
                "ca" => spec.ca = Some(PathBuf::from(value)),
                other => return Err(bad(format!("there is no {other:?}"))),
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_names_keys_and_claims() {
        let spec =
            Spec::parse("/etc/keys.json,tenant=org,principal=email,issuer=https://id,audience=shop").unwrap();
        assert_eq!(spec.keys, Place::File("/etc/keys.json".into()));
        assert_eq!((spec.principal.as_str(), spec.tenant.as_deref()), ("email", Some("org")));
        assert_eq!((spec.issuer.as_deref(), spec.audience.as_deref()), (Some("https://id"), Some("shop")));
        assert!(matches!(Spec::parse("https://id/jwks").unwrap().keys, Place::Url(_)));
        for bad in ["", ",issuer=x", "k,issuer", "k,issuer=", "k,colour=red"] {
            assert!(Spec::parse(bad).unwrap_err().contains("expected jwt:PATH-or-URL"), "{bad:?}");
        }
    }
}
