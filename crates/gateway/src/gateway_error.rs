//! Why a gateway cannot be set up as it was asked to be.

use semel_http::HttpError;

semel_contract::error_in_words! {
    /// Why a plan, an identity, a probe or a collector cannot be used.
    GatewayError
}

impl From<HttpError> for GatewayError {
    fn from(error: HttpError) -> Self {
        Self(error.into())
    }
}
