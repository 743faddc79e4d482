//! How long Tidegate takes from its start to its first answer with 100 documents, and how large the program is.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::figures::{Figure, Goal, median};
use super::stand::{self, Stand};
use crate::terminal::complain;

const STARTS: usize = 5;
/// Aliases, each with its model and deployment: with Site and Team 101 documents.
const ALIASES: usize = 33;
/// How often the gate is asked until it answers.
const POLL: Duration = Duration::from_millis(1);
const GIVE_UP: Duration = Duration::from_secs(30);

/// Starts it several times.
///
/// # Errors
/// It does not start, or never answers.
pub(super) fn run(stand: &Stand) -> Result<Vec<Figure>> {
    let folder = stand.folder.join("start");
    let mut documents = stand::site(stand::free_port()?, stand::free_port()?);
    for number in 0..ALIASES {
        documents.push_str(&stand::alias(&format!("alias-{number}"), &stand.mock, "mock"));
    }
    documents.push_str(stand::TEAM);
    let key = {
        let runs = stand.tidegate_on(&folder, &documents)?;
        runs.address.key.context("Tidegate without a key")?
    };
    let gate = stand::listen_of(&documents, "gateway")?;
    let body = r#"{"model":"alias-0","messages":[{"role":"user","content":"hello"}],"max_tokens":4}"#;
    let message = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {gate}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut seconds = Vec::new();
    for number in 1..=STARTS {
        complain!("start {number} of {STARTS}");
        let start = Instant::now();
        let mut process = stand.up(&folder)?;
        loop {
            let answer = stand::ask(&gate, &message);
            if matches!(answer, Ok(200)) {
                break;
            }
            process.alive()?;
            if start.elapsed() > GIVE_UP {
                bail!("no answer after {GIVE_UP:?}: {answer:?}");
            }
            sleep(POLL);
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    let size = std::fs::metadata(&stand.tidegate).context("cannot see the program")?.len() as f64 / 1e6;
    Ok(vec![
        Figure::own("start to first answer, 101 documents", "s", median(&seconds).unwrap_or(f64::NAN))
            .wants(Goal::AtMost(0.3)),
        Figure::own("program size", "MB", size).wants(Goal::AtMost(40.0)),
    ])
}
