//! A prompt of almost the promised context: accepted, and answered with a token.
//!
//! No tokenizer is needed: the same sentence again and again costs the same each time, so two short prompts whose
//! tokens the engine counts tell how often it fits.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_config::site::DeploymentKind;
use tidegate_engine::trial::{Question, Terms, Trial, TrialFault};

use super::fault::{GateFault, shown};

/// The sentence.
const UNIT: &str = " The tide comes in over the flats and goes out again.";
/// How often it stands in the first of the two short prompts.
const FEW: u64 = 2;
/// How often at most in the second.
const MORE_MAX: u64 = 64;
/// Tokens of its answer.
const ANSWER: u64 = 4;
/// Contexts too small to be tried this way, in tokens.
pub const CONTEXT_MIN: u64 = 128;
/// Bytes of the longest prompt that is made.
pub const PROMPT_MAX: usize = 64 * 1024 * 1024;
/// Deadline of a short prompt.
const SHORT_WITHIN: Duration = Duration::from_secs(60);
/// Deadline of the long one: this, and what a slow engine needs to read it.
const LONG_WITHIN: Duration = Duration::from_secs(60);
/// Tokens in a second that the slowest engine reads.
const SLOWEST: u64 = 256;

/// How long the long prompt may take.
#[must_use]
pub fn within(context_tokens: u64) -> Duration {
    LONG_WITHIN + Duration::from_secs(context_tokens / SLOWEST)
}

/// Prompt tokens that are aimed at: just below the context, with room for template and answer.
#[must_use]
pub const fn target(context_tokens: u64) -> u64 {
    let room = context_tokens / 64;
    context_tokens.saturating_sub(if room > 16 { room } else { 16 })
}

/// What one prompt cost.
struct Cost {
    tokens: Option<u64>,
    took: Duration,
}

/// Proves the context; how many prompt tokens the engine counted, and how long it took.
pub(super) async fn prove(
    trial: &Trial,
    kind: DeploymentKind,
    promised: u64,
) -> Result<Option<(u64, Duration)>, GateFault> {
    if promised < CONTEXT_MIN || kind == DeploymentKind::Document {
        return Ok(None);
    }
    let target = target(promised);
    let more = (target / 24).clamp(FEW + 2, MORE_MAX);
    let (least, most) = (count(trial, kind, FEW).await?, count(trial, kind, more).await?);
    if most <= least {
        let why = format!("the engine counts {least} tokens for a short prompt and {most} for a longer one");
        return Err(GateFault::ContextUnproven(why));
    }
    // rounded so that it is too few rather than too many
    let spare = u128::from(target.saturating_sub(least));
    let units = u64::try_from(spare * u128::from(more - FEW) / u128::from(most - least)).unwrap_or(u64::MAX);
    let units = (FEW + units).min((PROMPT_MAX / UNIT.len()) as u64);
    let cost = ask(trial, kind, units, within(promised)).await.map_err(|fault| short(&fault, promised, target))?;
    let tokens = cost.tokens.unwrap_or(target);
    if tokens < target - target / 16 {
        let why = format!("of a prompt of about {target} tokens the engine took {tokens}");
        return Err(GateFault::ContextShort { promised, why });
    }
    Ok(Some((tokens, cost.took)))
}

/// Tokens of a short prompt.
async fn count(trial: &Trial, kind: DeploymentKind, units: u64) -> Result<u64, GateFault> {
    let cost = ask(trial, kind, units, SHORT_WITHIN).await;
    let cost = cost.map_err(|fault| GateFault::ContextUnproven(format!("a short prompt: {}", text(&fault))))?;
    if let Some(tokens) = cost.tokens {
        return Ok(tokens);
    }
    let counted = trial.count(&prompt(units), SHORT_WITHIN).await;
    counted.ok_or_else(|| {
        GateFault::ContextUnproven("the engine counts tokens neither in its answers nor when it is asked".to_owned())
    })
}

fn short(fault: &TrialFault, promised: u64, target: u64) -> GateFault {
    match fault {
        TrialFault::Refused { .. } | TrialFault::Client(_) | TrialFault::Broken(_) | TrialFault::Timeout { .. } => {
            GateFault::ContextShort { promised, why: format!("a prompt of about {target} tokens: {}", text(fault)) }
        }
    }
}

fn text(fault: &TrialFault) -> String {
    match fault {
        TrialFault::Refused { status, text } => format!("refused with status {status}: {}", shown(text)),
        other @ (TrialFault::Client(_) | TrialFault::Broken(_) | TrialFault::Timeout { .. }) => other.to_string(),
    }
}

fn prompt(units: u64) -> String {
    UNIT.repeat(usize::try_from(units).unwrap_or(usize::MAX).min(PROMPT_MAX / UNIT.len()))
}

async fn ask(trial: &Trial, kind: DeploymentKind, units: u64, within: Duration) -> Result<Cost, TrialFault> {
    let prompt = prompt(units);
    let name = Arc::clone(&trial.served_name);
    let body = match kind {
        DeploymentKind::Embedding => json!({"model": *name, "input": prompt}),
        DeploymentKind::Rerank => json!({"model": *name, "query": "tide", "documents": [prompt]}),
        DeploymentKind::Llm | DeploymentKind::Vlm | DeploymentKind::Document => {
            let terms = Terms { tokens_max: ANSWER, within, has_logprobs: false };
            let answer = trial.generate(&Question::Completion(prompt), terms).await?;
            let has_token = answer.output_tokens.unwrap_or(0) > 0 || answer.first_token.is_some();
            return if has_token {
                Ok(Cost { tokens: answer.prompt_tokens, took: answer.took })
            } else {
                Err(TrialFault::Broken("an answer without a token".into()))
            };
        }
    };
    let path = if kind == DeploymentKind::Embedding { "/v1/embeddings" } else { "/v1/rerank" };
    let (answer, took) = trial.ask(path, &body, within).await?;
    let usage = &answer["usage"];
    let tokens = usage["prompt_tokens"].as_u64().or_else(|| usage["total_tokens"].as_u64());
    Ok(Cost { tokens, took })
}
