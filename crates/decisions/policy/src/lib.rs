//! tidegate-policy
