//! One request to an engine, asked and judged as if a caller had asked: streamed, with the relay's own reading of the
//! stream. Where the gate would tell a caller that something broke, this says so too.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_wire::sse::{Flavour, Stream, StreamOptions, UsageAsked};
use tokio::time::{Instant, timeout};

use crate::attempt;
use crate::client::{ClientError, Head, Pool, Response};
use crate::dialect::Dialect;

/// Bytes of an answer that is not streamed, and of all text of a stream.
pub const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// A conversation: the way that most callers take.
    Chat(Value),
    /// A text that is continued.
    Completion(String),
}

/// How a question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Most tokens of the answer.
    pub tokens_max: u64,
    /// Deadline of the whole answer.
    pub within: Duration,
    /// Whether probabilities are asked for. Some engines refuse that.
    pub has_logprobs: bool,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// Its text.
    pub text: String,
    /// What the model thought before.
    pub reasoning: String,
    /// From the question to the first piece of either.
    pub first_token: Option<Duration>,
    /// From the question to the end.
    pub took: Duration,
    /// Prompt tokens, as the engine counts.
    pub prompt_tokens: Option<u64>,
    /// Output tokens, as the engine counts.
    pub output_tokens: Option<u64>,
    /// Logarithms of the chosen tokens' probabilities, where the engine tells; one that is no number is NaN.
    pub logprobs: Vec<f64>,
    /// Why it ended: `stop`, `length`, …
    pub finish: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TrialFault {
    /// It was refused.
    #[error("refused with status {status}: {text}")]
    Refused {
        /// The status.
        status: u16,
        /// What the engine said.
        text: Box<str>,
    },
    /// The exchange failed.
    #[error("the exchange failed: {0}")]
    Client(#[from] ClientError),
    /// The answer broke off, or is not what it should be.
    #[error("the answer broke: {0}")]
    Broken(Box<str>),
    /// Not whole in time.
    #[error("{} within {within:?}", if *.has_begun { "not all of an answer" } else { "not a single token" })]
    Timeout {
        /// The deadline.
        within: Duration,
        /// Whether a token had come.
        has_begun: bool,
    },
}

/// One engine, as it is asked on trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The dialect.
    pub dialect: Dialect,
    /// The name that the engine knows.
    pub served_name: Arc<str>,
    /// The connections.
    pub pool: Arc<Pool>,
}

impl Trial {
    /// Asks for an answer, streamed.
    ///
    /// # Errors
    /// [`TrialFault`].
    pub async fn generate(&self, question: &Question, terms: Terms) -> Result<Generated, TrialFault> {
        let (path, mut body) = match question {
            Question::Chat(messages) => ("/v1/chat/completions", json!({"messages": messages})),
            Question::Completion(prompt) => ("/v1/completions", json!({"prompt": prompt})),
        };
        body["model"] = (*self.served_name).into();
        body["max_tokens"] = terms.tokens_max.into();
        body["temperature"] = 0.into();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        if terms.has_logprobs {
            body["logprobs"] = match question {
                Question::Chat(_) => true.into(),
                Question::Completion(_) => 1.into(),
            };
        }
        let from = Instant::now();
        let flavour = match question {
            Question::Chat(_) => Flavour::Chat,
            Question::Completion(_) => Flavour::Completions,
        };
        let mut reader = Reader::new(flavour, &self.served_name, from);
        let asking = async {
            let response = self.pool.send(Head::post_json(path), body.to_string().into()).await?;
            if response.head.status != 200 {
                return Err(self.refused(response).await);
            }
            reader.read(response).await
        };
        match timeout(terms.within, asking).await {
            Ok(read) => read.map(|()| reader.finish()),
            Err(_) => {
                let has_begun = reader.answer.first_token.is_some();
                Err(TrialFault::Timeout { within: terms.within, has_begun })
            }
        }
    }

    /// Asks for something that is not streamed: vectors, scores, counts.
    ///
    /// # Errors
    /// [`TrialFault`].
    pub async fn ask(&self, path: &str, body: &Value, within: Duration) -> Result<(Value, Duration), TrialFault> {
        let from = Instant::now();
        let asking = async {
            let response = self.pool.send(Head::post_json(path), body.to_string().into()).await?;
            if response.head.status != 200 {
                return Err(self.refused(response).await);
            }
            let answer = response.body.collect(ANSWER_MAX).await?;
            serde_json::from_slice(&answer).map_err(|_| TrialFault::Broken("it is no JSON".into()))
        };
        let answer = timeout(within, asking).await;
        let answer = answer.unwrap_or(Err(TrialFault::Timeout { within, has_begun: false }))?;
        Ok((answer, from.elapsed()))
    }

    /// Tokens of a text, counted by the engine; `None` where it does not count.
    pub async fn count(&self, text: &str, within: Duration) -> Option<u64> {
        let body = match self.dialect {
            Dialect::Vllm => json!({"model": *self.served_name, "prompt": text}),
            Dialect::LlamaCpp => json!({"content": text, "add_special": true}),
        };
        let (answer, _) = self.ask("/tokenize", &body, within).await.ok()?;
        answer["count"].as_u64().or_else(|| answer["tokens"].as_array().map(|tokens| tokens.len() as u64))
    }

    async fn refused(&self, response: Response) -> TrialFault {
        let status = response.head.status;
        match response.body.collect(ANSWER_MAX).await {
            Ok(body) => {
                let end = attempt::refused(self.dialect, status, &body);
                TrialFault::Refused { status, text: end.fault().internal.clone().unwrap_or_default() }
            }
            Err(error) => error.into(),
        }
    }
}

/// Reads one stream.
struct Reader {
    stream: Stream,
    answer: Generated,
    from: Instant,
}

impl Reader {
    fn new(flavour: Flavour, name: &Arc<str>, from: Instant) -> Self {
        let options = StreamOptions { flavour, alias: Arc::clone(name), asked: UsageAsked::Final };
        Self { stream: Stream::new(options), answer: Generated::default(), from }
    }

    async fn read(&mut self, response: Response) -> Result<(), TrialFault> {
        let mut body = response.body;
        while let Some(frame) = body.frame().await.transpose()? {
            let events = self.stream.push(frame);
            let events = events.map_err(|fault| TrialFault::Broken(fault.to_string().into()))?;
            self.take(&events)?;
            if self.stream.ended() {
                return Ok(());
            }
        }
        let events = self.stream.end().map_err(|fault| TrialFault::Broken(fault.to_string().into()))?;
        self.take(&events)
    }

    /// Whole events: one line of data each, as all engines here send them.
    fn take(&mut self, events: &Bytes) -> Result<(), TrialFault> {
        let lines = events.split(|&byte| byte == b'\n');
        for data in lines.filter_map(|line| line.strip_prefix(b"data:")) {
            let Ok(chunk) = serde_json::from_slice::<Value>(data.trim_ascii()) else { continue };
            self.chunk(&chunk);
        }
        if self.answer.text.len() + self.answer.reasoning.len() > ANSWER_MAX {
            return Err(TrialFault::Broken("its text is over the bound".into()));
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &Value) {
        let choice = &chunk["choices"][0];
        let said = [&choice["delta"]["content"], &choice["text"]].into_iter().find_map(Value::as_str);
        let thought = [&choice["delta"]["reasoning"], &choice["delta"]["reasoning_content"]];
        let thought = thought.into_iter().find_map(Value::as_str);
        for (text, into) in [(said, &mut self.answer.text), (thought, &mut self.answer.reasoning)] {
            let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
            into.push_str(text);
            self.answer.first_token.get_or_insert_with(|| self.from.elapsed());
        }
        let chat = choice["logprobs"]["content"].as_array();
        let chat = chat.into_iter().flatten().map(|token| &token["logprob"]);
        let completion = choice["logprobs"]["token_logprobs"].as_array();
        let all = chat.chain(completion.into_iter().flatten());
        self.answer.logprobs.extend(all.map(|logprob| logprob.as_f64().unwrap_or(f64::NAN)));
        if let Some(reason) = choice["finish_reason"].as_str() {
            reason.clone_into(&mut self.answer.finish);
        }
    }

    fn finish(mut self) -> Generated {
        let usage = self.stream.usage();
        self.answer.prompt_tokens = usage.map(|usage| usage.prompt);
        self.answer.output_tokens = usage.map(|usage| usage.output);
        self.answer.took = self.from.elapsed();
        self.answer
    }
}
