//! The endpoints: the allow-list of paths, what each one speaks, and how its answers are read.

/// Whose protocol a path speaks; decides the shape of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Api {
    /// The protocol of a path, known or not: an unknown path below `/v1/messages` is answered as Anthropic would.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

/// How an answer is read: where model, usage and end are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// Chat completions.
    Chat,
    /// Completions; also everything else that has `model` and `usage` at the top.
    Completions,
    /// Responses.
    Responses,
    /// Anthropic's messages.
    Messages,
}

/// One endpoint of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    ChatCompletions,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/rerank`.
    Rerank,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/messages/count_tokens`.
    CountTokens,
    /// `POST /v1/audio/transcriptions`, multipart.
    Transcriptions,
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`.
    Model,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 10] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Embeddings,
        Self::Rerank,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Transcriptions,
        Self::Models,
        Self::Model,
    ];

    /// The path, as the route table, the ledger and engines know it.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Rerank => "/v1/rerank",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Transcriptions => "/v1/audio/transcriptions",
            Self::Models => "/v1/models",
            Self::Model => "/v1/models/{id}",
        }
    }

    /// The methods it takes: the value of `allow`.
    #[must_use]
    pub const fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Models | Self::Model => &["GET"],
            Self::ChatCompletions
            | Self::Completions
            | Self::Embeddings
            | Self::Rerank
            | Self::Responses
            | Self::Messages
            | Self::CountTokens
            | Self::Transcriptions => &["POST"],
        }
    }

    /// Whose protocol it speaks.
    #[must_use]
    pub const fn api(self) -> Api {
        match self {
            Self::Messages | Self::CountTokens => Api::Anthropic,
            Self::ChatCompletions
            | Self::Completions
            | Self::Embeddings
            | Self::Rerank
            | Self::Responses
            | Self::Transcriptions
            | Self::Models
            | Self::Model => Api::OpenAi,
        }
    }

    /// How its answers are read.
    #[must_use]
    pub const fn flavour(self) -> Flavour {
        match self {
            // Transcription streams are shaped like chat streams.
            Self::ChatCompletions | Self::Transcriptions => Flavour::Chat,
            Self::Responses => Flavour::Responses,
            Self::Messages | Self::CountTokens => Flavour::Messages,
            Self::Completions | Self::Embeddings | Self::Rerank | Self::Models | Self::Model => Flavour::Completions,
        }
    }

    /// Whether its answers can be streamed.
    #[must_use]
    pub const fn streams(self) -> bool {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages | Self::Transcriptions => true,
            Self::Embeddings | Self::Rerank | Self::CountTokens | Self::Models | Self::Model => false,
        }
    }

    /// Whether it generates tokens, so that output has to be reserved.
    #[must_use]
    pub const fn generates(self) -> bool {
        self.streams()
    }

    /// The endpoint of a path and, for [`Endpoint::Model`], the id as written in it. The path is taken byte for byte:
    /// no decoding, no dot segments, no parameters.
    #[must_use]
    pub fn of_path(path: &str) -> Option<(Self, Option<&str>)> {
        let rest = path.strip_prefix("/v1/")?;
        Some((
            match rest {
                "chat/completions" => Self::ChatCompletions,
                "completions" => Self::Completions,
                "embeddings" => Self::Embeddings,
                "rerank" => Self::Rerank,
                "responses" => Self::Responses,
                "messages" => Self::Messages,
                "messages/count_tokens" => Self::CountTokens,
                "audio/transcriptions" => Self::Transcriptions,
                "models" => Self::Models,
                _ => {
                    let id = rest.strip_prefix("models/").filter(|id| !id.is_empty())?;
                    return Some((Self::Model, Some(id)));
                }
            },
            None,
        ))
    }
}
