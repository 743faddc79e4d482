//! The command line and environment of an engine, by dialect.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_config::site::{Deployment, DeploymentKind, Engine, KvTier, MemoryBudget, Serve};

use crate::dialect::Dialect;

/// Slots of llama.cpp when the profile names no capacity.
const SLOTS_DEFAULT: u64 = 4;

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct EngineSpec<'a> {
    /// Its dialect.
    pub dialect: Dialect,
    /// The engine as the documents know it; `None` means the dialect's own command and environment.
    pub engine: Option<&'a Engine>,
    /// The deployment.
    pub deployment: &'a Deployment,
    /// The model: a folder, or the file of a llama.cpp model ([`model_file`]).
    pub model: &'a Path,
    /// Where it listens.
    pub host: &'a str,
    /// Its port, or what stands for it until somebody chooses one.
    pub port: &'a str,
    /// Memory of one of its GPUs in bytes, when it has GPUs and a budget.
    pub gpu_memory_bytes: Option<u64>,
    /// Whether somebody may put it to sleep. It then has routes that no credential guards (E32), so this is set only
    /// where a plan needs it.
    pub may_sleep: bool,
}

/// A rendered command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its environment, on top of ours.
    pub env: BTreeMap<Arc<str>, Arc<str>>,
}

impl CommandLine {
    /// Command, arguments and environment: the deployment's command, else the engine's, else the dialect's own; then
    /// our arguments, without those that `engineArgs` set; then `engineArgs`.
    #[must_use]
    pub fn render(spec: &EngineSpec<'_>) -> Self {
        let (own_command, own_env): (&[Arc<str>], _) = match &spec.deployment.serve {
            Serve::Launch { command, env, .. } => (command, Some(env)),
            Serve::Endpoints(_) => (&[], None),
        };
        let engine_command = spec.engine.map(|engine| &engine.command[..]).unwrap_or_default();
        let command = [own_command, engine_command].into_iter().find(|command| !command.is_empty());
        let command: Vec<OsString> = match command {
            Some(command) => command.iter().map(|part| OsString::from(&**part)).collect(),
            None => default_command(spec.dialect).iter().map(OsString::from).collect(),
        };
        let mut parts = command.into_iter();
        let program = parts.next().unwrap_or_default();
        let mut args: Vec<OsString> = parts.collect();
        args.extend(match spec.dialect {
            Dialect::Vllm => vllm(spec),
            Dialect::LlamaCpp => llamacpp(spec),
        });
        args.extend(spec.deployment.engine_args.iter().map(|arg| OsString::from(&**arg)));
        let mut env: BTreeMap<Arc<str>, Arc<str>> = match spec.dialect {
            Dialect::Vllm => VLLM_ENV.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            Dialect::LlamaCpp => BTreeMap::new(),
        };
        if spec.may_sleep && spec.dialect.can_sleep() {
            env.insert(DEV_MODE.into(), "1".into());
        }
        for more in [spec.engine.map(|engine| &engine.env), own_env].into_iter().flatten() {
            env.extend(more.iter().map(|(name, value)| (Arc::clone(name), Arc::clone(value))));
        }
        Self { program, args, env }
    }
}

impl Dialect {
    /// Variables that say where the engine keeps what it compiles, and the folder below that place for each.
    #[must_use]
    pub const fn compile_cache_env(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // torch.compile's artifacts are below the first; Inductor and Triton have places of their own.
            Self::Vllm => {
                &[("VLLM_CACHE_ROOT", "vllm"), ("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")]
            }
            Self::LlamaCpp => &[],
        }
    }
}

/// No network at run time, and no usage reports to the engine's makers.
const VLLM_ENV: [(&str, &str); 4] =
    [("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")];

/// Without it vLLM has no routes to sleep and to wake.
const DEV_MODE: &str = "VLLM_SERVER_DEV_MODE";

const fn default_command(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Vllm => &["vllm", "serve"],
        Dialect::LlamaCpp => &["llama-server"],
    }
}

/// Collects arguments that the operator has not set.
struct Args<'a> {
    spec: &'a EngineSpec<'a>,
    args: Vec<OsString>,
}

impl<'a> Args<'a> {
    const fn new(spec: &'a EngineSpec<'a>) -> Self {
        Self { spec, args: Vec::new() }
    }

    /// Whether `engineArgs` hold one of these names, alone or with `=value`.
    fn is_set(&self, names: &[&str]) -> bool {
        self.spec.deployment.engine_args.iter().any(|arg| {
            names.iter().any(|name| arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
        })
    }

    /// A name (the first is ours, the others its spellings) and its value.
    fn value(&mut self, names: &[&str], value: impl Into<OsString>) {
        if let (Some(name), false) = (names.first(), self.is_set(names)) {
            self.args.extend([name.into(), value.into()]);
        }
    }

    fn switch(&mut self, names: &[&str]) {
        if let (Some(name), false) = (names.first(), self.is_set(names)) {
            self.args.push(name.into());
        }
    }
}

fn vllm(spec: &EngineSpec<'_>) -> Vec<OsString> {
    let mut args = Args::new(spec);
    let deployment = spec.deployment;
    args.args.push(spec.model.into());
    args.value(&["--served-model-name"], &*deployment.served_name);
    args.value(&["--host"], spec.host);
    args.value(&["--port"], spec.port.to_owned());
    if let Some(tokens) = deployment.context_tokens {
        args.value(&["--max-model-len"], tokens.to_string());
    }
    if let Some(capacity) = deployment.profile.capacity {
        args.value(&["--max-num-seqs"], capacity.to_string());
    }
    if deployment.parallel.tp > 1 {
        args.value(&["--tensor-parallel-size", "-tp"], deployment.parallel.tp.to_string());
    }
    if deployment.parallel.pp > 1 {
        args.value(&["--pipeline-parallel-size", "-pp"], deployment.parallel.pp.to_string());
    }
    if let (Some(budget), Some(gpu)) = (&deployment.memory, spec.gpu_memory_bytes) {
        args.value(&["--gpu-memory-utilization"], utilization(budget, deployment.parallel.tp, gpu));
    }
    if let Some(connector) = connector(deployment) {
        args.value(&["--kv-transfer-config"], connector);
    }
    match deployment.kind {
        DeploymentKind::Llm | DeploymentKind::Vlm => {
            args.switch(&["--enable-prefix-caching", "--no-enable-prefix-caching"]);
            // Without it there are no cached tokens in usage.
            args.switch(&["--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details"]);
        }
        DeploymentKind::Embedding | DeploymentKind::Rerank => args.value(&["--runner"], "pooling"),
        DeploymentKind::Document => {}
    }
    args.switch(&["--enable-request-id-headers", "--no-enable-request-id-headers"]);
    args.switch(&["--enable-server-load-tracking", "--no-enable-server-load-tracking"]);
    if spec.may_sleep {
        // Without it `/sleep` answers 200 and frees nothing.
        args.switch(&["--enable-sleep-mode", "--no-enable-sleep-mode"]);
    }
    args.args
}

/// The connector of an external KV tier, as vLLM reads it. Every replica both stores and loads, unless the settings say
/// otherwise: they have the last word, member by member. MemKV is a storage plugin of LMCache, which vLLM sees instead.
fn connector(deployment: &Deployment) -> Option<String> {
    let name = match deployment.kv_tier {
        KvTier::None => return None,
        KvTier::LmCache | KvTier::MemKv => "LMCacheConnectorV1",
        KvTier::Nixl => "NixlConnector",
    };
    let mut members = serde_json::Map::new();
    members.insert("kv_connector".to_owned(), name.into());
    members.insert("kv_role".to_owned(), "kv_both".into());
    members.extend(deployment.kv_tier_settings.iter().map(|(name, value)| (name.to_string(), value.clone())));
    Some(serde_json::Value::Object(members).to_string())
}

/// (weights + KV cache + workspace) / (TP × GPU memory), rounded up to hundredths.
fn utilization(budget: &MemoryBudget, tp: u32, gpu_bytes: u64) -> String {
    let need = u128::from(budget.weights) + u128::from(budget.kv_cache) + u128::from(budget.workspace);
    let have = (u128::from(tp) * u128::from(gpu_bytes)).max(1);
    let hundredths = (need * 100).div_ceil(have).clamp(1, 100);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn llamacpp(spec: &EngineSpec<'_>) -> Vec<OsString> {
    let mut args = Args::new(spec);
    let deployment = spec.deployment;
    let slots = deployment.profile.capacity.unwrap_or(SLOTS_DEFAULT).max(1);
    args.value(&["-m", "--model"], spec.model);
    args.value(&["--host"], spec.host);
    args.value(&["--port"], spec.port.to_owned());
    args.value(&["--alias", "-a"], &*deployment.served_name);
    args.value(&["-np", "--parallel"], slots.to_string());
    if let Some(tokens) = deployment.context_tokens {
        // The engine shares its context out over its slots.
        args.value(&["-c", "--ctx-size"], tokens.saturating_mul(slots).to_string());
    }
    args.switch(&["--metrics"]);
    match deployment.kind {
        DeploymentKind::Embedding => {
            args.switch(&["--embeddings", "--embedding"]);
            args.value(&["--pooling"], "mean");
        }
        DeploymentKind::Rerank => args.switch(&["--reranking", "--rerank"]),
        DeploymentKind::Llm | DeploymentKind::Vlm | DeploymentKind::Document => {}
    }
    args.args
}

/// The file that llama.cpp is given: a file as it is; of a folder its one `.gguf`, or the first shard of several.
///
/// # Errors
/// When the folder cannot be read, or holds no `.gguf`, or several that are no shards.
pub fn model_file(path: &Path) -> io::Result<PathBuf> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(path.to_owned());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "gguf") {
            files.push(file);
        }
    }
    files.sort();
    let is_first_shard = |file: &Path| file.to_string_lossy().contains("-00001-of-");
    match &files[..] {
        [one] => Ok(one.clone()),
        [first, ..] if is_first_shard(first) => Ok(first.clone()),
        [] => Err(io::Error::new(io::ErrorKind::NotFound, format!("no .gguf file in {}", path.display()))),
        [..] => Err(io::Error::other(format!("several .gguf files in {}: name one", path.display()))),
    }
}
