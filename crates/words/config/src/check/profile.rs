//! Figures of deployments: by hand, or from a ModelProductionProfile in a file of its own.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::{Doc, Documents};
use crate::at::{At, Report};
use crate::quantity::Count;
use crate::raw::profile as raw;
use crate::site::Profile;

/// Tensor-parallel sizes that exist.
pub(super) const TP_SIZES: [u32; 4] = [1, 2, 4, 8];

/// What a profile says about a deployment.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) profile: Profile,
    pub(super) tp: Option<u32>,
    pub(super) context_tokens: Option<u64>,
    pub(super) max_output_tokens: Option<u64>,
    /// Whether the figures are all there: not when their file is missing or broken.
    pub(super) is_known: bool,
}

/// A path without `.` and, as far as that is certain, `..`, so that two ways of writing one file are one.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match (part, parts.last()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.into_iter().collect()
}

/// The figures of a deployment of `model`.
pub(super) fn figures(
    at: &At<'_>,
    raw: Option<&raw::Profile>,
    model: Option<&String>,
    documents: &Documents,
    report: &mut Report,
) -> Figures {
    let Some(raw) = raw else { return Figures { is_known: true, ..Figures::default() } };
    let raw::Profile { from_file, concurrency, rpm, tpm, capacity, queue_threshold, passed } = raw;
    let by_hand = Profile {
        concurrency: positive(at, "concurrency", *concurrency, report),
        rpm: positive(at, "rpm", *rpm, report),
        tpm: positive(at, "tpm", *tpm, report),
        capacity: positive(at, "capacity", *capacity, report),
        queue_threshold: positive(at, "queueThreshold", *queue_threshold, report),
        passed: self::passed(&at.key("passed"), passed, report),
    };
    let Some(path) = from_file else { return Figures { profile: by_hand, is_known: true, ..Figures::default() } };
    let at_file = at.key("fromFile");
    if by_hand != Profile::default() {
        report.error_hint(
            &at_file,
            "figures stand beside `fromFile`",
            "keep the file or the figures, not both".to_owned(),
        );
    }
    let wanted = normal(&at.origin.resolve(path));
    let mut found = documents.profiles.iter().filter(|doc| normal(&doc.origin.file) == wanted);
    let (first, second) = (found.next(), found.next());
    match (first, second) {
        (Some(doc), None) => from_document(&at_file, doc, model, report),
        (Some(_), Some(_)) => {
            report.error(&at_file, "the file holds several ModelProductionProfiles");
            Figures::default()
        }
        (None, _) => {
            if !documents.may_have("ModelProductionProfile") {
                let message = format!("no ModelProductionProfile in {}", wanted.display());
                report.error_hint(&at_file, message, "the path is relative to the folder of this document".to_owned());
            }
            Figures::default()
        }
    }
}

fn from_document(
    at_file: &At<'_>,
    doc: &Doc<raw::ModelProductionProfile>,
    model: Option<&String>,
    report: &mut Report,
) -> Figures {
    let Some(spec) = &doc.spec else { return Figures::default() };
    let raw::ModelProductionProfile {
        model: measured,
        tp,
        concurrency,
        rpm,
        tpm,
        capacity,
        queue_threshold,
        passed,
        context_tokens,
        max_output_tokens,
    } = spec;
    if let (Some(measured), Some(model)) = (measured, model)
        && measured != model
    {
        report.error(
            at_file,
            format!("the profile was measured for model `{measured}`, the deployment serves `{model}`"),
        );
    }
    let root = At::root(&doc.origin);
    let at = root.key("spec");
    if let Some(tp) = tp {
        check_tp(&at.key("tp"), *tp, report);
    }
    Figures {
        profile: Profile {
            concurrency: positive(&at, "concurrency", *concurrency, report),
            rpm: positive(&at, "rpm", *rpm, report),
            tpm: positive(&at, "tpm", *tpm, report),
            capacity: positive(&at, "capacity", *capacity, report),
            queue_threshold: positive(&at, "queueThreshold", *queue_threshold, report),
            passed: self::passed(&at.key("passed"), passed, report),
        },
        tp: *tp,
        context_tokens: positive(&at, "contextTokens", *context_tokens, report),
        max_output_tokens: positive(&at, "maxOutputTokens", *max_output_tokens, report),
        is_known: doc.origin.wrong.is_empty(),
    }
}

/// A figure of which 0 makes no sense.
pub(super) fn positive(at: &At<'_>, key: &str, count: Option<Count>, report: &mut Report) -> Option<u64> {
    let count = count?.0;
    if count == 0 {
        report.error(&at.key(key), "expected more than 0");
    }
    Some(count)
}

/// Reports a tensor-parallel size that does not exist.
pub(super) fn check_tp(at: &At<'_>, tp: u32, report: &mut Report) {
    if !TP_SIZES.contains(&tp) {
        report.error_hint(at, "not a tensor-parallel size", "write 1, 2, 4 or 8".to_owned());
    }
}

fn passed(at: &At<'_>, raw: &BTreeMap<String, Count>, report: &mut Report) -> BTreeMap<u32, u64> {
    let mut passed = BTreeMap::new();
    for (tp, capacity) in raw {
        let at = at.key(tp);
        match tp.parse().ok().filter(|size| TP_SIZES.contains(size)) {
            Some(size) => {
                passed.insert(size, capacity.0);
            }
            None => {
                report.error_hint(
                    &at,
                    format!("`{tp}` is not a tensor-parallel size"),
                    "write 1, 2, 4 or 8".to_owned(),
                );
            }
        }
        if capacity.0 == 0 {
            report.error(&at, "expected more than 0");
        }
    }
    passed
}
