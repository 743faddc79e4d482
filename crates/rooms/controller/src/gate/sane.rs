//! Garbage, as engines with wrong weights talk: found without knowing the right answer.
//!
//! Weights that were never reloaded make every logit equal or none a number; the first token of the vocabulary, often
//! `!`, is then chosen again and again, and no error is anywhere.

use tidegate_engine::trial::Generated;

/// Characters from which one that is repeated counts as garbage: `42` and `...` are answers.
const REPEATED_MIN: usize = 4;
/// Probabilities from which all being alike says something.
const ALIKE_MIN: usize = 4;
/// How close logarithms of probabilities are that are alike.
const ALIKE: f64 = 1e-4;
/// A chosen token less likely than this, again and again, was chosen from equals.
const EQUALS: f64 = -4.0;

/// How an answer is garbage, if it is.
pub(super) fn garbage(answer: &Generated) -> Option<&'static str> {
    let all = [&answer.reasoning, &answer.text].map(|text| text.trim()).into_iter();
    for text in all.filter(|text| !text.is_empty()) {
        let mut chars = text.chars().filter(|char| !char.is_whitespace());
        let first = chars.next();
        let count = text.chars().filter(|char| !char.is_whitespace()).count();
        if count >= REPEATED_MIN && chars.all(|char| Some(char) == first) {
            return Some("the answer repeats one character");
        }
        // one at the end may be a character that the bound of tokens has cut
        let broken = text.chars().filter(|char| *char == char::REPLACEMENT_CHARACTER || is_control(*char)).count();
        if broken > 1 && broken * 4 > text.chars().count() {
            return Some("the answer is no text");
        }
    }
    let logprobs = &answer.logprobs;
    if logprobs.iter().any(|logprob| !logprob.is_finite() || *logprob > ALIKE) {
        return Some("a token's probability is no probability");
    }
    let (least, most) = logprobs
        .iter()
        .fold((0.0_f64, f64::NEG_INFINITY), |(least, most), &logprob| (least.min(logprob), most.max(logprob)));
    if logprobs.len() >= ALIKE_MIN && most < EQUALS && most - least < ALIKE {
        return Some("all tokens are equally likely");
    }
    None
}

fn is_control(char: char) -> bool {
    char.is_control() && !char.is_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(text: &str) -> Generated {
        Generated { text: text.to_owned(), ..Generated::default() }
    }

    #[test]
    fn repeated_characters_and_what_is_no_text_are_garbage_and_short_answers_are_not() {
        for text in ["!!!!!!", " ! ! ! !", "0000", "\u{fffd}\u{fffd}ab", "\u{1}\u{2}\u{3}x"] {
            assert!(garbage(&saying(text)).is_some(), "{text:?}");
        }
        for text in ["", "42", "...", "Paris", "1.\n2.\n3.", "日本\u{fffd}", "aaab"] {
            assert_eq!(garbage(&saying(text)), None, "{text:?}");
        }
        let thinking = Generated { reasoning: "!!!!".to_owned(), ..saying("") };
        assert!(garbage(&thinking).is_some());
    }

    #[test]
    fn probabilities_that_are_none_or_all_alike_are_garbage() {
        let with = |logprobs: &[f64]| garbage(&Generated { logprobs: logprobs.to_vec(), ..saying("Paris") });
        assert!(with(&[-0.1, f64::NAN]).is_some());
        assert!(with(&[-0.1, 0.5]).is_some());
        assert!(with(&[-0.1, f64::NEG_INFINITY]).is_some());
        assert!(with(&[-10.802_674, -10.802_674, -10.802_673, -10.802_674]).is_some());
        assert_eq!(with(&[-10.802_674, -10.802_674, -10.802_674]), None, "too few to tell");
        assert_eq!(with(&[0.0, 0.0, 0.0, 0.0, 0.0]), None, "a model that is sure");
        assert_eq!(with(&[-0.1, -2.0, -0.003, -9.0]), None);
    }
}
