//! What a replica can fail, each with its stable name and what to do about it.

use std::time::Duration;

use crate::care;

/// Bytes of an answer or an engine's text that a fault repeats.
pub const SHOWN_MAX: usize = 120;

/// Why a replica is not healthy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateFault {
    /// It does not answer, or not with a token.
    #[error("not ready: {0}")]
    NotReady(String),
    /// It serves something else.
    #[error("{0}")]
    OtherModel(String),
    /// The golden prompts of the documents cannot be used.
    #[error("golden prompts: {0}")]
    Prompts(String),
    /// It refused the way that callers take.
    #[error("{prompt}: {why}")]
    WarmUp {
        /// Which golden prompt.
        prompt: String,
        /// What happened.
        why: String,
    },
    /// It took a request and gave no token.
    #[error("{prompt}: not a single token within {within:?}")]
    NoToken {
        /// Which golden prompt.
        prompt: String,
        /// How long was waited.
        within: Duration,
    },
    /// The first token came too late.
    #[error("{prompt}: the first token came after {took:?}, allowed are {bound:?}")]
    SlowFirstToken {
        /// Which golden prompt.
        prompt: String,
        /// When it came.
        took: Duration,
        /// When it should have come.
        bound: Duration,
    },
    /// The answer came too late.
    #[error("{prompt}: the answer was not whole within {bound:?}")]
    SlowAnswer {
        /// Which golden prompt.
        prompt: String,
        /// The bound.
        bound: Duration,
    },
    /// It said nothing.
    #[error("{prompt}: the answer is empty")]
    Empty {
        /// Which golden prompt.
        prompt: String,
    },
    /// What it says is no language.
    #[error("{prompt}: {why}: {sample}")]
    Garbage {
        /// Which golden prompt.
        prompt: String,
        /// How that is seen.
        why: &'static str,
        /// The beginning of what it said.
        sample: String,
    },
    /// It says something else than it should.
    #[error("{prompt}: {why}: {sample}")]
    Unexpected {
        /// Which golden prompt.
        prompt: String,
        /// What was expected.
        why: String,
        /// The beginning of what it said.
        sample: String,
    },
    /// It does not serve the context that the documents promise.
    #[error("{promised} tokens of context are promised: {why}")]
    ContextShort {
        /// What is promised, in tokens.
        promised: u64,
        /// What was seen.
        why: String,
    },
    /// Nobody can count the tokens of a long prompt.
    #[error("the promised context cannot be tried: {0}")]
    ContextUnproven(String),
    /// It was healthy and did not stay so.
    #[error("after {after:?} of being watched: {why}")]
    Unstable {
        /// How long it had been healthy.
        after: Duration,
        /// What it failed then.
        why: Box<Self>,
    },
    /// No token comes out of it any more.
    #[error("{0}")]
    Hung(String),
    /// It does not answer any more.
    #[error("{0}")]
    Silent(String),
}

impl GateFault {
    /// Its stable name, in records, logs and the API.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotReady(_) => "not_ready",
            Self::OtherModel(_) => "other_model",
            Self::Prompts(_) => "golden_prompts",
            Self::WarmUp { .. } => "warm_up_failed",
            Self::NoToken { .. } => "no_token",
            Self::SlowFirstToken { .. } => "slow_first_token",
            Self::SlowAnswer { .. } => "slow_answer",
            Self::Empty { .. } => "empty_answer",
            Self::Garbage { .. } => "garbage",
            Self::Unexpected { .. } => "unexpected_answer",
            Self::ContextShort { .. } => "context_short",
            Self::ContextUnproven(_) => "context_unproven",
            Self::Unstable { .. } => "unstable",
            Self::Hung(_) => "hung",
            Self::Silent(_) => "silent",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotReady(_) | Self::Silent(_) => "look at the engine's log",
            Self::OtherModel(_) => "compare spec.servedName with what the engine was started with",
            Self::Prompts(_) => "correct the file that spec.warmup.prompts names",
            Self::WarmUp { .. } => "send the same request to the engine by hand, and look at its log",
            Self::NoToken { .. } | Self::Hung(_) => "look for CUDA errors in the engine's log and for XIDs of its GPUs",
            Self::SlowFirstToken { .. } => "raise spec.warmup.ttft, or look at who else uses its GPUs",
            Self::SlowAnswer { .. } => "raise `within` of this prompt, or look at who else uses its GPUs",
            Self::Empty { .. } | Self::Garbage { .. } => "its weights are not what they should be: verify the model",
            Self::Unexpected { .. } => "correct the prompt's `expect`, or the model that the deployment names",
            Self::ContextShort { .. } => {
                "give it more memory for its KV cache, or promise less in spec.limits.contextTokens"
            }
            Self::ContextUnproven(_) => "switch usage on in the engine, or set spec.warmup.longContext to false",
            Self::Unstable { why, .. } => why.hint(),
        }
    }
}

impl From<GateFault> for care::Fault {
    fn from(fault: GateFault) -> Self {
        Self::new(fault.code(), format!("{fault}; {}", fault.hint()))
    }
}

/// The beginning of a text, on one line.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}
