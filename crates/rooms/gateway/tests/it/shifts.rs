//! Aliases by shift: present, absent, substituted; and when an absent one is back.

use http::Method;
use serde_json::json;
use tidegate_testkit::fake::Script;

use crate::house::{CHAT, House, Setup, local};

const CHATS: &str = "/v1/chat/completions";

/// A day from 08:00 to 22:00 in Seoul; `flash` by day only, `owl` by night only, `chat` always.
const DAY_AND_NIGHT: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: test}
spec: {timeZone: Asia/Seoul}
---
kind: Model
metadata: {name: tiny}
spec: {engine: vllm}
---
kind: Deployment
metadata: {name: day-0}
spec: {model: tiny, endpoints: [{url: 'http://engine-0:1'}], servedName: tiny-served}
---
kind: Deployment
metadata: {name: night-0}
spec: {model: tiny, endpoints: [{url: 'http://engine-0:1'}], servedName: tiny-served}
---
kind: Schedule
metadata: {name: every}
spec:
  shifts:
    - {name: day, start: '08:00', deployments: [day-0]}
    - {name: night, start: '22:00', deployments: [night-0]}
---
kind: Alias
metadata: {name: flash}
spec: {shifts: {day: {targets: [{deployment: day-0}]}, night: {absent: {}}}}
---
kind: Alias
metadata: {name: owl}
spec: {shifts: {day: {absent: {substitute: flash}}, night: {targets: [{deployment: night-0}]}}}
---
kind: Alias
metadata: {name: lark}
spec: {shifts: {day: {targets: [{deployment: day-0}]}, night: {absent: {substitute: secret}}}}
---
kind: Alias
metadata: {name: secret}
spec: {shifts: {day: {absent: {}}, night: {targets: [{deployment: night-0}]}}}
---
kind: Team
metadata: {name: red}
spec: {models: [{alias: flash, rpm: 2}, {alias: owl, rpm: 1}, {alias: lark}]}
";

/// 2026-12-01T14:00:00Z is 23:00 in Seoul.
const ELEVEN_AT_NIGHT: i64 = 1_796_133_600_000;

fn at(wall: i64, shift: &'static str) -> Setup {
    Setup { wall: Some(wall), shift: Some(shift), ..Setup::default() }
}

fn asking(alias: &str) -> String {
    CHAT.replace("\"chat\"", &format!("\"{alias}\""))
}

fn engine() -> Vec<Script> {
    vec![Script::vllm("tiny-served")]
}

/// G 28.
#[test]
fn an_alias_absent_at_night_says_when_it_is_back() {
    local(async {
        let mut house = House::with(DAY_AND_NIGHT, engine(), at(ELEVEN_AT_NIGHT, "night")).await;
        let answer = house.post(CHATS, &asking("flash")).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "model_unavailable"));
        assert_eq!(answer.header("retry-after"), Some("32400"));
        assert_eq!(answer.header("x-should-retry"), None);
        let error = &answer.json()["error"];
        assert_eq!((&error["param"], &error["type"]), (&json!("model"), &json!("service_unavailable_error")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("2026-12-02T08:00:00+09:00"), "{message}");
        let entry = house.entry();
        assert_eq!((entry.alias.as_ref().unwrap().as_str(), entry.tokens(), entry.status), ("flash", 0, 503));
        assert_eq!(house.runs(), 0);

        let request = house.request(Method::GET, "/v1/models", "");
        let listed = house.send(request).await.json();
        let ids: Vec<_> =
            listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["owl"]);
        let request = house.request(Method::GET, "/v1/models/flash", "");
        let one = house.send(request).await;
        assert_eq!(one.status, 200);
        assert_eq!(one.json()["tidegate"], json!({"available": false, "from": "2026-12-02T08:00:00+09:00"}));
    });
}

#[test]
fn the_same_is_said_on_messages_in_their_shape() {
    local(async {
        let mut house = House::with(DAY_AND_NIGHT, engine(), at(ELEVEN_AT_NIGHT, "night")).await;
        let answer = house.post("/v1/messages", &asking("flash")).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("32400")));
        assert_eq!(answer.json()["error"]["type"], "overloaded_error");
    });
}

#[test]
fn the_wait_shrinks_with_the_clock() {
    local(async {
        let mut house = House::with(DAY_AND_NIGHT, engine(), at(ELEVEN_AT_NIGHT + 500, "night")).await;
        tokio::time::sleep(std::time::Duration::from_millis(1_000)).await;
        let answer = house.post(CHATS, &asking("flash")).await;
        assert_eq!(answer.header("retry-after"), Some("32399"), "rounded up");
    });
}

#[test]
fn just_before_the_hour_the_wait_is_said_in_milliseconds_and_at_the_hour_the_next_start_counts() {
    local(async {
        const NINE_HOURS: i64 = 9 * 3_600_000;
        for (wall, after, ms) in [(-500, "1", Some("500")), (0, "86400", None)] {
            let setup = at(ELEVEN_AT_NIGHT + NINE_HOURS + wall, "night");
            let mut house = House::with(DAY_AND_NIGHT, engine(), setup).await;
            let answer = house.post(CHATS, &asking("flash")).await;
            assert_eq!((answer.header("retry-after"), answer.header("retry-after-ms")), (Some(after), ms));
        }
    });
}

#[test]
fn without_a_schedule_that_has_it_nobody_knows_when() {
    local(async {
        // The clock says day, the shift in force is night, and no later start is needed: it may be at any moment.
        let documents = DAY_AND_NIGHT.replace(
            "{name: flash}\nspec: {shifts: {day: {targets: [{deployment: day-0}]}, night: {absent: {}}}}",
            "{name: flash}\nspec: {shifts: {day: {absent: {}}, night: {absent: {}}}}",
        );
        let documents = documents.replace("{absent: {substitute: flash}}", "{absent: {}}");
        let mut house = House::with(&documents, engine(), at(ELEVEN_AT_NIGHT, "night")).await;
        let answer = house.post(CHATS, &asking("flash")).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, None));
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    });
}

#[test]
fn a_substitute_serves_under_the_name_asked_for_and_its_own_limits() {
    local(async {
        let mut house = House::with(DAY_AND_NIGHT, engine(), at(ELEVEN_AT_NIGHT, "day")).await;
        let answer = house.post(CHATS, &asking("owl")).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model"]), (200, &json!("owl")), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("2"), "those of flash");
        let entry = house.entry();
        assert_eq!((entry.alias.unwrap().as_str(), entry.served_alias.unwrap().as_str()), ("owl", "flash"));
        assert_eq!(house.post(CHATS, &asking("flash")).await.status, 200);
        assert_eq!(house.post(CHATS, &asking("owl")).await.status, 429);
    });
}

#[test]
fn a_substitute_that_is_not_granted_is_unknown_and_not_listed() {
    local(async {
        let mut house = House::with(DAY_AND_NIGHT, engine(), at(ELEVEN_AT_NIGHT, "night")).await;
        let answer = house.post(CHATS, &asking("lark")).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (404, "model_not_found"));
        let request = house.request(Method::GET, "/v1/models/lark", "");
        let one = house.send(request).await.json();
        assert_eq!(one["tidegate"]["available"], false, "{one}");
    });
}

#[test]
fn media_of_a_host_that_a_substitute_does_not_list_are_refused() {
    local(async {
        let listed = ", mediaHosts: [images.example]}\n---\nkind: Alias\nmetadata: {name: lark}";
        let documents = DAY_AND_NIGHT.replace("}\n---\nkind: Alias\nmetadata: {name: lark}", listed);
        assert_ne!(documents, DAY_AND_NIGHT);
        let body = r#"{"model":"owl","max_tokens":16,"messages":[{"role":"user","content":[
            {"type":"image_url","image_url":{"url":"https://images.example/a.png"}}]}]}"#;
        for (shift, status) in [("night", 200), ("day", 400)] {
            let mut house = House::with(&documents, engine(), at(ELEVEN_AT_NIGHT, shift)).await;
            assert_eq!(house.post(CHATS, body).await.status, status, "{shift}");
        }
    });
}
