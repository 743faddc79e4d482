//! A death at any step of a relayed stream: what was admitted is in the journal, once, and is charged its estimate.
//!
//! The child is this test binary again, with one point armed to abort it; the parent reads the journal it left.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_store::failpoint::Action;
use tidegate_store::{JournalOptions, Journals, failpoint};
use tidegate_testkit::fake::Script;

use crate::house::{CHAT_STREAM, House, SITE, local};

const CHATS: &str = "/v1/chat/completions";
const CHILD: &str = "TIDEGATE_RELAY_CHILD";
const SIGABRT: i32 = 6;

/// Not a test by itself: what the parent starts.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    local(async {
        let script = Script::vllm("tiny-served").paced(Duration::ZERO, Duration::from_millis(10));
        let mut house = House::new(SITE, vec![script]).await;
        assert_eq!(house.post(CHATS, CHAT_STREAM).await.status, 200);
    });
}

#[test]
fn a_process_that_dies_at_any_step_of_a_relay_has_the_request_in_its_journal_once() {
    for point in failpoint::RELAY_POINTS {
        let folder = TempDir::new().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .env("TMPDIR", folder.path())
            .env("TIDEGATE_FAILPOINTS", format!("{point}=abort"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(SIGABRT), "{point} is never passed");
        let mut left = std::fs::read_dir(folder.path()).unwrap();
        let journal = left.next().unwrap().unwrap().path();
        assert!(left.next().is_none());
        let recovery = Journals::open(&journal, JournalOptions::default()).unwrap().1;
        // What was settled may have got as far as the file, or not: then the estimate stands.
        let known = recovery.orphans.len() as u64 + recovery.entries;
        assert_eq!((known, recovery.damage.len()), (1, 0), "{point}");
        if *point != "relay.after_settle" {
            assert!(recovery.orphans[0].output_tokens >= 16, "{point}");
        }
    }
}

#[test]
fn a_request_that_cannot_be_sent_is_tried_elsewhere_and_then_unreachable() {
    local(async {
        let mut house = House::new(SITE, vec![Script::vllm("tiny-served"); 2]).await;
        failpoint::set("relay.before_send", Action::Io, 1);
        assert_eq!(house.chat().await.code(), "upstream_unreachable");
        failpoint::clear("relay.before_send");
        assert_eq!((house.runs(), house.entry().attempts), (0, 2));
        house.assert_idle().await;
    });
}
