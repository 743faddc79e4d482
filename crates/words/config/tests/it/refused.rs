//! Each rule of the documents, by the smallest document that breaks it.

use tidegate_config::site::{Counters, MessagesApi, SecretRef, Server, ShiftTargets, Store};
use tidegate_config::{Source, check};
use tidegate_core::ShiftName;

use crate::site_of::{BASE, said, with};

#[track_caller]
fn only(more: &str, expected: &[&str]) {
    assert_eq!(said(more), expected, "{more}");
}

const DAY_AND_NIGHT: &str = "kind: Schedule
metadata: {name: s}
spec: {shifts: [{name: day, start: '08:00', deployments: [d]}, {name: night, start: '22:00', deployments: [e]}]}
---
";

/// The base, in which alias `a` is plain, does not go with two shifts: this one brings its own alias.
fn scheduled(alias: &str) -> Vec<String> {
    let base = BASE.replace("spec: {targets: [{deployment: d}]}", alias);
    let schedule = format!("apiVersion: tidegate.dev/v1alpha1\n{DAY_AND_NIGHT}");
    let checked = check(&[Source::new("base.yaml", base), Source::new("schedule.yaml", schedule)]);
    checked
        .diagnostics
        .iter()
        .map(|found| format!("{} {}: {}", found.severity.as_str(), found.path, found.message))
        .collect()
}

#[test]
fn the_base_of_these_tests_is_clean() {
    assert_eq!(check(&[Source::new("base.yaml", BASE)]).diagnostics, []);
}

#[test]
fn without_a_schedule_there_is_one_shift_always_with_every_target() {
    let site = check(&[Source::new("base.yaml", BASE)]).site.unwrap();
    assert_eq!(site.default_shift(), ShiftName::from("always"));
    assert!(matches!(&site.aliases["a"].shifts["always"], ShiftTargets::Targets(targets) if targets.len() == 1));
    assert_eq!(site.store, Store::Sqlite("tidegate.db".into()));
    assert_eq!(site.gateway.listen.to_string(), "127.0.0.1:8000");
    assert_eq!(site.admin.listen.to_string(), "127.0.0.1:8900");
    assert_eq!(
        site.engines["vllm"].messages,
        MessagesApi::Native,
        "a dialect that is used and not listed has an engine"
    );
}

/// A site with these fields and nothing else.
fn site_of(fields: &str) -> tidegate_config::Checked {
    let text = format!("apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\nspec: {{{fields}}}");
    check(&[Source::new("site.yaml", text)])
}

#[test]
fn the_password_of_a_store_or_of_counters_comes_from_outside_the_documents() {
    let checked = site_of(
        "store: {url: 'postgres://gate@db/tidegate', password: {fromEnv: DB_PASSWORD}}, \
         counters: {url: 'rediss://cache:6380', password: {fromFile: redis.txt}}",
    );
    assert_eq!(checked.diagnostics, []);
    let site = checked.site.unwrap();
    let password = Some(SecretRef::Env("DB_PASSWORD".into()));
    assert_eq!(site.store, Store::Postgres(Server { url: "postgres://gate@db/tidegate".into(), password }));
    let password = Some(SecretRef::File("redis.txt".into()));
    assert_eq!(site.counters, Counters::Redis(Server { url: "rediss://cache:6380".into(), password }));
    for (fields, path, message) in [
        ("store: {url: 'postgres://u:p@db/t'}", "spec.store.url", "a password stands in the URL"),
        ("store: {url: 'postgres://u@db/t?password=p'}", "spec.store.url", "a password stands in the URL"),
        ("counters: {url: 'redis://:p@cache'}", "spec.counters.url", "a password stands in the URL"),
        (
            "store: {url: 'sqlite:a.db', password: {fromEnv: P}}",
            "spec.store.password",
            "a password, and no server that asks for one",
        ),
        (
            "counters: {url: 'memory:', password: {fromEnv: P}}",
            "spec.counters.password",
            "a password, and no server that asks for one",
        ),
        ("store: {url: 'postgres://db/t', password: {}}", "spec.store.password", "neither `fromEnv` nor `fromFile`"),
        (
            "counters: {url: 'redis://h', password: {fromEnv: 1X}}",
            "spec.counters.password.fromEnv",
            "not the name of an environment variable",
        ),
    ] {
        let found = site_of(fields).diagnostics;
        let [found] = &found[..] else { panic!("{fields}: {found:?}") };
        assert_eq!((found.path.as_str(), found.message.as_str()), (path, message), "{fields}");
        assert!(!found.render().contains("p@") && !found.render().contains("=p"), "{}", found.render());
    }
    assert_eq!(site_of("store: {url: 'postgres://db/t', password: plain}").errors(), 1, "never as a text");
}

#[test]
fn every_shift_is_spoken_of() {
    assert_eq!(
        scheduled("spec: {shifts: {day: {targets: [{deployment: d}]}}}"),
        [
            "warning spec.shifts[1].deployments[0]: no alias reaches Deployment `e` in shift `night`",
            "error spec.shifts.night: nothing is said about shift `night`"
        ]
        .into_iter()
        .rev()
        .collect::<Vec<_>>()
    );
}

#[test]
fn same_as_is_resolved_and_its_targets_must_be_loaded_there() {
    let said = scheduled("spec: {shifts: {day: {targets: [{deployment: d}]}, night: {sameAs: day}}}");
    assert_eq!(said[0], "error spec.shifts.night.sameAs: Deployment `d` is not loaded in shift `night`");
    let said = scheduled("spec: {shifts: {day: {sameAs: night}, night: {sameAs: day}}}");
    assert_eq!(said[0], "error spec.shifts.day.sameAs: `sameAs` goes in a circle: day → night → day");
    let said = scheduled("spec: {shifts: {day: {sameAs: noon}, night: {targets: [{deployment: e}]}}}");
    assert_eq!(said[0], "error spec.shifts.day.sameAs: no shift of this alias has the name `noon`");
}

#[test]
fn a_plain_alias_needs_its_targets_in_every_set() {
    let said = scheduled("spec: {targets: [{deployment: d}]}");
    assert_eq!(said[0], "error spec.targets: Deployment `d` is not loaded in shift `night`");
}

#[test]
fn a_substitute_is_served_in_that_shift() {
    let two = "spec: {shifts: {day: {targets: [{deployment: d}]}, night: {absent: {substitute: NAME}}}}
---
kind: Alias
metadata: {name: b}
spec: {shifts: {day: {absent: }, night: {absent: {}}}}";
    let said = scheduled(&two.replace("NAME", "b").replace("absent: }", "absent: {}}"));
    assert!(
        said.contains(
            &"error spec.shifts.night.absent.substitute: alias `b` is absent in shift `night` itself".to_owned()
        ),
        "{said:?}"
    );
    let said = scheduled(&two.replace("NAME", "a").replace("absent: }", "absent: {}}"));
    assert!(
        said.contains(&"error spec.shifts.night.absent.substitute: an alias cannot stand in for itself".to_owned()),
        "{said:?}"
    );
    let said = scheduled(&two.replace("NAME", "bb"));
    assert!(
        said.contains(&"error spec.shifts.night.absent.substitute: no Alias has the name `bb`".to_owned()),
        "{said:?}"
    );
    assert!(
        said.contains(&"error spec.shifts.day: expected exactly one of `targets`, `sameAs` and `absent`".to_owned()),
        "an empty `absent` says nothing: {said:?}"
    );
}

#[test]
fn an_alias_without_a_schedule_speaks_of_no_other_shift() {
    only(
        "kind: Alias\nmetadata: {name: b}\nspec: {shifts: {always: {targets: [{deployment: d}]}, day: {absent: {}}}}",
        &["error spec.shifts.day: no shift has the name `day`"],
    );
}

#[test]
fn fallbacks_never_come_back() {
    let chain = |last: &str| {
        format!(
            "kind: Alias\nmetadata: {{name: b}}\nspec: {{targets: [{{deployment: d}}], fallback: [c]}}\n---\nkind: Alias\nmetadata: {{name: c}}\nspec: {{targets: [{{deployment: d}}], fallback: [{last}]}}"
        )
    };
    only(&chain("a"), &[]);
    only(&chain("b"), &["error spec.fallback[0]: falls back in a circle: b → c → b"]);
}

#[test]
fn an_alias_is_served_by_one_kind_of_deployment() {
    let vectors = "kind: Deployment
metadata: {name: v}
spec: {model: m, kind: embedding, endpoints: [{url: 'http://127.0.0.1:9002'}]}
---
kind: Alias
metadata: {name: b}
spec: {targets: [{deployment: v}], fallback: [a]}
---
kind: Alias
metadata: {name: c}
spec: {targets: [{deployment: d}, {deployment: v}]}";
    only(
        vectors,
        &[
            "error spec.fallback[0]: alias `a` is served by deployments of another kind",
            "error spec.targets: deployments of different kinds cannot serve one alias",
        ],
    );
}

#[test]
fn a_date_has_one_schedule_and_dates_beat_days() {
    let two = |first: &str, second: &str| {
        format!(
            "kind: Schedule\nmetadata: {{name: s}}\nspec: {{{first}shifts: [{{name: day, start: '08:00', deployments: [d]}}]}}\n---\nkind: Schedule\nmetadata: {{name: t}}\nspec: {{{second}shifts: [{{name: day, start: '09:00', deployments: [d]}}]}}"
        )
    };
    only(&two("days: [mon, tue], ", "days: [wed], "), &[]);
    only(&two("", "dates: [2026-12-25], "), &[]);
    only(&two("days: [mon, tue], ", "days: [tue], "), &["error spec.days: tue has two Schedules: `s` and `t`"]);
    only(&two("", "days: [sun], "), &["error spec.days: sun has two Schedules: `s` and `t`"]);
    only(
        &two("dates: [2026-12-25, 2026-12-26], ", "dates: [2026-12-26], "),
        &["error spec.dates: 2026-12-26 has two Schedules: `s` and `t`"],
    );
}

#[test]
fn one_shift_name_means_one_set() {
    only(
        "kind: Schedule\nmetadata: {name: s}\nspec: {days: [mon], shifts: [{name: day, start: '08:00', deployments: [d]}]}\n---\nkind: Schedule\nmetadata: {name: t}\nspec: {days: [tue], shifts: [{name: day, start: '09:00', deployments: [d, e]}]}",
        &[
            "error spec.shifts[0].deployments: shift `day` has another set in Schedule `s`",
            "warning spec.shifts[0].deployments[1]: no alias reaches Deployment `e` in shift `day`",
        ],
    );
}

#[test]
fn exceptions_name_a_shift_or_none_and_each_date_once() {
    only(
        "kind: Schedule\nmetadata: {name: s}\nspec: {exceptions: [{date: 2026-12-25, use: none}, {date: 2026-12-25, use: day}, {date: 2026-12-26, use: night}], shifts: [{name: day, start: '08:00', deployments: [d]}, {name: dusk, start: '08:00', deployments: [d]}]}",
        &[
            "error spec.exceptions[1].date: 2026-12-25 stands twice",
            "error spec.exceptions[2].use: no shift has the name `night`",
            "error spec.shifts[1].start: shift `day` starts at that time too",
        ],
    );
}

#[test]
fn a_smaller_minimum_needs_a_size_that_passed() {
    let needs = |passed: &str| {
        format!(
            "kind: Deployment\nmetadata: {{name: f}}\nspec: {{model: m, launch: {{command: [serve]}}, parallel: {{tp: 4}}, gpus: {{required: 4, min: 2}}, profile: {{passed: {passed}}}}}"
        )
    };
    only(&needs("{'2': 20, '4': 48}"), &[]);
    only(&needs("{'4': 48}"), &["error spec.gpus.min: the profile passed no tensor-parallel size of at most 2"]);
    only(
        &needs("{'3': 48}"),
        &[
            "error spec.gpus.min: the profile passed no tensor-parallel size of at most 2",
            "error spec.profile.passed.3: `3` is not a tensor-parallel size",
        ],
    );
}

#[test]
fn a_profile_belongs_to_its_model_and_is_alone_in_its_file() {
    let deployment = "kind: Deployment\nmetadata: {name: f}\nspec: {model: m, endpoints: [{url: 'http://127.0.0.1:9002'}], profile: {fromFile: ./profiles/../p.yaml}}";
    let profile = |name: &str| {
        format!("kind: ModelProductionProfile\nmetadata: {{name: {name}}}\nspec: {{model: {name}, concurrency: 5}}")
    };
    let check_with = |text: String| {
        let sources = [
            Source::new("base.yaml", BASE),
            Source::new("more.yaml", format!("apiVersion: tidegate.dev/v1alpha1\n{deployment}")),
            Source::new("p.yaml", format!("apiVersion: tidegate.dev/v1alpha1\n{text}")),
        ];
        check(&sources)
    };
    assert_eq!(check_with(profile("m")).site.unwrap().deployments["f"].profile.concurrency, Some(5));
    let said = check_with(profile("other")).diagnostics;
    assert_eq!(said[0].message, "the profile was measured for model `other`, the deployment serves `m`");
    let said = check_with(format!("{}\n---\n{}", profile("m"), profile("n"))).diagnostics;
    assert_eq!(said[0].message, "the file holds several ModelProductionProfiles");
}

#[test]
fn engine_arguments_that_tidegate_sets_are_refused() {
    only(
        "kind: Deployment\nmetadata: {name: f}\nspec: {model: m, launch: {command: [serve]}, engineArgs: ['--port=1', '--ctx-size', '--gpu-memory-utilization=0.5'], memory: {weights: 1GB, kvCache: 1GB}}",
        &[
            "error spec.engineArgs[0]: `--port` is set by Tidegate",
            "error spec.engineArgs[2]: `--gpu-memory-utilization` beside a memory budget",
        ],
    );
}

#[test]
fn a_kv_tier_is_given_once_and_to_an_engine_that_has_one() {
    let deployment = |fields: &str| {
        format!("kind: Deployment\nmetadata: {{name: f}}\nspec: {{model: m, launch: {{command: [serve]}}, {fields}}}")
    };
    only(
        &deployment("kvTier: {external: lmcache}, engineArgs: ['--kv-transfer-config={}']"),
        &["error spec.engineArgs[0]: `--kv-transfer-config` beside a KV tier"],
    );
    only(&deployment("engineArgs: ['--kv-transfer-config={}']"), &[]);
    let llama = "kind: Model\nmetadata: {name: l}\nspec: {engine: llama.cpp, source: {local: m.gguf}}\n---\n";
    let on_llama = deployment("kvTier: {external: nixl}").replace("model: m", "model: l");
    only(&(llama.to_owned() + &on_llama), &["error spec.kvTier.external: llama.cpp has no external KV tier"]);
}

#[test]
fn a_deployment_promises_no_more_context_than_its_engine_serves() {
    let deployment = |arguments: &str| {
        format!(
            "kind: Deployment\nmetadata: {{name: f}}\nspec: {{model: m, launch: {{command: [serve]}}, limits: {{contextTokens: 128Ki}}, engineArgs: [{arguments}]}}"
        )
    };
    only(&deployment("'--max-model-len=131072'"), &[]);
    let expected = "error spec.engineArgs[0]: the engine serves 131071 tokens, the deployment promises 131072";
    only(&deployment("'--max-model-len=131071'"), &[expected]);
    only(&deployment("'--max-model-len', '131071'"), &[expected]);
}

#[test]
fn reservations_stand_on_gpus_that_exist_and_do_not_overlap() {
    let node = "kind: Node\nmetadata: {name: n}\nspec: {gpus: {count: 4}}\n---\n";
    let reservation = |name: &str, gpus: &str, from: &str, until: &str| {
        format!(
            "kind: Reservation\nmetadata: {{name: {name}}}\nspec: {{node: n, gpus: {gpus}, from: '2026-12-{from}T00:00', until: '2026-12-{until}T00:00', owner: x}}\n---\n"
        )
    };
    let first = reservation("r", "0-1", "01", "03");
    only(&format!("{node}{first}{}", reservation("s", "1-2", "03", "04")), &[]);
    only(
        &format!("{node}{first}{}", reservation("s", "1-2", "02", "04")),
        &["error spec.gpus: GPUs are reserved for x in part of that time, by Reservation `r`"],
    );
    only(
        &format!("{node}{}", reservation("s", "3-4", "02", "04")),
        &["error spec.gpus: GPU 4 does not exist: there are 4, from 0"],
    );
    only(&format!("{node}{}", reservation("s", "3", "02", "02")), &["error spec.until: ends before it begins"]);
}

#[test]
fn teams_name_aliases_that_exist_and_members_whose_issuer_does() {
    only(
        "kind: Team\nmetadata: {name: t}\nspec: {members: [{oidcGroup: /x}, {serviceAccount: {issuer: c, namespace: n, name: s}}], models: [{alias: b}, {all: true}, {all: true}], deny: [a, a]}",
        &[
            "error spec.members[0].oidcGroup: the Site has no OIDC issuer",
            "error spec.members[1].serviceAccount.issuer: no Kubernetes cluster has the name `c`",
            "error spec.models[0].alias: no Alias has the name `b`",
            "error spec.models[2]: the same thing is granted twice",
            "error spec.deny[1]: `a` stands twice",
        ],
    );
    only("kind: Team\nmetadata: {name: t}\nspec: {}", &["warning spec.models: the team may use nothing"]);
}

#[test]
fn one_site_and_one_only() {
    only(
        "kind: Site\nmetadata: {name: second}\nspec: {}",
        &["error kind: a second Site document, the first is at base.yaml"],
    );
    let said = check(&[]).diagnostics;
    assert_eq!(said[0].message, "no Site document");
    assert!(check(&[Source::new("x.yaml", "")]).site.is_none());
}

#[test]
fn a_document_that_cannot_be_read_makes_no_errors_out_of_what_refers_to_it() {
    // `b` may well be the alias that could not be read; `c` stands nowhere.
    let checked = with(
        "kind: Team\nmetadata: {name: t}\nspec: {models: [{alias: b}, {alias: c}]}\n---\nkind: Alias\nmetadata: {name: b\nspec: x",
    );
    let said: Vec<&str> = checked.diagnostics.iter().map(|found| found.message.as_str()).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[0], "no Alias has the name `c`");
}

#[test]
fn a_broken_spec_still_has_its_name() {
    // The alias's target list is unusable, the team's grant for it is not wrong because of that.
    let said = said(
        "kind: Alias\nmetadata: {name: b}\nspec: 7\n---\nkind: Team\nmetadata: {name: t}\nspec: {models: [{alias: b}]}",
    );
    assert_eq!(said, ["error spec: expected a mapping, found text"]);
}

#[test]
fn positions_are_those_of_the_value_also_through_aliases_of_yaml() {
    let checked = with(
        "kind: Team\nmetadata: {name: t}\nspec:\n  limits: &l {rpm: 5x}\n  perCaller: *l\n  models: [{all: true}]\n",
    );
    let places: Vec<(u32, u32, &str)> =
        checked.diagnostics.iter().map(|found| (found.line, found.column, found.path.as_str())).collect();
    assert_eq!(places, [(5, 20, "spec.limits.rpm"), (5, 20, "spec.perCaller.rpm")]);
}

#[test]
fn a_rendered_diagnostic_begins_as_editors_expect() {
    let checked = with("kind: Alias\nmetadata: {name: b}\nspec: {targts: [{deployment: d}]}");
    let text = checked.diagnostics[0].render();
    assert_eq!(
        text,
        "more.yaml:4:7: error: neither `targets` nor `shifts`\n    at    Alias b, spec.targets\n    hint  write targets: [{deployment: NAME}], or shifts"
    );
    assert_eq!(
        checked.diagnostics[1].render(),
        "more.yaml:4:8: error: unknown key `targts`\n    at    Alias b, spec.targts\n    value [{deployment: d}]\n    hint  did you mean `targets`?"
    );
}
