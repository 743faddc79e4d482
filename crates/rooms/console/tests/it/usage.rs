//! The period that a question about usage covers.

use crate::desk::Desk;

#[tokio::test]
async fn usage_until_the_first_of_a_month_is_that_of_the_month_before() {
    let desk = Desk::new().await;
    for (until, from) in [
        // Midnight in Berlin is 23:00 UTC in winter, 22:00 in summer.
        ("2026-12-01", "2026-10-31T23:00:00Z"),
        ("2026-12-01T00:01", "2026-11-30T23:00:00Z"),
        ("2026-11-30", "2026-10-31T23:00:00Z"),
        ("2026-01-01", "2025-11-30T23:00:00Z"),
        ("2026-08-01", "2026-06-30T22:00:00Z"),
    ] {
        let answer = desk.ask("GET", &format!("/admin/v1/usage?until={until}&per=day"), "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["from"], from, "{until}");
    }
}
