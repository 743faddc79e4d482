//! What an engine compiles in its first load is there before the next one, also after this node has lost it.
//!
//! The engine is a program of ours: no vLLM can run here, and what matters is where it looks for compiled code.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tidegate_testkit::fake::Script;

use crate::gate::{Gate, program};

/// Speaks as much of vLLM as a probe asks for. It compiles when it finds nothing, and says which it was.
const ENGINE: &str = r#"
import http.server, json, os, pathlib, sys
arguments = sys.argv[1:]
book = open(pathlib.Path(__file__).parent / "said", "a")
value = lambda name: arguments[arguments.index(name) + 1]
for name in ["VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"]:
    if name not in os.environ:
        print("untold", name, file=book, flush=True)
        continue
    kernel = pathlib.Path(os.environ[name]) / "ab" / "kernel.so"
    if kernel.exists():
        assert kernel.read_text() == name, name
        print("found", name, file=book, flush=True)
    else:
        kernel.parent.mkdir(parents=True)
        kernel.write_text(name)
        print("compiled", name, file=book, flush=True)

print("init engine (profile, create kv cache, warmup model) took 1.00 s", flush=True)

class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({"data": [{"id": value("--served-model-name"), "max_model_len": 2048}]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if not asked.get("stream"):
            self.answer({"choices": [{"finish_reason": "length"}], "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        head = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
        said = {"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}
        over = {"index": 0, "delta": {}, "finish_reason": "length"}
        parts = [{**head, "choices": [said]}, {**head, "choices": [over]}, {**head, "choices": [], "usage": usage}]
        for part in [json.dumps(part) for part in parts] + ["[DONE]"]:
            part = f"data: {part}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer((value("--host"), int(value("--port"))), Engine).serve_forever()
"#;

fn documents(folder: &Path, gate: std::net::SocketAddr, admin: std::net::SocketAddr) -> String {
    format!(
        "apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {{name: compiled}}
spec:
  gateway: {{listen: '{gate}', workers: 1, drain: 5s}}
  admin: {{listen: '{admin}'}}
  enginePorts: 20400-20499
  engines: {{vllm: {{command: [python3, '{engine}'], version: 0.23.0}}}}
  modelStore: {{url: 'file://{store}'}}
  modelCache: {{path: '{cache}', keepFree: 1MB}}
---
kind: Model
metadata: {{name: small}}
spec: {{source: {{path: small/1}}, engine: vllm, precision: bf16}}
---
kind: Deployment
metadata: {{name: small-v1}}
spec:
  model: small
  launch: {{replicas: 1}}
  warmup: {{stabilise: 0s, longContext: false}}
  limits: {{contextTokens: 2048, maxOutputTokens: 64}}
---
kind: Alias
metadata: {{name: chat}}
spec: {{targets: [{{deployment: small-v1, weight: 100}}]}}
---
kind: Team
metadata: {{name: red}}
spec: {{models: [{{alias: chat, rpm: 1000}}]}}
",
        engine = folder.join("engine.py").display(),
        store = folder.join("store").display(),
        cache = folder.join("cache").display(),
    )
}

/// What the engine said of its compiled code, load by load.
fn said(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("said")).unwrap_or_default();
    text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn what_a_first_load_compiled_is_laid_out_before_the_next_and_only_for_what_it_was_compiled_for() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("engine.py"), ENGINE).unwrap();
    fs::create_dir_all(folder.path().join("model")).unwrap();
    fs::create_dir_all(folder.path().join("store")).unwrap();
    fs::write(folder.path().join("model/model.safetensors"), vec![7; 100_000]).unwrap();
    fs::write(folder.path().join("model/config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let pushed = program()
        .args(["model", "push"])
        .arg(folder.path().join("model"))
        .args(["small/1", "--store", &store])
        .output()
        .unwrap();
    assert!(pushed.status.success(), "{pushed:?}");

    let mut gate = Gate::start_with(Script::vllm("unused"), |gate, admin, _| documents(folder.path(), gate, admin));
    gate.until("loaded", || said(folder.path()).len() == 3);
    assert_eq!(
        said(folder.path()),
        ["compiled"; 3],
        "for itself alone: without a driver nothing is known, and nothing is kept"
    );
    assert!(gate.stop().success(), "{}", gate.log());

    // A machine with GPUs.
    let driver = gate.documents().parent().unwrap().join("driver");
    fs::create_dir_all(driver.join("gpus/0000:01:00.0")).unwrap();
    fs::write(driver.join("version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu\n").unwrap();
    fs::write(driver.join("gpus/0000:01:00.0/information"), "Model: \t NVIDIA B300\n").unwrap();
    gate.start_again();
    let kept = "compile cache saved";
    gate.until("kept", || gate.log().matches(kept).count() == 1);
    assert_eq!(said(folder.path())[3..], ["compiled"; 3]);
    assert!(gate.stop().success(), "{}", gate.log());
    gate.start_again();
    gate.until("found", || said(folder.path()).len() == 9);
    assert_eq!(said(folder.path())[6..], ["found"; 3]);
    assert!(gate.metric("tidegate_model_cache_artifact_hits_total") >= 1.0);
    assert!(gate.stop().success(), "{}", gate.log());

    // This node's copy is lost: the store has it, for this and for the other nodes.
    fs::remove_dir_all(folder.path().join("cache/artifacts")).unwrap();
    gate.start_again();
    gate.until("found", || said(folder.path()).len() == 12);
    assert_eq!(said(folder.path())[9..], ["found"; 3]);
    assert!(gate.stop().success(), "{}", gate.log());

    // Another driver: what is there was compiled for something else.
    fs::write(driver.join("version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.11.02  Thu\n").unwrap();
    gate.start_again();
    gate.until("kept", || gate.log().matches(kept).count() == 2);
    assert_eq!(said(folder.path())[12..], ["compiled"; 3]);
    assert!(gate.stop().success(), "{}", gate.log());
}
