//! llama.cpp's own server with a real model, started as our command line says, and asked.
//!
//! Needs Python 3.10 and, on the first run, a package index: `tools/real/llamacpp/install.sh` is run for its folder.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_config::site::DeploymentKind;
use tidegate_core::Case;
use tidegate_engine::client::{Endpoint, Head, Pool, PoolSettings, Response};
use tidegate_engine::launch::{CommandLine, EngineSpec};
use tidegate_engine::probe::{BOOTING_EVERY, NotReady, Probe, Ready};
use tidegate_engine::{AttemptEnd, Dialect, attempt, scrape};
use tidegate_wire::sse::{Flavour, Stream, StreamOptions, UsageAsked};

use crate::command::{deployment, engine};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// The folder with `python` and `model.gguf`.
fn install() -> PathBuf {
    let output = Command::new(root().join("tools/real/llamacpp/install.sh")).output().unwrap();
    assert!(output.status.success(), "llama.cpp's server is needed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

impl Drop for Real {
    fn drop(&mut self) {
        // Also when a test has failed; one that has ended is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Real {
    process: Child,
    pool: Arc<Pool>,
    probe: Probe,
    log: PathBuf,
    _folder: TempDir,
}

impl Real {
    fn start(kind: DeploymentKind) -> Self {
        let installed = install();
        let folder = TempDir::new().unwrap();
        let wrapper = root().join("tools/llama_server.py");
        let python = installed.join("python");
        let engine = engine(
            tidegate_config::site::EngineDialect::LlamaCpp,
            &[python.to_str().unwrap(), wrapper.to_str().unwrap()],
        );
        let mut deployment = deployment();
        deployment.kind = kind;
        deployment.served_name = "small".into();
        deployment.profile.capacity = Some(2);
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let command = CommandLine::render(&EngineSpec {
            dialect: Dialect::LlamaCpp,
            engine: Some(&engine),
            deployment: &deployment,
            model: &installed.join("model.gguf"),
            host: "127.0.0.1",
            port: &port.to_string(),
            gpu_memory_bytes: None,
            may_sleep: false,
        });
        let log = folder.path().join("engine.log");
        let process = Command::new(&command.program)
            .args(&command.args)
            .envs(command.env.iter().map(|(name, value)| (&**name, &**value)))
            .stdin(Stdio::null())
            .stdout(File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let endpoint = Endpoint::parse(&format!("http://127.0.0.1:{port}"), None, None).unwrap();
        let probe = Probe { dialect: Dialect::LlamaCpp, kind, served_name: "small".into() };
        Self { process, pool: Pool::new(endpoint, PoolSettings::default()), probe, log, _folder: folder }
    }

    async fn ready(&mut self) -> Ready {
        loop {
            let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
            match self.probe.run(&self.pool).await {
                Ok(ready) => return ready,
                Err(NotReady::Booting(_)) if self.process.try_wait().unwrap().is_none() => {
                    tokio::time::sleep(BOOTING_EVERY).await;
                }
                Err(error) => panic!("{error}: {}", log()),
            }
        }
    }

    async fn post(&self, path: &str, body: Value) -> Response {
        self.pool.send(Head::post_json(path), Bytes::from(body.to_string())).await.unwrap()
    }

    async fn refusal(&self, path: &str, body: Value) -> AttemptEnd {
        let response = self.post(path, body).await;
        let status = response.head.status;
        let body = response.body.collect(1 << 20).await.unwrap();
        attempt::refused(Dialect::LlamaCpp, status, &body)
    }

    async fn stop(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let error = self.pool.send(Head::get("/health"), Bytes::new()).await.unwrap_err();
        assert!(error.before_response(), "its port is closed: {error}");
    }
}

fn question(more: Value) -> Value {
    let mut body = json!({"model": "small", "temperature": 0, "max_tokens": 12, "messages": [
        {"role": "user", "content": "What is the capital of France? Answer in one sentence."}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test]
async fn a_real_engine_is_started_asked_and_stopped() {
    let mut real = Real::start(DeploymentKind::Llm);
    let ready = real.ready().await;
    assert_eq!(ready, Ready { context_tokens: Some(2_048), slots: Some(2) }, "what the deployment asked for");

    let answer = real.post("/v1/chat/completions", question(json!({}))).await;
    assert!(attempt::check_success(&answer.head, false).is_ok());
    let answer: Value = serde_json::from_slice(&answer.body.collect(1 << 20).await.unwrap()).unwrap();
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().contains("Paris"), "{answer}");
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 10, "{answer}");

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut response = real.post("/v1/chat/completions", question(options)).await;
    assert!(attempt::check_success(&response.head, true).is_ok());
    let options = StreamOptions { flavour: Flavour::Chat, alias: "alias".into(), asked: UsageAsked::No };
    let mut stream = Stream::new(options);
    let mut frames = 0;
    while let Some(frame) = response.body.frame().await {
        stream.push(frame.unwrap()).unwrap();
        frames += 1;
    }
    stream.end().unwrap();
    assert!(frames > 2, "events come one by one: {frames}");
    assert!(stream.usage().unwrap().output > 3);

    let end = real.refusal("/v1/chat/completions", json!({"model": "small", "messages": 7})).await;
    assert!(!end.trips_breaker() && matches!(end, AttemptEnd::Final(_)), "{end:?}");
    let end = real.refusal("/v1/chat/completions", question(json!({"max_tokens": -5}))).await;
    assert_eq!((end.fault().case, end.fault().param.as_deref()), (Case::UpstreamRejected, Some("max_tokens")));
    let long = "word ".repeat(3_000);
    let end = real.refusal("/v1/completions", json!({"model": "small", "prompt": long, "max_tokens": 1})).await;
    assert_eq!(end.fault().case, Case::ContextLength, "{end:?}");
    let end = real.refusal("/v1/embeddings", json!({"model": "small", "input": "a"})).await;
    assert_eq!((end.fault().case, end.fault().param.as_deref()), (Case::InvalidValue, Some("model")), "{end:?}");

    let signals = scrape::scrape(&real.pool, Dialect::LlamaCpp).await.unwrap().signals;
    assert_eq!((signals.waiting, signals.kv_usage), (Some(0.0), None));
    real.stop().await;
}

#[tokio::test]
async fn a_real_engine_embeds() {
    let mut real = Real::start(DeploymentKind::Embedding);
    real.ready().await;
    let answer = real.post("/v1/embeddings", json!({"model": "small", "input": ["a", "b"]})).await;
    let answer: Value = serde_json::from_slice(&answer.body.collect(1 << 20).await.unwrap()).unwrap();
    assert_eq!(answer["data"][1]["embedding"].as_array().unwrap().len(), 576);
    real.stop().await;
}
