//! Why the API server did not do what it was asked.

use std::sync::Arc;

use kube::Error;
use kube::core::Status;

/// Longest text of a fault that is kept of what a server said.
const SAID_MAX: usize = 600;

/// Why something was not done. Closed: each case has a stable name and says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A later controller was here.
    #[error("a later controller is at work (generation {highest})")]
    StaleGeneration {
        /// Its generation.
        highest: u64,
    },
    /// Somebody changed the object between our look and our write.
    #[error("{what} was changed at the same time: {said}")]
    Changed {
        /// The object.
        what: Arc<str>,
        /// What the server said.
        said: Arc<str>,
    },
    /// A field that we write is another manager's.
    #[error("{field} of {what} is managed by {manager}")]
    Conflict {
        /// The object.
        what: Arc<str>,
        /// The field.
        field: Arc<str>,
        /// Who has it.
        manager: Arc<str>,
    },
    /// The object is not there.
    #[error("{what} is not there")]
    NotFound {
        /// The object.
        what: Arc<str>,
    },
    /// The cluster does not know the kind.
    #[error("the cluster has no {kind}")]
    NotInstalled {
        /// The kind.
        kind: Arc<str>,
    },
    /// We may not.
    #[error("not allowed: {said}")]
    Forbidden {
        /// What the server said.
        said: Arc<str>,
    },
    /// The server does not know who we are.
    #[error("not let in: {said}")]
    Unauthenticated {
        /// What the server said.
        said: Arc<str>,
    },
    /// A quota of the namespace is used up.
    #[error("quota: {said}")]
    QuotaRefused {
        /// What the server said.
        said: Arc<str>,
    },
    /// An admission webhook or policy said no.
    #[error("admission: {said}")]
    AdmissionRefused {
        /// What it said.
        said: Arc<str>,
    },
    /// What we wrote makes no sense to the server; it never will.
    #[error("refused: {said}")]
    Invalid {
        /// What the server said.
        said: Arc<str>,
    },
    /// An order that cannot be rendered.
    #[error("{0}")]
    Order(Arc<str>),
    /// What is there was not made by us, or cannot be read.
    #[error("{what} is not as it was written: {why}")]
    Foreign {
        /// The object.
        what: Arc<str>,
        /// What is wrong.
        why: Arc<str>,
    },
    /// A pool in another namespace, which is not allowed, or not granted there.
    #[error("the route {route} may not go to a pool in namespace {namespace}")]
    OtherNamespace {
        /// The HTTPRoute.
        route: Arc<str>,
        /// Where the pool is.
        namespace: Arc<str>,
    },
    /// The gateway does not take the route.
    #[error("the gateway refuses the route {route}: {said}")]
    RouteRefused {
        /// The HTTPRoute.
        route: Arc<str>,
        /// The condition's message.
        said: Arc<str>,
    },
    /// No gateway has said that it took the route.
    #[error("no gateway has confirmed the route {route} within {seconds} s")]
    RouteUnconfirmed {
        /// The HTTPRoute.
        route: Arc<str>,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The server says that it is busy or broken.
    #[error("the API server cannot answer now: {said}")]
    Busy {
        /// What it said.
        said: Arc<str>,
    },
    /// The server does not answer; what it did is unknown.
    #[error("the API server does not answer: {why}")]
    Unreachable {
        /// Why.
        why: Arc<str>,
    },
    /// The way to the server cannot be read.
    #[error("no way to the API server: {why}")]
    Access {
        /// Why.
        why: Arc<str>,
    },
}

impl Fault {
    /// Its stable name, for logs, metrics and other programs.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::StaleGeneration { .. } => "stale_generation",
            Self::Changed { .. } => "changed",
            Self::Conflict { .. } => "conflict",
            Self::NotFound { .. } => "not_found",
            Self::NotInstalled { .. } => "not_installed",
            Self::Forbidden { .. } => "forbidden",
            Self::Unauthenticated { .. } => "unauthenticated",
            Self::QuotaRefused { .. } => "quota_refused",
            Self::AdmissionRefused { .. } => "admission_refused",
            Self::Invalid { .. } => "invalid",
            Self::Order(_) => "order",
            Self::Foreign { .. } => "foreign",
            Self::OtherNamespace { .. } => "other_namespace",
            Self::RouteRefused { .. } => "route_refused",
            Self::RouteUnconfirmed { .. } => "route_unconfirmed",
            Self::Busy { .. } => "busy",
            Self::Unreachable { .. } => "unreachable",
            Self::Access { .. } => "access",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::StaleGeneration { .. } => "nothing: the other controller goes on",
            Self::Changed { .. } => "nothing, it is tried again; if it goes on, find out who else writes the object",
            Self::Conflict { .. } => "take the field out of what the other manager applies",
            Self::NotFound { .. } => "apply it first",
            Self::NotInstalled { .. } => "install its CustomResourceDefinition, or do without what needs it",
            Self::Forbidden { .. } => "compare the ServiceAccount's roles with docs/kubernetes/rbac.yaml",
            Self::Unauthenticated { .. } => "renew the token or the kubeconfig",
            Self::QuotaRefused { .. } => "raise the ResourceQuota of the namespace or take something away",
            Self::AdmissionRefused { .. } => "allow it in the policy that the message names",
            Self::Invalid { .. } => "compare the cluster's version with those that are supported",
            Self::Order(_) => "correct the documents",
            Self::Foreign { .. } => "delete the object if nobody else needs it",
            Self::OtherNamespace { .. } => {
                "keep an alias's deployments in one namespace, or allow it and apply a ReferenceGrant there"
            }
            Self::RouteRefused { .. } => "read the HTTPRoute's status",
            Self::RouteUnconfirmed { .. } => "look whether the gateway's controller runs and the route has a parent",
            Self::Busy { .. } => "nothing, it is tried again",
            Self::Unreachable { .. } => "look at the API server and the network to it",
            Self::Access { .. } => "name a kubeconfig, or run in a Pod with a ServiceAccount",
        }
    }

    /// Whether nobody knows whether it was done.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy { .. } | Self::Unauthenticated { .. })
    }

    /// Whether the same write may succeed after reading again.
    #[must_use]
    pub const fn is_race(&self) -> bool {
        matches!(self, Self::Changed { .. })
    }

    /// What an answer means for an object called `what`.
    pub(crate) fn of(what: &str, error: &Error) -> Self {
        match error {
            Error::Api(status) => Self::of_status(what, status),
            Error::Auth(why) => Self::Unauthenticated { said: bounded(&why.to_string()) },
            // an answer that is no JSON comes from something in between
            _ => Self::Unreachable { why: bounded(&chain(error)) },
        }
    }

    fn of_status(what: &str, status: &Status) -> Self {
        let said = bounded(&status.message);
        match status.code {
            401 => Self::Unauthenticated { said },
            403 => forbidden(said),
            404 if is_unknown_kind(status) => {
                Self::NotInstalled { kind: what.split(' ').next().unwrap_or(what).into() }
            }
            404 => Self::NotFound { what: what.into() },
            409 => conflict(what, status, said),
            400 | 405 | 406 | 413 | 415 | 422 => Self::Invalid { said },
            // a field that the schema does not have, in an apply: it will never be taken
            500 if status.message.contains("failed to create typed patch object") => Self::Invalid { said },
            _ => Self::Busy { said },
        }
    }
}

fn forbidden(said: Arc<str>) -> Fault {
    if said.contains("exceeded quota") || said.contains("must specify") && said.contains("quota") {
        Fault::QuotaRefused { said }
    } else if is_admission(&said) {
        Fault::AdmissionRefused { said }
    } else {
        Fault::Forbidden { said }
    }
}

/// Whether a policy speaks, and not the roles.
fn is_admission(said: &str) -> bool {
    ["admission webhook", "violates PodSecurity", "ValidatingAdmissionPolicy"].iter().any(|sign| said.contains(sign))
}

/// A kind that is not served is answered with a page, or with a status that names no object.
fn is_unknown_kind(status: &Status) -> bool {
    status.message.contains("could not find the requested resource")
        || status.message.contains("page not found")
        || status.details.as_ref().is_none_or(|details| details.name.is_empty() && details.kind.is_empty())
            && !status.message.contains("not found")
}

fn conflict(what: &str, status: &Status, said: Arc<str>) -> Fault {
    let managed =
        status.details.iter().flat_map(|details| &details.causes).find(|cause| cause.reason == "FieldManagerConflict");
    let Some(cause) = managed else {
        return Fault::Changed { what: what.into(), said };
    };
    // conflict with "NAME" using VERSION: or: conflict with "NAME" with subresource ...
    let manager = cause.message.split('"').nth(1).unwrap_or(&cause.message);
    Fault::Conflict { what: what.into(), field: bounded(&cause.field), manager: bounded(manager) }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = source.source();
    }
    text
}

/// As much of a text as is kept, on one line.
pub(crate) fn bounded(text: &str) -> Arc<str> {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let kept: String = text.chars().take(SAID_MAX).map(plain).collect();
    kept.into()
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(code: u16, message: &str) -> Status {
        Status { code, message: message.to_owned(), ..Status::default() }
    }

    fn fault(code: u16, message: &str) -> Fault {
        Fault::of("Deployment a", &Error::Api(status(code, message).boxed()))
    }

    #[test]
    fn answers_have_names() {
        let cases = [
            (401, "Unauthorized", "unauthenticated"),
            (403, "deployments.apps is forbidden: User \"x\" cannot patch", "forbidden"),
            (403, "pods \"a\" is forbidden: exceeded quota: gpus, requested: ...", "quota_refused"),
            (403, "admission webhook \"w\" denied the request: no", "admission_refused"),
            (403, "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\"", "admission_refused"),
            (404, "deployments.apps \"a\" not found", "not_found"),
            (404, "the server could not find the requested resource", "not_installed"),
            (404, "404 page not found\n", "not_installed"),
            (409, "Operation cannot be fulfilled", "changed"),
            (422, "Deployment.apps \"a\" is invalid", "invalid"),
            (500, "failed to create typed patch object (a/b): .spec.x: field not declared in schema", "invalid"),
            (500, "etcdserver: request timed out", "busy"),
            (429, "too many", "busy"),
            (503, "not yet", "busy"),
        ];
        for (code, message, name) in cases {
            let fault = fault(code, message);
            assert_eq!(fault.code(), name, "{message}");
            assert!(!fault.hint().is_empty());
        }
    }

    #[test]
    fn a_conflict_names_the_field_and_its_manager() {
        let cause = StatusCause {
            reason: "FieldManagerConflict".to_owned(),
            message: "conflict with \"argocd-controller\" using apps/v1".to_owned(),
            field: ".spec.replicas".to_owned(),
        };
        let details = StatusDetails {
            name: "a".to_owned(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: vec![cause],
            retry_after_seconds: 0,
        };
        let status = Status { details: Some(details), ..status(409, "Apply failed with 1 conflict") };
        let fault = Fault::of("Deployment a", &Error::Api(status.boxed()));
        assert_eq!(fault.to_string(), ".spec.replicas of Deployment a is managed by argocd-controller");
    }

    #[test]
    fn what_a_server_said_is_kept_short_and_on_one_line() {
        assert_eq!(bounded(&"x".repeat(SAID_MAX + 1)).len(), SAID_MAX);
        assert_eq!(&*bounded("a\nb"), "a b");
    }
}
