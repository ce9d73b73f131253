//! The gate as a reverse proxy.
