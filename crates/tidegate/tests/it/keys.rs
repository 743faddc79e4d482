//! Keys from the command line to the gate.

use tidegate_testkit::fake::Script;

use crate::gate::Gate;

#[test]
fn a_revoked_key_is_refused_on_the_next_request() {
    let gate = Gate::start(Script::vllm("tiny"));
    let key = gate.key();
    assert_eq!(gate.chat(&key).status, 200);
    let id = &key[8..16];
    let output = gate.verb(&["key", "revoke", id]);
    assert!(output.status.success());
    let refused = gate.chat(&key);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    let listed = gate.verb_json(&["key", "ls"]);
    assert_eq!(listed[0]["state"], "revoked");
}

#[test]
fn both_secrets_are_valid_during_the_grace_and_one_without_it() {
    let gate = Gate::start(Script::vllm("tiny"));
    let old = gate.key();
    let id = old[8..16].to_owned();
    let new = gate.verb_json(&["key", "rotate", &id])["secret"].as_str().unwrap().to_owned();
    assert_eq!(new[8..16], id, "the id stays");
    assert_eq!(gate.chat(&old).status, 200);
    assert_eq!(gate.chat(&new).status, 200);
    let newest = gate.verb_json(&["key", "rotate", &id, "--grace", "0s"])["secret"].as_str().unwrap().to_owned();
    assert_eq!(gate.chat(&new).status, 401);
    assert_eq!(gate.chat(&old).status, 401);
    assert_eq!(gate.chat(&newest).status, 200);
}

#[test]
fn an_admin_key_opens_the_admin_port_and_not_the_gate() {
    let gate = Gate::start(Script::vllm("tiny"));
    let admin = gate.verb_json(&["key", "create", "--admin"])["secret"].as_str().unwrap().to_owned();
    assert_eq!(gate.chat(&admin).status, 403);
    let url = format!("http://{}", gate.admin);
    let over = |key: &str| {
        crate::gate::program()
            .args(["key", "create", "--team", "red", "--json", "--url", &url, "--admin-key", key])
            .output()
            .unwrap()
    };
    let made = over(&admin);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let model_key = gate.key();
    let refused = over(&model_key);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not allowed"), "{refused:?}");
}

#[test]
fn a_wrong_team_is_named() {
    let gate = Gate::start(Script::vllm("tiny"));
    let output = gate.verb(&["key", "create", "--team", "blue"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no team \"blue\""), "{output:?}");
}

#[test]
fn a_key_made_while_no_process_runs_is_accepted_with_a_pepper_of_the_documents() {
    let mut gate = Gate::start(Script::vllm("tiny"));
    let pepper = gate.folder.path().join("pepper.txt");
    std::fs::write(&pepper, "a pepper that is long enough to be one, by far").unwrap();
    let text = std::fs::read_to_string(gate.documents()).unwrap();
    let named = format!("spec:\n  identity: {{keys: {{pepper: {{fromFile: {}}}}}}}\n  timeZone", pepper.display());
    std::fs::write(gate.documents(), text.replacen("spec:\n  timeZone", &named, 1)).unwrap();
    assert!(gate.stop().success());
    gate.start_again();
    assert!(gate.stop().success());
    let key = gate.key();
    gate.start_again();
    assert_eq!(gate.chat(&key).status, 200);
}

#[test]
fn an_admin_key_in_the_environment_does_not_disturb_local_verbs() {
    let gate = Gate::start(Script::vllm("tiny"));
    let output = crate::gate::program()
        .env("TIDEGATE_ADMIN_KEY", "tg_live_x")
        .args(["key", "ls", "--state"])
        .arg(gate.folder.path().join("state"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
