//! Kept answers, compressed and encrypted.
