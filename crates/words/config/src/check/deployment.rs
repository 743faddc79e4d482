//! Deployments.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{DeploymentName, ModelName};

use super::profile::{Figures, check_tp, figures, positive};
use super::site::environment;
use super::url::Url;
use super::{Documents, arcs, secret, within};
use crate::at::{At, Name, Report};
use crate::bounds::{GPUS_MAX, REPLICAS_MAX};
use crate::raw::Class as RawClass;
use crate::raw::deployment as raw;
use crate::site::{
    Deployment, DeploymentKind, Endpoint, EngineDialect, GpuNeeds, KvTier, MemoryBudget, Parallel, Placement, Serve,
    Site, Warmup,
};

const EP_MAX: u32 = 256;
const PP_DP_MAX: u32 = 64;
const PRIORITY_MAX: i32 = 1_000_000;
const ENDPOINTS_MAX: usize = 1_024;

/// Engine arguments that Tidegate sets, with what to write instead.
const OWN_ARGUMENTS: [(&str, &str); 8] = [
    ("--tensor-parallel-size", "it follows from spec.parallel.tp"),
    ("-tp", "it follows from spec.parallel.tp"),
    ("--pipeline-parallel-size", "it follows from spec.parallel.pp"),
    ("--data-parallel-size", "it follows from spec.parallel.dp"),
    ("--served-model-name", "it follows from spec.servedName"),
    ("--port", "it is taken from enginePorts of the Site or Node"),
    ("--host", "it follows from the launcher"),
    ("--api-key", "engines that Tidegate starts are reached by Tidegate alone"),
];

/// Checks all Deployments.
pub(super) fn check(documents: &Documents, report: &mut Report) -> BTreeMap<DeploymentName, Deployment> {
    let mut deployments = BTreeMap::new();
    for (doc, spec) in documents.deployments.readable() {
        let root = At::root(&doc.origin);
        if let Some(deployment) = deployment(&root.key("spec"), spec, documents, report) {
            deployments.insert(DeploymentName::from(&*doc.name), deployment);
        }
    }
    deployments
}

fn deployment(at: &At<'_>, spec: &raw::Deployment, documents: &Documents, report: &mut Report) -> Option<Deployment> {
    let raw::Deployment {
        model,
        kind,
        profile,
        parallel,
        gpus,
        placement,
        memory,
        cpu,
        host_memory,
        launch,
        endpoints,
        served_name,
        limits,
        class,
        priority,
        kv_tier,
        engine_args,
        warmup,
    } = spec;
    let figures = figures(&at.key("profile"), profile.as_ref(), model.as_ref(), documents, report);
    let parallel = self::parallel(&at.key("parallel"), parallel.as_ref(), figures.tp, report);
    let gpus = gpus.as_ref().and_then(|raw| self::gpus(&at.key("gpus"), raw, parallel, &figures, report));
    let placement = placement.as_ref().map(|raw| self::placement(&at.key("placement"), raw, documents, report));
    let memory = memory.as_ref().and_then(|raw| self::memory(&at.key("memory"), raw, report));
    let serve = serve(at, launch.as_ref(), endpoints.as_deref(), report);
    let (context_tokens, max_output_tokens) = tokens(&at.key("limits"), limits.as_ref(), &figures, report);
    let (kv_tier, kv_tier_settings) = self::kv_tier(&at.key("kvTier"), kv_tier.as_ref(), report);
    arguments(&at.key("engineArgs"), engine_args, (memory, kv_tier), context_tokens, report);
    let priority = priority.unwrap_or(0);
    if priority.abs() > PRIORITY_MAX {
        report.error(&at.key("priority"), format!("expected from -{PRIORITY_MAX} to {PRIORITY_MAX}"));
    }
    let warmup = warmup.as_ref().map(|raw| self::warmup(&at.key("warmup"), raw, report)).unwrap_or_default();
    let model = model_name(at, model.as_ref(), &serve, documents, report)?;
    if served_name.as_ref().is_some_and(String::is_empty) {
        report.error(&at.key("servedName"), "expected a name");
    }
    Some(Deployment {
        served_name: Name::from(served_name.as_deref().unwrap_or(model)),
        model: ModelName::from(model),
        kind: kind.map_or(DeploymentKind::Llm, checked_kind),
        profile: figures.profile,
        parallel,
        gpus,
        placement: placement.unwrap_or_default(),
        memory,
        cpu: cpu.map(|cpus| f64::from(cpus.milli) / 1_000.0),
        host_memory_bytes: host_memory.map(|bytes| bytes.0),
        serve,
        context_tokens,
        max_output_tokens,
        class: class.map(RawClass::checked).unwrap_or_default(),
        priority,
        kv_tier,
        kv_tier_settings,
        engine_args: arcs(engine_args),
        warmup,
    })
}

/// A tier that the engine which is to be started cannot have would be left out without a word.
pub(super) fn check_engines(documents: &Documents, site: &Site, report: &mut Report) {
    for (doc, _) in documents.deployments.readable() {
        let Some(deployment) = site.deployments.get(&*doc.name) else { continue };
        let is_launched = matches!(deployment.serve, Serve::Launch { .. });
        if !is_launched || deployment.kv_tier == KvTier::None {
            continue;
        }
        let dialect = site.models.get(&deployment.model).map(|model| model.dialect);
        if dialect == Some(EngineDialect::LlamaCpp) {
            let root = At::root(&doc.origin);
            let (spec, tier) = (root.key("spec"), "kvTier");
            report.error_hint(
                &spec.key(tier).key("external"),
                "llama.cpp has no external KV tier",
                "leave it out, or serve with vllm".to_owned(),
            );
        }
    }
}

const fn checked_kind(kind: raw::Kind) -> DeploymentKind {
    match kind {
        raw::Kind::Llm => DeploymentKind::Llm,
        raw::Kind::Embedding => DeploymentKind::Embedding,
        raw::Kind::Rerank => DeploymentKind::Rerank,
        raw::Kind::Vlm => DeploymentKind::Vlm,
        raw::Kind::Document => DeploymentKind::Document,
    }
}

/// The model exists, and has weights when we are to start it.
fn model_name<'m>(
    at: &At<'_>,
    model: Option<&'m String>,
    serve: &Serve,
    documents: &Documents,
    report: &mut Report,
) -> Option<&'m str> {
    let model = report.required(at, "model", model)?;
    let at = at.key("model");
    let Some(doc) = documents.models.get(model) else {
        if !documents.may_have(model) {
            report.unknown(&at, "Model", model, documents.models.names());
        }
        return Some(model);
    };
    let is_launched = matches!(serve, Serve::Launch { command, .. } if command.is_empty());
    if let Some(spec) = &doc.spec
        && spec.source.is_none()
        && doc.origin.wrong.is_empty()
        && is_launched
    {
        let hint = "give the Model a source, or this deployment endpoints or a command of its own".to_owned();
        report.error_hint(&at, format!("Model `{model}` has no `source` to start an engine on"), hint);
    }
    Some(model)
}

fn parallel(at: &At<'_>, raw: Option<&raw::Parallel>, profile_tp: Option<u32>, report: &mut Report) -> Parallel {
    let default = raw::Parallel::default();
    let raw::Parallel { tp, ep, pp, dp } = raw.unwrap_or(&default);
    if let Some(tp) = tp {
        check_tp(&at.key("tp"), *tp, report);
    }
    let mut degree = |key: &str, degree: Option<u32>, most: u32| {
        degree.and_then(|degree| within(&at.key(key), degree, 1, most, report)).unwrap_or(1)
    };
    Parallel {
        tp: tp.or(profile_tp).unwrap_or(1),
        ep: degree("ep", *ep, EP_MAX),
        pp: degree("pp", *pp, PP_DP_MAX),
        dp: degree("dp", *dp, PP_DP_MAX),
    }
}

fn gpus(at: &At<'_>, raw: &raw::Gpus, parallel: Parallel, figures: &Figures, report: &mut Report) -> Option<GpuNeeds> {
    let raw::Gpus { required, min, preferred, max } = raw;
    let required = *report.required(at, "required", required.as_ref())?;
    let (min, preferred) = (min.unwrap_or(required), preferred.unwrap_or(required));
    let all = [("required", Some(required)), ("min", Some(min)), ("preferred", Some(preferred)), ("max", *max)];
    for (key, count) in all {
        if let Some(count) = count {
            within(&at.key(key), count, u32::from(key != "min"), GPUS_MAX, report);
        }
    }
    let replica = parallel.tp.saturating_mul(parallel.pp).saturating_mul(parallel.dp);
    if required < replica {
        let message = format!("a replica needs {replica} GPUs: tp × pp × dp");
        report.error(&at.key("required"), message);
    }
    if preferred < required.max(min) {
        report.error(&at.key("preferred"), format!("below what it needs at least, {}", required.max(min)));
    }
    if let Some(max) = max
        && *max < preferred
    {
        report.error(&at.key("max"), format!("below `preferred`, {preferred}"));
    }
    if min > required {
        report.error(&at.key("min"), format!("above `required`, {required}"));
    }
    let passed_smaller = figures.profile.passed.keys().any(|&tp| tp <= min && tp < parallel.tp);
    if min < required && min > 0 && figures.is_known && !passed_smaller {
        let hint = format!("write min: {required}, or name the size in the profile's `passed`");
        report.error_hint(&at.key("min"), format!("the profile passed no tensor-parallel size of at most {min}"), hint);
    }
    Some(GpuNeeds { required, min, preferred, max: *max })
}

fn placement(at: &At<'_>, raw: &raw::Placement, documents: &Documents, report: &mut Report) -> Placement {
    let raw::Placement { group, exclusive } = raw;
    if let Some(group) = group {
        let groups: BTreeSet<&str> = documents
            .nodes
            .readable()
            .flat_map(|(_, node)| &node.groups)
            .filter_map(|group| group.name.as_deref())
            .collect();
        if !groups.contains(group.as_str()) && documents.nodes.is_sound("spec.groups") && !documents.may_have(group) {
            report.unknown(&at.key("group"), "GPU group", group, groups.iter().copied());
        }
    }
    Placement { group: group.as_deref().map(Name::from), exclusive_node: exclusive.is_some() }
}

fn memory(at: &At<'_>, raw: &raw::Memory, report: &mut Report) -> Option<MemoryBudget> {
    let raw::Memory { weights, kv_cache, workspace, reserve } = raw;
    let weights = report.required(at, "weights", weights.as_ref());
    let kv_cache = report.required(at, "kvCache", kv_cache.as_ref());
    let bytes = |amount: &Option<crate::quantity::Bytes>| amount.map_or(0, |bytes| bytes.0);
    Some(MemoryBudget {
        weights: weights?.0,
        kv_cache: kv_cache?.0,
        workspace: bytes(workspace),
        reserve: bytes(reserve),
    })
}

fn serve(at: &At<'_>, launch: Option<&raw::Launch>, endpoints: Option<&[raw::Endpoint]>, report: &mut Report) -> Serve {
    let default = raw::Launch::default();
    match (launch, endpoints) {
        (launch, None) => {
            let raw::Launch { replicas, command, env } = launch.unwrap_or(&default);
            let at = at.key("launch");
            let replicas = replicas.and_then(|replicas| within(&at.key("replicas"), replicas, 0, REPLICAS_MAX, report));
            Serve::Launch {
                replicas: replicas.unwrap_or(1),
                command: arcs(command),
                env: environment(&at.key("env"), env, report),
            }
        }
        (launch, Some(endpoints)) => {
            let at_list = at.key("endpoints");
            if launch.is_some() {
                let message = "`launch` and `endpoints` at once: it is started by Tidegate, or run by somebody else";
                report.error(&at_list, message);
            }
            if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
                report.error(&at_list, format!("expected from 1 to {ENDPOINTS_MAX} endpoints"));
            }
            let mut seen = BTreeSet::new();
            let items = endpoints.iter().enumerate();
            Serve::Endpoints(
                items.filter_map(|(index, raw)| endpoint(&at_list.index(index), raw, &mut seen, report)).collect(),
            )
        }
    }
}

fn endpoint<'r>(
    at: &At<'_>,
    raw: &'r raw::Endpoint,
    seen: &mut BTreeSet<&'r str>,
    report: &mut Report,
) -> Option<Endpoint> {
    let raw::Endpoint { url, api_key } = raw;
    let api_key = api_key.as_ref().and_then(|raw| secret(&at.key("apiKey"), raw, report));
    let url = report.required(at, "url", url.as_ref())?;
    let at = at.key("url");
    let base = url.strip_suffix('/').unwrap_or(url);
    match Url::parse(base) {
        Some(parts) if parts.user.is_some() => {
            report.error_without_value(
                &at,
                "a user or password stands in the URL",
                "give the key with apiKey: {fromEnv: NAME}",
            );
        }
        Some(parts) if matches!(parts.scheme, "http" | "https") && parts.rest.is_empty() => {}
        Some(parts) if matches!(parts.scheme, "http" | "https") => {
            let hint = format!(
                "write {}://{}{}: paths such as /v1 are added",
                parts.scheme,
                parts.host,
                parts.port.map(|port| format!(":{port}")).unwrap_or_default()
            );
            report.error_hint(&at, "an endpoint has no path", hint);
        }
        Some(_) | None => report.error_hint(&at, "not the URL of an engine", "write http://HOST:PORT".to_owned()),
    }
    if !seen.insert(base) {
        report.error(&at, "the endpoint stands twice");
    }
    Some(Endpoint { url: Name::from(base), api_key })
}

/// Context and largest output: the document's, else the profile's.
fn tokens(
    at: &At<'_>,
    raw: Option<&raw::TokenLimits>,
    figures: &Figures,
    report: &mut Report,
) -> (Option<u64>, Option<u64>) {
    let default = raw::TokenLimits::default();
    let raw::TokenLimits { context_tokens, max_output_tokens } = raw.unwrap_or(&default);
    let context = positive(at, "contextTokens", *context_tokens, report).or(figures.context_tokens);
    let output = positive(at, "maxOutputTokens", *max_output_tokens, report).or(figures.max_output_tokens);
    if let (Some(context), Some(output)) = (context, output)
        && output > context
    {
        report.error(&at.key("maxOutputTokens"), format!("above the context of {context} tokens"));
    }
    (context, output)
}

fn kv_tier(at: &At<'_>, raw: Option<&raw::KvTier>, report: &mut Report) -> (KvTier, BTreeMap<Name, serde_json::Value>) {
    let default = raw::KvTier::default();
    let raw::KvTier { external, settings } = raw.unwrap_or(&default);
    let tier = match external {
        None | Some(raw::External::None) => KvTier::None,
        Some(raw::External::LmCache) => KvTier::LmCache,
        Some(raw::External::Nixl) => KvTier::Nixl,
        Some(raw::External::MemKv) => KvTier::MemKv,
    };
    if tier == KvTier::None && !settings.is_empty() {
        report.error(&at.key("settings"), "settings of a connector that there is not: `external` is none");
    }
    (tier, settings.iter().map(|(key, value)| (Name::from(key.as_str()), value.clone())).collect())
}

/// Arguments that Tidegate sets itself, or that contradict the document, are refused: one of the two would silently win.
fn arguments(
    at: &At<'_>,
    arguments: &[String],
    (memory, kv_tier): (Option<MemoryBudget>, KvTier),
    context_tokens: Option<u64>,
    report: &mut Report,
) {
    for (index, argument) in arguments.iter().enumerate() {
        let at = at.index(index);
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (argument.as_str(), arguments.get(index + 1).map(String::as_str)),
        };
        if argument.contains('\0') {
            report.error(&at, "not an argument");
        }
        if let Some((_, hint)) = OWN_ARGUMENTS.iter().find(|(own, _)| *own == flag) {
            report.error_hint(&at, format!("`{flag}` is set by Tidegate"), (*hint).to_owned());
        }
        if flag == "--gpu-memory-utilization" && memory.is_some() {
            let hint = "it follows from spec.memory: keep one of the two".to_owned();
            report.error_hint(&at, format!("`{flag}` beside a memory budget"), hint);
        }
        if flag == "--kv-transfer-config" && kv_tier != KvTier::None {
            let hint = "write its members into spec.kvTier.settings: keep one of the two".to_owned();
            report.error_hint(&at, format!("`{flag}` beside a KV tier"), hint);
        }
        let served = (flag == "--max-model-len").then_some(value).flatten().and_then(|value| value.parse::<u64>().ok());
        if let (Some(served), Some(context)) = (served, context_tokens)
            && served < context
        {
            let message = format!("the engine serves {served} tokens, the deployment promises {context}");
            report.error_hint(&at, message, "make contextTokens at most as large".to_owned());
        }
    }
}

fn warmup(at: &At<'_>, raw: &raw::Warmup, report: &mut Report) -> Warmup {
    let raw::Warmup { prompts, expect_non_empty, ttft, stabilise, long_context } = raw;
    let default = Warmup::default();
    let ttft = ttft.map_or(default.ttft, |span| span.0);
    if ttft.is_zero() {
        report.error(&at.key("ttft"), "expected a time above 0s");
    }
    Warmup {
        prompts: prompts.as_ref().and_then(|raw| secret(&at.key("prompts"), raw, report)),
        expect_non_empty: expect_non_empty.unwrap_or(default.expect_non_empty),
        ttft,
        stabilise: stabilise.map_or(default.stabilise, |span| span.0),
        long_context: long_context.unwrap_or(default.long_context),
    }
}
