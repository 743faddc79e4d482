//! The lifecycle as metrics, read when somebody scrapes.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tidegate_console::lifecycle::{LifecycleStatus, Note, StepView, SwitchView};
use tidegate_store::store::SwitchMode;

/// What the controller said of itself at a scrape.
#[derive(Debug)]
struct LifecycleCollector(LifecycleStatus);

impl Collector for LifecycleCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode(&self.0, Timestamp::now(), Page(encoder))
    }
}

/// A page of what the lifecycle is at; `None`: no controller runs here, and there is nothing to show.
pub(crate) fn registry(status: Option<LifecycleStatus>) -> Registry {
    let mut registry = Registry::default();
    if let Some(status) = status {
        registry.register_collector(Box::new(LifecycleCollector(status)));
    }
    registry
}

/// Names and values of a series' labels; values come from the documents, the nodes, or a closed set.
type Labels = Vec<(&'static str, String)>;

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), fmt::Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            ConstGauge::new(value).encode(family.encode_family(&Set(labels))?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result<(), fmt::Error> {
        let family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(family)
    }
}

struct Set(Labels);

impl EncodeLabelSet for Set {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }
}

fn encode(status: &LifecycleStatus, now: Timestamp, mut page: Page<'_>) -> Result<(), fmt::Error> {
    switch(status, now, &mut page)?;
    deployments(status, &mut page)?;
    troubles(status, now, &mut page)
}

fn switch(status: &LifecycleStatus, now: Timestamp, page: &mut Page<'_>) -> Result<(), fmt::Error> {
    let name = |shift: &Option<tidegate_core::ShiftName>| shift.as_ref().map_or("", |shift| shift.as_str()).to_owned();
    let shifts = vec![("loaded", name(&status.shift)), ("desired", name(&status.desired))];
    page.gauges("tidegate_shift_info", "1; which shift is loaded, and which should be", [(shifts, 1.0)])?;
    let mode = status.switch.as_ref().map(|switch| switch.mode);
    let is_in = |wanted: Option<SwitchMode>| f64::from(u8::from(mode == wanted));
    let states = [
        ("idle", None),
        ("runs", Some(SwitchMode::Runs)),
        ("paused", Some(SwitchMode::Paused)),
        ("aborts", Some(SwitchMode::Aborts)),
    ];
    page.gauges(
        "tidegate_switch_state",
        "1 for what the switch in progress does; idle: there is none",
        states.map(|(state, wanted)| (vec![("state", state.to_owned())], is_in(wanted))),
    )?;
    let in_progress = f64::from(u8::from(status.switch.is_some()));
    page.gauge("tidegate_switch_in_progress", "1 while a switch is in progress", in_progress)?;
    let paused = f64::from(u8::from(status.paused));
    page.gauge("tidegate_lifecycle_paused", "1 while no new step is taken", paused)?;
    page.gauge("tidegate_controller_generation", "The controller's highest generation", status.generation as f64)?;
    let Some(last) = status.switch.as_ref().or(status.last.as_ref()) else { return Ok(()) };
    let lateness = last.lateness_seconds(now);
    let help = "Seconds from the hour to the end of the switch in progress, or of the last one; 0 before the hour";
    page.gauge("tidegate_switch_lateness_seconds", help, lateness)?;
    let help = "Seconds that each step of the switch in progress, or of the last one, has taken";
    page.gauges("tidegate_switch_step_seconds", help, steps(last, now))
}

/// Steps that have begun, one series each: those of a deployment that was begun again count together.
fn steps(switch: &SwitchView, now: Timestamp) -> Vec<(Labels, f64)> {
    let mut sums: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for StepView { deployment, phase, began, ended, .. } in &switch.steps {
        let Some(began) = began else { continue };
        let seconds = ended.unwrap_or(now).duration_since(*began).as_secs_f64().max(0.0);
        *sums.entry((deployment.as_str(), phase)).or_default() += seconds;
    }
    let labels =
        |deployment: &str, phase: &str| vec![("deployment", deployment.to_owned()), ("phase", phase.to_owned())];
    sums.into_iter().map(|((deployment, phase), seconds)| (labels(deployment, phase), seconds)).collect()
}

fn deployments(status: &LifecycleStatus, page: &mut Page<'_>) -> Result<(), fmt::Error> {
    let count = |read: fn(&tidegate_console::lifecycle::DeploymentView) -> u32| {
        let series = status.deployments.iter().map(move |view| {
            let revision = format!("{:016x}", view.revision);
            (vec![("deployment", view.deployment.to_string()), ("revision", revision)], f64::from(read(view)))
        });
        series.collect::<Vec<_>>()
    };
    let help = "Replicas that should be, by deployment and revision";
    page.gauges("tidegate_deployment_replicas_desired", help, count(|view| view.desired))?;
    let help = "Replicas that serve, by deployment and revision";
    page.gauges("tidegate_deployment_replicas_ready", help, count(|view| view.ready))?;
    let help = "Replicas that are kept warm or asleep for a way back, by deployment and revision";
    page.gauges("tidegate_deployment_replicas_pinned", help, count(|view| view.pinned))?;
    let phases = status.deployments.iter().flat_map(|view| {
        view.phases.iter().map(|(phase, seconds)| {
            (vec![("deployment", view.deployment.to_string()), ("phase", phase.clone())], *seconds)
        })
    });
    // Two revisions of one deployment: the later one's figures.
    let phases: BTreeMap<Labels, f64> = phases.collect();
    let help = "Seconds of each phase of a deployment's last start; they sum to its wall time, unexplained included";
    page.gauges("tidegate_phase_seconds", help, phases)
}

fn troubles(status: &LifecycleStatus, now: Timestamp, page: &mut Page<'_>) -> Result<(), fmt::Error> {
    let overrun = status.switch.iter().flat_map(|switch| &switch.overrun);
    let overrun = overrun.map(|(alias, seconds)| (vec![("alias", alias.to_string())], *seconds as f64));
    let help = "Seconds that an alias has been served by its old deployments past its hour";
    page.gauges("tidegate_shift_overrun_seconds", help, overrun)?;
    let gaps = status
        .gaps
        .iter()
        .map(|gap| (vec![("alias", gap.alias.to_string())], now.duration_since(gap.since).as_secs_f64().max(0.0)));
    let help = "Seconds that a present alias has had no deployment of its own";
    page.gauges("tidegate_alias_gap_seconds", help, gaps)?;
    let mut nodes: BTreeMap<&str, f64> = BTreeMap::new();
    for gpu in &status.quarantined {
        *nodes.entry(&gpu.node).or_default() += 1.0;
    }
    let gpus = nodes.into_iter().map(|(node, count)| (vec![("node", node.to_owned())], count));
    let help = "GPUs that nobody gets because their memory was not proven free";
    page.gauges("tidegate_gpus_quarantined", help, gpus)?;
    let help = "Nodes that do not answer the controller";
    page.gauge("tidegate_nodes_away", help, status.away.len() as f64)?;
    let help = "Deployments that failed and are not loaded";
    page.gauge("tidegate_deployments_failed", help, status.failures.len() as f64)?;
    let mut alarms: BTreeMap<&str, f64> = BTreeMap::new();
    let of_switch = status.switch.iter().flat_map(|switch| &switch.notes);
    for Note { code, .. } in of_switch.chain(&status.notes) {
        *alarms.entry(code).or_default() += 1.0;
    }
    let alarms = alarms.into_iter().map(|(code, count)| (vec![("code", code.to_owned())], count));
    let help = "Alarms of the switch in progress and outside of one, by code";
    page.gauges("tidegate_lifecycle_alarms", help, alarms)
}

#[cfg(test)]
mod tests {
    use tidegate_console::lifecycle::{DeploymentView, GapView, QuarantinedGpu};

    use super::*;

    fn page(status: Option<LifecycleStatus>) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry(status)).unwrap();
        text
    }

    /// The value of a series.
    fn value(page: &str, series: &str) -> f64 {
        let line = page.lines().find(|line| line.starts_with(series) && line[series.len()..].starts_with(' '));
        line.unwrap_or_else(|| panic!("no {series}:\n{page}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn switch(now: Timestamp) -> SwitchView {
        let ago = |seconds| Timestamp::from_second(now.as_second() - seconds).unwrap();
        let step = |phase: &str, began: Option<i64>, ended: Option<i64>| StepView {
            deployment: "glm".into(),
            phase: phase.to_owned(),
            from: ago(100),
            until: ago(0),
            began: began.map(ago),
            ended: ended.map(ago),
            text: None,
        };
        SwitchView {
            number: 5,
            generation: 5,
            from: "day".into(),
            to: "night".into(),
            at: ago(50),
            started: ago(100),
            ended: None,
            mode: SwitchMode::Paused,
            outcome: None,
            why: String::new(),
            new: BTreeMap::new(),
            old: BTreeMap::new(),
            aliases: BTreeMap::new(),
            steps: vec![step("load", Some(90), Some(60)), step("load", Some(40), None), step("warm", None, None)],
            overrun: [("chat".into(), 50)].into(),
            notes: vec![Note { at: ago(1), code: "late".into(), about: "glm".into(), text: String::new() }],
        }
    }

    #[test]
    fn a_switch_in_progress_is_a_page_of_figures() {
        let now = Timestamp::now();
        let gpu = |node: &str, gpu| QuarantinedGpu { node: node.into(), gpu, replica: "a/0".into(), why: None };
        let status = LifecycleStatus {
            controller: true,
            generation: 5,
            shift: Some("day".into()),
            desired: Some("night".into()),
            switch: Some(switch(now)),
            deployments: vec![DeploymentView {
                deployment: "glm".into(),
                revision: 255,
                desired: 2,
                ready: 1,
                pinned: 0,
                phases: [("load".to_owned(), 30.5), ("unexplained".to_owned(), 1.5)].into(),
            }],
            gaps: vec![GapView { alias: "owl".into(), since: now, until: None, served_by: None }],
            quarantined: vec![gpu("n1", 0), gpu("n1", 3)],
            ..LifecycleStatus::default()
        };
        let page = page(Some(status));
        for (series, expected) in [
            (r#"tidegate_shift_info{loaded="day",desired="night"}"#, 1.0),
            (r#"tidegate_switch_state{state="paused"}"#, 1.0),
            (r#"tidegate_switch_state{state="runs"}"#, 0.0),
            ("tidegate_switch_in_progress", 1.0),
            (r#"tidegate_shift_overrun_seconds{alias="chat"}"#, 50.0),
            (r#"tidegate_gpus_quarantined{node="n1"}"#, 2.0),
            (r#"tidegate_lifecycle_alarms{code="late"}"#, 1.0),
            (r#"tidegate_deployment_replicas_desired{deployment="glm",revision="00000000000000ff"}"#, 2.0),
            (r#"tidegate_deployment_replicas_ready{deployment="glm",revision="00000000000000ff"}"#, 1.0),
            (r#"tidegate_phase_seconds{deployment="glm",phase="unexplained"}"#, 1.5),
        ] {
            assert!((value(&page, series) - expected).abs() < f64::EPSILON, "{series}: {page}");
        }
        assert!(value(&page, "tidegate_switch_lateness_seconds") >= 49.0);
        let load = value(&page, r#"tidegate_switch_step_seconds{deployment="glm",phase="load"}"#);
        assert!((69.0..80.0).contains(&load), "both tries: {load}");
        assert!(!page.contains(r#"phase="warm""#), "what has not begun has no figure");
        assert!(value(&page, r#"tidegate_alias_gap_seconds{alias="owl"}"#) >= 0.0);
    }

    #[test]
    fn without_a_controller_there_is_nothing_to_show() {
        assert_eq!(page(None), "# EOF\n");
        let idle = page(Some(LifecycleStatus::default()));
        assert!((value(&idle, r#"tidegate_switch_state{state="idle"}"#) - 1.0).abs() < f64::EPSILON);
        assert!(!idle.contains("lateness"), "no switch was ever late");
    }
}
