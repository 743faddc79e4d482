//! `Site.spec.modelCache`: what is taken, and what is said about the rest.

use std::path::Path;
use std::time::Duration;

use tidegate_config::site::{KeepFree, ModelCache, Scrub};
use tidegate_config::{Checked, Source, check};

fn site(cache: &str) -> Checked {
    let text = format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\nspec: {{modelCache: {{{cache}}}}}\n"
    );
    check(&[Source::new("/etc/tidegate/site.yaml", text)])
}

fn taken(cache: &str) -> ModelCache {
    let checked = site(cache);
    assert_eq!(checked.errors(), 0, "{:?}", checked.diagnostics);
    checked.site.unwrap().model_cache
}

fn said(cache: &str) -> String {
    let found = site(cache).diagnostics;
    found.into_iter().map(|found| format!("{}: {}", found.path, found.message)).collect::<Vec<_>>().join("\n")
}

#[test]
fn nothing_said_is_a_tenth_of_the_disk_and_a_scrub_every_week() {
    let cache = taken("");
    assert_eq!((&*cache.path, cache.keep_free), (Path::new("model-cache"), KeepFree::Percent(10.0)));
    assert_eq!(cache.scrub, Scrub { every: Some(Duration::from_hours(168)), rate: 64 << 20 });
    assert_eq!(taken("scrub: {}").scrub, Scrub::default());
}

#[test]
fn a_scrub_may_be_as_rare_as_never() {
    assert_eq!(taken("scrub: {every: 0s}").scrub.every, None);
    let scrub = taken("scrub: {every: 1h, rate: 1MB}").scrub;
    assert_eq!(scrub, Scrub { every: Some(Duration::from_hours(1)), rate: 1_000_000 });
    assert_eq!(taken("scrub: {every: 366d, rate: 100GB}").scrub.rate, 100_000_000_000);
}

#[test]
fn a_scrub_that_would_do_nothing_else_is_refused() {
    assert_eq!(said("scrub: {every: 59m}"), "spec.modelCache.scrub.every: too often");
    assert_eq!(said("scrub: {rate: 999kB}"), "spec.modelCache.scrub.rate: expected from 1MB to 100GB");
    assert_eq!(said("scrub: {rate: 101GB}"), "spec.modelCache.scrub.rate: expected from 1MB to 100GB");
}
