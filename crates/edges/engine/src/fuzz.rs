//! Entries for fuzzing: everything of an engine that is parsed. They panic only where a promise is broken.

use crate::attempt::{self, ErrorBody, INTERNAL_MAX};
use crate::client::replay;
use crate::dialect::Dialect;
use crate::scrape;

/// A response as it would come from a socket: whole, split in the middle and byte by byte, it must be read the same.
pub fn response(input: &[u8]) {
    let whole = replay::read([input]);
    let (left, right) = input.split_at(input.len() / 2);
    assert_eq!(whole, replay::read([left, right]), "a split must not change what is read");
    assert_eq!(whole, replay::read(input.chunks(1)), "nor must many");
}

/// An error answer of any status: the caller's text never holds the engine's, and the log's is bounded.
pub fn error_body(input: &[u8]) {
    let (status, body) = match input {
        [high, low, body @ ..] => (300 + u16::from_be_bytes([*high, *low]) % 300, body),
        _ => (500, input),
    };
    let message = ErrorBody::read(body).message;
    for dialect in [Dialect::Vllm, Dialect::LlamaCpp] {
        let fault = attempt::refused(dialect, status, body).into_fault();
        // Field names are let through, and are short.
        assert!(message.len() <= 64 || !fault.public.contains(&*message), "engine text reaches the caller");
        assert!(fault.internal.is_none_or(|text| text.len() <= INTERNAL_MAX), "log text over its bound");
    }
}

/// A metrics page: signals are absent or numbers that can be counts and shares.
pub fn metrics(input: &[u8]) {
    for dialect in [Dialect::Vllm, Dialect::LlamaCpp] {
        let signals = scrape::parse(dialect, input);
        for count in [signals.waiting, signals.running].into_iter().flatten() {
            assert!(count >= 0.0, "a negative count");
        }
        assert!(signals.kv_usage.is_none_or(|share| (0.0..=1.0).contains(&share)), "a share outside 0 to 1");
    }
}
