//! What a request is reserved at (attack case C03).

use proptest::prelude::*;
use tidegate_core::Case;
use tidegate_policy::estimate::{Caps, Cost, OUTPUT_UNKNOWN_TOKENS, Output, Prompt, cost, needs_count, upload_cost};

const fn generated(asked: Option<u64>) -> Output {
    Output::Generated { asked, choices: 1 }
}

fn caps(context: u64, model: u64, identity: u64) -> Caps {
    Caps {
        context_tokens: Some(context),
        model_output_tokens: Some(model),
        identity_input_tokens: None,
        identity_output_tokens: Some(identity),
    }
}

#[test]
fn without_max_tokens_the_clamp_is_the_smallest_of_model_identity_and_context() {
    let clamp = |caps: &Caps, prompt| cost(Prompt::Counted(prompt), generated(None), caps).unwrap().max_tokens;
    assert_eq!(clamp(&caps(10_000, 500, 900), 100), Some(500));
    assert_eq!(clamp(&caps(10_000, 900, 500), 100), Some(500));
    assert_eq!(clamp(&caps(10_000, 900, 500), 9_700), Some(300));
}

#[test]
fn max_tokens_over_a_cap_is_clamped_and_reserved_as_clamped() {
    let found = cost(Prompt::Counted(100), generated(Some(1 << 40)), &caps(10_000, 900, 500)).unwrap();
    assert_eq!(found, Cost { prompt_tokens: 100, output_tokens: 500, max_tokens: Some(500) });
    assert_eq!(found.tokens(), 600);
}

#[test]
fn every_choice_is_reserved() {
    let output = Output::Generated { asked: Some(10), choices: 4 };
    let found = cost(Prompt::Counted(5), output, &Caps::default()).unwrap();
    assert_eq!((found.output_tokens, found.max_tokens), (40, Some(10)));
}

#[test]
fn a_counted_prompt_over_context_or_cap_is_refused_and_a_bound_never_is() {
    let narrow = Caps { identity_input_tokens: Some(50), ..caps(100, 10, 10) };
    for (prompt, refused) in [(50, false), (51, true), (100, true)] {
        let found = cost(Prompt::Counted(prompt), generated(None), &narrow);
        assert_eq!(found.is_err(), refused, "{prompt}");
    }
    let open = Caps { identity_input_tokens: None, ..narrow };
    assert!(cost(Prompt::Counted(99), generated(None), &open).is_ok());
    let fault = cost(Prompt::Counted(100), generated(None), &open).unwrap_err();
    assert_eq!(fault.case, Case::ContextLength);
    assert!(cost(Prompt::Counted(100), Output::None, &open).is_ok(), "embeddings need no room for output");
    let bound = cost(Prompt::Bound(1_000_000), generated(Some(10)), &narrow).unwrap();
    assert_eq!(bound.max_tokens, Some(10), "an estimate never lowers the clamp");
}

#[test]
fn with_nothing_known_a_stated_bound_is_set_and_reserved() {
    let found = cost(Prompt::Bound(7), generated(None), &Caps::default()).unwrap();
    assert_eq!((found.output_tokens, found.max_tokens), (OUTPUT_UNKNOWN_TOKENS, Some(OUTPUT_UNKNOWN_TOKENS)));
}

#[test]
fn max_tokens_is_set_when_only_the_context_bounds_an_uncounted_prompt() {
    let of = |context, bound| {
        let caps = Caps { context_tokens: Some(context), ..Caps::default() };
        let found = cost(Prompt::Bound(bound), generated(None), &caps).unwrap();
        (found.output_tokens, found.max_tokens)
    };
    assert_eq!(of(4_096, 7), (4_089, Some(4_089)), "what the bound leaves always fits");
    assert_eq!(of(4_096, 0), (4_095, Some(4_095)), "no engine takes the whole context for the answer");
    assert_eq!(of(4_096, 2_048), (2_048, Some(2_048)));
    assert_eq!(of(2, 1), (1, Some(1)));
    for (context, bound) in [(4_096, 2_049), (4_096, 4_096), (4_096, u64::MAX), (1, 0)] {
        assert_eq!(of(context, bound), (context, None), "{bound} of {context}: the engine's own context bounds it");
    }
}

#[test]
fn the_byte_bound_will_do_while_it_is_a_64th_of_the_allowance_and_fits_the_context() {
    let caps = caps(10_000, 900, 500);
    let needs = |bound, allowance| needs_count(bound, generated(None), &caps, allowance);
    assert!(!needs(100, None) && !needs(100, Some(6_400)));
    assert!(needs(101, Some(6_400)), "more than a 64th");
    assert!(!needs(9_500, None) && needs(9_501, None), "bytes + cap over the context");
    let only_context = Caps { context_tokens: Some(10_000), ..Caps::default() };
    let by_context = |bound| needs_count(bound, generated(None), &only_context, None);
    assert!(!by_context(156) && by_context(157), "more than a 64th of the context would be kept from the answer");
    assert!(!needs_count(1, generated(Some(5)), &only_context, None));
    assert!(!needs_count(10_000, Output::None, &only_context, None));
    let narrow = Caps { identity_input_tokens: Some(50), ..Caps::default() };
    assert!(needs_count(51, Output::None, &narrow, None) && !needs_count(50, Output::None, &narrow, None));
}

#[test]
fn an_upload_reserves_the_smallest_bound_and_sends_it_only_where_one_was_named() {
    let of = |asked, caps: &Caps| {
        let found = upload_cost(asked, caps);
        assert_eq!(found.prompt_tokens, 0);
        (found.output_tokens, found.max_tokens)
    };
    let caps = caps(448, 300, 200);
    assert_eq!(of(None, &caps), (200, Some(200)));
    assert_eq!(of(Some(70), &caps), (70, Some(70)));
    assert_eq!(of(Some(u64::MAX), &caps), (200, Some(200)));
    let only_context = Caps { context_tokens: Some(448), ..Caps::default() };
    assert_eq!(of(None, &only_context), (448, None));
    assert_eq!(of(Some(1_000), &only_context), (448, Some(448)));
    assert_eq!(of(None, &Caps::default()), (OUTPUT_UNKNOWN_TOKENS, None));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Rule 5: an engine that keeps to `max_tokens` and to its context never uses more than was reserved.
    #[test]
    fn what_an_engine_can_use_is_at_most_what_was_reserved(
        prompt in 0_u64..5_000,
        slack in 0_u64..5_000,
        counted in any::<bool>(),
        asked in prop::option::of(0_u64..5_000),
        choices in 1_u64..5,
        context in prop::option::of(1_u64..9_000),
        model in prop::option::of(1_u64..4_000),
        identity in prop::option::of(1_u64..4_000),
    ) {
        let caps = Caps {
            context_tokens: context,
            model_output_tokens: model,
            identity_input_tokens: None,
            identity_output_tokens: identity,
        };
        let size = if counted { Prompt::Counted(prompt) } else { Prompt::Bound(prompt + slack) };
        let Ok(cost) = cost(size, Output::Generated { asked, choices }, &caps) else {
            prop_assert!(counted);
            return Ok(());
        };
        let engine_context = context.unwrap_or(u64::MAX);
        if prompt <= engine_context {
            let most = cost.max_tokens.unwrap_or(u64::MAX).min(engine_context - prompt);
            prop_assert!(prompt + most.saturating_mul(choices) <= cost.tokens());
        }
        if let Some(max_tokens) = cost.max_tokens {
            for cap in [asked, model, identity].into_iter().flatten() {
                prop_assert!(max_tokens <= cap);
            }
        }
    }
}
