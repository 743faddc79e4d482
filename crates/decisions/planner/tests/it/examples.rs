//! The examples of the project can be carried out.

use tidegate_config::{Source, check, examples};
use tidegate_planner::outlook::{self, Weight};

use crate::site_of::at;

#[test]
fn every_example_is_feasible() {
    let folders: std::collections::BTreeSet<&str> =
        examples().iter().filter_map(|(name, _)| Some(name.split_once('/')?.0)).collect();
    for folder in folders {
        let files = examples().iter().filter(|(name, _)| name.starts_with(&format!("{folder}/")));
        let sources: Vec<Source> = files.map(|(name, text)| Source::new(*name, *text)).collect();
        let Some(site) = check(&sources).site else { panic!("{folder} is not right") };
        let findings = outlook::check(&site, at("2026-12-01T12:00:00+09:00"));
        let refused: Vec<_> = findings.iter().filter(|finding| finding.weight == Weight::Refused).collect();
        assert!(refused.is_empty(), "{folder}: {refused:#?}");
    }
}
