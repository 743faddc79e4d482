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
    /// counted where the context alone bounds the output.
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
            // Nothing but the context clamps the output, and it does so only when the prompt is known.
            None => true,
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
        Prompt::Counted(tokens) => context.saturating_sub(tokens),
        Prompt::Bound(_) => context,
    });
    let each = match (named, room) {
        (Some(named), Some(room)) => named.min(room),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => OUTPUT_UNKNOWN_TOKENS,
    };
    // The whole context as max_tokens would be refused by every engine; unset, the engine's own context bounds it.
    let unset = named.is_none() && matches!(prompt, Prompt::Bound(_)) && room.is_some();
    let max_tokens = (!unset).then_some(each);
    Ok(Cost { prompt_tokens, output_tokens: each.saturating_mul(choices.max(1)), max_tokens })
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
