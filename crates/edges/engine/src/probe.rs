//! Is an engine ready, and is it the one that was meant?
//!
//! No health page is believed in either direction (E6, E12): vLLM's is 200 while asleep, paused and draining. Ready
//! means: it lists the model under the name that we will call it by (E26), and it has just made one real token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_config::site::DeploymentKind;

use crate::attempt::{self, AttemptEnd};
use crate::client::{ClientError, Head, Pool, Response};
use crate::dialect::Dialect;

/// Deadline of a whole probe. A queued token waits its turn behind running ones.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes of a probe's answers; an embedding of a large model has some hundred KB.
pub const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// Time between two probes of an engine that is booting.
pub const BOOTING_EVERY: Duration = Duration::from_millis(250);

/// What a probe found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Context in tokens that one request may use; `None` where the engine does not tell.
    pub context_tokens: Option<u64>,
    /// Requests that decode at the same time; `None` where the engine does not tell.
    pub slots: Option<u64>,
}

/// Why an engine is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The port is closed or says 503: as long as the process lives, it is booting.
    #[error("booting: {0}")]
    Booting(Box<str>),
    /// It serves other names than the one it was meant to.
    #[error("serves {found:?} and not {wanted:?}")]
    OtherModel {
        /// The name that was wanted.
        wanted: Box<str>,
        /// The names found, at most eight.
        found: Vec<Box<str>>,
    },
    /// It answers, but not with a token.
    #[error("no token: {0}")]
    NoToken(Box<str>),
    /// Nothing within the deadline.
    #[error("no token within {0:?}")]
    Timeout(Duration),
}

impl NotReady {
    /// Whether waiting may help.
    #[must_use]
    pub const fn is_booting(&self) -> bool {
        matches!(self, Self::Booting(_))
    }
}

/// One deployment's engine, as a probe asks it.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The dialect.
    pub dialect: Dialect,
    /// What the deployment does: decides how a token is asked for.
    pub kind: DeploymentKind,
    /// The name that the engine must know.
    pub served_name: Arc<str>,
}

impl Probe {
    /// Asks for names, context and one token, within [`DEADLINE`].
    ///
    /// # Errors
    /// [`NotReady`] says why not.
    pub async fn run(&self, pool: &Arc<Pool>) -> Result<Ready, NotReady> {
        self.run_within(pool, DEADLINE).await
    }

    /// The same with another deadline.
    ///
    /// # Errors
    /// [`NotReady`] says why not.
    pub async fn run_within(&self, pool: &Arc<Pool>, deadline: Duration) -> Result<Ready, NotReady> {
        let probe = async {
            let ready = self.identity(pool).await?;
            self.token(pool).await?;
            Ok(ready)
        };
        tokio::time::timeout(deadline, probe).await.unwrap_or(Err(NotReady::Timeout(deadline)))
    }

    /// Names and context.
    async fn identity(&self, pool: &Arc<Pool>) -> Result<Ready, NotReady> {
        let models = self.get(pool, "/v1/models").await?;
        let list = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(own) = list.iter().find(|model| model["id"] == *self.served_name) else {
            let names = list.iter().filter_map(|model| model["id"].as_str());
            let found = names.take(8).map(|name| name.chars().take(64).collect::<String>().into()).collect();
            return Err(NotReady::OtherModel { wanted: (*self.served_name).into(), found });
        };
        Ok(match self.dialect {
            Dialect::Vllm => Ready { context_tokens: own["max_model_len"].as_u64(), slots: None },
            Dialect::LlamaCpp => self.slots(pool, own).await,
        })
    }

    /// llama.cpp shares its context out over its slots: what `/props` names is one slot's. Without `/props` the list
    /// of models says the same.
    async fn slots(&self, pool: &Arc<Pool>, model: &Value) -> Ready {
        match self.get(pool, "/props").await {
            Ok(props) => Ready {
                context_tokens: props["default_generation_settings"]["n_ctx"].as_u64(),
                slots: props["total_slots"].as_u64(),
            },
            Err(_) => Ready { context_tokens: model["meta"]["n_ctx"].as_u64(), slots: None },
        }
    }

    async fn token(&self, pool: &Arc<Pool>) -> Result<(), NotReady> {
        let name = &*self.served_name;
        let (path, body) = match self.kind {
            // Needs no chat template, and makes a token in every engine.
            DeploymentKind::Llm | DeploymentKind::Vlm => {
                ("/v1/completions", json!({"model": name, "prompt": "Hi", "max_tokens": 1, "temperature": 0}))
            }
            DeploymentKind::Embedding => ("/v1/embeddings", json!({"model": name, "input": "Hi"})),
            DeploymentKind::Rerank => ("/v1/rerank", json!({"model": name, "query": "Hi", "documents": ["Hi"]})),
            // A worker has no tokens; that it lists its model is all that can be asked of it here.
            DeploymentKind::Document => return Ok(()),
        };
        let response = pool.send(Head::post_json(path), Bytes::from(body.to_string())).await.map_err(booting)?;
        let answer = self.json(response).await?;
        let has_token = match self.kind {
            DeploymentKind::Embedding => {
                answer["data"][0]["embedding"].as_array().is_some_and(|numbers| !numbers.is_empty())
            }
            DeploymentKind::Rerank => answer["results"][0]["relevance_score"].is_number(),
            DeploymentKind::Llm | DeploymentKind::Vlm | DeploymentKind::Document => {
                let reason = &answer["choices"][0]["finish_reason"];
                (reason == "length" || reason == "stop") && answer["usage"]["completion_tokens"] != 0
            }
        };
        if has_token { Ok(()) } else { Err(NotReady::NoToken("an answer without one".into())) }
    }

    async fn get(&self, pool: &Arc<Pool>, path: &'static str) -> Result<Value, NotReady> {
        let response = pool.send(Head::get(path), Bytes::new()).await.map_err(booting)?;
        self.json(response).await
    }

    async fn json(&self, response: Response) -> Result<Value, NotReady> {
        let status = response.head.status;
        let body =
            response.body.collect(ANSWER_MAX).await.map_err(|error| NotReady::NoToken(error.to_string().into()))?;
        if status == 503 {
            return Err(NotReady::Booting(text(&attempt::refused(self.dialect, status, &body))));
        }
        if status != 200 {
            return Err(NotReady::NoToken(text(&attempt::refused(self.dialect, status, &body))));
        }
        serde_json::from_slice(&body).map_err(|_| NotReady::NoToken("an answer that is no JSON".into()))
    }
}

fn text(end: &AttemptEnd) -> Box<str> {
    end.fault().internal.clone().unwrap_or_default()
}

/// Everything before the first byte is what a closed port looks like; the rest is an engine that answers wrongly.
fn booting(error: ClientError) -> NotReady {
    let is_before = error.before_response();
    let text = attempt::broken(&error).into_fault().internal.unwrap_or_default();
    if is_before { NotReady::Booting(text) } else { NotReady::NoToken(text) }
}
