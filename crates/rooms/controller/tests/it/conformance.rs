//! What every launcher has to do, whatever its replicas are.

use std::time::Duration;

use tidegate_controller::launcher::{Exposure, Fetched, LaunchFault, Launcher, Order, Seen, SeenState};
use tidegate_node::{InstanceId, Proof};

use crate::pods::Subject;

const PATIENCE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

/// All of it.
pub(crate) async fn conforms(subject: &dyn Subject) {
    a_life_from_the_model_to_the_record(subject).await;
    a_command_may_be_repeated(subject).await;
    what_ended_by_itself_says_why(subject).await;
    an_instance_nobody_knows_is_no_error(subject).await;
    // last: it leaves a generation behind
    an_earlier_generation_is_refused(subject).await;
}

async fn until(launcher: &dyn Launcher, instance: &InstanceId, found: impl Fn(Option<&Seen>) -> bool) -> Option<Seen> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let all = launcher.look().await.unwrap();
        let own = all.into_iter().find(|seen| seen.instance == *instance);
        if found(own.as_ref()) {
            return own;
        }
        assert!(tokio::time::Instant::now() < deadline, "never seen so: {own:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn up(launcher: &dyn Launcher, order: &Order) -> Seen {
    assert_eq!(launcher.fetch(1, order).await, Ok(Fetched::Verified));
    launcher.start(1, order).await.unwrap();
    let is_up = |seen: Option<&Seen>| seen.is_some_and(|seen| matches!(seen.state, SeenState::Running { .. }));
    until(launcher, &order.instance, is_up).await.unwrap()
}

async fn gone(launcher: &dyn Launcher, instance: &InstanceId) {
    launcher.stop(1, instance, SOON).await.unwrap();
    let is_over = |seen: Option<&Seen>| seen.is_none_or(|seen| matches!(seen.state, SeenState::Ended { .. }));
    until(launcher, instance, is_over).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !matches!(launcher.prove(1, instance).await.unwrap(), Proof::Free { .. }) {
        assert!(tokio::time::Instant::now() < deadline, "never proven");
    }
    launcher.forget(1, instance).await.unwrap();
    until(launcher, instance, |seen| seen.is_none()).await;
}

async fn a_life_from_the_model_to_the_record(subject: &dyn Subject) {
    let (launcher, order) = (subject.launcher(), subject.fresh());
    let seen = up(launcher, &order).await;
    assert_eq!((&seen.key, seen.revision, seen.generation), (&order.key, order.blueprint.revision, 1));
    assert_eq!(seen.seat.gpus(), order.seat.gpus());
    assert!(seen.started_at.is_some());
    launcher.expose(1, &order.instance, Exposure::In).await.unwrap();
    launcher.expose(1, &order.instance, Exposure::Out).await.unwrap();
    let early = launcher.prove(1, &order.instance).await.unwrap();
    assert!(matches!(early, Proof::NotFree { .. }), "while it runs nothing is free: {early:?}");
    assert!(launcher.forget(1, &order.instance).await.is_err(), "what runs is not forgotten");
    gone(launcher, &order.instance).await;
}

async fn a_command_may_be_repeated(subject: &dyn Subject) {
    let (launcher, order) = (subject.launcher(), subject.fresh());
    let first = up(launcher, &order).await;
    let again = up(launcher, &order).await;
    assert_eq!(first.state, again.state, "started twice it is started once");
    launcher.stop(1, &order.instance, SOON).await.unwrap();
    launcher.stop(1, &order.instance, Duration::ZERO).await.unwrap();
    gone(launcher, &order.instance).await;
    launcher.forget(1, &order.instance).await.unwrap();
}

async fn what_ended_by_itself_says_why(subject: &dyn Subject) {
    let (launcher, order) = (subject.launcher(), subject.fresh());
    up(launcher, &order).await;
    subject.break_it(&order.instance).await;
    let is_over = |seen: Option<&Seen>| seen.is_some_and(|seen| matches!(seen.state, SeenState::Ended { .. }));
    let seen = until(launcher, &order.instance, is_over).await.unwrap();
    let SeenState::Ended { cause } = seen.state else { unreachable!() };
    assert!(!cause.is_empty());
    gone(launcher, &order.instance).await;
}

async fn an_instance_nobody_knows_is_no_error(subject: &dyn Subject) {
    let (launcher, unknown) = (subject.launcher(), InstanceId::new("nobody-0-g1").unwrap());
    launcher.stop(1, &unknown, SOON).await.unwrap();
    launcher.forget(1, &unknown).await.unwrap();
    launcher.expose(1, &unknown, Exposure::Out).await.unwrap();
    assert!(matches!(launcher.prove(1, &unknown).await.unwrap(), Proof::Free { .. }));
}

async fn an_earlier_generation_is_refused(subject: &dyn Subject) {
    let (launcher, order) = (subject.launcher(), subject.fresh());
    launcher.start(9, &order).await.unwrap();
    let late = subject.fresh();
    let stale = |done: Result<(), LaunchFault>| assert_eq!(done, Err(LaunchFault::Stale { highest: 9 }));
    stale(launcher.start(8, &late).await);
    stale(launcher.start(8, &order).await);
    stale(launcher.stop(8, &order.instance, SOON).await);
    stale(launcher.forget(8, &order.instance).await);
    assert_eq!(launcher.prove(8, &order.instance).await, Err(LaunchFault::Stale { highest: 9 }));
    assert!(!launcher.look().await.unwrap().iter().any(|seen| seen.instance == late.instance));
    launcher.stop(9, &order.instance, SOON).await.unwrap();
}
