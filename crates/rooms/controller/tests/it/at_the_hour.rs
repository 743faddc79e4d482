//! The switch at the hour, of random sites with random troubles.

use tidegate_controller::simulation::switches::play;

/// Switches of every test run; `cargo xtask bench lifecycle` plays 1,000.
const SEEDS: u64 = 10;

#[test]
fn at_the_hour_no_request_is_lost_outside_an_announced_gap_and_nothing_of_a_trouble_is_left_when_it_is_mended() {
    for seed in 1..=SEEDS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let told = runtime.block_on(play(seed));
        assert!(told.violations.is_empty() && told.answered > 1_000, "{told:#?}");
    }
}
