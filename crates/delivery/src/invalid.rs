//! Why something cannot be taken as it is.

use semel_http::HttpError;

semel_contract::error_in_words! {
    /// Why a setting, a line, a reason or what a sender asks for cannot be taken as it is.
    Invalid
}

impl From<HttpError> for Invalid {
    fn from(error: HttpError) -> Self {
        Self(error.into())
    }
}
