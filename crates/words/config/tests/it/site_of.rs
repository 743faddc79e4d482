//! Small sites for tests: a whole one, and the same with something added.

use tidegate_config::{Checked, Diagnostic, Source, check};

/// A site with nothing wrong: one engine run by somebody else, one alias, one team.
pub(crate) const BASE: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: base}
---
kind: Model
metadata: {name: m}
spec: {engine: vllm}
---
kind: Deployment
metadata: {name: d}
spec: {model: m, endpoints: [{url: 'http://127.0.0.1:9000'}], profile: {concurrency: 30}}
---
kind: Deployment
metadata: {name: e}
spec: {model: m, endpoints: [{url: 'http://127.0.0.1:9001'}]}
---
kind: Alias
metadata: {name: a}
spec: {targets: [{deployment: d}]}
";

/// The base with more documents behind it.
pub(crate) fn with(more: &str) -> Checked {
    check(&[
        Source::new("base.yaml", BASE),
        Source::new("more.yaml", format!("apiVersion: tidegate.dev/v1alpha1\n{more}")),
    ])
}

/// `<severity> <path>: <message>` of everything that is found in the base with more documents.
pub(crate) fn said(more: &str) -> Vec<String> {
    let line = |found: &Diagnostic| format!("{} {}: {}", found.severity.as_str(), found.path, found.message);
    with(more).diagnostics.iter().map(line).collect()
}
