//! An HTTP/1.1 client towards engines, made for relaying.
//!
//! Why not hyper's: its client hands over one frame per upstream chunk, through a channel between two tasks, which
//! costs more than everything else a relayed event costs. This one reads the socket into the thread's buffer, removes
//! the chunk framing and yields **one frame per read**: what arrived together leaves together, what arrived alone
//! leaves at once, and nothing waits. No task is spawned, and no timer is set but the one of the connect deadline.
//!
//! ```text
//! Pool (one core, one engine) -- send --> exchange: head and body out in one write, response head in
//!   ^                                        |
//!   +-- connection, when the body ended <-- ResponseBody -- poll_frame --> the relay
//! ```
//!
//! Everything an engine sends is bounded and read strictly: what could be read in two ways is refused (both lengths,
//! folded lines, bare line ends, codings other than chunked), since a disagreement here would end in somebody else's
//! answer. An engine that is reached over a connection which breaks that rule loses the connection.

mod body;
mod endpoint;
mod error;
mod exchange;
mod framing;
mod head;
mod io;
mod pool;
pub mod replay;
pub mod tls;

pub use body::ResponseBody;
pub use endpoint::{Endpoint, EndpointError, URL_MAX};
pub use error::ClientError;
pub use framing::{CHUNK_DIGITS_MAX, CHUNK_LINE_MAX, Chunked, Framing, TRAILERS_MAX};
pub use head::{HEAD_BYTES_MAX, HEADERS_MAX, Head, INTERIM_MAX, Method, REQUEST_ID_MAX, ResponseHead};
pub use io::{Connect, Connecting, Io, READ_BUFFER};
pub use pool::{CallOptions, Pool, PoolSettings, Response};
