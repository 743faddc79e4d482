//! Whole answers in the form of an earlier one.

use std::ops::Range;

use super::{FORM_MAX, HITS_PER_TRY, Hole, Holes, Pattern};
use crate::endpoint::Flavour;
use crate::usage::Report;

/// Forms of answers that one reader keeps.
pub(crate) const ANSWER_FORMS_MAX: usize = 8;
/// Forms of answers that are kept before any was met again.
const ANSWER_TRIES: u64 = 64;
/// Answers without a known form for each further form that is kept.
const MISSES_PER_TRY: u64 = 64;

/// The form of a whole answer.
#[derive(Clone, Debug)]
struct AnswerForm {
    flavour: Flavour,
    pattern: Pattern,
    /// Values of `model`: the place before which each stands, and how far its start and end are from the end of the
    /// bytes before that place.
    models: Box<[(usize, usize, usize)]>,
}

/// Forms of the answers that were read lately, the last one first.
#[derive(Debug, Default)]
pub(crate) struct AnswerForms {
    forms: Vec<AnswerForm>,
    kept: u64,
    hits: u64,
    misses: u64,
}

/// An answer that was read by comparing.
#[derive(Debug)]
pub(crate) struct MetAnswer {
    /// Values of `model`.
    pub(crate) models: Vec<Range<usize>>,
    /// The engine's id.
    pub(crate) id: Option<(usize, usize)>,
    pub(crate) report: Report,
}

impl AnswerForms {
    /// Whether the next answer that has no known form should be looked at for one.
    pub(crate) const fn wanted(&self) -> bool {
        self.kept < ANSWER_TRIES + self.hits / HITS_PER_TRY + self.misses / MISSES_PER_TRY
    }

    /// Keeps the form of an answer. `models` are spans of the values of `model`.
    pub(crate) fn keep(
        &mut self,
        flavour: Flavour,
        text: &[u8],
        holes: &Holes,
        models: impl Iterator<Item = Range<usize>>,
    ) {
        self.kept += 1;
        let texts: usize = holes.found.iter().map(|&(start, end, _)| (end - start) as usize).sum();
        if holes.overflow || text.len() - texts > FORM_MAX {
            return;
        }
        let ends = || holes.found.iter().map(|&(start, _, _)| start as usize).chain([text.len()]);
        let models = models
            .map(|span| {
                let (index, end) = ends().enumerate().find(|&(_, end)| end >= span.end).unwrap_or((0, text.len()));
                (index, end - span.start, end - span.end)
            })
            .collect();
        let places = holes.found.iter().map(|&(start, end, hole)| (start as usize, end as usize, hole));
        self.forms.truncate(ANSWER_FORMS_MAX - 1);
        self.forms.insert(0, AnswerForm { flavour, pattern: Pattern::of(text, places), models });
    }

    /// Reads an answer by comparing; `None` when it has no form that is known.
    pub(crate) fn meet(&mut self, flavour: Flavour, text: &[u8]) -> Option<MetAnswer> {
        let mut forms = self.forms.iter().enumerate().filter(|(_, form)| form.flavour == flavour);
        let Some((index, met)) = forms.find_map(|(index, form)| Some((index, form.meet(text)?))) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.forms[..=index].rotate_right(1);
        Some(met)
    }
}

impl AnswerForm {
    fn meet(&self, text: &[u8]) -> Option<MetAnswer> {
        let mut met = MetAnswer { models: Vec::new(), id: None, report: Report::default() };
        let (models, id) = (&mut met.models, &mut met.id);
        let mut add = |place: usize, at: usize| {
            let here = self.models.iter().filter(|(index, _, _)| *index == place);
            models.extend(here.map(|&(_, start, end)| at - start..at - end));
        };
        let len = self.pattern.meet(text, &mut met.report, |index, hole, start, end| {
            add(index, start);
            if hole == Hole::Id {
                *id = Some((start, end));
            }
        })?;
        add(self.pattern.pieces.len(), len);
        (len == text.len()).then_some(met)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ANSWER_HOLES_MAX;
    use super::*;

    fn answer_forms(text: &[u8], times: usize) -> AnswerForms {
        let mut forms = AnswerForms::default();
        for _ in 0..times {
            if forms.meet(Flavour::Chat, text).is_none() && forms.wanted() {
                let mut holes = Holes::of_answer();
                crate::sse::chunk::look_for(Flavour::Chat, text, &mut Report::default(), Some(&mut holes)).unwrap();
                forms.keep(Flavour::Chat, text, &holes, std::iter::empty());
            }
        }
        forms
    }

    #[test]
    fn an_answer_with_more_places_than_the_bound_has_no_form() {
        for (places, hits) in [(ANSWER_HOLES_MAX, 1), (ANSWER_HOLES_MAX + 1, 0)] {
            let text = format!("{{\"data\":[{}]}}", vec!["1"; places].join(","));
            assert_eq!(answer_forms(text.as_bytes(), 2).hits, hits, "{places} places");
        }
    }

    #[test]
    fn the_forms_of_the_last_answers_are_kept_and_the_search_for_more_slows_down() {
        let mut forms = AnswerForms::default();
        let text = |number: usize| format!("{{\"key{number}\":1}}");
        for number in 0..200 {
            let text = text(number);
            if forms.meet(Flavour::Chat, text.as_bytes()).is_none() && forms.wanted() {
                forms.keep(Flavour::Chat, text.as_bytes(), &Holes::of_answer(), std::iter::empty());
            }
        }
        assert_eq!(forms.forms.len(), ANSWER_FORMS_MAX);
        assert_eq!(forms.kept, ANSWER_TRIES + 200 / MISSES_PER_TRY);
    }

    #[test]
    fn a_value_nested_too_deeply_has_no_form() {
        for (depth, hits) in [(16, 1), (17, 0)] {
            let text = format!("{{\"data\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
            assert_eq!(answer_forms(text.as_bytes(), 2).hits, hits, "{depth} levels");
        }
    }
}
