//! Aliases go where the controller's routes say: over reloads, by revision, in gaps, past the hour.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use prometheus_client::registry::Registry;
use serde_json::json;
use tidegate_config::{Site, Source};
use tidegate_core::{AliasName, Unix};
use tidegate_engine::backend::{BackendSet, Made};
use tidegate_engine::dialect::Dialect;
use tidegate_gateway::catalogue::{Catalogue, Parts};
use tidegate_gateway::metrics::Metrics;
use tidegate_routing::ReplicaState;
use tidegate_store::store::{RouteRow, RouteTarget};
use tidegate_testkit::fake::Script;

use crate::house::{Answer, CHAT, CHAT_STREAM, House, Setup, local};

const CHATS: &str = "/v1/chat/completions";

/// `chat` is served by `day-0` by day and by `night-1` by night, `owl` by night only; `spare` always, by `spare-2`.
const SITE: &str = "
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
spec:
  model: tiny
  endpoints: [{url: 'http://engine-0:1'}]
  servedName: tiny-served
  profile: {rpm: 10}
  limits: {contextTokens: 8192, maxOutputTokens: 256}
---
kind: Deployment
metadata: {name: night-1}
spec:
  model: tiny
  endpoints: [{url: 'http://engine-1:1'}]
  servedName: tiny-served
  profile: {rpm: 50}
  limits: {contextTokens: 64, maxOutputTokens: 16}
---
kind: Deployment
metadata: {name: spare-2}
spec: {model: tiny, endpoints: [{url: 'http://engine-2:1'}], servedName: tiny-served}
---
kind: Schedule
metadata: {name: every}
spec:
  shifts:
    - {name: day, start: '08:00', deployments: [day-0, spare-2]}
    - {name: night, start: '22:00', deployments: [night-1, spare-2]}
---
kind: Alias
metadata: {name: chat}
spec:
  shifts: {day: {targets: [{deployment: day-0}]}, night: {targets: [{deployment: night-1}]}}
  fallback: [spare]
---
kind: Alias
metadata: {name: owl}
spec: {shifts: {day: {absent: {substitute: spare}}, night: {targets: [{deployment: night-1}]}}}
---
kind: Alias
metadata: {name: spare}
spec: {targets: [{deployment: spare-2}]}
---
kind: Team
metadata: {name: red}
spec: {models: [{alias: chat}, {alias: owl}, {alias: spare}]}
---
kind: Team
metadata: {name: poor}
spec: {models: [{alias: chat}]}
";

/// 2026-12-01T14:00:00Z is 23:00 in Seoul.
const ELEVEN_AT_NIGHT: i64 = 1_796_133_600_000;

fn route(alias: &str, shift: &str, deployments: &[&str]) -> (AliasName, RouteRow) {
    let target = |name: &&str| RouteTarget { deployment: (*name).into(), weight: 100, revision: None };
    let row = RouteRow {
        alias: alias.into(),
        targets: deployments.iter().map(target).collect(),
        shift: shift.into(),
        until: None,
        generation: 1,
        at: Unix::from_ms(0),
    };
    (alias.into(), row)
}

fn engines() -> Vec<Script> {
    vec![Script::vllm("tiny-served"); 3]
}

/// A house whose shift in force is `day` wherever no route says otherwise.
async fn house(routes: impl IntoIterator<Item = (AliasName, RouteRow)>) -> House {
    let routes = routes.into_iter().collect();
    let setup = Setup { wall: Some(ELEVEN_AT_NIGHT), shift: Some("day"), routes, ..Setup::default() };
    House::with(SITE, engines(), setup).await
}

fn site(documents: &str) -> Arc<Site> {
    let checked = tidegate_config::check(&[Source::new("site.yaml", documents)]);
    Arc::new(checked.site.unwrap_or_else(|| panic!("{:?}", checked.diagnostics)))
}

/// Puts other documents, replicas or routes in force.
fn put_in_force(house: &House, site: &Arc<Site>, backends: &BackendSet, routes: &BTreeMap<AliasName, RouteRow>) {
    let parts = Parts {
        shift: "day".into(),
        generation: house.shared.catalogue.load().generation + 1,
        created: 0,
        backends,
        routes,
        tokenizers: &BTreeMap::new(),
        metrics: &Metrics::register(&mut Registry::default()),
    };
    house.shared.catalogue.store(Arc::new(Catalogue::new(Arc::clone(site), &parts)));
}

/// The replicas of the house: engine N is deployment number N.
fn backends(house: &House) -> BackendSet {
    let mut set = BackendSet::default();
    for (index, name) in ["day-0", "night-1", "spare-2"].into_iter().enumerate() {
        set.insert(&name.into(), 0, None, Arc::clone(&house.backends[index]));
    }
    set
}

async fn ask(house: &mut House, alias: &str) -> Answer {
    house.post(CHATS, &CHAT.replace("\"chat\"", &format!("\"{alias}\""))).await
}

/// Which engine had how many requests.
fn runs(house: &House) -> Vec<usize> {
    house.engines.iter().map(|engine| engine.runs().len()).collect()
}

#[test]
fn an_alias_goes_where_its_route_says_and_has_the_limits_of_the_routes_shift() {
    local(async {
        let mut house = house([route("chat", "night", &["night-1"])]).await;
        let answer = ask(&mut house, "chat").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-limit-requests")), (200, Some("50")));
        let long = CHAT.replace("\"max_tokens\":16", "\"max_tokens\":200");
        assert_eq!(house.post(CHATS, &long).await.status, 200);
        let sent: serde_json::Value = house.engines[1].runs()[1].json();
        assert_eq!(sent["max_tokens"], 16, "at most what the deployment of the route may");
        assert_eq!(runs(&house), [0, 2, 0]);
        // Without a route: as the documents say of the shift in force.
        let mut by_day = self::house([]).await;
        let answer = ask(&mut by_day, "chat").await;
        assert_eq!((answer.header("x-ratelimit-limit-requests"), runs(&by_day)), (Some("10"), vec![1, 0, 0]));
    });
}

#[test]
fn a_reload_moves_no_alias_by_itself() {
    local(async {
        let routes = BTreeMap::from([route("chat", "day", &["day-0"])]);
        let mut house = house(routes.clone()).await;
        let moved = site(&SITE.replace(
            "{day: {targets: [{deployment: day-0}]}, night: {targets: [{deployment: night-1}]}}",
            "{day: {targets: [{deployment: spare-2}]}, night: {targets: [{deployment: night-1}]}}",
        ));
        put_in_force(&house, &moved, &backends(&house), &routes);
        assert_eq!(ask(&mut house, "chat").await.status, 200);
        assert_eq!(runs(&house), [1, 0, 0]);
        put_in_force(&house, &moved, &backends(&house), &BTreeMap::from([route("chat", "day", &["spare-2"])]));
        assert_eq!(ask(&mut house, "chat").await.status, 200);
        assert_eq!(runs(&house), [1, 0, 1]);
    });
}

/// Its replicas run on until they are drained, although no document names them any more.
#[test]
fn a_deployment_that_the_documents_do_not_have_any_more_serves_until_its_alias_is_moved() {
    local(async {
        let routes = BTreeMap::from([route("chat", "day", &["day-0"])]);
        let mut house = house(routes.clone()).await;
        let before = site(SITE);
        let made = Made { document: Arc::new(before.deployments["day-0"].clone()), dialect: Dialect::Vllm };
        let mut set = BackendSet::default();
        set.insert(&"day-0".into(), 7, Some(&made), Arc::clone(&house.backends[0]));
        set.insert(&"spare-2".into(), 0, None, Arc::clone(&house.backends[2]));
        let without = SITE
            .replace("deployments: [day-0, spare-2]", "deployments: [night-1, spare-2]")
            .replace("day: {targets: [{deployment: day-0}]}", "day: {targets: [{deployment: night-1}]}");
        let gone = without.find("---\nkind: Deployment\nmetadata: {name: day-0}").unwrap();
        let next = gone + 4 + without[gone + 4..].find("---\n").unwrap();
        let after = site(&format!("{}{}", &without[..gone], &without[next..]));
        assert!(!after.deployments.contains_key("day-0"));
        let mut row = routes["chat"].clone();
        row.targets[0].revision = Some(7);
        put_in_force(&house, &after, &set, &BTreeMap::from([("chat".into(), row)]));
        assert_eq!(ask(&mut house, "chat").await.status, 200);
        assert_eq!((runs(&house), house.last().deployment.unwrap().as_str()), (vec![1, 0, 0], "day-0"));
    });
}

#[test]
fn replicas_of_two_revisions_are_told_apart_and_asked_by_the_name_they_were_started_with() {
    local(async {
        let mut house = house([]).await;
        house.engines[1].set(Script::vllm("other-served"));
        let renamed = site(&SITE.replacen("servedName: tiny-served", "servedName: other-served", 1));
        let old = Made { document: Arc::new(site(SITE).deployments["day-0"].clone()), dialect: Dialect::Vllm };
        let new = Made { document: Arc::new(renamed.deployments["day-0"].clone()), dialect: Dialect::Vllm };
        let mut set = BackendSet::default();
        set.insert(&"day-0".into(), 1, Some(&old), Arc::clone(&house.backends[0]));
        set.insert(&"day-0".into(), 2, Some(&new), Arc::clone(&house.backends[1]));
        let of = |revisions: &[u64]| {
            let (name, mut row) = route("chat", "day", &[]);
            row.targets = revisions
                .iter()
                .map(|&number| RouteTarget { deployment: "day-0".into(), weight: 50, revision: Some(number) })
                .collect();
            BTreeMap::from([(name, row)])
        };
        for (revisions, expected) in [(&[1][..], [1, 0, 0]), (&[2], [1, 1, 0])] {
            put_in_force(&house, &renamed, &set, &of(revisions));
            let answer = ask(&mut house, "chat").await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(runs(&house), expected);
        }
        // Both at once: what one cannot do the other is asked for.
        house.engines[0].kill();
        put_in_force(&house, &renamed, &set, &of(&[1, 2]));
        for _ in 0..5 {
            assert_eq!(ask(&mut house, "chat").await.status, 200);
        }
        assert_eq!(runs(&house)[1], 6);
    });
}

/// Between two looks at the catalogue a request is nobody's: it follows its alias instead of failing with the old one.
#[test]
fn a_request_whose_alias_moves_while_it_waits_for_an_answer_follows_it() {
    local(async {
        for body in [CHAT, CHAT_STREAM] {
            let mut house = house([route("chat", "day", &["day-0"])]).await;
            house.engines[0].set(Script::vllm("tiny-served").paced(Duration::from_secs(30), Duration::ZERO));
            let running = house.begin(house.request(Method::POST, CHATS, body)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let moved = BTreeMap::from([route("chat", "night", &["night-1"])]);
            put_in_force(&house, &site(SITE), &backends(&house), &moved);
            let old = house.backends[0].replica();
            old.set_state(ReplicaState::Draining);
            old.cut();
            let answer = running.await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            let entry = house.entry();
            assert_eq!((entry.deployment.unwrap().as_str(), entry.served_alias), ("night-1", None));
            assert_eq!(runs(&house), [1, 1, 0], "not by the fallback");
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_request_whose_alias_goes_nowhere_any_more_ends_as_if_it_came_now() {
    local(async {
        let mut house = house([route("chat", "day", &["day-0"])]).await;
        house.key = house.make_key("poor", |_| {});
        house.engines[0].set(Script::vllm("tiny-served").paced(Duration::from_secs(30), Duration::ZERO));
        let running = house.begin(house.request(Method::POST, CHATS, CHAT)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        put_in_force(&house, &site(SITE), &backends(&house), &BTreeMap::from([route("chat", "night", &[])]));
        house.backends[0].replica().set_state(ReplicaState::Draining);
        house.backends[0].replica().cut();
        let answer = running.await.unwrap();
        assert_eq!(answer.status, 502, "what ended it says more than that nobody is left: {answer:?}");
        house.assert_idle().await;
    });
}

#[test]
fn a_gap_is_served_by_the_fallback_that_the_caller_may_use() {
    local(async {
        let mut house = house([route("chat", "night", &[])]).await;
        for body in [CHAT, CHAT_STREAM] {
            assert_eq!(house.post(CHATS, body).await.status, 200);
        }
        assert_eq!(runs(&house), [0, 0, 2]);
        let entry = house.last();
        assert_eq!((entry.alias.unwrap().as_str(), entry.served_alias.unwrap().as_str()), ("chat", "spare"));
        let request = house.request(Method::GET, "/v1/models/chat", "");
        assert_eq!(house.send(request).await.json()["tidegate"], json!({"available": true}));
        house.assert_idle().await;
    });
}

#[test]
fn who_may_use_no_fallback_hears_when_the_gap_is_expected_to_end() {
    local(async {
        let (name, row) = route("chat", "night", &[]);
        let until = Some(Unix::from_ms(ELEVEN_AT_NIGHT + 20 * 60_000));
        for (until, wait, says) in [
            (until, "1200", "it is expected back at 2026-12-01T23:20:00+09:00"),
            (None, "5", ""),
            (Some(Unix::from_ms(ELEVEN_AT_NIGHT - 1)), "5", ""),
        ] {
            let mut house = house([(name.clone(), RouteRow { until, ..row.clone() })]).await;
            house.key = house.make_key("poor", |_| {});
            let answer = ask(&mut house, "chat").await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "model_unavailable"));
            assert_eq!(answer.header("retry-after"), Some(wait));
            assert_eq!(answer.header("x-should-retry"), None, "waiting helps");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(says), "{message}");
            assert_eq!((house.entry().status, house.entry().tokens()), (503, 0));
            house.assert_idle().await;
        }
    });
}

#[test]
fn an_alias_in_a_gap_is_listed_to_those_whom_a_fallback_serves() {
    local(async {
        let (name, row) = route("chat", "night", &[]);
        let until = Some(Unix::from_ms(ELEVEN_AT_NIGHT + 20 * 60_000));
        let mut house = house([(name, RouteRow { until, ..row })]).await;
        let poor = house.make_key("poor", |_| {});
        let listed = async |house: &mut House, key: &str| {
            let request = house.request_with(key, Method::GET, "/v1/models", "");
            let list = house.send(request).await.json();
            list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
        };
        let key = house.key.clone();
        let all: Vec<String> = listed(&mut house, &key).await;
        assert_eq!(all, ["chat", "owl", "spare"]);
        let few: Vec<String> = listed(&mut house, &poor).await;
        assert_eq!(few, Vec::<String>::new());
        let request = house.request_with(&poor, Method::GET, "/v1/models/chat", "");
        let one = house.send(request).await.json();
        assert_eq!(one["tidegate"], json!({"available": false, "from": "2026-12-01T23:20:00+09:00"}));
    });
}

#[test]
fn what_a_gap_would_not_allow_is_refused_as_when_it_is_loaded() {
    local(async {
        let routes = BTreeMap::from([route("chat", "night", &[])]);
        let setup = Setup { shift: Some("day"), routes, ..Setup::counting_words() };
        let mut house = House::with(SITE, engines(), setup).await;
        let long = CHAT.replace("\"hi\"", &format!("\"{}\"", "word ".repeat(500)));
        let answer = house.post(CHATS, &long).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "context_length_exceeded"));
        let embeddings = house.post("/v1/embeddings", r#"{"model":"chat","input":"x"}"#).await;
        assert_eq!((embeddings.status.as_u16(), embeddings.code().as_str()), (400, "invalid_value"));
    });
}

#[test]
fn an_absent_route_is_the_absence_that_the_documents_declare() {
    local(async {
        let mut house = house([route("owl", "day", &[]), route("chat", "day", &["day-0"])]).await;
        let answer = ask(&mut house, "owl").await;
        assert_eq!((answer.status.as_u16(), runs(&house)), (200, vec![0, 0, 1]), "its substitute serves");

        let without = SITE.replace("{absent: {substitute: spare}}", "{absent: {}}");
        put_in_force(&house, &site(&without), &backends(&house), &BTreeMap::from([route("owl", "day", &[])]));
        let answer = ask(&mut house, "owl").await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "model_unavailable"));
        assert_eq!(answer.header("retry-after"), Some("82800"), "at 22:00 the next day: the clock says night already");
    });
}

/// A new one failed, so that the old one is held past the hour.
#[test]
fn an_alias_that_the_new_shift_does_not_have_is_served_for_as_long_as_its_route_says() {
    local(async {
        let mut house = house([route("owl", "night", &["night-1"]), route("chat", "day", &["day-0"])]).await;
        assert_eq!(ask(&mut house, "owl").await.status, 200);
        assert_eq!(ask(&mut house, "chat").await.status, 200);
        assert_eq!(runs(&house), [1, 1, 0], "each has the shift of its own route");
    });
}

#[test]
fn a_route_to_what_nobody_knows_is_a_gap_and_one_of_no_alias_is_nothing() {
    local(async {
        let mut house = house([route("chat", "day", &["nobody"]), route("nobody", "day", &["day-0"])]).await;
        assert_eq!(ask(&mut house, "chat").await.status, 200);
        assert_eq!(runs(&house), [0, 0, 1], "the fallback");
        assert_eq!(ask(&mut house, "nobody").await.status, 404);
    });
}
