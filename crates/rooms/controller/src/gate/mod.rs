//! The gate that a replica passes before it serves, and its health afterwards.
//!
//! ```text
//! run:      ready ─▶ warm-up ─▶ golden prompts ─▶ a prompt of the promised length ─▶ healthy for so long ─▶ Proven
//!             │         │            │                        │                            │
//!             └─────────┴────────────┴────────────────────────┴─── a GateFault with its name and what to do
//! watchdog: tokens come out while requests run; when none did for a while, one is asked for
//! watch:    after a switch: faults and time to the first token, against the old replicas' and against bounds
//! ```
//!
//! Healthy means that tokens come out by the way that callers take: an answering port is no health, and a status of 200
//! no answer. The same gate is passed after every wake.

mod fault;
pub mod golden;
pub mod long;
mod sane;
pub mod watch;
pub mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_config::site::{DeploymentKind, SecretRef};
use tidegate_engine::Dialect;
use tidegate_engine::client::Pool;
use tidegate_engine::probe::{self, NotReady, Probe};
use tidegate_engine::trial::{Generated, Question, Terms, Trial, TrialFault};
use tokio::time::{Instant, sleep};

use fault::shown;
pub use fault::{GateFault, SHOWN_MAX};
use golden::{Asked, Golden};

use crate::launcher::Blueprint;

/// How often the first golden prompt is asked before times count: the first time may compile and allocate.
pub const WARM_UPS: u32 = 2;
/// Deadline of one of these.
pub const WARM_UP_WITHIN: Duration = Duration::from_mins(5);
/// Time between two golden prompts while it has to stay healthy.
pub const STABLE_EVERY: Duration = Duration::from_secs(2);

/// What a replica has to pass.
#[derive(Clone, Debug)]
pub struct GateSpec {
    /// How its engine behaves.
    pub dialect: Dialect,
    /// What it does.
    pub kind: DeploymentKind,
    /// The name that its engine knows.
    pub served_name: Arc<str>,
    /// The context that is promised, in tokens; `None`: nothing is.
    pub context_tokens: Option<u64>,
    /// What it is asked. Empty: readiness is all that can be asked of it.
    pub goldens: Vec<Golden>,
    /// Longest time to the first token.
    pub ttft: Duration,
    /// How long it has to stay healthy.
    pub stabilise: Duration,
    /// Whether the promised context is tried.
    pub long_context: bool,
}

/// What was seen of a replica that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateReport {
    /// The context that one request may use, as the engine tells, in tokens.
    pub context_tokens: Option<u64>,
    /// How long readiness, warm-up, golden prompts and the long prompt took.
    pub warm_up: Duration,
    /// How long it was watched after that.
    pub stabilise: Duration,
    /// Longest time to a first token, when it was warm.
    pub ttft_max: Option<Duration>,
    /// Golden prompts that were judged.
    pub asked: u32,
    /// Prompt tokens of the long prompt.
    pub long_tokens: Option<u64>,
    /// What an operator should know, though it failed nothing.
    pub notes: Vec<String>,
}

impl GateSpec {
    /// What a deployment's documents ask of its replicas. `prompts` is the content of `spec.warmup.prompts`.
    ///
    /// # Errors
    /// [`GateFault::Prompts`].
    pub fn new(blueprint: &Blueprint, prompts: Option<&str>) -> Result<Self, GateFault> {
        let deployment = &blueprint.deployment;
        let warmup = &deployment.warmup;
        let goldens = match prompts {
            Some(text) => golden::parse(text, warmup.expect_non_empty)?,
            None => golden::built_in(deployment.kind, warmup.expect_non_empty),
        };
        Ok(Self {
            dialect: blueprint.dialect,
            kind: deployment.kind,
            served_name: Arc::clone(&deployment.served_name),
            context_tokens: deployment.context_tokens,
            goldens,
            ttft: warmup.ttft,
            stabilise: warmup.stabilise,
            long_context: warmup.long_context,
        })
    }

    /// The same, with the golden prompts read from where the documents say.
    ///
    /// # Errors
    /// [`GateFault::Prompts`].
    pub async fn read(blueprint: &Blueprint) -> Result<Self, GateFault> {
        match &blueprint.deployment.warmup.prompts {
            Some(from) => Self::new(blueprint, Some(&read(from).await?)),
            None => Self::new(blueprint, None),
        }
    }

    /// The longest time that passing may take.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let goldens: Duration = self.goldens.iter().map(|golden| golden.within).sum();
        let long = self.context_tokens.filter(|_| self.long_context).map_or(Duration::ZERO, long::within);
        probe::DEADLINE + WARM_UP_WITHIN * WARM_UPS + goldens + long + self.stabilise + golden::WITHIN_MAX
    }
}

async fn read(from: &SecretRef) -> Result<String, GateFault> {
    match from {
        SecretRef::File(path) => {
            let fault = |why: std::io::Error| GateFault::Prompts(format!("{}: {why}", path.display()));
            let length = tokio::fs::metadata(path).await.map_err(fault)?.len();
            if length > golden::FILE_MAX as u64 {
                return Err(GateFault::Prompts(format!("{}: over {} bytes", path.display(), golden::FILE_MAX)));
            }
            tokio::fs::read_to_string(path).await.map_err(fault)
        }
        SecretRef::Env(name) => {
            std::env::var(&**name).map_err(|_| GateFault::Prompts(format!("the variable {name} is not set")))
        }
    }
}

/// Lets a replica pass, or says what it failed. `tell` hears how far it is.
///
/// Dropping the future ends it; nothing is left behind, and it may be run again.
///
/// # Errors
/// [`GateFault`].
pub async fn run(
    pool: &Arc<Pool>,
    spec: &GateSpec,
    tell: &(dyn Fn(String) + Send + Sync),
) -> Result<GateReport, GateFault> {
    let begun = Instant::now();
    let mut passing = Passing {
        spec,
        trial: Trial { dialect: spec.dialect, served_name: Arc::clone(&spec.served_name), pool: Arc::clone(pool) },
        report: GateReport::default(),
        has_logprobs: true,
        as_text: false,
    };
    tell("waiting for a token".to_owned());
    passing.ready().await?;
    tell("warming up".to_owned());
    passing.warm_up().await?;
    for golden in &spec.goldens {
        tell(format!("asking {}", golden.name));
        passing.judge(golden).await?;
    }
    if let Some(promised) = spec.context_tokens.filter(|_| spec.long_context) {
        tell(format!("asking a prompt of almost {promised} tokens"));
        let long = long::prove(&passing.trial, spec.kind, promised).await?;
        passing.report.long_tokens = long.map(|(tokens, _)| tokens);
    }
    passing.report.warm_up = begun.elapsed();
    tell(format!("has to stay healthy for {} s", spec.stabilise.as_secs()));
    let watched = Instant::now();
    passing.stabilise().await?;
    passing.report.stabilise = watched.elapsed();
    Ok(passing.report)
}

/// A replica on its way through the gate.
struct Passing<'a> {
    spec: &'a GateSpec,
    trial: Trial,
    report: GateReport,
    /// Whether the engine tells probabilities.
    has_logprobs: bool,
    /// Whether it has no chat template.
    as_text: bool,
}

impl Passing<'_> {
    async fn ready(&mut self) -> Result<(), GateFault> {
        let (dialect, kind) = (self.spec.dialect, self.spec.kind);
        let probe = Probe { dialect, kind, served_name: Arc::clone(&self.spec.served_name) };
        let ready = probe.run(&self.trial.pool).await.map_err(|why| match why {
            NotReady::OtherModel { .. } => GateFault::OtherModel(why.to_string()),
            NotReady::Timeout(within) => GateFault::NoToken { prompt: "a single token".to_owned(), within },
            NotReady::Booting(_) | NotReady::NoToken(_) => GateFault::NotReady(why.to_string()),
        })?;
        self.report.context_tokens = ready.context_tokens;
        match (self.spec.context_tokens, ready.context_tokens) {
            (Some(promised), Some(told)) if told < promised => {
                Err(GateFault::ContextShort { promised, why: format!("the engine says that it serves {told}") })
            }
            _ => Ok(()),
        }
    }

    /// The first prompts may take their time, but not fail.
    async fn warm_up(&mut self) -> Result<(), GateFault> {
        let Some(first) = self.spec.goldens.first() else { return Ok(()) };
        for _ in 0..WARM_UPS {
            self.ask(first, WARM_UP_WITHIN).await?;
        }
        Ok(())
    }

    /// One prompt, with everything that it promises.
    async fn judge(&mut self, golden: &Golden) -> Result<(), GateFault> {
        let first_token = self.ask(golden, golden.within).await?;
        self.report.asked += 1;
        let Some(took) = first_token else { return Ok(()) };
        self.report.ttft_max = self.report.ttft_max.max(Some(took));
        if took > self.spec.ttft {
            return Err(GateFault::SlowFirstToken { prompt: golden.name.clone(), took, bound: self.spec.ttft });
        }
        Ok(())
    }

    async fn stabilise(&mut self) -> Result<(), GateFault> {
        let until = Instant::now() + self.spec.stabilise;
        let goldens = &self.spec.goldens;
        let mut next = goldens.iter().cycle();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(STABLE_EVERY)).await;
            let outcome = match next.next() {
                Some(golden) => self.judge(golden).await,
                None => self.ready().await,
            };
            let after = self.spec.stabilise.saturating_sub(until.saturating_duration_since(Instant::now()));
            outcome.map_err(|why| GateFault::Unstable { after, why: Box::new(why) })?;
        }
    }

    /// Asks, and judges what is said; the time to the first token where there is such a thing.
    async fn ask(&mut self, golden: &Golden, within: Duration) -> Result<Option<Duration>, GateFault> {
        match &golden.asked {
            Asked::Generate(question) => self.generate(golden, question, within).await,
            Asked::Embed(texts) => self.embed(golden, texts, within).await,
            Asked::Rerank { query, documents } => self.rerank(golden, query, documents, within).await,
        }
    }

    async fn generate(
        &mut self,
        golden: &Golden,
        question: &Question,
        within: Duration,
    ) -> Result<Option<Duration>, GateFault> {
        let answer = loop {
            let terms = Terms { tokens_max: golden.tokens_max, within, has_logprobs: self.has_logprobs };
            let text = golden.as_text.as_ref().filter(|_| self.as_text).map(|text| Question::Completion(text.clone()));
            match self.trial.generate(text.as_ref().unwrap_or(question), terms).await {
                Ok(answer) => break answer,
                // Nobody has to tell probabilities, and not every model has a chat template.
                Err(TrialFault::Refused { status: 400 | 422 | 501, .. }) if self.has_logprobs => {
                    self.has_logprobs = false;
                }
                Err(TrialFault::Refused { status: 400, .. }) if golden.as_text.is_some() && !self.as_text => {
                    self.as_text = true;
                    self.report.notes.push("it refuses conversations: has the model a chat template?".to_owned());
                }
                Err(fault) => return Err(failed(&golden.name, &fault)),
            }
        };
        self.text(golden, &answer)?;
        Ok(answer.first_token)
    }

    fn text(&self, golden: &Golden, answer: &Generated) -> Result<(), GateFault> {
        let prompt = || golden.name.clone();
        if let Some(why) = sane::garbage(answer) {
            let said = if answer.text.trim().is_empty() { &answer.reasoning } else { &answer.text };
            return Err(GateFault::Garbage { prompt: prompt(), why, sample: shown(said) });
        }
        if golden.expect.not_empty && answer.text.trim().is_empty() && answer.reasoning.trim().is_empty() {
            return Err(GateFault::Empty { prompt: prompt() });
        }
        golden.expect.judge(&golden.name, &answer.text)
    }

    async fn embed(&self, golden: &Golden, texts: &[String], within: Duration) -> Result<Option<Duration>, GateFault> {
        let body = json!({"model": *self.spec.served_name, "input": texts});
        let asked = self.trial.ask("/v1/embeddings", &body, within).await;
        let (answer, took) = asked.map_err(|fault| failed(&golden.name, &fault))?;
        let vector = |index: usize| -> Vec<f64> {
            let numbers = answer["data"][index]["embedding"].as_array();
            numbers.into_iter().flatten().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
        };
        let vectors: Vec<_> = (0..texts.len()).map(vector).collect();
        self.vectors(golden, texts, &vectors)?;
        Ok(Some(took))
    }

    fn vectors(&self, golden: &Golden, texts: &[String], vectors: &[Vec<f64>]) -> Result<(), GateFault> {
        let garbage = |why, sample: String| GateFault::Garbage { prompt: golden.name.clone(), why, sample };
        for (vector, text) in vectors.iter().zip(texts) {
            if vector.is_empty() {
                return Err(GateFault::Empty { prompt: golden.name.clone() });
            }
            if vector.iter().any(|number| !number.is_finite()) || vector.iter().all(|number| *number == 0.0) {
                return Err(garbage("a vector is none", shown(text)));
            }
            if let Some(wanted) = golden.expect.dimensions.filter(|wanted| *wanted != vector.len()) {
                let why = format!("vectors of length {wanted} were expected");
                let sample = format!("length {}", vector.len());
                return Err(GateFault::Unexpected { prompt: golden.name.clone(), why, sample });
            }
        }
        let pairs = (0..texts.len()).flat_map(|one| (one + 1..texts.len()).map(move |other| (one, other)));
        for (one, other) in pairs {
            let near = cosine(&vectors[one], &vectors[other]);
            if texts[one] == texts[other] && near < SAME_MIN {
                return Err(garbage("one text has two vectors", format!("cosine {near:.3}")));
            }
            if texts[one] != texts[other] && vectors[one] == vectors[other] {
                return Err(garbage("different texts have one vector", shown(&texts[other])));
            }
        }
        Ok(())
    }

    async fn rerank(
        &self,
        golden: &Golden,
        query: &str,
        documents: &[String],
        within: Duration,
    ) -> Result<Option<Duration>, GateFault> {
        let body = json!({"model": *self.spec.served_name, "query": query, "documents": documents});
        let asked = self.trial.ask("/v1/rerank", &body, within).await;
        let (answer, took) = asked.map_err(|fault| failed(&golden.name, &fault))?;
        let results = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        let scores: Vec<(usize, f64)> = results
            .iter()
            .filter_map(|result| {
                let index = usize::try_from(result["index"].as_u64()?).ok()?;
                Some((index, result["relevance_score"].as_f64().unwrap_or(f64::NAN)))
            })
            .collect();
        if scores.len() != documents.len() {
            return Err(GateFault::Empty { prompt: golden.name.clone() });
        }
        if scores.iter().any(|(_, score)| !score.is_finite()) {
            let (prompt, sample) = (golden.name.clone(), answer["results"].to_string());
            return Err(GateFault::Garbage { prompt, why: "a score is none", sample: shown(&sample) });
        }
        let best = scores.iter().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(index, _)| *index);
        match golden.expect.first {
            Some(first) if best != Some(first) => Err(GateFault::Unexpected {
                prompt: golden.name.clone(),
                why: format!("document {first} was expected to be the first"),
                sample: shown(&answer["results"].to_string()),
            }),
            _ => Ok(Some(took)),
        }
    }
}

/// How near two vectors of one text are at least: batches and kernels round differently.
const SAME_MIN: f64 = 0.98;

fn cosine(one: &[f64], other: &[f64]) -> f64 {
    let dot: f64 = one.iter().zip(other).map(|(a, b)| a * b).sum();
    let length = |vector: &[f64]| vector.iter().map(|number| number * number).sum::<f64>().sqrt();
    dot / (length(one) * length(other))
}

fn failed(prompt: &str, fault: &TrialFault) -> GateFault {
    let prompt = prompt.to_owned();
    match fault {
        TrialFault::Timeout { within, has_begun: false } => GateFault::NoToken { prompt, within: *within },
        TrialFault::Timeout { within, has_begun: true } => GateFault::SlowAnswer { prompt, bound: *within },
        TrialFault::Refused { status, text } => {
            GateFault::WarmUp { prompt, why: format!("refused with status {status}: {}", shown(text)) }
        }
        TrialFault::Client(_) | TrialFault::Broken(_) => GateFault::WarmUp { prompt, why: fault.to_string() },
    }
}
