//! Who is calling: from the credential on a request to a [`Caller`](tidegate_core::Caller).
//!
//! ```text
//! headers, query ──> credential::find ──> authenticate ──> Authenticated ──> may_enter(Door)
//!                    (three forms only)    │ key id or SHA-256
//!                                          └── Keyring: an immutable snapshot, swapped whole by SharedKeyring
//! ```
//!
//! One function serves every route and every credential form: a form with a path of its own is how restrictions are
//! bypassed. The keyring is a snapshot in memory rather than a query, so that no text from a request ever reaches the
//! store and a store that is away does not lock known callers out.

pub mod authenticate;
pub mod credential;
pub mod fuzz;
pub mod key;
pub mod keyring;
pub mod pepper;
pub mod record;
pub mod throttle;

pub use authenticate::{Authenticated, Door, authenticate};
pub use key::{ApiKey, KeyKind};
pub use keyring::{Keyring, Keys, SharedKeyring, StoreState};
pub use pepper::{Mac, Pepper, PepperError};
pub use record::{KeyRecord, LastUsed, PreviousMac};
pub use throttle::PeerThrottle;
