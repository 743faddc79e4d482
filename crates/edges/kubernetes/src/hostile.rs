//! Whatever an API server says of a Pod, something is made of it, and nothing good of what is bad.

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::pods::PodFacts;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("OOMKilled".to_owned()),
        Just("CrashLoopBackOff".to_owned()),
        Just("ImagePullBackOff".to_owned()),
        Just("Evicted".to_owned()),
        Just("TopologyAffinityError".to_owned()),
        Just("UnexpectedAdmissionError".to_owned()),
        Just("Unschedulable".to_owned()),
        "\\PC{0,40}",
        "x{700}",
    ]
}

fn state() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!({ "running": {} })),
        (text(), text()).prop_map(|(reason, message)| json!({ "waiting": { "reason": reason, "message": message } })),
        (text(), any::<i32>(), text()).prop_map(|(reason, code, message)| {
            json!({ "terminated": { "reason": reason, "exitCode": code, "message": message } })
        }),
    ]
}

fn pod() -> impl Strategy<Value = Value> {
    let container = (state(), state(), 0..4_i32).prop_map(|(state, last, restarts)| {
        json!({ "name": "engine", "image": "i", "imageID": "", "ready": true, "restartCount": restarts,
            "state": state, "lastState": last })
    });
    let condition = (text(), prop_oneof!["True", "False", "Unknown"], text(), text());
    let condition = condition.prop_map(|(kind, status, reason, message)| {
        json!({ "type": kind, "status": status, "reason": reason, "message": message })
    });
    let phases = prop_oneof!["Pending", "Running", "Failed", "Succeeded", "\\PC{0,10}"];
    let (conditions, containers) = (prop::collection::vec(condition, 0..4), prop::collection::vec(container, 0..3));
    (phases, text(), text(), conditions, containers, text()).prop_map(
        |(phase, reason, message, conditions, list, ip)| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "uid": "u" },
                "status": { "phase": phase, "reason": reason, "message": message, "conditions": conditions,
                    "containerStatuses": list, "podIP": ip },
            })
        },
    )
}

proptest! {
    #[test]
    fn a_pod_that_ended_or_was_started_again_is_never_called_well(pod in pod()) {
        let read: Pod = serde_json::from_value(pod.clone()).unwrap();
        let facts = PodFacts::of(&read);
        let none = Vec::new();
        let containers = pod["status"]["containerStatuses"].as_array().unwrap_or(&none);
        let has_ended = containers.iter().any(|one| {
            !one["state"]["terminated"].is_null() || one["restartCount"].as_i64() > Some(0)
        });
        let is_failed = pod["status"]["phase"] == "Failed";
        if has_ended || is_failed {
            let trouble = facts.trouble.clone();
            prop_assert!(trouble.is_some(), "{pod}");
            prop_assert!(trouble.unwrap().code.is_final() || facts.is_over, "{pod}");
        }
        if let Some(trouble) = facts.trouble {
            prop_assert!(trouble.said.chars().count() <= 600 && !trouble.said.contains('\n'));
        }
    }
}
