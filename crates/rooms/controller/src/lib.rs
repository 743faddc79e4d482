//! Brings replicas up, proves them, watches them.
