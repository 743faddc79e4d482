//! Entry points for fuzz targets and for the tests that run their corpora. Each takes any bytes, holds what has to hold
//! for every input, and panics only when it does not. Not for use in the gate.
//!
//! Where the input has to say how it is cut into reads, its first byte does: reads of that many bytes, 0 meaning one
//! read.
#![expect(clippy::panic, reason = "a broken invariant is what a fuzz target has to report")]

use bytes::Bytes;

use crate::endpoint::{Endpoint, Flavour};
use crate::json::{self, Kind, Value};
use crate::messages::{self, ChatToMessages, Told};
use crate::multipart::{Form, HEAD_MAX, PARTS_MAX, Step};
use crate::request::{self, Upstream, UsageAsked};
use crate::sse::{Cause, EVENT_MAX, Stream, StreamFault, StreamOptions};
use crate::{answer, usage::Usage};

/// What a stream gave: bytes, how it ended, usage.
type Ran = (Vec<u8>, Option<Cause>, Option<Usage>);

/// Panics when an invariant does not hold.
#[track_caller]
fn hold(holds: bool, what: &str) {
    if !holds {
        panic!("{what}");
    }
}

fn cut(data: &[u8]) -> (usize, &[u8]) {
    match data.split_first() {
        Some((&0, rest)) => (rest.len().max(1), rest),
        Some((&size, rest)) => (usize::from(size), rest),
        None => (1, data),
    }
}

fn drive(
    body: &[u8],
    read: usize,
    mut push: impl FnMut(Option<Bytes>) -> Result<Bytes, StreamFault>,
) -> (Vec<u8>, Option<Cause>) {
    let mut out = Vec::new();
    let reads = body.chunks(read).map(|read| Some(Bytes::copy_from_slice(read)));
    for read in reads.chain([None]) {
        match push(read) {
            Ok(bytes) => out.extend_from_slice(&bytes),
            Err(fault) => {
                out.extend_from_slice(&fault.before);
                let after = push(Some(Bytes::from_static(b"data: [DONE]\n\n")));
                hold(after == Ok(Bytes::new()), "nothing leaves a stream that broke");
                return (out, Some(fault.cause));
            }
        }
    }
    (out, None)
}

fn relay(flavour: Flavour, asked: UsageAsked, body: &[u8], read: usize) -> Ran {
    let mut stream = Stream::new(StreamOptions { flavour, alias: "alias".into(), asked });
    let (out, cause) = drive(body, read, |read| match read {
        Some(read) => stream.push(read),
        None => stream.end(),
    });
    (out, cause, stream.usage())
}

/// Event streams: however a stream is cut into reads, the same leaves, and the same usage is read; what leaves, sent
/// through once more, leaves unchanged.
pub fn sse(data: &[u8]) {
    let (read, body) = cut(data);
    for flavour in [Flavour::Chat, Flavour::Completions, Flavour::Responses, Flavour::Messages] {
        for asked in [UsageAsked::No, UsageAsked::Final, UsageAsked::Continuous] {
            let whole = relay(flavour, asked, body, body.len().max(1));
            hold(relay(flavour, asked, body, read) == whole, "the output does not depend on the reads");
            let (out, cause, _) = whole;
            hold(out.len() < 8 * body.len() + EVENT_MAX, "the output is bounded by the input");
            if cause.is_none() {
                let again = relay(flavour, asked, &out, read);
                hold(again.1.is_none(), "a whole stream is a whole stream to the next reader");
                hold(again.0 == out, "what was rewritten once stays");
            }
        }
    }
}

/// Whether our reading of a value and another reader's agree.
fn agree(ours: &Value<'_>, theirs: &serde_json::Value) -> bool {
    match (ours.kind, theirs) {
        (Kind::Null, serde_json::Value::Null) => true,
        (Kind::Bool, serde_json::Value::Bool(value)) => ours.as_bool() == Some(*value),
        // The other reader refuses numbers beyond a double and rounds long ones, so only whole ones are compared.
        (Kind::Number, serde_json::Value::Number(number)) => number.as_u64().is_none_or(|n| ours.as_u64() == Some(n)),
        (Kind::String, serde_json::Value::String(text)) => ours.as_str().as_deref() == Some(text),
        (Kind::Array, serde_json::Value::Array(list)) => ours.array().is_some_and(|elements| {
            let mut list = list.iter();
            elements.into_iter().all(|element| list.next().is_some_and(|other| agree(&element, other)))
                && list.next().is_none()
        }),
        (Kind::Object, serde_json::Value::Object(map)) => ours.object().is_some_and(|object| {
            object.members().count() == map.len()
                && object.members().all(|(key, value)| map.get(&*key).is_some_and(|other| agree(&value, other)))
        }),
        _ => false,
    }
}

/// Request bodies: what is accepted is read by another reader in the same way; a rewritten body is accepted, has the
/// new values, and every other member byte for byte.
pub fn json(data: &[u8]) {
    let Ok(object) = json::parse(data) else { return };
    if let Ok(theirs) = serde_json::from_slice::<serde_json::Value>(data) {
        hold(agree(&Value { kind: Kind::Object, raw: data.trim_ascii() }, &theirs), "one text has one reading");
    }
    for endpoint in Endpoint::ALL {
        let Ok(facts) = request::read(endpoint, &object) else { continue };
        let texts = request::prompt_text(endpoint, &object).unwrap_or_default();
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let bound = facts.prompt_bytes - facts.template_tokens - facts.token_ids;
        // Documents of a rerank are read with the query each time, and sound counts beside its text.
        hold(bytes as u64 <= bound || endpoint == Endpoint::Rerank, "the bound covers every text of the prompt");
        let upstream = Upstream {
            model: "served \"name\"",
            max_tokens: Some(77),
            usage: true,
            continuous_usage: true,
            priority: Some(-3),
            cache_salt: Some("salt"),
        };
        let out = request::rewrite(endpoint, &object, &facts, &upstream);
        let Ok(after) = json::parse(&out) else { panic!("a rewritten body is good") };
        let text = |key: &str| after.get(key).and_then(|value| value.as_str());
        hold(text("model").as_deref() == Some(upstream.model), "the model is set");
        hold(text("cache_salt").as_deref() == Some("salt"), "the salt is set");
        for (key, value) in object.members() {
            let set = ["model", "max_tokens", "max_completion_tokens", "max_output_tokens", "stream_options"];
            if set.contains(&&*key) {
                continue;
            }
            match after.get(&key) {
                _ if ["priority", "cache_salt"].contains(&&*key) => {}
                Some(after) => hold(after.raw == value.raw, "other members stay as they are"),
                None => hold(request::DENIED.contains(&&*key), "only the deny list is dropped"),
            }
        }
    }
}

/// Whole answers: usage and id are read without harm from any bytes; what was rewritten once stays.
pub fn usage(data: &[u8]) {
    for endpoint in Endpoint::ALL {
        let first = answer::rewrite(endpoint, Bytes::copy_from_slice(data), "alias");
        let again = answer::rewrite(endpoint, first.body.clone(), "alias");
        hold(first == again, "what was rewritten once stays, and is read the same");
        hold(!first.malformed || json::parse(data).is_err(), "a good object is read as one");
    }
    // The same object as the usage of the last chunk of a stream, wherever the reads are cut.
    let Ok(object) = json::parse(data) else { return };
    let chunk = [b"data: {\"choices\":[],\"usage\":", object.text().trim_ascii(), b"}\n\n"].concat();
    if data.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return;
    }
    let whole = relay(Flavour::Chat, UsageAsked::Continuous, &chunk, chunk.len());
    for read in [1, 7] {
        let split = relay(Flavour::Chat, UsageAsked::Continuous, &chunk, read);
        hold(split.2 == whole.2, "usage does not depend on the reads");
    }
}

/// Whether another reader takes it for JSON: ours would refuse what translation nests one level deeper.
fn good(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// Messages: a request becomes good JSON or a fault; an answer becomes good JSON; a stream gives the same events
/// however it is cut into reads.
pub fn messages(data: &[u8]) {
    let (read, body) = cut(data);
    let told = Told { alias: "alias".into(), thinking: data.len().is_multiple_of(2) };
    if let Ok(object) = json::parse(body)
        && let Ok(facts) = request::read(Endpoint::Messages, &object)
    {
        let upstream = Upstream { model: "m", ..Upstream::default() };
        if let Ok(chat) = messages::to_chat(&object, &facts, &upstream) {
            hold(good(&chat), "a translated request is good JSON");
        }
    }
    let answer = messages::answer_from_chat(&Bytes::copy_from_slice(body), &told);
    if !answer.malformed && !answer.aborted {
        hold(good(&answer.body), "a translated answer is good JSON");
    }
    let translate = |read: usize| {
        let mut stream = ChatToMessages::new(told.clone());
        drive(body, read, |read| match read {
            Some(read) => stream.push(read),
            None => stream.end(),
        })
    };
    let whole = translate(body.len().max(1));
    hold(translate(read) == whole, "the events do not depend on the reads");
    let stop = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let stops = memchr::memmem::find_iter(&whole.0, stop).count();
    hold(stops == 0 || whole.1.is_none(), "a broken stream does not look whole");
}

/// Multipart forms: what is found does not depend on the reads; a rewritten form is read with the new model.
pub fn multipart(data: &[u8]) {
    let (read, body) = cut(data);
    let scan = |body: &[u8], read: usize| {
        let mut form = Form::new("multipart/form-data; boundary=X").ok()?;
        let mut decided = Step::More;
        for read in body.chunks(read.max(1)) {
            if decided == Step::More {
                decided = form.push(read).ok()?;
            } else {
                form.watch(read).ok()?;
            }
        }
        let model = form.model().map(str::to_owned);
        let whole = form.end().is_ok();
        Some((model, whole, form))
    };
    let (whole, split) = (scan(body, body.len()), scan(body, read));
    let found = |scan: &Option<(Option<String>, bool, Form)>| {
        scan.as_ref().map(|(model, whole, form)| (model.clone(), *whole, form.stream(), form.max_tokens()))
    };
    hold(found(&whole) == found(&split), "what is found does not depend on the reads");
    let Some((model, true, form)) = whole else { return };
    // A new name may move what stands at a bound over it.
    if body.len() > HEAD_MAX / 2 || memchr::memmem::find_iter(body, b"--X").count() >= PARTS_MAX {
        return;
    }
    let head = form.head("new-model", None);
    let Some((after, true, _)) = scan(&head, head.len()) else { panic!("a rewritten form is good") };
    hold(after.as_deref() == Some("new-model"), "the model is rewritten, or put in front");
    let grown = head.len() as i64 - body.len() as i64;
    hold(model.is_none() || grown == 9 - model.map_or(0, |model| model.len() as i64), "nothing else changes");
}
