//! tidegate-gateway
