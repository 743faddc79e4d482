//! tidegate-routing
