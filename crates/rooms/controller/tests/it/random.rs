//! Random switches with faults at random moments.

use tidegate_controller::simulation::story::tell;

/// Stories that every test run tells; the bench tells more.
const STORIES: u64 = 50;
/// Switches of each.
const SWITCHES: u32 = 4;

#[test]
fn random_switches_with_faults_lose_no_request_outside_an_announced_gap_and_come_to_rest() {
    let only: Option<u64> = std::env::var("STORY").ok().and_then(|seed| seed.parse().ok());
    let mut wrong = Vec::new();
    for seed in only.map_or(0..STORIES, |seed| seed..seed + 1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let report = runtime.block_on(tell(seed, SWITCHES));
        if !report.wrongs.is_empty() {
            wrong.push(report);
        }
    }
    let all: Vec<String> = wrong.iter().map(|report| format!("{}: {}", report.seed, report.wrongs[0])).collect();
    assert!(wrong.is_empty(), "{} stories went wrong: {all:#?}", wrong.len());
}
