//! Where a body ends: by length, by chunks, by close, or at once. Made for engines' answers; the gate reads its callers'
//! bodies with it too.
//!
//! [`Framing`] is a pure state machine that is pushed whatever arrived and gives back the payload. It keeps no bytes of
//! its own, only where it stands, so that any split of the same bytes gives the same result (a property test holds it
//! to that) and an open stream costs no buffer.

use bytes::BytesMut;

use super::error::ClientError;

/// Longest chunk-size line in bytes, extensions included, line end excluded. Engines send at most eight digits.
pub const CHUNK_LINE_MAX: usize = 256;
/// Most hexadecimal digits of a chunk size: 60 bits, so that the value cannot overflow.
pub const CHUNK_DIGITS_MAX: usize = 15;
/// Bytes of all trailer lines together. Trailers are read and dropped.
pub const TRAILERS_MAX: usize = 8 * 1024;

/// How the end of a body is found, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes are left.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked(Chunked),
    /// Until the engine closes; such a body cannot be told from a cut one, and its connection is never used again.
    UntilClose,
}

/// Where inside the chunk framing the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// In the digits of a size line.
    Size { value: u64, digits: usize },
    /// In a chunk extension, which is skipped.
    Extension { value: u64, line: usize },
    /// After the CR of a size line.
    SizeLf { value: u64 },
    /// In the payload; `left` is at least 1.
    Data { left: u64 },
    /// At the CR after a payload.
    DataCr,
    /// At the LF after a payload.
    DataLf,
    /// At the first byte of a trailer line, or of the empty line that ends the body.
    TrailerStart { total: usize },
    /// Inside a trailer line.
    Trailer { total: usize },
    /// After the CR of a trailer line.
    TrailerLf { total: usize },
    /// After the CR of the empty line.
    LastLf,
    /// The body is complete.
    End,
}

impl Framing {
    /// A chunked body at its first byte.
    pub const CHUNKED: Self = Self::Chunked(Chunked::Size { value: 0, digits: 0 });

    /// Whether the body is complete. A body that ends by close never is; [`Framing::at_eof`] judges it.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunked::End))
    }

    /// Whether a close of the connection here is a clean end.
    ///
    /// # Errors
    /// [`ClientError::Truncated`] when the framing promised more.
    pub const fn at_eof(&self) -> Result<(), ClientError> {
        match self {
            Self::UntilClose | Self::Length(0) | Self::Chunked(Chunked::End) => Ok(()),
            Self::Length(_) | Self::Chunked(_) => Err(ClientError::Truncated),
        }
    }

    /// Takes what arrived, appends its payload to `out`, and returns how many bytes belonged to the body: fewer than
    /// given only when the body ended inside them.
    ///
    /// # Errors
    /// [`ClientError::Malformed`] and [`ClientError::TooLarge`] for chunk framing that is wrong or over a bound.
    pub fn push(&mut self, input: &[u8], out: &mut BytesMut) -> Result<usize, ClientError> {
        match self {
            Self::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                out.extend_from_slice(&input[..take]);
                *left -= take as u64;
                Ok(take)
            }
            Self::Chunked(at) => at.push(input, out),
            Self::UntilClose => {
                out.extend_from_slice(input);
                Ok(input.len())
            }
        }
    }
}

impl Chunked {
    fn push(&mut self, input: &[u8], out: &mut BytesMut) -> Result<usize, ClientError> {
        let mut at = 0;
        while at < input.len() && *self != Self::End {
            if let Self::Data { left } = *self {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len() - at);
                out.extend_from_slice(&input[at..at + take]);
                at += take;
                let left = left - take as u64;
                *self = if left == 0 { Self::DataCr } else { Self::Data { left } };
            } else {
                *self = self.step(input[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// One byte of framing. `Data` and `End` do not come here.
    fn step(self, byte: u8) -> Result<Self, ClientError> {
        match self {
            Self::Size { value, digits } => Self::size_byte(value, digits, byte),
            Self::Extension { value, line } => match byte {
                b'\r' => Ok(Self::SizeLf { value }),
                b'\n' => Err(ClientError::Malformed("bare line feed in a chunk size line")),
                _ if line >= CHUNK_LINE_MAX => Err(ClientError::TooLarge("chunk size line")),
                _ => Ok(Self::Extension { value, line: line + 1 }),
            },
            Self::SizeLf { value } => match (byte, value) {
                (b'\n', 0) => Ok(Self::TrailerStart { total: 0 }),
                (b'\n', left) => Ok(Self::Data { left }),
                _ => Err(ClientError::Malformed("bare carriage return in a chunk size line")),
            },
            Self::DataCr if byte == b'\r' => Ok(Self::DataLf),
            Self::DataLf if byte == b'\n' => Ok(Self::Size { value: 0, digits: 0 }),
            Self::DataCr | Self::DataLf => Err(ClientError::Malformed("chunk is longer than its size")),
            Self::TrailerStart { .. } if byte == b'\r' => Ok(Self::LastLf),
            Self::TrailerStart { total } | Self::Trailer { total } => match byte {
                b'\r' => Ok(Self::TrailerLf { total: total + 1 }),
                b'\n' => Err(ClientError::Malformed("bare line feed in a trailer")),
                _ if total >= TRAILERS_MAX => Err(ClientError::TooLarge("trailers")),
                _ => Ok(Self::Trailer { total: total + 1 }),
            },
            Self::TrailerLf { total } if byte == b'\n' => Ok(Self::TrailerStart { total: total + 1 }),
            Self::LastLf if byte == b'\n' => Ok(Self::End),
            Self::TrailerLf { .. } | Self::LastLf => Err(ClientError::Malformed("bare carriage return in a trailer")),
            Self::Data { .. } | Self::End => Ok(self),
        }
    }

    fn size_byte(value: u64, digits: usize, byte: u8) -> Result<Self, ClientError> {
        if let Some(digit) = char::from(byte).to_digit(16) {
            if digits == CHUNK_DIGITS_MAX {
                return Err(ClientError::TooLarge("chunk size"));
            }
            return Ok(Self::Size { value: value << 4 | u64::from(digit), digits: digits + 1 });
        }
        match byte {
            _ if digits == 0 => Err(ClientError::Malformed("chunk size without a digit")),
            b'\r' => Ok(Self::SizeLf { value }),
            b';' => Ok(Self::Extension { value, line: digits + 1 }),
            _ => Err(ClientError::Malformed("chunk size with a strange byte")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut framing: Framing, input: &[u8]) -> Result<(Vec<u8>, usize, bool), ClientError> {
        let mut out = BytesMut::new();
        let used = framing.push(input, &mut out)?;
        Ok((out.to_vec(), used, framing.is_end()))
    }

    #[test]
    fn chunks_that_arrive_together_leave_together_without_their_framing() {
        let whole = b"5\r\nhello\r\n1;x=y\r\n \r\nA\r\nworld12345\r\n0\r\n\r\n";
        let (body, used, end) = read(Framing::CHUNKED, &[whole, &b"HTTP"[..]].concat()).unwrap();
        assert_eq!(body, b"hello world12345");
        assert!(end);
        assert_eq!(used, whole.len(), "the next response's bytes are not taken");
    }

    #[test]
    fn trailers_are_read_and_dropped_up_to_their_bound() {
        let line = |n: usize| format!("1\r\nx\r\n0\r\n{}\r\n\r\n", "a".repeat(n));
        assert!(read(Framing::CHUNKED, line(TRAILERS_MAX).as_bytes()).unwrap().2);
        assert!(matches!(
            read(Framing::CHUNKED, line(TRAILERS_MAX + 1).as_bytes()),
            Err(ClientError::TooLarge("trailers"))
        ));
    }

    #[test]
    fn a_chunk_size_line_has_a_bound_with_and_without_extension() {
        let ext = |n: usize| format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(n - 2));
        assert!(read(Framing::CHUNKED, ext(CHUNK_LINE_MAX).as_bytes()).unwrap().2);
        assert!(matches!(
            read(Framing::CHUNKED, ext(CHUNK_LINE_MAX + 1).as_bytes()),
            Err(ClientError::TooLarge("chunk size line"))
        ));
        let zeros = |n: usize| format!("{}1\r\nx\r\n0\r\n\r\n", "0".repeat(n - 1));
        assert!(read(Framing::CHUNKED, zeros(CHUNK_DIGITS_MAX).as_bytes()).unwrap().2);
        assert!(matches!(
            read(Framing::CHUNKED, zeros(CHUNK_DIGITS_MAX + 1).as_bytes()),
            Err(ClientError::TooLarge("chunk size"))
        ));
    }

    #[test]
    fn chunk_framing_with_two_readings_is_refused() {
        for input in [
            "5\nhello\r\n0\r\n\r\n",
            "5\rhello",
            "5 \r\nhello\r\n",
            "-1\r\n",
            "+5\r\nhello",
            "0x5\r\nhello",
            "\r\n",
            ";a\r\n",
            "5\r\nhelloXX",
            "5\r\nhello\rX",
            "5;a\nhello",
            "0\r\na: b\n\r\n",
            "0\r\na: b\rX",
            "0\r\n\rX",
        ] {
            assert!(matches!(read(Framing::CHUNKED, input.as_bytes()), Err(ClientError::Malformed(_))), "{input:?}");
        }
    }

    #[test]
    fn a_close_inside_the_framing_is_a_cut_answer() {
        for input in ["", "5", "5\r\nhel", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\n", "0\r\na: b\r\n"] {
            let mut framing = Framing::CHUNKED;
            framing.push(input.as_bytes(), &mut BytesMut::new()).unwrap();
            assert!(matches!(framing.at_eof(), Err(ClientError::Truncated)), "{input:?}");
        }
        assert!(Framing::Length(1).at_eof().is_err());
        assert!(Framing::Length(0).at_eof().is_ok());
        assert!(Framing::UntilClose.at_eof().is_ok());
    }

    #[test]
    fn a_body_by_length_takes_no_byte_more() {
        assert_eq!(read(Framing::Length(3), b"abcdef").unwrap(), (b"abc".to_vec(), 3, true));
        assert_eq!(read(Framing::Length(u64::MAX), b"abc").unwrap(), (b"abc".to_vec(), 3, false));
    }
}
