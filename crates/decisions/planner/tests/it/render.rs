//! A plan for people.

use jiff::tz::TimeZone;
use tidegate_planner::render::{svg, terminal};

use crate::plan::{golden_15, plan_at_22};

fn seoul() -> TimeZone {
    TimeZone::get("Asia/Seoul").unwrap()
}

#[test]
fn the_terminal_says_what_happens_when_and_why() {
    let text = terminal(&plan_at_22(&golden_15(true, "")), &seoul(), 100);
    for line in [
        "day -> night   Tue 2026-12-01 22:00 KST",
        "glm  overlap  on n 0-3",
        "  why    old and new take 200 GB of 288 GB on GPU n/0 (69.4 %)",
        "  steps  21:30 prefetch, 21:40 verify, 21:45 deploy, 21:50 load, 21:55 warm, 22:00 ready",
        "deepseek  drains at 22:00, drained by 22:05, then unloaded (from 22:05 on)",
        "alias glm  appears at 22:00  absent -> glm",
        "alias deepseek  vanishes at 22:00  deepseek -> absent",
        "fetch: not known before the agents have reported",
        "if glm fails: deepseek stays",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}\nis not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.lines().any(|line| line.starts_with("n 0-3  deepseek") && line.contains("==~")), "{text}");
}

#[test]
fn a_gap_that_is_not_allowed_is_marked() {
    let text = terminal(&plan_at_22(&golden_15(false, "")), &seoul(), 80);
    assert!(
        text.contains(
            "alias glm  appears at 22:20  absent -> glm  gap 20m from 22:00, more than is allowed: nobody serves"
        ),
        "{text}"
    );
    assert!(text.contains("deepseek sleeps first"), "{text}");
}

#[test]
fn the_picture_has_a_lane_for_each_gpu_and_nothing_outside_it() {
    let picture = svg(&plan_at_22(&golden_15(true, "")), &seoul());
    for gpu in 0..8 {
        assert!(picture.contains(&format!(">n/{gpu}</text>")), "{picture}");
    }
    assert!(picture.contains("<title>glm loads 21:45 - 21:55</title>"), "{picture}");
    let numbers = picture.split(" x=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<i64>().unwrap());
    assert!(numbers.into_iter().all(|x| (0..=1_000).contains(&x)));
    assert_eq!(picture.matches("<svg").count(), 1);
    assert_eq!(picture.matches("<rect").count(), picture.matches("<title>").count() - 1 + 7, "{picture}");
    assert!(!picture.contains("href"), "it needs nothing from outside");
}
