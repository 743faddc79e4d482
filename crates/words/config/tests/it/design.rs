//! The whole example of the design parses, checks, and means what its comments say.

use std::time::Duration;

use tidegate_config::site::{
    Class, DeploymentKind, GpuFacts, GrantScope, KeepFree, Launcher, Member, MemoryBudget, ModelSource, Priority,
    SecretRef, Serve, ShiftTargets, Stage, Store,
};
use tidegate_config::{Site, Source, check, referenced_files};
use tidegate_core::{AliasName, Limits, ShiftName, TeamName};

fn sources() -> Vec<Source> {
    vec![
        Source::new("site/design.yaml", include_str!("../data/design.yaml")),
        Source::new("site/rest.yaml", include_str!("../data/rest.yaml")),
        Source::new("site/profiles/glm-5.3-flash.yaml", include_str!("../data/profile.yaml")),
    ]
}

fn site() -> Site {
    let checked = check(&sources());
    let said: Vec<String> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
    // Its weights are 0, so traffic never reaches it, but it is a target: nothing else is to be warned of.
    assert!(said.is_empty(), "{}", said.join("\n"));
    checked.site.unwrap()
}

#[test]
fn the_example_of_the_design_checks_without_a_word() {
    let site = site();
    assert_eq!(&*site.name, "seoul-1");
    assert_eq!(site.time_zone.iana_name(), Some("Asia/Seoul"));
    assert_eq!(site.stage, Stage::Direct);
    assert_eq!(site.gateway.listen.to_string(), "0.0.0.0:8000");
    assert_eq!(site.gateway.tls.unwrap().cert, SecretRef::File("site/tls.crt".into()), "beside the document");
    assert_eq!(site.engine_ports, 8001..=8099);
    assert_eq!(site.store, Store::Sqlite("tidegate.db".into()), "relative to the state folder, not to the document");
    assert_eq!(site.model_cache.keep_free, KeepFree::Percent(10.0));
    assert_eq!(site.launcher, Launcher::Processes);
    assert_eq!(&*site.engines["vllm"].env["VLLM_NO_USAGE_STATS"], "1");
    assert_eq!(site.engines["vllm"].version.as_deref(), Some("0.32.0"));
}

#[test]
fn hardware_of_the_example_is_counted_in_bytes_and_indices() {
    let site = site();
    let node = &site.nodes["gpu-node-01"];
    assert_eq!((node.facts, node.gpu_count), (GpuFacts::Nvml, 8));
    assert_eq!(node.gpu_memory_bytes, Some(288_000_000_000));
    assert_eq!(node.host_memory_bytes, Some(2_000_000_000_000));
    assert_eq!(node.numa[1].cpus.len(), 64);
    assert!(node.groups[0].classes.contains(&Class::Interactive));
    let reservation = &site.reservations["finetune-week-49"];
    assert_eq!(reservation.until.to_string(), "2026-12-06T00:00:00");
    assert_eq!(reservation.gpus.iter().copied().collect::<Vec<_>>(), [4, 5, 6, 7]);
}

#[test]
fn the_deployment_of_the_example_takes_its_figures_from_the_profile_file() {
    let site = site();
    let model = &site.models["glm-5.3-flash"];
    assert_eq!(model.source, Some(ModelSource::Store { path: "glm/5.3-flash".into(), digest: None }));
    let deployment = &site.deployments["glm-5.3-flash-fp8-v3"];
    assert_eq!(deployment.profile.concurrency, Some(36));
    assert_eq!(deployment.profile.passed[&2], 20);
    assert_eq!(deployment.tp(), 4);
    let gb = 1_000_000_000;
    let budget = MemoryBudget { weights: 280 * gb, kv_cache: 80 * gb, workspace: 20 * gb, reserve: 20 * gb };
    assert_eq!(deployment.memory, Some(budget));
    assert!(matches!(deployment.serve, Serve::Launch { replicas: 1, .. }));
    assert_eq!((deployment.context_tokens, deployment.max_output_tokens), (Some(131_072), Some(8_192)));
    assert_eq!(&*deployment.served_name, "glm-5.3-flash");
    assert_eq!(site.deployments["docling-v1"].kind, DeploymentKind::Document);
    assert_eq!(site.deployments["docling-v1"].cpu, Some(0.5));
}

#[test]
fn alias_limits_come_from_the_document_first_and_from_the_profiles_else() {
    let site = site();
    let glm = &site.aliases["glm-flash"];
    assert_eq!(glm.limits.concurrency, Some(30), "the document wins over the profile's 36");
    assert_eq!(glm.limits.rpm, Some(600), "from the profile");
    assert_eq!(glm.shifts["night"], ShiftTargets::Absent { substitute: None });
    assert_eq!(glm.fallback, [AliasName::from("qwen")]);

    let qwen = &site.aliases["qwen"];
    let night = qwen.limits_in(&ShiftName::from("night"));
    let expected = Limits { concurrency: Some(12), rpm: Some(600), tpm: Some(1_000_000), ..Limits::default() };
    assert_eq!(night, expected, "the smallest over the targets that get traffic");
    assert_eq!(qwen.limits_in(&ShiftName::from("day")).concurrency, Some(48), "each shift has its own");
    assert_eq!(qwen.limits.concurrency, Some(12), "over all shifts the smallest");
}

#[test]
fn schedule_and_team_of_the_example() {
    let site = site();
    let schedule = &site.schedules["weekday"];
    assert_eq!(schedule.days.len(), 5);
    assert_eq!(schedule.shifts[1].start.to_string(), "22:00:00");
    assert_eq!(schedule.shifts[0].deployments.len(), 4);
    assert_eq!(schedule.lead.prefetch, Duration::from_secs(30 * 60));
    assert_eq!(schedule.gap_allowed, Duration::ZERO);
    assert_eq!(site.default_shift(), ShiftName::from("day"));
    assert_eq!(site.shifts().len(), 2);

    let team = &site.teams[&TeamName::from("discovery")];
    assert_eq!(team.limits.monthly_tokens, Some(2_000_000_000));
    assert_eq!(team.grants[0].max_input_tokens, Some(131_072));
    assert_eq!(team.grants[0].limits.daily_tokens, Some(20_000_000));
    assert_eq!(team.grants[1].scope, GrantScope::Class(Class::Batch));
    assert_eq!(team.members.len(), 2);
    assert!(matches!(&team.members[0], Member::OidcGroup { issuer: None, group } if &**group == "/ai/discovery"));
    assert!(team.deny.contains("qwen"));
    assert_eq!(team.priority, Priority::Normal);
    assert_eq!(team.time_zone.iana_name(), Some("Asia/Seoul"), "the Site's");
}

#[test]
fn profile_files_that_are_not_given_are_asked_for_and_their_absence_is_reported() {
    let mut sources = sources();
    assert_eq!(referenced_files(&sources), Vec::<std::path::PathBuf>::new());
    sources.pop();
    assert_eq!(referenced_files(&sources), [std::path::PathBuf::from("site/profiles/glm-5.3-flash.yaml")]);
    let checked = check(&sources);
    assert!(checked.site.is_none());
    assert_eq!(checked.errors(), 1);
    assert_eq!(checked.diagnostics[0].path, "spec.profile.fromFile");
}
