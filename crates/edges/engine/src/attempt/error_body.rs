//! An engine's error body, in whichever of the known shapes it comes.

use serde_json::Value;

/// Bytes of an error answer that are read; what is longer is judged by its status alone.
pub const ERROR_BODY_MAX: usize = 64 * 1024;

/// What an error body says: nested under `error`, flat, `{"detail": …}`, or nothing readable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorBody {
    /// The engine's text; for the log.
    pub message: String,
    /// The engine's own sort of error.
    pub kind: String,
    /// The field at fault.
    pub param: Option<String>,
    /// Status inside the body: what counts in a stream, where the outer one is 200.
    pub code: Option<u16>,
    /// Whether it was `{"detail": …}`: the web framework's answer, not the engine's.
    pub is_framework: bool,
}

impl ErrorBody {
    /// Reads any bytes; never fails.
    #[must_use]
    pub fn read(body: &[u8]) -> Self {
        if body.len() > ERROR_BODY_MAX {
            return Self { message: format!("an error body of {} bytes", body.len()), ..Self::default() };
        }
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            return Self { message: String::from_utf8_lossy(body).into_owned(), ..Self::default() };
        };
        if let Some(detail) = value.get("detail") {
            return Self { message: text_of(detail), is_framework: true, ..Self::default() };
        }
        match value.get("error") {
            Some(nested @ Value::Object(_)) => Self::of(nested),
            // TEI: {"error": text, "error_type": …}
            Some(text) => {
                let kind = value.get("error_type").map(text_of).unwrap_or_default();
                Self { message: text_of(text), kind, ..Self::default() }
            }
            None if value.is_object() => Self::of(&value),
            None => Self { message: text_of(&value), ..Self::default() },
        }
    }

    fn of(error: &Value) -> Self {
        let text = |key: &str| error.get(key).map(text_of).unwrap_or_default();
        let message = text("message");
        let param = match error.get("param") {
            Some(Value::String(param)) => Some(param.clone()),
            // llama.cpp names it in the text: Field 'max_tokens': Value must be …
            _ => {
                message.strip_prefix("Field '").and_then(|rest| rest.split_once('\'')).map(|(name, _)| name.to_owned())
            }
        };
        Self { kind: text("type"), param, code: code_of(error.get("code")), is_framework: false, message }
    }

    /// The field at fault as the caller may read it: a plain name or path of names, without vLLM's `body.`.
    #[must_use]
    pub fn public_param(&self) -> Option<&str> {
        let param = self.param.as_deref()?;
        let param = param.strip_prefix("body.").unwrap_or(param);
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_.[]-".contains(&b);
        let starts_well = param.starts_with(|c: char| c.is_ascii_alphabetic());
        (starts_well && param.len() <= 64 && param.bytes().all(is_plain)).then_some(param)
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// A number or a number in quotes.
fn code_of(value: Option<&Value>) -> Option<u16> {
    match value? {
        Value::Number(code) => code.as_u64()?.try_into().ok(),
        Value::String(code) => code.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_of_error_body_is_read() {
        let nested = ErrorBody::read(br#"{"error":{"message":"m","type":"T","param":"body.messages","code":400}}"#);
        assert_eq!((nested.kind.as_str(), nested.code), ("T", Some(400)));
        assert_eq!(nested.public_param(), Some("messages"));
        let flat = ErrorBody::read(br#"{"object":"error","message":"m","type":"T","param":null,"code":"503"}"#);
        assert_eq!((flat.message.as_str(), flat.code, flat.public_param()), ("m", Some(503), None));
        let detail = ErrorBody::read(br#"{"detail":[{"loc":["body"]}]}"#);
        assert!(detail.is_framework && detail.message.contains("loc"));
        let tei = ErrorBody::read(br#"{"error":"overloaded","error_type":"Overloaded"}"#);
        assert_eq!((tei.message.as_str(), tei.kind.as_str()), ("overloaded", "Overloaded"));
        let llama = ErrorBody::read(br#"{"error":{"code":400,"message":"Field 'max_tokens': Value must","type":"t"}}"#);
        assert_eq!(llama.public_param(), Some("max_tokens"));
        for junk in [&b""[..], b"<html>", b"[1]", b"\xff\xfe", b"null", b"{\"error\":null}"] {
            assert_eq!(ErrorBody::read(junk).code, None);
        }
    }

    #[test]
    fn a_field_name_that_is_no_name_does_not_reach_the_caller() {
        for param in ["body.9", "<b>", "/models/tiny", "a b", &"x".repeat(65), ""] {
            let body = ErrorBody { param: Some(param.to_owned()), ..ErrorBody::default() };
            assert_eq!(body.public_param(), None, "{param}");
        }
    }

    #[test]
    fn a_long_error_body_is_not_read() {
        let long = format!("\"{}\"", "x".repeat(ERROR_BODY_MAX - 2));
        assert!(ErrorBody::read(long.as_bytes()).message.len() > 1_000);
        let longer = format!("\"{}\"", "x".repeat(ERROR_BODY_MAX - 1));
        assert!(ErrorBody::read(longer.as_bytes()).message.len() < 100);
    }
}
