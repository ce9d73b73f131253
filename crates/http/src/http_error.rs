//! Why something of HTTP could not be set up, or a service not be reached.

semel_contract::error_in_words! {
    /// Why certificates, addresses or origins cannot be used, or a service cannot be reached.
    HttpError
}
