//! From documents as written to a checked site. Each file here checks one kind; this one says in which order, because
//! a kind can only be checked against those that it refers to:
//!
//! ```text
//! site ─ engines ─▶ models ─▶ deployments ─▶ schedules ─ shifts ─▶ aliases ─▶ teams
//! nodes ─▶ reservations         ▲ profiles, GPU groups
//! ```
//!
//! Nothing stops at the first error. What cannot be said because something else is broken is not said at all, so that
//! one slip does not look like ten.

mod alias;
mod deployment;
mod documents;
mod hardware;
mod model;
mod model_store;
mod profile;
mod schedule;
mod site;
mod team;
mod url;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::at::{At, Name, Report};
use crate::bounds::DIAGNOSTICS_MAX;
use crate::diagnostic::{Diagnostic, Severity};
use crate::site::{SecretRef, Site};
use crate::{Checked, Source, raw};

pub(crate) use documents::{Doc, Documents, KINDS};

/// Checks documents; see [`crate::check`].
pub(crate) fn check(sources: &[Source]) -> Checked {
    let mut report = Report::default();
    let documents = documents::read(sources, &mut report);
    let site = site(&documents, &mut report);
    let site = site.filter(|_| !report.has_error());
    Checked { site, diagnostics: sorted(report) }
}

/// Files that documents name and whose content the check needs.
pub(crate) fn referenced_files(sources: &[Source]) -> Vec<PathBuf> {
    let mut report = Report::default();
    let documents = documents::read(sources, &mut report);
    let given: BTreeSet<PathBuf> = sources.iter().map(|source| profile::normal(&source.path)).collect();
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    for deployment in documents.deployments.iter() {
        let profile = deployment.spec.as_ref().and_then(|spec| spec.profile.as_ref());
        if let Some(path) = profile.and_then(|profile| profile.from_file.as_ref()) {
            files.insert(profile::normal(&deployment.origin.resolve(path)));
        }
    }
    files.into_iter().filter(|file| !given.contains(file)).collect()
}

fn site(documents: &Documents, report: &mut Report) -> Option<Site> {
    let mut site = site::check(documents, report)?;
    site.nodes = hardware::nodes(documents, report);
    site.reservations = hardware::reservations(documents, report);
    site.models = model::check(documents, &mut site.engines, report);
    site.deployments = deployment::check(documents, report);
    deployment::check_engines(documents, &site, report);
    let shifts = schedule::shifts(documents, report);
    site.schedules = schedule::check(documents, &shifts, &site.time_zone, report);
    site.aliases = alias::check(documents, &shifts, &site.deployments, site.timeouts, report);
    site.teams = team::check(documents, &site, report);
    Some(site)
}

/// By file and place, errors before warnings in the same place; bounded.
fn sorted(report: Report) -> Vec<Diagnostic> {
    let (mut diagnostics, mut left_out) = report.into_parts();
    diagnostics.sort();
    diagnostics.dedup();
    if diagnostics.len() > DIAGNOSTICS_MAX {
        // Errors are what matters when not everything can be said.
        diagnostics.sort_by_key(|diagnostic| diagnostic.severity);
        left_out += diagnostics.len() - DIAGNOSTICS_MAX;
        diagnostics.truncate(DIAGNOSTICS_MAX);
        diagnostics.sort();
    }
    if left_out > 0 {
        diagnostics.push(Diagnostic {
            file: PathBuf::new(),
            line: 0,
            column: 0,
            severity: diagnostics.iter().map(|diagnostic| diagnostic.severity).min().unwrap_or(Severity::Error),
            document: None,
            path: String::new(),
            value: None,
            message: format!("{left_out} more are not shown"),
            hint: None,
        });
    }
    diagnostics
}

/// Checks where a secret comes from.
fn secret(at: &At<'_>, raw: &raw::SecretRef, report: &mut Report) -> Option<SecretRef> {
    const HINT: &str = "write {fromEnv: NAME} or {fromFile: PATH}";
    match (&raw.from_env, &raw.from_file) {
        (Some(name), None) => {
            let is_name = !name.is_empty()
                && !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !is_name {
                let hint = "letters, digits and _, not beginning with a digit".to_owned();
                report.error_hint(&at.key("fromEnv"), "not the name of an environment variable", hint);
            }
            Some(SecretRef::Env(Arc::from(name.as_str())))
        }
        (None, Some(path)) => file(&at.key("fromFile"), path, report).map(SecretRef::File),
        (Some(_), Some(_)) => {
            report.error_hint(at, "`fromEnv` and `fromFile` at once", HINT.to_owned());
            None
        }
        (None, None) => {
            report.error_hint(at, "neither `fromEnv` nor `fromFile`", HINT.to_owned());
            None
        }
    }
}

/// Resolves a path of a document against the folder of its file.
fn file(at: &At<'_>, path: &str, report: &mut Report) -> Option<PathBuf> {
    if path.is_empty() || path.contains('\0') {
        report.error(at, "not a path");
        return None;
    }
    Some(at.origin.resolve(path))
}

/// Whether a name may be used in documents, and what to write when not.
fn check_name(at: &At<'_>, name: &str, report: &mut Report) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_good = (1..=crate::bounds::NAME_BYTES_MAX).contains(&bytes.len())
        && bytes.iter().all(|&byte| is_end(byte) || byte == b'-' || byte == b'.')
        && bytes.first().is_some_and(|&byte| is_end(byte))
        && bytes.last().is_some_and(|&byte| is_end(byte));
    if !is_good {
        let hint = "lower-case letters, digits, - and ., beginning and ending with a letter or digit, at most 63";
        report.error_hint(at, "not a name", hint.to_owned());
    }
    is_good
}

/// Checks that a number stands between two bounds; `None` when it does not.
fn within(at: &At<'_>, number: u32, least: u32, most: u32, report: &mut Report) -> Option<u32> {
    if (least..=most).contains(&number) {
        return Some(number);
    }
    report.error(at, format!("expected a number from {least} to {most}"));
    None
}

/// Reports items that stand twice in a list of names; returns the names once, in order.
fn distinct<'n>(at: &At<'_>, names: &'n [String], report: &mut Report) -> Vec<(usize, &'n str)> {
    let mut seen = BTreeSet::new();
    let mut once = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if seen.insert(name) {
            once.push((index, name.as_str()));
        } else {
            report.error(&at.index(index), format!("`{name}` stands twice"));
        }
    }
    once
}

fn arcs(texts: &[String]) -> Vec<Name> {
    texts.iter().map(|text| Arc::from(text.as_str())).collect()
}
