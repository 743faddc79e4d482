//! Progress, as whoever looks wants it: bars in a terminal, plain lines elsewhere, events as JSON.
//!
//! The work never waits for a terminal: it tells a feed, and a thread of its own reads that and draws.

mod bars;
mod lines;
mod tally;

use std::io::IsTerminal as _;
use std::thread::JoinHandle;

use tidegate_modelcache::progress::{Event, Feed};
use tokio::runtime::Handle;

use self::bars::Bars;
use self::lines::Lines;
pub(crate) use self::tally::{Doing, Tally};
use crate::terminal;

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// One line of JSON for each event, on standard output.
    Json,
    /// Bars on standard error, which is a terminal.
    Bars,
    /// Plain lines on standard error, every few seconds.
    Lines,
}

impl View {
    /// What fits the caller and the terminal.
    pub(crate) fn of(json: bool) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match (json, std::io::stderr().is_terminal() && !is_dumb) {
            (true, _) => Self::Json,
            (false, true) => Self::Bars,
            (false, false) => Self::Lines,
        }
    }
}

/// Shows a feed until it is closed.
#[derive(Debug)]
pub(crate) struct Shown {
    feed: Feed,
    thread: Option<JoinHandle<()>>,
}

impl Shown {
    /// Begins to show what is told to [`Shown::feed`].
    pub(crate) fn start(view: View, tally: Tally, runtime: &Handle) -> Self {
        let feed = Feed::new();
        let thread = feed.listen().map(|mut listener| {
            let runtime = runtime.clone();
            std::thread::spawn(move || {
                let mut screen = Screen::new(view, tally);
                while let Some(event) = runtime.block_on(listener.next()) {
                    screen.event(&event);
                }
                screen.end();
            })
        });
        Self { feed, thread }
    }

    /// Where the work tells what happens.
    pub(crate) fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Shows what is still to be shown, and takes the bars away.
    pub(crate) fn end(mut self) {
        self.feed.close();
        if let Some(thread) = self.thread.take() {
            // It panicked: the work is done all the same.
            let _ = thread.join();
        }
    }
}

enum Screen {
    Json,
    Bars(Box<Bars>),
    Lines(Lines),
}

impl Screen {
    fn new(view: View, tally: Tally) -> Self {
        match view {
            View::Json => Self::Json,
            View::Bars => Self::Bars(Box::new(Bars::new(tally))),
            View::Lines => Self::Lines(Lines::new(tally)),
        }
    }

    fn event(&mut self, event: &Event) {
        let now = std::time::Instant::now();
        match self {
            // How it failed is said once, by whoever ends the verb.
            Self::Json if matches!(event, Event::Failed { .. }) => {}
            Self::Json => {
                if let Ok(line) = serde_json::to_string(event) {
                    terminal::answer(&line);
                }
            }
            Self::Bars(bars) => bars.event(event, now),
            Self::Lines(lines) => {
                for line in lines.event(event, now) {
                    terminal::note(&line);
                }
            }
        }
    }

    fn end(&mut self) {
        if let Self::Bars(bars) = self {
            bars.end();
        }
    }
}
