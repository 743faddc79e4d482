//! Rendered command lines.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_config::site::{
    Deployment, DeploymentKind, Engine, EngineDialect, KvTier, MemoryBudget, MessagesApi, Serve,
};
use tidegate_engine::Dialect;
use tidegate_engine::launch::{CommandLine, EngineSpec, model_file};

pub(crate) fn deployment() -> Deployment {
    let checked = tidegate_config::check_text(
        br#"
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: test}
spec: {timeZone: UTC}
---
kind: Model
metadata: {name: glm}
spec: {source: {path: glm/1}, engine: vllm, precision: fp8}
---
kind: Deployment
metadata: {name: glm-v1}
spec: {model: glm, launch: {replicas: 1}, limits: {contextTokens: 2048}, gpus: {required: 1}}
"#,
    );
    let texts: Vec<_> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
    let site = checked.site.unwrap_or_else(|| panic!("{}", texts.join("\n")));
    site.deployments["glm-v1"].clone()
}

pub(crate) fn engine(dialect: EngineDialect, command: &[&str]) -> Engine {
    Engine {
        dialect,
        version: None,
        command: command.iter().map(|part| Arc::from(*part)).collect(),
        image: None,
        env: [("A".into(), "engine".into()), ("B".into(), "engine".into())].into(),
        messages: MessagesApi::Native,
    }
}

fn render(dialect: Dialect, engine: Option<&Engine>, deployment: &Deployment) -> CommandLine {
    CommandLine::render(&EngineSpec {
        dialect,
        engine,
        deployment,
        model: Path::new("/models/glm"),
        host: "127.0.0.1",
        port: "8001",
        gpu_memory_bytes: Some(100),
        may_sleep: false,
    })
}

fn line(command: &CommandLine) -> String {
    let words: Vec<_> = command.args.iter().map(|arg| arg.to_string_lossy()).collect();
    format!("{} {}", command.program.to_string_lossy(), words.join(" "))
}

#[test]
fn llama_cpp_gets_its_stock_arguments_and_the_context_of_all_slots() {
    let command = render(Dialect::LlamaCpp, None, &deployment());
    assert_eq!(
        line(&command),
        "llama-server -m /models/glm --host 127.0.0.1 --port 8001 --alias glm -np 4 -c 8192 --metrics"
    );
    let mut embedding = deployment();
    embedding.kind = DeploymentKind::Embedding;
    embedding.profile.capacity = Some(1);
    let command = render(Dialect::LlamaCpp, None, &embedding);
    assert!(line(&command).ends_with("-np 1 -c 2048 --metrics --embeddings --pooling mean"), "{}", line(&command));
}

#[test]
fn vllm_gets_what_the_gate_relies_on_and_no_network() {
    let mut deployment = deployment();
    deployment.parallel.tp = 2;
    deployment.profile.capacity = Some(64);
    deployment.memory = Some(MemoryBudget { weights: 100, kv_cache: 41, workspace: 0, reserve: 20 });
    let command = render(Dialect::Vllm, None, &deployment);
    assert_eq!(
        line(&command),
        "vllm serve /models/glm --served-model-name glm --host 127.0.0.1 --port 8001 --max-model-len 2048 \
         --max-num-seqs 64 --tensor-parallel-size 2 --gpu-memory-utilization 0.71 --enable-prefix-caching \
         --enable-prompt-tokens-details --enable-request-id-headers --enable-server-load-tracking"
    );
    assert_eq!(command.env.get("HF_HUB_OFFLINE").map(|value| &**value), Some("1"));
    assert_eq!(command.env.get("VLLM_NO_USAGE_STATS").map(|value| &**value), Some("1"));
}

#[test]
fn vllm_gets_the_connector_of_its_kv_tier_with_its_settings() {
    let config = |tier: KvTier, settings: &str| {
        let mut deployment = deployment();
        deployment.kv_tier = tier;
        let settings: BTreeMap<String, Value> = serde_json::from_str(settings).unwrap();
        deployment.kv_tier_settings = settings.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let args = render(Dialect::Vllm, None, &deployment).args;
        let at = args.iter().position(|arg| arg == "--kv-transfer-config")?;
        Some(serde_json::from_str::<Value>(args[at + 1].to_str().unwrap()).unwrap())
    };
    assert_eq!(config(KvTier::None, "{}"), None);
    for (tier, connector) in [
        (KvTier::LmCache, "LMCacheConnectorV1"),
        (KvTier::MemKv, "LMCacheConnectorV1"),
        (KvTier::Nixl, "NixlConnector"),
    ] {
        let expected = json!({"kv_connector": connector, "kv_role": "kv_both"});
        assert_eq!(config(tier, "{}"), Some(expected), "{connector}");
    }
    let settings = r#"{"kv_connector":"LMCacheMPConnector","kv_connector_extra_config":{"lmcache.mp.port":6555}}"#;
    assert_eq!(
        config(KvTier::LmCache, settings).unwrap(),
        json!({"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"lmcache.mp.port": 6555}}),
        "the settings have the last word"
    );
}

#[test]
fn engine_args_win_over_ours() {
    let mut deployment = deployment();
    deployment.engine_args =
        ["--max-model-len=4096", "--no-enable-prefix-caching", "--port-like", "1"].map(Into::into).to_vec();
    let text = line(&render(Dialect::Vllm, None, &deployment));
    assert!(!text.contains("--max-model-len 2048") && !text.contains(" --enable-prefix-caching"), "{text}");
    assert!(text.contains("--port 8001"), "a longer name is another argument: {text}");
    assert!(text.ends_with("--max-model-len=4096 --no-enable-prefix-caching --port-like 1"), "{text}");
    deployment.engine_args = ["--parallel", "2", "--ctx-size=512"].map(Into::into).to_vec();
    let text = line(&render(Dialect::LlamaCpp, None, &deployment));
    assert!(!text.contains("-np") && !text.contains("-c "), "{text}");
}

#[test]
fn the_nearest_command_and_environment_count() {
    let engine = engine(EngineDialect::LlamaCpp, &["python3", "llama_server.py"]);
    let mut deployment = deployment();
    assert!(line(&render(Dialect::LlamaCpp, Some(&engine), &deployment)).starts_with("python3 llama_server.py -m "));
    deployment.serve = Serve::Launch {
        replicas: 1,
        command: vec!["own".into()],
        env: [("B".into(), "deployment".into()), ("C".into(), "deployment".into())].into(),
    };
    let command = render(Dialect::LlamaCpp, Some(&engine), &deployment);
    assert!(line(&command).starts_with("own -m "));
    let env: Vec<_> = command.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(env, ["A=engine", "B=deployment", "C=deployment"]);
}

#[test]
fn a_folder_with_one_model_or_its_shards_is_understood() {
    let folder = TempDir::new().unwrap();
    let touch = |name: &str| std::fs::write(folder.path().join(name), b"").unwrap();
    assert!(model_file(folder.path()).is_err(), "nothing in it");
    touch("tokenizer.json");
    touch("a.gguf");
    assert_eq!(model_file(folder.path()).unwrap(), folder.path().join("a.gguf"));
    assert_eq!(model_file(&folder.path().join("a.gguf")).unwrap(), folder.path().join("a.gguf"));
    touch("b.gguf");
    assert!(model_file(folder.path()).is_err(), "which one?");
    std::fs::remove_file(folder.path().join("a.gguf")).unwrap();
    std::fs::remove_file(folder.path().join("b.gguf")).unwrap();
    touch("m-00002-of-00002.gguf");
    touch("m-00001-of-00002.gguf");
    assert_eq!(model_file(folder.path()).unwrap(), folder.path().join("m-00001-of-00002.gguf"));
    assert!(model_file(&folder.path().join("gone")).is_err());
}
