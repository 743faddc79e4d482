//! How engine programs differ, as data: one enum, no traits, every difference in one place.
//!
//! Facts and their evidence are in the engines reference (E-numbers below are its section 6).

use std::time::Duration;

use tidegate_config::site::{DeploymentKind, EngineDialect, MessagesApi, Priority};
use tidegate_wire::Endpoint;

/// The way an engine behaves on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// vLLM.
    Vllm,
    /// llama.cpp's server.
    LlamaCpp,
}

impl From<EngineDialect> for Dialect {
    fn from(dialect: EngineDialect) -> Self {
        match dialect {
            EngineDialect::Vllm => Self::Vllm,
            EngineDialect::LlamaCpp => Self::LlamaCpp,
        }
    }
}

/// How a deployment is asked on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// On this path of the engine, bytes passing through.
    Native(&'static str),
    /// On this path, translated from messages to chat completions and back.
    AsChat(&'static str),
    /// Not by the engine: the gate counts the tokens itself.
    AtTheGate,
    /// Not at all: 400 `invalid_value`, param `model`.
    No,
}

/// When a cancelled request has let go of its place in the engine (E18, E19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortBound {
    /// At the latest so long after the connection was closed.
    After(Duration),
    /// Not before the request would have ended by itself, unless the engine is seen to be idle: the place stays
    /// booked until a scrape shows fewer running requests than are booked, or the request's own worst-case end.
    UntilIdle,
}

impl Dialect {
    /// The dialect's name in documents and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => EngineDialect::Vllm.as_str(),
            Self::LlamaCpp => EngineDialect::LlamaCpp.as_str(),
        }
    }

    /// How a deployment of this kind is asked on an endpoint; `messages` is the engine's setting in the documents.
    #[must_use]
    pub const fn serves(self, endpoint: Endpoint, kind: DeploymentKind, messages: MessagesApi) -> Serves {
        let is_chat = matches!(kind, DeploymentKind::Llm | DeploymentKind::Vlm);
        let is_native = matches!(messages, MessagesApi::Native);
        match endpoint {
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Responses if is_chat => {
                Serves::Native(endpoint.path())
            }
            Endpoint::Messages if is_chat && is_native => Serves::Native(endpoint.path()),
            Endpoint::Messages if is_chat => Serves::AsChat(Endpoint::ChatCompletions.path()),
            Endpoint::CountTokens if is_chat && is_native => Serves::Native(endpoint.path()),
            Endpoint::CountTokens if is_chat => Serves::AtTheGate,
            Endpoint::Embeddings if matches!(kind, DeploymentKind::Embedding) => Serves::Native(endpoint.path()),
            Endpoint::Rerank if matches!(kind, DeploymentKind::Rerank) => Serves::Native(endpoint.path()),
            // A speech model is an `llm` whose engine has this route; one that has not answers 404, which the caller
            // reads as the same refusal. llama.cpp has it in no build that was looked at.
            Endpoint::Transcriptions if is_chat && matches!(self, Self::Vllm) => Serves::Native(endpoint.path()),
            Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Responses
            | Endpoint::Messages
            | Endpoint::CountTokens
            | Endpoint::Embeddings
            | Endpoint::Rerank
            | Endpoint::Transcriptions
            | Endpoint::Models
            | Endpoint::Model => Serves::No,
        }
    }

    /// Whether `stream_options.continuous_usage_stats` puts usage on every chunk, so that a stream that was cut is
    /// accounted exactly (E27).
    #[must_use]
    pub const fn has_continuous_usage(self) -> bool {
        matches!(self, Self::Vllm)
    }

    /// When a cancelled request has let go of its place.
    #[must_use]
    pub const fn abort_bound(self, is_streamed: bool) -> AbortBound {
        match (self, is_streamed) {
            (Self::Vllm, _) => AbortBound::After(Duration::from_millis(500)),
            (Self::LlamaCpp, true) => AbortBound::After(Duration::from_millis(200)),
            (Self::LlamaCpp, false) => AbortBound::UntilIdle,
        }
    }

    /// The engine's `priority` for a team's ceiling; `None` where the engine knows none, or where its launch did not
    /// switch priorities on: it would be silently ignored (E20). vLLM takes the lowest number first.
    #[must_use]
    pub const fn priority(self, ceiling: Priority, is_switched_on: bool) -> Option<i64> {
        match (self, is_switched_on, ceiling) {
            (Self::LlamaCpp, ..) | (Self::Vllm, false, _) => None,
            (Self::Vllm, true, Priority::High) => Some(-10),
            (Self::Vllm, true, Priority::Normal) => Some(0),
            (Self::Vllm, true, Priority::Low) => Some(10),
        }
    }

    /// Whether arguments of a launch switch priorities on.
    pub fn switches_priority_on<'a>(self, args: impl IntoIterator<Item = &'a str>) -> bool {
        let mut after_name = false;
        matches!(self, Self::Vllm)
            && args.into_iter().any(|arg| {
                let is_value = after_name && arg == "priority";
                after_name = arg == "--scheduling-policy";
                is_value || arg == "--scheduling-policy=priority"
            })
    }

    /// Whether the engine can be put to sleep and woken: its weights leave the GPU while its processes stay.
    #[must_use]
    pub const fn can_sleep(self) -> bool {
        matches!(self, Self::Vllm)
    }

    /// Whether the engine's metrics show that it computes while requests run. llama.cpp counts its decode steps.
    #[must_use]
    pub const fn shows_progress(self) -> bool {
        matches!(self, Self::Vllm | Self::LlamaCpp)
    }

    /// Whether the engine keeps prompts with different salts apart in its prefix cache (field `cache_salt`).
    #[must_use]
    pub const fn has_cache_salt(self) -> bool {
        matches!(self, Self::Vllm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_endpoints_meet_or_are_refused() {
        let serves = |dialect: Dialect, endpoint, kind| dialect.serves(endpoint, kind, MessagesApi::Native);
        let llm = DeploymentKind::Llm;
        assert_eq!(serves(Dialect::Vllm, Endpoint::Messages, llm), Serves::Native("/v1/messages"));
        assert_eq!(
            Dialect::Vllm.serves(Endpoint::Messages, llm, MessagesApi::Translate),
            Serves::AsChat("/v1/chat/completions")
        );
        assert_eq!(Dialect::Vllm.serves(Endpoint::CountTokens, llm, MessagesApi::Translate), Serves::AtTheGate);
        assert_eq!(serves(Dialect::LlamaCpp, Endpoint::Embeddings, llm), Serves::No);
        assert_eq!(
            serves(Dialect::LlamaCpp, Endpoint::Embeddings, DeploymentKind::Embedding),
            Serves::Native("/v1/embeddings")
        );
        assert_eq!(serves(Dialect::Vllm, Endpoint::ChatCompletions, DeploymentKind::Rerank), Serves::No);
        assert_eq!(serves(Dialect::LlamaCpp, Endpoint::Transcriptions, llm), Serves::No);
        assert_eq!(serves(Dialect::Vllm, Endpoint::Models, llm), Serves::No);
    }

    #[test]
    fn priority_is_sent_only_where_the_launch_switched_it_on() {
        assert!(Dialect::Vllm.switches_priority_on(["--scheduling-policy", "priority"]));
        assert!(Dialect::Vllm.switches_priority_on(["--a", "--scheduling-policy=priority"]));
        assert!(!Dialect::Vllm.switches_priority_on(["--scheduling-policy", "fcfs", "priority"]));
        assert!(!Dialect::LlamaCpp.switches_priority_on(["--scheduling-policy=priority"]));
        assert!(Dialect::Vllm.priority(Priority::High, true) < Dialect::Vllm.priority(Priority::Low, true));
        assert_eq!(Dialect::Vllm.priority(Priority::High, false), None);
    }
}
