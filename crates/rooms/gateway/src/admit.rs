//! Fourth room: what the request may cost, and whether every limit that is set has room for it.
//!
//! All limits are checked, then all are taken, in one step of the counters; then the reservation goes to the journal;
//! only then may anything go upstream.

use std::rc::Rc;
use std::time::Duration;

use tidegate_core::{Case, Fault, Reservation};
use tidegate_policy::estimate::{self, Caps, Cost, Output, Prompt};
use tidegate_policy::limiter::{Counters as _, Demand};
use tidegate_wire::{Endpoint, request};

use crate::account::{Tail, Taken};
use crate::authorise::{Grant, RequestBody, Standing};
use crate::catalogue::AliasView;

/// What `Retry-After` says while the journal is nearly full.
const PRESSED_RETRY: Duration = Duration::from_secs(5);

/// The proof that the limits have room: they are taken, and the reservation is in the journal.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) grant: Grant,
    pub(crate) cost: Cost,
}

/// Takes the limits for a request.
///
/// # Errors
/// 400 when the prompt does not fit, 429 by the limit that refuses, 503 when the journal cannot be written.
pub(crate) async fn admit(grant: Grant, tail: &mut Tail) -> Result<Ticket, Fault> {
    if grant.standing.has_quota && tail.core.is_journal_pressed() {
        // Before anything is lost: what cannot be written down cannot be charged.
        return Err(Fault::new(Case::Overloaded).retry_after(PRESSED_RETRY).internal("the journal is nearly full"));
    }
    let cost = cost(&grant, &grant.alias, &grant.standing, tail).await?;
    take(&grant.standing, cost, tail).await?;
    let reservation = Reservation {
        id: tail.id,
        at: tail.at,
        issuer: tail.caller.issuer.as_str().into(),
        caller: tail.caller.subject.clone(),
        team: tail.caller.team.clone(),
        key: tail.caller.key.clone(),
        alias: grant.alias.name.clone(),
        prompt_tokens: cost.prompt_tokens,
        output_tokens: cost.output_tokens,
    };
    tail.core.reserve(&reservation).await?;
    Ok(Ticket { grant, cost })
}

async fn take(standing: &Standing, cost: Cost, tail: &mut Tail) -> Result<(), Fault> {
    let core = Rc::clone(&tail.core);
    let counters = &core.shared.counters;
    let demand = Demand { subjects: &standing.subjects, tokens: cost.tokens(), now: tail.core.now(), wall: tail.at };
    let admitted = match counters.admit(tail.id, demand).await {
        Ok(admitted) => admitted,
        Err(error) => {
            // A refused caller is told what is left, too.
            tail.rates = Some(counters.view(&standing.subjects, tail.core.now()).await);
            return Err(refusal(&error, tail));
        }
    };
    tail.rates = Some(*admitted.view());
    tail.taken = Some(Taken { admitted, cost });
    Ok(())
}

/// Moves a reservation to a fallback's limits: the new one is taken and the old one given back in one step.
///
/// # Errors
/// As [`admit`]; the old reservation then stands.
pub(crate) async fn transfer(
    ticket: &mut Ticket,
    alias: &AliasView,
    standing: &Rc<Standing>,
    tail: &mut Tail,
) -> Result<(), Fault> {
    let cost = cost(&ticket.grant, alias, standing, tail).await?;
    let Some(taken) = &tail.taken else { return Ok(()) };
    let demand = Demand { subjects: &standing.subjects, tokens: cost.tokens(), now: tail.core.now(), wall: tail.at };
    let moved = tail.core.shared.counters.transfer(&taken.admitted, demand).await;
    let admitted = moved.map_err(|error| refusal(&error, tail))?;
    tail.rates = Some(*admitted.view());
    tail.taken = Some(Taken { admitted, cost });
    ticket.cost = cost;
    Ok(())
}

fn refusal(error: &tidegate_policy::limiter::AdmitError, tail: &Tail) -> Fault {
    if let tidegate_policy::limiter::AdmitError::Limit(refusal) = error {
        tail.core.shared.metrics.limit(refusal.level, refusal.dimension);
    }
    error.to_fault(tail.at)
}

/// What to reserve: the byte bound of the prompt while it is small beside every allowance left, else its tokens, and
/// the clamped output.
async fn cost(grant: &Grant, alias: &AliasView, standing: &Standing, tail: &Tail) -> Result<Cost, Fault> {
    let caps = Caps {
        context_tokens: alias.context(),
        model_output_tokens: alias.max_output(),
        identity_input_tokens: standing.granted.max_input_tokens,
        identity_output_tokens: standing.granted.max_output_tokens,
    };
    let json = match &grant.request {
        RequestBody::Json(json) => json,
        RequestBody::Upload(upload) => return Ok(estimate::upload_cost(upload.max_tokens(), &caps)),
    };
    if grant.endpoint == Endpoint::CountTokens {
        // Nothing is generated and nothing is prefilled: it takes a request and a slot, no tokens.
        return Ok(Cost { prompt_tokens: 0, output_tokens: 0, max_tokens: None });
    }
    let facts = &json.facts;
    let output = if grant.endpoint.generates() {
        Output::Generated { asked: facts.max_tokens, choices: facts.choices }
    } else {
        Output::None
    };
    let media = facts.images.saturating_mul(alias.image_tokens());
    let bound = facts.prompt_bytes.saturating_add(media);
    let allowance = tail.core.shared.counters.token_allowance(&standing.subjects, tail.core.now(), tail.at).await;
    let prompt = if estimate::needs_count(bound, output, &caps, allowance) {
        counted(grant, alias, json, media).await?.map_or(Prompt::Bound(bound), Prompt::Counted)
    } else {
        Prompt::Bound(bound)
    };
    estimate::cost(prompt, output, &caps).map_err(|fault| fault.param(prompt_field(grant.endpoint)))
}

/// The field that holds the prompt.
const fn prompt_field(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Completions => "prompt",
        Endpoint::Embeddings | Endpoint::Responses => "input",
        Endpoint::Rerank => "documents",
        Endpoint::ChatCompletions
        | Endpoint::Messages
        | Endpoint::CountTokens
        | Endpoint::Transcriptions
        | Endpoint::Models
        | Endpoint::Model => "messages",
    }
}

/// The prompt's tokens by the model's own tokenizer, largest over the targets; `None` when a target has none.
pub(crate) async fn counted(
    grant: &Grant,
    alias: &AliasView,
    json: &crate::authorise::JsonBody,
    media: u64,
) -> Result<Option<u64>, Fault> {
    let texts = request::prompt_text(grant.endpoint, &json.document.object())?;
    // Texts of two messages never share a token: the template stands between them.
    let text: Rc<str> = texts.join("\n").into();
    let mut largest = 0_u64;
    for target in &alias.targets {
        let Some(tokenizer) = &target.deployment.tokenizer else { return Ok(None) };
        let Ok(tokens) = tokenizer.count(&text).await else { return Ok(None) };
        largest = largest.max(tokens);
    }
    let rest = json.facts.template_tokens + json.facts.token_ids + media;
    Ok(Some(largest.saturating_add(rest)))
}
