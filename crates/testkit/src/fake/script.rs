//! What a fake engine does: which engine it looks like, what it answers, and how it fails.

use std::sync::Arc;
use std::time::Duration;

use super::refusal::Refusal;

/// Which engine's answers are imitated. Shapes follow the recordings of vLLM 0.32.0 and of llama.cpp's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// vLLM: refuses unknown models, takes its answer id from `X-Request-Id`, knows continuous usage.
    Vllm,
    /// llama.cpp: answers any model under its own name, random ids, `timings`, `content: null` first.
    LlamaCpp,
}

/// When bytes leave, in tokio's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Before the first byte of an answer.
    pub first: Duration,
    /// Before each generated token but the first. Zero: the whole stream leaves in one write.
    pub each: Duration,
}

/// A tool call that is answered when the request has `tools`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function's name.
    pub name: Arc<str>,
    /// Its JSON arguments, in the pieces in which they are streamed.
    pub arguments: Vec<Arc<str>>,
}

/// What goes wrong with one request.
///
/// Counts of events count streamed chunks with a token in them. Faults of a stream act on unstreamed requests where
/// that makes sense and are ignored where it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is reset before a byte of the answer (in memory: closed).
    ResetBeforeHead,
    /// The connection is closed before a byte of the answer.
    CloseBeforeHead,
    /// The connection is reset after the response head (in memory: closed).
    ResetAfterHead,
    /// An error answer.
    Refuse(Refusal),
    /// `data: {"error":…}` after so many events, then `[DONE]`, under status 200.
    ErrorEvent(usize),
    /// `finish_reason: "abort"`, usage and `[DONE]` after so many events, under status 200.
    Abort(usize),
    /// A clean end of the response after so many events, without final chunk, usage or `[DONE]`.
    EndWithoutDone(usize),
    /// The connection is closed inside the chunk framing after so many events.
    Cut(usize),
    /// Nothing more is said after so many events; the connection stays open.
    Freeze(usize),
    /// Only comment lines come after so many events, one each time.
    Comments {
        /// Events before the comments.
        after: usize,
        /// Time between comments.
        every: Duration,
    },
    /// The first byte of the answer comes this late.
    SlowFirstByte(Duration),
    /// The answer has this content type.
    ContentType(&'static str),
    /// The first event holds this many bytes of text.
    HugeEvent(usize),
    /// After so many events the chunk framing is wrong.
    BadChunk(usize),
    /// The response head is no HTTP.
    BadHead,
    /// Both `Content-Length` and `Transfer-Encoding`.
    TwoLengths,
    /// 200 with a body that is no JSON.
    NotJson,
    /// 200 under another model's name.
    OtherModel,
    /// No `usage` in the answer.
    NoUsage,
    /// It is taken and never answered, while `/health` says 200.
    Hang,
    /// 500 for lack of memory; every later request hangs, while `/health` says 200.
    OutOfMemory,
}

/// Everything a fake engine is told.
#[derive(Clone, Debug)]
pub struct Script {
    /// Which engine it looks like.
    pub shape: Shape,
    /// The name it serves.
    pub model: Arc<str>,
    /// Its context, as `/v1/models` or `/props` tells.
    pub context_tokens: u64,
    /// The longest prompt that it takes, when that is less than it tells.
    pub context_served: Option<u64>,
    /// Prompt tokens it reports; `None` counts one token per four bytes of the request body.
    pub prompt_tokens: Option<u64>,
    /// Of these, how many it had in its prefix cache.
    pub cached_tokens: u64,
    /// The answer, one token each.
    pub tokens: Vec<Arc<str>>,
    /// A tool call instead, when the request has `tools`.
    pub tool: Option<ToolCall>,
    /// When bytes leave.
    pub pace: Pace,
    /// What goes wrong with every request that runs a model, unless [`Script::faults`] has an entry for it.
    pub fault: Option<Fault>,
    /// What goes wrong with the first, second, … request that runs a model; used up one by one.
    pub faults: Vec<Option<Fault>>,
    /// Whether `/v1/embeddings` and `/v1/rerank` are served.
    pub embeds: bool,
    /// Whether `/v1/messages` is served.
    pub messages: bool,
    /// Whether `/v1/audio/transcriptions` is served.
    pub audio: bool,
    /// Whether `/health` says that the model is still loading, and everything else 503.
    pub is_loading: bool,
    /// Body of `/metrics`; `None` is made from the requests that run.
    pub metrics: Option<Arc<str>>,
    /// Whether its core is dead or hangs: requests are taken, counted as running and never answered; `/health`,
    /// `/v1/models` and `/metrics` answer as ever.
    pub is_stuck: bool,
    /// Whether it has vLLM's development routes: `/sleep` (modes `wait` and `keep`), `/wake_up`, `/is_sleeping`,
    /// `/collective_rpc`. After level 2 it says `!!!!!!` until its weights are reloaded.
    pub has_sleep_routes: bool,
    /// Whether all it says after a wake is `!!!!!!`, whatever was reloaded.
    pub wakes_wrong: bool,
}

impl Script {
    /// vLLM under this name, answering `Hello from the fake engine.` at once.
    #[must_use]
    pub fn vllm(model: &str) -> Self {
        Self {
            shape: Shape::Vllm,
            model: model.into(),
            context_tokens: 8_192,
            prompt_tokens: Some(37),
            cached_tokens: 0,
            tokens: ["Hello", " from", " the", " fake", " engine", "."].map(Into::into).to_vec(),
            tool: None,
            pace: Pace::default(),
            fault: None,
            faults: Vec::new(),
            embeds: true,
            messages: true,
            audio: true,
            is_loading: false,
            metrics: None,
            context_served: None,
            is_stuck: false,
            has_sleep_routes: false,
            wakes_wrong: false,
        }
    }

    /// llama.cpp under this name, answering the same; no audio, no embeddings.
    #[must_use]
    pub fn llamacpp(model: &str) -> Self {
        Self { shape: Shape::LlamaCpp, embeds: false, audio: false, ..Self::vllm(model) }
    }

    /// The same with this fault for every request that runs a model.
    #[must_use]
    pub fn failing(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// The same with so many tokens in the answer.
    #[must_use]
    pub fn answering(mut self, tokens: usize) -> Self {
        self.tokens = (0..tokens).map(|n| format!(" t{n}").into()).collect();
        self
    }

    /// The same, saying this, a token for each character.
    #[must_use]
    pub fn saying(mut self, text: &str) -> Self {
        self.tokens = text.chars().map(|char| char.to_string().into()).collect();
        self
    }

    /// The same with weights that are none: each token is the first of the vocabulary.
    #[must_use]
    pub(super) fn garbled(&self) -> Self {
        let mut garbled = self.clone();
        garbled.tokens = vec!["!".into(); self.tokens.len().max(6)];
        garbled.fault = None;
        garbled.faults = Vec::new();
        garbled
    }

    /// The same, but slower.
    #[must_use]
    pub const fn paced(mut self, first: Duration, each: Duration) -> Self {
        self.pace = Pace { first, each };
        self
    }
}
