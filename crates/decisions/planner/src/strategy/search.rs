//! The best choice.

use std::collections::BTreeSet;

use super::evaluate::{Outcome, evaluate};
use super::problem::{Arrival, Leaver, Problem};
use super::{AliasMove, When};

/// Up to so many arrivals that touch each other every choice is tried: `(n + 2)^n`.
const EXACT_MAX: usize = 5;
/// Up to so many arrivals pairs are changed in every way.
const PAIRS_MAX: usize = 8;
/// Rounds of single and double changes beyond that.
const ROUNDS_MAX: usize = 64;

/// Walks from a best choice that was shaken, where there are too many to be tried.
const WALKS: u64 = 8;
/// Steps of one walk, for each arrival.
const STEPS: usize = 60;

/// The choice with the least cost, over all arrivals. `None` when there is none, which a set that was placed never
/// comes to: everything at the hour always can be.
#[must_use]
pub fn best(problem: &Problem) -> Option<Outcome> {
    let mut choice = vec![When::AtHour; problem.arrivals.len()];
    for part in parts(problem) {
        let small = restrict(problem, &part);
        let outcome = if part.len() <= EXACT_MAX { exact(&small) } else { climb(&small) }?;
        for (index, when) in part.iter().zip(&outcome.choice) {
            choice[*index] = match when {
                When::After(other) => When::After(part[*other]),
                When::Before | When::AtHour => *when,
            };
        }
    }
    evaluate(problem, &choice)
}

/// Arrivals that touch each other, over resources, leavers and aliases; each part in order.
#[must_use]
pub fn parts(problem: &Problem) -> Vec<Vec<usize>> {
    let count = problem.arrivals.len();
    let mut part: Vec<usize> = (0..count).collect();
    let mut join = |members: &[usize]| {
        let Some(first) = members.iter().map(|member| part[*member]).min() else { return };
        let joined: BTreeSet<usize> = members.iter().map(|member| part[*member]).collect();
        part.iter_mut().filter(|own| joined.contains(own)).for_each(|own| *own = first);
    };
    let takers = |resources: &BTreeSet<usize>| -> Vec<usize> {
        let takes = |arrival: &Arrival| arrival.takes.keys().any(|resource| resources.contains(resource));
        (0..count).filter(|arrival| takes(&problem.arrivals[*arrival])).collect()
    };
    for resource in problem.capacity.keys() {
        join(&takers(&BTreeSet::from([*resource])));
    }
    let resources = |leaver: &Leaver| -> BTreeSet<usize> { leaver.takes.keys().copied().collect() };
    for leaver in &problem.leavers {
        join(&takers(&resources(leaver)));
    }
    for alias in &problem.moves {
        let touched = alias.from.iter().flat_map(|leaver| resources(&problem.leavers[*leaver])).collect();
        let members: BTreeSet<usize> = takers(&touched).into_iter().chain(alias.to.iter().copied()).collect();
        join(&members.into_iter().collect::<Vec<_>>());
    }
    let names: BTreeSet<usize> = part.iter().copied().collect();
    names.into_iter().map(|name| (0..count).filter(|arrival| part[*arrival] == name).collect()).collect()
}

/// The problem of one part: its arrivals, and all leavers and aliases that touch them.
fn restrict(problem: &Problem, part: &[usize]) -> Problem {
    let position = |arrival: &usize| part.iter().position(|member| member == arrival);
    let moves = problem.moves.iter().filter(|alias| {
        let comes = alias.to.iter().any(|arrival| part.contains(arrival));
        // one that only goes still holds its leaver until the hour
        comes || alias.to.is_empty()
    });
    Problem {
        capacity: problem.capacity.clone(),
        leavers: problem.leavers.clone(),
        arrivals: part.iter().map(|arrival| problem.arrivals[*arrival].clone()).collect(),
        moves: moves
            .map(|alias| AliasMove { to: alias.to.iter().filter_map(position).collect(), ..alias.clone() })
            .collect(),
    }
}

fn options(count: usize, arrival: usize) -> impl Iterator<Item = When> {
    let others = (0..count).filter(move |other| *other != arrival).map(When::After);
    [When::Before, When::AtHour].into_iter().chain(others)
}

fn better(best: &mut Option<Outcome>, found: Option<Outcome>) -> bool {
    let Some(found) = found else { return false };
    let is_better = best.as_ref().is_none_or(|best| found.rank() < best.rank());
    if is_better {
        *best = Some(found);
    }
    is_better
}

/// Every choice.
fn exact(problem: &Problem) -> Option<Outcome> {
    let mut best = None;
    let mut choice = Vec::with_capacity(problem.arrivals.len());
    every(problem, &mut choice, &mut best);
    best
}

fn every(problem: &Problem, choice: &mut Vec<When>, best: &mut Option<Outcome>) {
    let count = problem.arrivals.len();
    if choice.len() == count {
        better(best, evaluate(problem, choice));
        return;
    }
    for when in options(count, choice.len()) {
        choice.push(when);
        every(problem, choice, best);
        choice.pop();
        // nothing is better than no gap at all
        if best.as_ref().is_some_and(|best| best.cost == 0 && best.choice.iter().all(|when| *when == When::Before)) {
            return;
        }
    }
}

/// From two beginnings, everything at the hour and one after the other, as far as single changes and changes of pairs
/// lead.
fn climb(problem: &Problem) -> Option<Outcome> {
    let count = problem.arrivals.len();
    let weight = |arrival: &usize| -> u64 {
        let served = problem.moves.iter().filter(|alias| alias.to.contains(arrival));
        served.map(|alias| alias.weight).sum()
    };
    // the dearest first
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|arrival| (std::cmp::Reverse(weight(arrival)), *arrival));
    let mut chain = vec![When::AtHour; count];
    for pair in order.windows(2) {
        if let [first, second] = pair {
            chain[*second] = When::After(*first);
        }
    }
    let mut best = None;
    for start in [vec![When::AtHour; count], chain] {
        better(&mut best, climb_from(problem, &order, &start));
    }
    let before = best.as_ref().map(|best| best.cost);
    walk(problem, &mut best);
    if let Some(walked) = best.as_ref().filter(|walked| Some(walked.cost) < before).map(|walked| walked.choice.clone())
    {
        better(&mut best, climb_from(problem, &order, &walked));
    }
    best
}

/// The same numbers with every call (SplitMix64, Steele, Lea and Flood 2014): the same problem has the same plan.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap_or(0)
    }

    fn when(&mut self, count: usize, arrival: usize) -> When {
        match self.below(count + 2) {
            0 => When::Before,
            other if other == arrival + 2 || other == 1 => When::AtHour,
            other => When::After(other - 2),
        }
    }
}

/// Iterated local search (Lourenço, Martin and Stützle 2003): a part of the best choice is drawn anew, then single
/// changes are taken that cost no more. Steps that cost the same lead over plateaus, on which strict climbing ends.
fn walk(problem: &Problem, best: &mut Option<Outcome>) {
    let count = problem.arrivals.len();
    for seed in 0..WALKS {
        let mut dice = Dice(seed);
        let Some(least) = best.as_ref().filter(|best| best.cost > 0) else { return };
        let (cost, mut choice) = (least.cost, least.choice.clone());
        let mut here = if seed == 0 { cost } else { u128::MAX };
        if seed > 0 {
            for _ in 0..=count / 3 {
                let arrival = dice.below(count);
                let before = choice[arrival];
                choice[arrival] = dice.when(count, arrival);
                match evaluate(problem, &choice) {
                    Some(outcome) => here = outcome.cost,
                    None => choice[arrival] = before,
                }
            }
        }
        for _ in 0..STEPS * count {
            let arrival = dice.below(count);
            let before = choice[arrival];
            choice[arrival] = dice.when(count, arrival);
            match evaluate(problem, &choice).filter(|outcome| outcome.cost <= here) {
                Some(outcome) => {
                    here = outcome.cost;
                    better(best, Some(outcome));
                }
                None => choice[arrival] = before,
            }
        }
    }
}

fn climb_from(problem: &Problem, order: &[usize], start: &[When]) -> Option<Outcome> {
    let count = problem.arrivals.len();
    let mut best = evaluate(problem, start);
    for arrival in order {
        try_with(problem, &mut best, &[(*arrival, When::Before)]);
    }
    for _ in 0..ROUNDS_MAX {
        let mut has_changed = false;
        for arrival in order {
            for when in options(count, *arrival) {
                has_changed |= try_with(problem, &mut best, &[(*arrival, when)]);
            }
        }
        // where there are many the walks come to what pairs would, and sooner
        has_changed = has_changed || (count <= PAIRS_MAX && pairs(problem, order, &mut best));
        if !has_changed {
            break;
        }
    }
    best
}

/// Both of a pair anew, in every way.
fn pairs(problem: &Problem, order: &[usize], best: &mut Option<Outcome>) -> bool {
    let count = problem.arrivals.len();
    let mut has_changed = false;
    for (position, first) in order.iter().enumerate() {
        for second in order.iter().skip(position + 1) {
            for early in options(count, *first) {
                for late in options(count, *second) {
                    has_changed |= try_with(problem, best, &[(*first, early), (*second, late)]);
                }
            }
        }
    }
    has_changed
}

fn try_with(problem: &Problem, best: &mut Option<Outcome>, changes: &[(usize, When)]) -> bool {
    let Some(mut choice) = best.as_ref().map(|best| best.choice.clone()) else { return false };
    for (arrival, when) in changes {
        choice[*arrival] = *when;
    }
    better(best, evaluate(problem, &choice))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    /// Numbers that look random and are the same every time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }

        fn takes(&mut self) -> BTreeMap<usize, u64> {
            (0..=self.below(2)).map(|_| (self.below(3) as usize, 1 + self.below(4))).collect()
        }

        /// Four old and four new on three resources; each alias moves from one to one.
        fn problem(&mut self) -> Problem {
            let span = |count| Duration::from_secs(60 * count);
            Problem {
                capacity: (0..3).map(|resource| (resource, 16)).collect(),
                leavers: (0..4).map(|_| Leaver { takes: self.takes(), drain: span(1 + self.below(5)) }).collect(),
                arrivals: (0..4)
                    .map(|_| Arrival { takes: self.takes(), shares: self.below(3) > 0, load: span(2 + self.below(15)) })
                    .collect(),
                moves: (0..4)
                    .map(|_| AliasMove {
                        from: vec![self.below(4) as usize],
                        to: vec![self.below(4) as usize],
                        has_stayer: false,
                        weight: 1 + self.below(9),
                    })
                    .collect(),
            }
        }
    }

    #[test]
    fn the_climb_is_within_one_percent_of_the_exact_search() {
        let mut dice = Dice(7);
        let (mut best, mut climbed, mut with_gap) = (0, 0, 0);
        for _ in 0..400 {
            let problem = dice.problem();
            let exact = exact(&problem).unwrap().cost;
            let climb = climb(&problem).unwrap().cost;
            assert!(climb >= exact, "nothing is better than the best");
            best += exact;
            climbed += climb;
            with_gap += u32::from(exact > 0);
        }
        assert!(with_gap > 100, "{with_gap} of them have a choice to make");
        assert!(climbed * 100 <= best * 101, "{climbed} against {best}");
    }
}
