//! Error answers of real engines, as they were recorded or read in their sources.

/// Error answers, each as a real engine was recorded to give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// vLLM 404: unknown model; the text lists the valid ones.
    UnknownModel,
    /// vLLM 400: body is not JSON.
    BadJson,
    /// vLLM 400: `messages` missing.
    MissingMessages,
    /// vLLM 400: temperature below 0.
    BadTemperature,
    /// vLLM 400: `max_tokens` over the context.
    MaxTokens,
    /// vLLM 400: prompt over the context.
    ContextTooLong,
    /// vLLM 404 `{"detail"}`: no such route.
    NotFound,
    /// vLLM 403: a route that is switched off.
    Forbidden,
    /// vLLM 500 while draining.
    ShuttingDown,
    /// vLLM 500 after its core died.
    EngineDead,
    /// vLLM 500 with a text that says nothing known.
    InternalError,
    /// vLLM 503: its queue is full.
    QueueFull,
    /// llama.cpp 400: body is not JSON.
    LlamaBadJson,
    /// llama.cpp 400: prompt over the context.
    LlamaContext,
    /// llama.cpp 400: `max_tokens` below -1.
    LlamaMaxTokens,
    /// llama.cpp 501: started without embeddings.
    LlamaNotSupported,
    /// llama.cpp 503: the model is loading.
    LlamaLoading,
    /// llama.cpp 404: no such route.
    LlamaNotFound,
    /// SGLang 503, flat body: its queue is full.
    SglangQueueFull,
    /// SGLang 400, flat body.
    SglangBadRequest,
    /// A proxy's 502 with an HTML body.
    HtmlBadGateway,
    /// 429 of somebody between us and the engine.
    TooManyRequests,
}

impl Refusal {
    /// Every error answer there is.
    pub const ALL: [Self; 22] = [
        Self::UnknownModel,
        Self::BadJson,
        Self::MissingMessages,
        Self::BadTemperature,
        Self::MaxTokens,
        Self::ContextTooLong,
        Self::NotFound,
        Self::Forbidden,
        Self::ShuttingDown,
        Self::EngineDead,
        Self::InternalError,
        Self::QueueFull,
        Self::LlamaBadJson,
        Self::LlamaContext,
        Self::LlamaMaxTokens,
        Self::LlamaNotSupported,
        Self::LlamaLoading,
        Self::LlamaNotFound,
        Self::SglangQueueFull,
        Self::SglangBadRequest,
        Self::HtmlBadGateway,
        Self::TooManyRequests,
    ];

    /// Status and body.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table, one row per answer")]
    pub const fn answer(self) -> (u16, &'static str) {
        match self {
            Self::UnknownModel => (
                404,
                r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#,
            ),
            Self::BadJson => (
                400,
                r#"{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.9', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}","type":"Bad Request","param":"body.9","code":400}}"#,
            ),
            Self::MissingMessages => (
                400,
                r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}","type":"Bad Request","param":"body.messages","code":400}}"#,
            ),
            Self::BadTemperature => (
                400,
                r#"{"error":{"message":"temperature must be non-negative, got -3.0. (parameter=temperature, value=-3.0)","type":"BadRequestError","param":"temperature","code":400}}"#,
            ),
            Self::MaxTokens => (
                400,
                r#"{"error":{"message":"max_tokens=100000 cannot be greater than max_model_len=2048. Please request fewer output tokens. (parameter=max_tokens, value=100000)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
            ),
            Self::ContextTooLong => (
                400,
                r#"{"error":{"message":"This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
            ),
            Self::NotFound => (404, r#"{"detail":"Not Found"}"#),
            Self::Forbidden => (
                403,
                r#"{"error":{"message":"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.","type":"PermissionDeniedError","param":null,"code":403}}"#,
            ),
            Self::ShuttingDown => (
                500,
                r#"{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}"#,
            ),
            Self::EngineDead => (
                500,
                r#"{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}"#,
            ),
            Self::InternalError => (
                500,
                r#"{"error":{"message":"list index out of range","type":"InternalServerError","param":null,"code":500}}"#,
            ),
            Self::QueueFull => (
                503,
                r#"{"error":{"message":"The request queue is full.","type":"Service Unavailable","param":null,"code":503}}"#,
            ),
            Self::LlamaBadJson => (
                400,
                r#"{"error":{"code":400,"message":"[json.exception.parse_error.101] parse error at line 1, column 10: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal","type":"invalid_request_error"}}"#,
            ),
            Self::LlamaContext => (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_prompt_tokens":4096,"n_ctx":2048}}"#,
            ),
            Self::LlamaMaxTokens => (
                400,
                r#"{"error":{"code":400,"message":"Field 'max_tokens': Value must be between -1 <= value <= 2147483647, but got -5","type":"invalid_request_error"}}"#,
            ),
            Self::LlamaNotSupported => (
                501,
                r#"{"error":{"code":501,"message":"This server does not support embeddings. Start it with `--embeddings`","type":"not_supported_error"}}"#,
            ),
            Self::LlamaLoading => {
                (503, r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#)
            }
            Self::LlamaNotFound => {
                (404, r#"{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}"#)
            }
            Self::SglangQueueFull => (
                503,
                r#"{"object":"error","message":"The request queue is full.","type":"Service Unavailable","param":null,"code":503}"#,
            ),
            Self::SglangBadRequest => (
                400,
                r#"{"object":"error","message":"[{'type': 'missing', 'loc': ('body', 'messages')}]","type":"Bad Request","param":null,"code":400}"#,
            ),
            Self::HtmlBadGateway => (502, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
            Self::TooManyRequests => {
                (429, r#"{"error":{"message":"slow down","type":"rate_limit","param":null,"code":429}}"#)
            }
        }
    }

    /// The recording whose body this is, under the folder of recorded answers, where there is one.
    #[must_use]
    pub const fn recording(self) -> Option<&'static str> {
        Some(match self {
            Self::UnknownModel => "vllm/err_unknown_model.http",
            Self::BadJson => "vllm/err_bad_json.http",
            Self::MissingMessages => "vllm/err_missing_messages.http",
            Self::BadTemperature => "vllm/err_bad_temperature.http",
            Self::MaxTokens => "vllm/err_max_tokens_too_large.http",
            Self::ContextTooLong => "vllm/err_context_too_long.http",
            Self::NotFound => "vllm/err_404.http",
            Self::Forbidden => "vllm/render.http",
            Self::LlamaBadJson => "llamacpp/bad_json.http",
            Self::LlamaMaxTokens => "llamacpp/negative_max_tokens.http",
            Self::LlamaNotSupported => "llamacpp/embeddings_error.http",
            Self::LlamaLoading => "llamacpp/health_loading.http",
            Self::ShuttingDown
            | Self::EngineDead
            | Self::InternalError
            | Self::QueueFull
            | Self::LlamaContext
            | Self::LlamaNotFound
            | Self::SglangQueueFull
            | Self::SglangBadRequest
            | Self::HtmlBadGateway
            | Self::TooManyRequests => return None,
        })
    }
}
