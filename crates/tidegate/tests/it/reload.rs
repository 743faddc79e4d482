//! Documents that change under a running process.

use tidegate_testkit::fake::Script;

use crate::gate::{Gate, program};

#[test]
fn a_bad_document_leaves_the_old_state_and_says_so_everywhere() {
    let gate = Gate::start(Script::vllm("tiny"));
    let key = gate.key();
    let good = std::fs::read_to_string(gate.documents()).unwrap();
    std::fs::write(gate.documents(), good.replace("weight: 100", "wieght: 100")).unwrap();
    gate.until("refused", || gate.verb_json(&["status"])["documents"]["refused"].is_string());
    let refused = gate.verb_json(&["status"])["documents"]["refused"].as_str().unwrap().to_owned();
    assert!(refused.contains("wieght") && refused.contains("weight"), "{refused}");
    assert!(gate.metric("tidegate_documents_in_force") == 0.0);
    assert!(gate.log().contains("documents refused"));
    assert_eq!(gate.chat(&key).status, 200);
    std::fs::write(gate.documents(), good).unwrap();
    gate.until("in force again", || gate.verb_json(&["status"])["documents"]["refused"].is_null());
    assert!(gate.metric("tidegate_documents_in_force") == 1.0);
}

#[test]
fn a_grant_that_is_taken_away_is_felt_without_a_restart() {
    let gate = Gate::start(Script::vllm("tiny"));
    let key = gate.key();
    assert_eq!(gate.chat(&key).status, 200);
    let text = std::fs::read_to_string(gate.documents()).unwrap();
    std::fs::write(gate.documents(), text.replace("spec:\n  models:", "spec:\n  deny: [chat]\n  models:")).unwrap();
    gate.until("denied", || gate.chat(&key).status == 404);
}

#[test]
fn a_hangup_reloads_at_once() {
    let gate = Gate::start(Script::vllm("tiny"));
    gate.signal("HUP");
    gate.until("reloaded", || gate.verb_json(&["status"])["documents"]["generation"] == 2);
}

#[test]
fn wrong_documents_are_refused_at_the_start_with_every_error_named() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(
        folder.path().join("a.yaml"),
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {name: a}\nspec: {timeZone: Mars/Base, colour: red}\n",
    )
    .unwrap();
    let output = program().arg("up").arg(folder.path()).arg("--state").arg(folder.path().join("s")).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Mars/Base") && text.contains("colour"), "{text}");
    assert!(!folder.path().join("s").exists(), "nothing was touched");
}

#[test]
fn a_replica_that_stays_in_the_documents_serves_on_whatever_its_place_in_the_list() {
    let gate = Gate::start(Script::vllm("tiny"));
    let key = gate.key();
    let text = std::fs::read_to_string(gate.documents()).unwrap();
    let url = format!("{{url: '{}'}}", gate.engine.url());
    std::fs::write(gate.documents(), text.replace(&url, &format!("{{url: 'http://127.0.0.1:9'}}, {url}"))).unwrap();
    gate.until("reloaded", || gate.verb_json(&["status"])["documents"]["generation"] == 2);
    let probes = gate.engine.requests().len();
    assert_eq!(gate.chat(&key).status, 200);
    let status = gate.verb_json(&["status"]);
    let serving = status["replicas"].as_array().unwrap().iter().filter(|replica| replica["state"] == "serving").count();
    assert_eq!(serving, 1, "{status}");
    assert!(gate.engine.requests().len() <= probes + 2, "it was not proven anew");
}

#[test]
fn a_changed_profile_reloads_the_documents_that_name_it() {
    let gate = Gate::start(Script::vllm("tiny"));
    let profile = gate.folder.path().join("tiny.profile");
    let content = |rpm: u32| {
        format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: ModelProductionProfile\nmetadata: {{name: tiny}}\nspec: {{rpm: {rpm}}}\n"
        )
    };
    std::fs::write(&profile, content(5)).unwrap();
    let text = std::fs::read_to_string(gate.documents()).unwrap();
    let named = format!("  model: tiny\n  profile: {{fromFile: {}}}\n", profile.display());
    std::fs::write(gate.documents(), text.replace("  model: tiny\n", &named)).unwrap();
    gate.until("reloaded", || gate.verb_json(&["status"])["documents"]["generation"] == 2);
    std::fs::write(&profile, content(7)).unwrap();
    gate.signal("HUP");
    // The look at all files every 10 s may come between the write and the signal: then there are two reloads.
    gate.until("again", || gate.verb_json(&["status"])["documents"]["generation"].as_u64() >= Some(3));
    assert_eq!(gate.verb_json(&["status"])["aliases"][0]["limits"]["rpm"], 7);
}
