//! Limiters: so many requests or new keys in a window.
