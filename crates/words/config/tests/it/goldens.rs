//! The worked examples of policy, as far as documents decide them.

use tidegate_core::Limits;

use crate::site_of::{said, with};

#[test]
fn golden_2_figures_of_four_grants_are_read_exactly() {
    let checked = with(
        "kind: Alias
metadata: {name: glm}
spec: {targets: [{deployment: e}]}
---
kind: Alias
metadata: {name: deepseek}
spec: {targets: [{deployment: e}]}
---
kind: Alias
metadata: {name: qwen}
spec: {targets: [{deployment: e}]}
---
kind: Team
metadata: {name: team-a}
spec:
  models:
    - {alias: glm, rpm: 60, tpm: 500k, concurrency: 10, dailyTokens: 20M}
    - {alias: deepseek, rpm: 30, tpm: 300k, concurrency: 5, dailyTokens: 10M}
---
kind: Team
metadata: {name: team-b}
spec: {models: [{alias: qwen, rpm: 100, tpm: 1M, concurrency: 20, dailyTokens: 50M}]}
---
kind: Team
metadata: {name: batch}
spec: {models: [{alias: glm, rpm: 10, tpm: 5M, concurrency: 4, dailyTokens: 200M}]}
",
    );
    assert_eq!(checked.diagnostics, []);
    let site = checked.site.unwrap();
    let limits = |team: &str, grant: usize| site.teams[team].grants[grant].limits;
    let figures = |rpm, tpm, concurrency, daily_tokens| Limits {
        rpm: Some(rpm),
        tpm: Some(tpm),
        concurrency: Some(concurrency),
        daily_tokens: Some(daily_tokens),
        monthly_tokens: None,
    };
    assert_eq!(limits("team-a", 0), figures(60, 500_000, 10, 20_000_000));
    assert_eq!(limits("team-a", 1), figures(30, 300_000, 5, 10_000_000));
    assert_eq!(limits("team-b", 0), figures(100, 1_000_000, 20, 50_000_000));
    assert_eq!(limits("batch", 0), figures(10, 5_000_000, 4, 200_000_000));
}

/// Team discovery over {discovery, qwen}, team wizard over {qwen, document}, and a third with a share of its own.
fn golden_3(share: u64) -> String {
    format!(
        "kind: Alias
metadata: {{name: discovery}}
spec: {{targets: [{{deployment: d}}]}}
---
kind: Alias
metadata: {{name: qwen}}
spec: {{targets: [{{deployment: e}}]}}
---
kind: Deployment
metadata: {{name: docling}}
spec: {{model: m, kind: document, endpoints: [{{url: 'http://127.0.0.1:9009'}}]}}
---
kind: Alias
metadata: {{name: document}}
spec: {{targets: [{{deployment: docling}}]}}
---
kind: Team
metadata: {{name: discovery}}
spec:
  limits: {{tpm: 2M, rpm: 100, concurrency: 20}}
  models: [{{alias: discovery, concurrency: 20}}, {{alias: qwen}}]
---
kind: Team
metadata: {{name: research}}
spec: {{models: [{{alias: discovery, concurrency: {share}}}]}}
---
kind: Team
metadata: {{name: wizard}}
spec:
  limits: {{tpm: 500k, rpm: 50, concurrency: 8}}
  models: [{{alias: qwen}}, {{alias: document}}]
"
    )
}

#[test]
fn golden_3_shares_of_20_and_10_fit_a_peak_of_30() {
    let checked = with(&golden_3(10));
    assert_eq!(checked.diagnostics, []);
    let site = checked.site.unwrap();
    assert_eq!(site.aliases["discovery"].limits.concurrency, Some(30), "the expected peak of its profile");
    assert_eq!(site.teams["discovery"].limits.tpm, Some(2_000_000));
    assert_eq!(site.teams["wizard"].limits.concurrency, Some(8));
}

#[test]
fn golden_3_shares_of_20_and_11_are_refused() {
    let said = said(&golden_3(11));
    assert_eq!(said, ["error spec.models[0].concurrency: shares of alias `discovery` add up to 31, its limit is 30"]);
    assert_eq!(with(&golden_3(11)).diagnostics[0].hint.as_deref(), Some("discovery 20 + research 11"));
}
