//! The Kubernetes API.
