//! Models.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::ModelName;

use super::{Documents, file, site};
use crate::at::{At, Name, Report};
use crate::raw::model as raw;
use crate::site::{Engine, Model, ModelSource};

const IMAGE_TOKENS_DEFAULT: u64 = 1_024;
const IMAGE_TOKENS_MAX: u64 = 1_000_000;

/// Checks all Models; engines that are used and not listed are added with their dialect's own command.
pub(super) fn check(
    documents: &Documents,
    engines: &mut BTreeMap<Name, Engine>,
    report: &mut Report,
) -> BTreeMap<ModelName, Model> {
    let mut models = BTreeMap::new();
    for (doc, spec) in documents.models.readable() {
        let root = At::root(&doc.origin);
        if let Some(model) = model(&root.key("spec"), spec, documents, engines, report) {
            models.insert(ModelName::from(&*doc.name), model);
        }
    }
    models
}

fn model(
    at: &At<'_>,
    spec: &raw::Model,
    documents: &Documents,
    engines: &mut BTreeMap<Name, Engine>,
    report: &mut Report,
) -> Option<Model> {
    let raw::Model { source, engine, precision, image_tokens, tokenizer } = spec;
    let source = source.as_ref().and_then(|raw| self::source(&at.key("source"), raw, report));
    let image_tokens = image_tokens.map_or(IMAGE_TOKENS_DEFAULT, |count| count.0);
    if image_tokens > IMAGE_TOKENS_MAX {
        report.error(&at.key("imageTokens"), format!("expected at most {IMAGE_TOKENS_MAX}"));
    }
    let tokenizer = tokenizer.as_ref().and_then(|path| file(&at.key("tokenizer"), path, report));
    let name = report.required(at, "engine", engine.as_ref())?;
    let Some((name, engine)) = find_engine(name, engines) else {
        // When the Site is broken its engines are unknown, and so is whether this one is listed.
        if documents.sites.is_sound("spec.engines") && !documents.may_have(name) {
            let known: Vec<&str> = engines.keys().map(|name| &**name).chain(["vllm", "llama.cpp"]).collect();
            report.unknown(&at.key("engine"), "engine or dialect", name, known.iter().copied());
        }
        return None;
    };
    Some(Model {
        source,
        engine: name,
        dialect: engine.dialect,
        messages: engine.messages,
        precision: Name::from(precision.as_deref().unwrap_or("unknown")),
        image_tokens,
        tokenizer,
    })
}

fn find_engine<'e>(name: &str, engines: &'e mut BTreeMap<Name, Engine>) -> Option<(Name, &'e Engine)> {
    let key = Name::from(name);
    if !engines.contains_key(&key) {
        engines.insert(Arc::clone(&key), site::default_engine(site::dialect(name)?));
    }
    engines.get(&key).map(|engine| (key, engine))
}

fn source(at: &At<'_>, raw: &raw::Source, report: &mut Report) -> Option<ModelSource> {
    let raw::Source { path, digest, local } = raw;
    if let Some(digest) = digest {
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        if tidegate_core::Sha256Digest::parse(hex).is_none() {
            report.error_hint(&at.key("digest"), "not a digest", "write sha256: and 64 hexadecimal digits".to_owned());
        }
        if path.is_none() {
            report.error(&at.key("digest"), "`digest` pins a `path` of the model store, and there is none");
        }
    }
    match (path, local) {
        (Some(path), None) => {
            let is_plain = path.split('/').all(|part| {
                let is_text = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
                !part.is_empty() && part != "." && part != ".." && is_text
            });
            if !is_plain {
                report.error_hint(&at.key("path"), "not a path of the model store", "write FAMILY/VERSION".to_owned());
            }
            Some(ModelSource::Store { path: Name::from(path.as_str()), digest: digest.as_deref().map(Name::from) })
        }
        (None, Some(local)) => file(&at.key("local"), local, report).map(ModelSource::Local),
        (Some(_), Some(_)) | (None, None) => {
            report.error_hint(
                at,
                "expected exactly one of `path` and `local`",
                "write {path: FAMILY/VERSION} for the model store, {local: FOLDER} for this machine".to_owned(),
            );
            None
        }
    }
}
