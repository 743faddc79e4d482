//! How each new replica takes over from old ones, and in which order, so that aliases wait least.
//!
//! Time 0 is the hour. A new deployment is started *before* it when it fits beside everything that is loaded (then the
//! switch has no gap), *at* it, or *after* another one is proven. Whoever is in the way is drained first: that is what
//! makes a gap. Which choice is best for all together is searched: exactly where few changes touch each other, from
//! the best single steps where many do. Changes that share neither a GPU nor an alias are searched apart.
//!
//! ```text
//! old ━━━━━━━━━━━━━━━━┓ drain ┓                     spare, overlap: new is proven before the hour
//! new   ┏ load ━ warm ┻━━━━━━━┻━━━━━━━━
//! old ━━━━━━━━━━━━━━━━┓ drain ┓                     sleep, replace: a gap of drain + load
//! new                         ┏ load ━ warm ┳━━━━
//!                     0 = the hour
//! ```

use serde::{Deserialize, Serialize};

mod evaluate;
mod problem;
mod search;

use std::fmt;

pub use evaluate::{Outcome, evaluate};
pub use problem::{AliasMove, Arrival, Leaver, Problem};
pub use search::{best, parts};

/// How a new deployment takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Strategy {
    /// It shares no GPU with an old one.
    Spare,
    /// It shares GPUs with old ones, and all fit in their memory.
    Overlap,
    /// Old ones sleep, then it loads; an abort wakes them.
    Sleep,
    /// Old ones are stopped, then it loads; an abort loads them again.
    Replace,
}

impl Strategy {
    /// The strategy as people read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::Overlap => "overlap",
            Self::Sleep => "sleep",
            Self::Replace => "replace",
        }
    }

    /// Whether old ones have to go before it loads.
    #[must_use]
    pub const fn has_gap(self) -> bool {
        matches!(self, Self::Sleep | Self::Replace)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When a new deployment is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum When {
    /// So early that it is proven at the hour.
    Before,
    /// At the hour.
    AtHour,
    /// When the arrival of that number is proven.
    After(usize),
}
