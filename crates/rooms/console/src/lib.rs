//! tidegate-console
