//! `tidegate model` as a person types it, on a folder as the store.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::gate::program;

/// Chunks of the models of these tests, in bytes.
const CHUNK: usize = 64 << 10;

/// A store, a cache and a model, each a folder.
struct Stand {
    folder: TempDir,
}

impl Stand {
    fn new() -> Self {
        let stand = Self { folder: TempDir::new().unwrap() };
        std::fs::create_dir(stand.path("store")).unwrap();
        std::fs::create_dir(stand.path("model")).unwrap();
        std::fs::write(stand.path("model/config.json"), "{}").unwrap();
        let weights: Vec<u8> = (0..10 * CHUNK + 5).map(|at| (at / CHUNK + at % 251) as u8).collect();
        std::fs::write(stand.path("model/model.safetensors"), weights).unwrap();
        stand
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, verb: &str, args: &[&str]) -> Command {
        let mut command = program();
        command.args(["model", verb]).args(args);
        command.arg("--store").arg(format!("file://{}", self.path("store").display()));
        command.arg("--state").arg(self.path("state"));
        command.args(["--keep-free", "0B"]);
        command
    }

    fn run(&self, verb: &str, args: &[&str]) -> Output {
        self.command(verb, args).output().unwrap()
    }

    /// The answer of a verb that has to succeed.
    fn ok(&self, verb: &str, args: &[&str]) -> String {
        let output = self.run(verb, args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Its last line of JSON.
    fn json(&self, verb: &str, args: &[&str]) -> Value {
        let args: Vec<_> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(self.ok(verb, &args).lines().last().unwrap()).unwrap()
    }

    fn push(&self, model: &str) -> Value {
        let source = self.path("model");
        self.json("push", &[source.to_str().unwrap(), model, "--chunk-size", "64KiB"])
    }

    fn flip(&self, path: &Path, at: usize) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at] ^= 1;
        // In place: the published name is a link to the content.
        std::fs::write(path, bytes).unwrap();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_goes_into_the_store_comes_back_and_is_looked_at() {
    let stand = Stand::new();
    let pushed = stand.push("glm/5");
    assert_eq!((&pushed["event"], &pushed["was_there"]), (&"pushed".into(), &false.into()), "{pushed}");
    let again = stand.push("glm/5");
    assert_eq!((&again["was_there"], &again["sent_bytes"]), (&true.into(), &0.into()), "{again}");

    let pulled = stand.json("pull", &["glm/5"]);
    assert_eq!(pulled["digest"], pushed["digest"]);
    let folder = Path::new(pulled["path"].as_str().unwrap());
    assert_eq!(folder.file_name().unwrap().to_str().unwrap(), format!("sha256-{}", pushed["digest"].as_str().unwrap()));
    let weights = std::fs::read(stand.path("model/model.safetensors")).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights);
    assert_eq!(stand.json("pull", &["glm/5"])["fetched_bytes"], 0, "it is cached");

    let listed = stand.json("ls", &[]);
    assert_eq!((&listed[0]["models"][0], &listed[0]["state"]), (&"glm/5".into(), &"published".into()), "{listed}");
    let table = stand.ok("ls", &[]);
    assert!(table.contains("glm/5") && table.contains("655 kB"), "{table}");
    assert_eq!(stand.json("du", &[])["model_bytes"], weights.len() + 2);
    assert!(stand.ok("verify", &[]).contains("glm/5: every byte is right"));
}

#[test]
fn a_pinned_model_says_why_it_stays_and_garbage_goes() {
    let stand = Stand::new();
    stand.push("glm/5");
    let digest = stand.json("pull", &["glm/5"])["digest"].as_str().unwrap().to_owned();
    stand.ok("pin", &["glm/5", "--note", "the demo"]);
    assert!(stand.ok("ls", &[]).contains("pinned (operator: the demo)"));
    assert_eq!(stand.json("unpin", &[&digest[..12]])["was_pinned"], true, "a digest may be short");
    assert_eq!(stand.json("unpin", &["glm/5"])["was_pinned"], false);

    let stray = stand.path("state/model-cache/files/00").join("00".repeat(32));
    std::fs::create_dir_all(stray.parent().unwrap()).unwrap();
    std::fs::write(&stray, [0; 5_000]).unwrap();
    let dry = stand.ok("gc", &["--dry-run"]);
    assert!(dry.contains("would go") && dry.contains("file of no model") && stray.exists(), "{dry}");
    assert!(stand.ok("gc", &[]).contains("removed"));
    assert!(!stray.exists());
    assert_eq!(stand.json("pull", &["glm/5"])["fetched_bytes"], 0, "the model stayed");
}

#[test]
fn a_flipped_byte_on_the_disk_is_named_and_costs_its_chunk() {
    let stand = Stand::new();
    stand.push("glm/5");
    let pulled = stand.json("pull", &["glm/5"]);
    let file = Path::new(pulled["path"].as_str().unwrap()).join("model.safetensors");
    let good = std::fs::read(&file).unwrap();
    stand.flip(&file, 7 * CHUNK + 1);

    let output = stand.run("verify", &["glm/5"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("weights/model.safetensors, chunk 7: wrong bytes"), "{text}");
    assert!(text.contains("verify --repair"), "what to do next: {text}");
    let repaired = stand.json("verify", &["glm/5", "--repair"]);
    assert_eq!(repaired["repaired_bytes"], CHUNK, "{repaired}");
    assert_eq!(std::fs::read(&file).unwrap(), good);
    assert!(stand.ok("verify", &[]).contains("every byte is right"));
}

#[test]
fn each_kind_of_failure_has_its_exit_code_and_says_what_to_do_next() {
    let stand = Stand::new();
    let none = stand.run("pull", &["glm/none"]);
    assert_eq!(none.status.code(), Some(6), "{none:?}");
    assert!(said(&none).contains("no_such_model") && said(&none).contains("next:  check family/version"), "{none:?}");

    stand.push("glm/5");
    std::fs::write(stand.path("model/more.json"), "{}").unwrap();
    let source = stand.path("model");
    let other = stand.run("push", &[source.to_str().unwrap(), "glm/5"]);
    assert_eq!(other.status.code(), Some(6), "{other:?}");
    assert!(said(&other).contains("push under a new version"), "{other:?}");

    let pinned = stand.run("pull", &["glm/5", "--digest", &"ab".repeat(32)]);
    assert_eq!(pinned.status.code(), Some(4), "{pinned:?}");
    let mut full = program();
    full.args(["model", "pull", "glm/5", "--keep-free", "100%", "--cache"]).arg(stand.path("small"));
    let full = full.arg("--store").arg(stand.path("store")).output().unwrap();
    assert_eq!(full.status.code(), Some(5), "{full:?}");
    assert!(said(&full).contains("no_room") && said(&full).contains("modelCache.keepFree"), "{full:?}");
    let nowhere = program().args(["model", "ls", "--cache"]).arg(stand.path("nowhere")).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(said(&nowhere).contains("pull a model first"), "{nowhere:?}");
    let storeless = program().args(["model", "pull", "glm/5", "--state"]).arg(stand.path("new")).output().unwrap();
    assert!(said(&storeless).contains("--store URL"), "{storeless:?}");

    let json = stand.run("pull", &["glm/none", "--json"]);
    let last: Value = serde_json::from_slice(json.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["code"]), (&"failed".into(), &"no_such_model".into()));
}

#[test]
fn documents_say_where_store_and_cache_are() {
    let stand = Stand::new();
    stand.push("glm/5");
    let site = format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\nspec:\n  modelStore: {{url: 'file://{}'}}\n  \
         modelCache: {{path: cache, keepFree: 1MB}}\n",
        stand.path("store").display()
    );
    std::fs::write(stand.path("site.yaml"), &site).unwrap();
    let pull = |documents: &Path| {
        program().args(["model", "pull", "glm/5", "--json", "--documents"]).arg(documents).output().unwrap()
    };
    let output = pull(&stand.path("site.yaml"));
    assert!(output.status.success(), "{output:?}");
    assert!(stand.path("cache/manifests").is_dir(), "the path is beside the document");
    let events: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names.first(), names.last()), (Some(&"resolved"), Some(&"pulled")), "{names:?}");
    assert!(names.contains(&"file_done") && names.contains(&"published"), "{names:?}");

    std::fs::write(stand.path("site.yaml"), site.replace("1MB", "101%")).unwrap();
    let wrong = pull(&stand.path("site.yaml"));
    assert_eq!(wrong.status.code(), Some(64), "{wrong:?}");
    assert!(said(&wrong).contains("keepFree"), "{wrong:?}");
}

#[test]
fn a_state_folder_that_a_pull_made_is_nobody_elses() {
    let stand = Stand::new();
    stand.push("glm/5");
    stand.ok("pull", &["glm/5"]);
    let mode = std::fs::metadata(stand.path("state")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "it holds secrets later");
}

#[test]
fn the_help_teaches_with_examples_and_exit_codes() {
    let help = program().args(["model", "--help"]).output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    for part in ["Examples:", "Exit codes:", "tidegate model pull", "130", "--endpoint"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
