//! tidegate-identity
