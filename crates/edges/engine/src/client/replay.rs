//! The client's parser as one function over bytes: for fuzzing, property tests and recorded answers.

use bytes::BytesMut;

use super::error::ClientError;
use super::exchange::Reading;
use super::head::Method;

/// What a response came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A whole response: status, body, and how many bytes of the input were left over.
    Whole {
        /// Its status.
        status: u16,
        /// Its body without framing.
        body: Vec<u8>,
        /// Bytes after its end.
        surplus: usize,
    },
    /// It was refused or cut: the error's text. How much of the body was given out before depends on the reads.
    Refused(String),
}

/// Reads a response from pieces as they would come from a socket, followed by a close.
pub fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut body = BytesMut::new();
    match run(pieces, &mut body) {
        Ok((status, surplus)) => Outcome::Whole { status, body: body.to_vec(), surplus },
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

fn run<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, body: &mut BytesMut) -> Result<(u16, usize), ClientError> {
    let mut pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
    let mut reading = Reading::new(Method::Post);
    let found = loop {
        let piece = pieces.next().unwrap_or_default();
        if let Some(found) = reading.take_in(piece)? {
            break found;
        }
    };
    body.extend_from_slice(&found.payload);
    let mut framing = found.framing;
    let mut surplus = if framing.is_end() { found.surplus } else { 0 };
    for piece in pieces {
        let used = framing.push(piece, body)?;
        surplus += piece.len() - used;
    }
    framing.at_eof()?;
    Ok((found.head.status, surplus))
}
