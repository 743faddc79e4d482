//! From script, fault and request to the steps that are played.

use bytes::Bytes;
use serde_json::json;

use super::answers::{self, Body, Events, Route, Run};
use super::life::{self, Life};
use super::refusal::Refusal;
use super::script::{Fault, Script, Shape};
use super::wire::{LAST_CHUNK, Recorded, Step, chunk, head};
use super::{Finish, LONG, Log};

/// A planned answer of a request that runs a model.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) id: String,
    pub(super) prompt: u64,
    pub(super) cached: u64,
    pub(super) steps: Vec<Step>,
    /// How it has ended when all steps are played.
    pub(super) finish: Finish,
}

/// Plans a request that runs a model.
pub(super) fn run(script: &Script, fault: Option<&Fault>, route: Route, request: &Recorded, serial: u64) -> Planned {
    if let Some(refusal) = refusal_of(script, fault) {
        return refused(script, refusal);
    }
    match fault {
        Some(Fault::Hang) => {
            let steps = vec![Step::Freeze];
            return Planned { id: String::new(), prompt: 0, cached: 0, steps, finish: Finish::Fault };
        }
        Some(Fault::OutOfMemory) => {
            let (status, body) = life::OUT_OF_MEMORY;
            let (steps, finish) = (said(script, status, "application/json", body), Finish::Fault);
            return Planned { id: String::new(), prompt: 0, cached: 0, steps, finish };
        }
        _ => {}
    }
    let run = match answers::run(script, route, request, serial) {
        Ok(run) => run,
        Err(refusal) => return refused(script, refusal),
    };
    let mut steps = Vec::new();
    let first = match fault {
        Some(Fault::SlowFirstByte(time)) => *time,
        _ => script.pace.first,
    };
    if !first.is_zero() {
        steps.push(Step::Wait(first));
    }
    let finish = if fault.is_none() { Finish::Done } else { Finish::Fault };
    let Run { id, prompt, cached, body } = run;
    match (fault, body) {
        (Some(Fault::ResetBeforeHead), _) => steps.push(Step::Reset),
        (Some(Fault::CloseBeforeHead), _) => steps.push(Step::Close),
        (Some(Fault::BadHead), _) => steps.extend([say("SSH-2.0-OpenSSH_9.9\r\n\r\n"), Step::Close]),
        (Some(Fault::TwoLengths), _) => steps.extend([
            say("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            Step::Close,
        ]),
        (fault, Body::Json(body, tokens)) => unstreamed(script, fault, body, tokens, &mut steps),
        (fault, Body::Stream(events)) => streamed(script, fault, events, &mut steps),
    }
    Planned { id, prompt, cached, steps, finish }
}

fn say(text: impl Into<Bytes>) -> Step {
    Step::Say(text.into(), 0)
}

const fn refusal_of(script: &Script, fault: Option<&Fault>) -> Option<Refusal> {
    match fault {
        Some(Fault::Refuse(refusal)) => Some(*refusal),
        _ if script.is_loading => Some(Refusal::LlamaLoading),
        _ => None,
    }
}

fn refused(script: &Script, refusal: Refusal) -> Planned {
    let (status, body) = refusal.answer();
    let content_type = if body.starts_with('<') { "text/html" } else { "application/json" };
    // llama.cpp closes after every error; vLLM keeps the connection.
    let closes = script.shape == Shape::LlamaCpp;
    let lines: &[(&str, &str)] = if closes { &[("connection", "close")] } else { &[("server", "uvicorn")] };
    let mut steps = vec![say(head(status, content_type, Some(body.len()), lines)), say(body)];
    if closes {
        steps.push(Step::Close);
    }
    Planned { id: String::new(), prompt: 0, cached: 0, steps, finish: Finish::Refused(status) }
}

fn unstreamed(script: &Script, fault: Option<&Fault>, body: Bytes, tokens: u64, steps: &mut Vec<Step>) {
    let body = match fault {
        Some(Fault::NotJson) => Bytes::from_static(b"<html>ok</html>"),
        Some(Fault::OtherModel) => {
            let text = String::from_utf8_lossy(&body);
            text.replace(&format!(r#""model":"{}""#, script.model), r#""model":"somebody-else""#).into()
        }
        Some(Fault::NoUsage) => without_usage(&body),
        Some(Fault::Abort(_)) => {
            let text = String::from_utf8_lossy(&body);
            text.replace(r#""finish_reason":"stop""#, r#""finish_reason":"abort""#)
                .replace(r#""finish_reason":"length""#, r#""finish_reason":"abort""#)
                .into()
        }
        _ => body,
    };
    let content_type = match fault {
        Some(Fault::ContentType(other)) => other,
        _ => "application/json",
    };
    let head = head(200, content_type, Some(body.len()), &[("server", server(script))]);
    let think: u32 = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
    let pause = script.pace.each.saturating_mul(think);
    match fault {
        Some(Fault::ResetAfterHead) => steps.extend([say(head), Step::Reset]),
        Some(Fault::Cut(_) | Fault::EndWithoutDone(_)) => {
            steps.extend([say(head), say(body.slice(..body.len() / 2)), Step::Close]);
        }
        // An unstreamed answer that freezes says nothing at all.
        Some(Fault::Freeze(_) | Fault::Comments { .. }) => steps.push(Step::Freeze),
        _ => {
            if !pause.is_zero() {
                steps.push(Step::Wait(pause));
            }
            let whole = [&head[..], &body[..]].concat();
            steps.push(Step::Say(whole.into(), tokens));
        }
    }
}

fn without_usage(body: &[u8]) -> Bytes {
    let mut value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("usage");
    }
    value.to_string().into()
}

const fn server(script: &Script) -> &'static str {
    match script.shape {
        Shape::Vllm => "uvicorn",
        Shape::LlamaCpp => "llama.cpp",
    }
}

fn streamed(script: &Script, fault: Option<&Fault>, mut events: Events, steps: &mut Vec<Step>) {
    let content_type = match fault {
        Some(Fault::ContentType(other)) => other,
        _ => "text/event-stream; charset=utf-8",
    };
    let head = head(200, content_type, None, &[("server", server(script))]);
    if matches!(fault, Some(Fault::ResetAfterHead)) {
        steps.extend([say(head), Step::Reset]);
        return;
    }
    let keep = events_before_fault(fault).unwrap_or(events.tokens.len()).min(events.tokens.len());
    events.tokens.truncate(keep);
    if let (Some(Fault::HugeEvent(bytes)), Some(first)) = (fault, events.tokens.first_mut()) {
        *first = format!("data: {{\"pad\":\"{}\"}}\n\n", "x".repeat(*bytes));
    }
    if matches!(fault, Some(Fault::NoUsage)) {
        events.close.retain(|event| !event.contains(r#""choices":[]"#));
    }
    let mut out = Out { steps, text: head.to_vec(), tokens: 0, is_burst: script.pace.each.is_zero() };
    out.events(&events.open);
    for (index, token) in events.tokens.iter().enumerate() {
        if index > 0 && !script.pace.each.is_zero() {
            out.wait(script.pace.each);
        }
        out.event(token, 1);
    }
    end_stream(fault, &events, &mut out);
    out.flush();
}

const fn events_before_fault(fault: Option<&Fault>) -> Option<usize> {
    match fault {
        Some(
            Fault::ErrorEvent(after)
            | Fault::Abort(after)
            | Fault::EndWithoutDone(after)
            | Fault::Cut(after)
            | Fault::Freeze(after)
            | Fault::Comments { after, .. }
            | Fault::BadChunk(after),
        ) => Some(*after),
        _ => None,
    }
}

fn end_stream(fault: Option<&Fault>, events: &Events, out: &mut Out<'_>) {
    match fault {
        Some(Fault::ErrorEvent(_)) => {
            out.event(
                "data: {\"error\":{\"message\":\"EngineCore encountered an issue. See stack trace (above) for the root \
                 cause.\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n",
                0,
            );
            out.event("data: [DONE]\n\n", 0);
            out.text.extend_from_slice(LAST_CHUNK);
        }
        Some(Fault::Abort(_)) => {
            out.events(&events.abort);
            out.text.extend_from_slice(LAST_CHUNK);
        }
        Some(Fault::EndWithoutDone(_)) => out.text.extend_from_slice(LAST_CHUNK),
        Some(Fault::Cut(_)) => {
            // Half a chunk.
            out.text.extend_from_slice(b"40\r\ndata: {\"id\"");
            out.step(Step::Close);
        }
        Some(Fault::BadChunk(_)) => {
            out.text.extend_from_slice(b"zz\r\ndata: x\n\n\r\n");
            out.step(Step::Freeze);
        }
        Some(Fault::Freeze(_)) => out.step(Step::Freeze),
        Some(Fault::Comments { every, .. }) => {
            let count = LONG.as_millis() / every.as_millis().max(1);
            for _ in 0..count.min(10_000) {
                out.wait(*every);
                out.event(":\n\n", 0);
            }
            out.step(Step::Freeze);
        }
        _ => {
            out.events(&events.close);
            out.text.extend_from_slice(LAST_CHUNK);
        }
    }
}

/// Collects what leaves in one write: everything up to the next wait.
struct Out<'a> {
    steps: &'a mut Vec<Step>,
    text: Vec<u8>,
    tokens: u64,
    is_burst: bool,
}

impl Out<'_> {
    fn events(&mut self, events: &[String]) {
        for event in events {
            self.event(event, 0);
        }
    }

    fn event(&mut self, event: &str, tokens: u64) {
        self.text.extend_from_slice(&chunk(event.as_bytes()));
        self.tokens += tokens;
        if !self.is_burst {
            self.flush();
        }
    }

    fn wait(&mut self, time: std::time::Duration) {
        self.step(Step::Wait(time));
    }

    fn step(&mut self, step: Step) {
        self.flush();
        self.steps.push(step);
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.steps.push(Step::Say(std::mem::take(&mut self.text).into(), std::mem::take(&mut self.tokens)));
        }
    }
}

/// Plans every other request: health, catalogue, metrics.
pub(super) fn other(script: &Script, request: &Recorded, log: &Log, life: Life) -> Vec<Step> {
    let is_vllm = script.shape == Shape::Vllm;
    if script.is_loading {
        return refused(script, Refusal::LlamaLoading).steps;
    }
    let (content_type, body) = match (request.path(), is_vllm) {
        ("/health", true) => ("", String::new()),
        ("/health", false) => ("application/json", r#"{"status":"ok"}"#.to_owned()),
        ("/v1/models", true) => (
            "application/json",
            json!({"object": "list", "data": [{"id": *script.model, "object": "model", "owned_by": "vllm",
                "root": "/models/fake", "parent": null, "max_model_len": script.context_tokens}]})
            .to_string(),
        ),
        ("/v1/models", false) => (
            "application/json",
            json!({"models": [{"name": *script.model, "model": *script.model}], "object": "list",
                "data": [{"id": *script.model, "object": "model", "owned_by": "llamacpp",
                    "meta": {"n_ctx": script.context_tokens, "n_ctx_train": script.context_tokens * 4}}]})
            .to_string(),
        ),
        ("/props", false) => (
            "application/json",
            json!({"default_generation_settings": {"n_ctx": script.context_tokens}, "total_slots": 4,
                "model_alias": *script.model, "model_path": "/models/fake.gguf"})
            .to_string(),
        ),
        ("/version", true) => ("application/json", r#"{"version":"0.32.0"}"#.to_owned()),
        ("/load", true) => ("application/json", json!({"server_load": log.running}).to_string()),
        ("/tokenize", _) => ("application/json", life::tokenize(is_vllm, script.context_tokens, &request.body)),
        ("/metrics", _) => ("text/plain; version=1.0.0; charset=utf-8", metrics(script, log, life)),
        (_, true) => return refused(script, Refusal::NotFound).steps,
        (_, false) => return refused(script, Refusal::LlamaNotFound).steps,
    };
    said(script, 200, content_type, &body)
}

/// One answer with this body, at once.
pub(super) fn said(script: &Script, status: u16, content_type: &str, body: &str) -> Vec<Step> {
    let head = head(status, content_type, Some(body.len()), &[("server", server(script))]);
    vec![say([&head[..], body.as_bytes()].concat())]
}

fn metrics(script: &Script, log: &Log, life: Life) -> String {
    if let Some(metrics) = &script.metrics {
        return metrics.as_ref().to_owned();
    }
    let (running, generated, prompted) = (log.running, log.generated, log.prompted);
    match script.shape {
        Shape::Vllm => format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"{model}\"}} {running}.0\n\
             # TYPE vllm:num_requests_waiting gauge\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"{model}\"}} 0.0\n\
             # TYPE vllm:kv_cache_usage_perc gauge\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"{model}\"}} 0.25\n\
             # TYPE vllm:generation_tokens_total counter\n\
             vllm:generation_tokens_total{{engine=\"0\",model_name=\"{model}\"}} {generated}.0\n\
             # TYPE vllm:prompt_tokens_total counter\n\
             vllm:prompt_tokens_total{{engine=\"0\",model_name=\"{model}\"}} {prompted}.0\n{sleep}",
            model = script.model,
            sleep = life.metrics(&script.model)
        ),
        Shape::LlamaCpp => format!(
            "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {running}\n\
             # TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n\
             # TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {generated}\n"
        ),
    }
}
