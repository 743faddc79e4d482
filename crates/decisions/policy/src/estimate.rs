//! What a request is reserved at: prompt plus clamped output.
//!
//! The output clamp is what makes the reservation an upper bound: the engine receives it, so that nothing can cost more
//! than was reserved, and a quota is a hard bound.

use tidegate_core::{Case, Fault};

/// Output reserved per choice when the caller names none and neither model nor identity has a cap nor the context is
/// known yet (it is probed when the first replica comes up).
pub const OUTPUT_UNKNOWN_TOKENS: u64 = 4_096;

/// The byte bound of a prompt is good enough while it is at most this part of every allowance left.
pub const BOUND_SHARE: u64 = 64;

/// A prompt's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Counted by the model's tokenizer.
    Counted(u64),
    /// An upper bound from its bytes: never refuses for context, never lowers the clamp.
    Bound(u64),
}

impl Prompt {
    /// Tokens to reserve.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        match self {
            Self::Counted(tokens) | Self::Bound(tokens) => tokens,
        }
    }
}

/// What output a request may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// None: embeddings, rerank, counting.
    None,
    /// Generated text.
    Generated {
        /// `max_tokens` as the caller named it.
        asked: Option<u64>,
        /// Answers asked for (`n`, `best_of`), at least 1.
        choices: u64,
    },
}

/// Caps on one request: the smallest over the deployments in force, the grant and the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Context window in tokens; `None` until probed.
    pub context_tokens: Option<u64>,
    /// The model's largest output.
    pub model_output_tokens: Option<u64>,
    /// The identity's largest prompt.
    pub identity_input_tokens: Option<u64>,
    /// The identity's largest output.
    pub identity_output_tokens: Option<u64>,
}

/// What to reserve, and what the engine must receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Prompt tokens reserved.
    pub prompt_tokens: u64,
    /// Output tokens reserved, over all choices.
    pub output_tokens: u64,
    /// `max_tokens` for the engine; `None` when there is nothing to set: no output, or a prompt that could not be
    /// counted, whose bound is more than half of the context, where nothing else bounds the output. Any figure would
    /// then be refused by the engine or cut an answer that fits; its context is the bound, and all of it is reserved.
    pub max_tokens: Option<u64>,
}

impl Cost {
    /// Tokens reserved.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.output_tokens)
    }
}

/// Whether the byte bound of a prompt will not do and its tokens have to be counted.
///
/// `allowance` is the smallest token allowance left ([`crate::limiter::MemoryCounters::token_allowance`]).
#[must_use]
pub fn needs_count(bound: u64, output: Output, caps: &Caps, allowance: Option<u64>) -> bool {
    let spends_much = allowance.is_some_and(|left| bound > left / BOUND_SHARE);
    let over_input = caps.identity_input_tokens.is_some_and(|cap| bound > cap);
    let over_context = caps.context_tokens.is_some_and(|context| match output {
        Output::None => bound > context,
        Output::Generated { asked, .. } => match named_clamp(asked, caps) {
            Some(named) => bound.saturating_add(named) > context,
            // Nothing but the context clamps the output: by the bound, the clamp is lower than it need be.
            None => bound > context / BOUND_SHARE,
        },
    });
    spends_much || over_input || over_context
}

/// The cost of a request: prompt plus min(asked, model cap, identity cap, context − prompt) for each choice.
///
/// # Errors
/// [`Case::ContextLength`] when a counted prompt is over the identity's cap or leaves no room for output.
pub fn cost(prompt: Prompt, output: Output, caps: &Caps) -> Result<Cost, Fault> {
    if let Prompt::Counted(tokens) = prompt {
        check_prompt(tokens, output, caps)?;
    }
    let prompt_tokens = prompt.tokens();
    let Output::Generated { asked, choices } = output else {
        return Ok(Cost { prompt_tokens, output_tokens: 0, max_tokens: None });
    };
    let named = named_clamp(asked, caps);
    let room = caps.context_tokens.map(|context| match prompt {
        Prompt::Counted(tokens) => Room::Known(context.saturating_sub(tokens)),
        // An estimate never lowers what somebody named.
        Prompt::Bound(_) if named.is_some() => Room::Known(context),
        Prompt::Bound(bound) => room_beside(bound, context),
    });
    let (each, is_set) = match (named, room) {
        (Some(named), Some(Room::Known(room) | Room::UpTo(room))) => (named.min(room), true),
        (Some(only), None) | (None, Some(Room::Known(only))) => (only, true),
        (None, Some(Room::UpTo(context))) => (context, false),
        (None, None) => (OUTPUT_UNKNOWN_TOKENS, true),
    };
    let output_tokens = each.saturating_mul(choices.max(1));
    Ok(Cost { prompt_tokens, output_tokens, max_tokens: is_set.then_some(each) })
}

/// Output that the context has room for.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// So much, whatever the prompt turns out to be.
    Known(u64),
    /// At most so much: the engine will find out.
    UpTo(u64),
}

/// The room beside a prompt of which the bound is known. What the bound leaves always fits; but where it leaves less than
/// half of the context, a prompt of ordinary text is a small part of its bound and would lose most of its answer.
fn room_beside(bound: u64, context: u64) -> Room {
    // No prompt is empty to an engine: a template or a token of its own stands before it.
    match context.checked_sub(bound.max(1)) {
        Some(room) if room >= context.div_ceil(2) => Room::Known(room),
        Some(_) | None => Room::UpTo(context),
    }
}

/// The cost of an upload, which streams through: nothing of its prompt is known, and its output cap is reserved. `asked` is
/// what the form itself asks for. Nothing is set where nobody named a bound: an engine for sound cuts its answer by itself.
#[must_use]
pub fn upload_cost(asked: Option<u64>, caps: &Caps) -> Cost {
    let named = named_clamp(asked, caps);
    let each = [named, caps.context_tokens].into_iter().flatten().min();
    Cost {
        prompt_tokens: 0,
        output_tokens: each.unwrap_or(OUTPUT_UNKNOWN_TOKENS),
        max_tokens: each.filter(|_| named.is_some()),
    }
}

fn check_prompt(tokens: u64, output: Output, caps: &Caps) -> Result<(), Fault> {
    if let Some(cap) = caps.identity_input_tokens.filter(|cap| tokens > *cap) {
        let text = format!("the prompt has {tokens} tokens; your limit for this model is {cap}");
        return Err(Fault::new(Case::ContextLength).saying(text));
    }
    let Some(context) = caps.context_tokens else { return Ok(()) };
    let least_output = u64::from(matches!(output, Output::Generated { .. }));
    if tokens.saturating_add(least_output) > context {
        let text = format!("the prompt has {tokens} tokens; the model's context is {context}");
        return Err(Fault::new(Case::ContextLength).saying(text));
    }
    Ok(())
}

/// The smallest of what was asked and the caps, leaving the context aside.
fn named_clamp(asked: Option<u64>, caps: &Caps) -> Option<u64> {
    [asked, caps.model_output_tokens, caps.identity_output_tokens].into_iter().flatten().min()
}
