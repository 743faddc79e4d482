//! What a choice of starting times leads to.

use std::time::Duration;

use super::When;
use super::problem::Problem;

/// What a choice leads to. Times are from the hour on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The choice, by arrival.
    pub choice: Vec<When>,
    /// When each arrival starts to load; zero for those before the hour.
    pub loads_at: Vec<Duration>,
    /// When each arrival is proven; zero for those before the hour.
    pub proven_at: Vec<Duration>,
    /// The leavers that have to be gone before each arrival loads, also those that are by then in this plan.
    pub displaced: Vec<Vec<usize>>,
    /// When each leaver begins to drain.
    pub drains_at: Vec<Duration>,
    /// How long each alias has no deployment of its own.
    pub gaps: Vec<Duration>,
    /// Σ weight × gap, in milliseconds.
    pub cost: u128,
}

impl Outcome {
    /// Less is better: cost, the longest gap, how early all are proven, the choice itself.
    pub(super) fn rank(&self) -> (u128, Option<&Duration>, Duration, &[When]) {
        (self.cost, self.gaps.iter().max(), self.proven_at.iter().sum(), &self.choice)
    }
}

/// Plays a choice through. `None` when it cannot be: those before the hour do not fit, or two wait for each other.
#[must_use]
pub fn evaluate(problem: &Problem, choice: &[When]) -> Option<Outcome> {
    let mut play = Play::new(problem, choice)?;
    while let Some((arrival, at)) = play.next_start() {
        play.start(arrival, at)?;
    }
    play.outcome()
}

struct Play<'p> {
    problem: &'p Problem,
    choice: &'p [When],
    loads_at: Vec<Option<Duration>>,
    proven_at: Vec<Option<Duration>>,
    displaced: Vec<Vec<usize>>,
    drains_at: Vec<Option<Duration>>,
}

impl<'p> Play<'p> {
    fn new(problem: &'p Problem, choice: &'p [When]) -> Option<Self> {
        if choice.len() != problem.arrivals.len() {
            return None;
        }
        let zero = |when: &When| (*when == When::Before).then_some(Duration::ZERO);
        let play = Self {
            problem,
            choice,
            loads_at: choice.iter().map(zero).collect(),
            proven_at: choice.iter().map(zero).collect(),
            displaced: vec![Vec::new(); choice.len()],
            drains_at: vec![None; problem.leavers.len()],
        };
        play.early_ones_fit().then_some(play)
    }

    /// Everybody before the hour fits beside everybody who goes.
    fn early_ones_fit(&self) -> bool {
        let early = || self.choice.iter().zip(&self.problem.arrivals).filter(|(when, _)| **when == When::Before);
        let meets_no_leaver =
            |resource: &usize| self.problem.leavers.iter().all(|leaver| !leaver.takes.contains_key(resource));
        let can_share = early().all(|(_, arrival)| arrival.shares || arrival.takes.keys().all(meets_no_leaver));
        let fits = self.problem.capacity.iter().all(|(resource, capacity)| {
            let come = early().filter_map(|(_, arrival)| arrival.takes.get(resource));
            let mut come = come.peekable();
            if come.peek().is_none() {
                return true;
            }
            let go = self.problem.leavers.iter().filter_map(|leaver| leaver.takes.get(resource));
            come.chain(go).fold(0_u64, |sum, bytes| sum.saturating_add(*bytes)) <= *capacity
        });
        can_share && fits
    }

    /// The arrival whose time has come first.
    fn next_start(&self) -> Option<(usize, Duration)> {
        let waiting = (0..self.choice.len()).filter(|arrival| self.proven_at[*arrival].is_none());
        let starts = waiting.filter_map(|arrival| match self.choice[arrival] {
            When::Before => None,
            When::AtHour => Some((arrival, Duration::ZERO)),
            When::After(other) => Some((arrival, self.proven_at.get(other).copied().flatten()?)),
        });
        starts.min_by_key(|(arrival, at)| (*at, *arrival))
    }

    /// Starts an arrival: whoever is in its way begins to drain, and it loads when all of them are gone.
    fn start(&mut self, arrival: usize, at: Duration) -> Option<()> {
        self.release(at);
        let new = &self.problem.arrivals[arrival];
        let mut loads_at = at;
        for (resource, bytes) in &new.takes {
            let capacity = self.problem.capacity.get(resource).copied().unwrap_or(u64::MAX);
            let come = self.come(*resource);
            if come.saturating_add(*bytes) > capacity {
                return None;
            }
            let room = capacity.saturating_sub(come);
            let (gone_at, mut displaced) = self.make_room(arrival, *resource, room, at);
            loads_at = loads_at.max(gone_at);
            displaced.extend(self.gone_before(arrival, *resource, room, at, &displaced));
            for leaver in displaced {
                if !self.displaced[arrival].contains(&leaver) {
                    self.displaced[arrival].push(leaver);
                }
            }
        }
        // nobody drains sooner than the slowest of them makes it useful
        for leaver in &self.displaced[arrival] {
            self.drains_at[*leaver].get_or_insert(loads_at - self.problem.leavers[*leaver].drain);
        }
        self.loads_at[arrival] = Some(loads_at);
        self.proven_at[arrival] = Some(loads_at + new.load);
        Some(())
    }

    /// When a resource has room for an arrival that starts at `at`, and who has to be gone by then: of those who drain
    /// anyhow as many as it takes, the first to be gone first; all the others only when that is not enough.
    fn make_room(&self, arrival: usize, resource: usize, capacity: u64, at: Duration) -> (Duration, Vec<usize>) {
        let new = &self.problem.arrivals[arrival];
        let bytes = new.takes.get(&resource).copied().unwrap_or(0);
        let takes = |leaver: &usize| self.problem.leavers[*leaver].takes.get(&resource).copied().unwrap_or(0);
        let gone_at = |leaver: &usize| self.drains_at[*leaver].unwrap_or(at) + self.problem.leavers[*leaver].drain;
        let mut there: Vec<usize> =
            (0..self.drains_at.len()).filter(|leaver| self.is_there(*leaver, resource, at)).collect();
        there.sort_by_key(|leaver| (self.drains_at[*leaver].is_none(), gone_at(leaver), *leaver));
        let mut rest: u64 = there.iter().map(takes).sum();
        let mut gone: Vec<usize> = Vec::new();
        for leaver in &there {
            let fits = bytes.saturating_add(rest) <= capacity;
            let has_room = if new.shares { fits } else { gone.len() == there.len() };
            // one that serves goes only together with all that serve
            let all_serving = gone.last().is_some_and(|last| self.drains_at[*last].is_none());
            if has_room && !all_serving {
                break;
            }
            rest -= takes(leaver);
            gone.push(*leaver);
        }
        (gone.iter().map(gone_at).max().unwrap_or(at), gone)
    }

    /// Leavers that are gone already, if the arrival could not load should they still be there.
    fn gone_before(
        &self,
        arrival: usize,
        resource: usize,
        capacity: u64,
        at: Duration,
        displaced: &[usize],
    ) -> Vec<usize> {
        let new = &self.problem.arrivals[arrival];
        let takes = |leaver: &usize| self.problem.leavers[*leaver].takes.get(&resource).copied();
        let others = (0..self.drains_at.len()).filter(|leaver| takes(leaver).is_some() && !displaced.contains(leaver));
        let (remaining, gone): (Vec<usize>, Vec<usize>) =
            others.partition(|leaver| self.is_there(*leaver, resource, at));
        let all: u64 = remaining.iter().chain(&gone).filter_map(takes).fold(0, u64::saturating_add);
        let bytes = new.takes.get(&resource).copied().unwrap_or(0);
        if new.shares && bytes.saturating_add(all) <= capacity { Vec::new() } else { gone }
    }

    /// Bytes of a resource that arrivals have which were started.
    fn come(&self, resource: usize) -> u64 {
        let started = self.problem.arrivals.iter().zip(&self.proven_at).filter(|(_, proven)| proven.is_some());
        started.filter_map(|(arrival, _)| arrival.takes.get(&resource)).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn is_there(&self, leaver: usize, resource: usize, at: Duration) -> bool {
        let old = &self.problem.leavers[leaver];
        old.takes.contains_key(&resource) && self.drains_at[leaver].is_none_or(|drains_at| drains_at + old.drain > at)
    }

    /// Leavers whose aliases are all served by others at `until` begin to drain by themselves.
    fn release(&mut self, until: Duration) {
        for leaver in 0..self.drains_at.len() {
            let free_at = self.free_at(leaver).filter(|free_at| *free_at <= until);
            self.drains_at[leaver] = self.drains_at[leaver].into_iter().chain(free_at).min();
        }
    }

    /// When the last alias of a leaver has its new deployments, as far as that is known.
    fn free_at(&self, leaver: usize) -> Option<Duration> {
        let served = self.problem.moves.iter().filter(|alias| alias.from.contains(&leaver));
        let successors =
            served.flat_map(|alias| &alias.to).map(|arrival| self.proven_at.get(*arrival).copied().flatten());
        successors.chain([Some(Duration::ZERO)]).try_fold(Duration::ZERO, |latest, proven| Some(latest.max(proven?)))
    }

    fn outcome(mut self) -> Option<Outcome> {
        self.release(Duration::MAX);
        let drains_at: Vec<Duration> = self.drains_at.iter().copied().collect::<Option<_>>()?;
        let proven_at: Vec<Duration> = self.proven_at.iter().copied().collect::<Option<_>>()?;
        let loads_at: Vec<Duration> = self.loads_at.iter().copied().collect::<Option<_>>()?;
        let gap = |alias: &super::AliasMove| {
            let served_from = alias.to.iter().map(|arrival| proven_at[*arrival]).min();
            let served_until = alias.from.iter().map(|leaver| drains_at[*leaver]).max().unwrap_or_default();
            match served_from {
                Some(from) if !alias.has_stayer => from.saturating_sub(served_until),
                Some(_) | None => Duration::ZERO,
            }
        };
        let gaps: Vec<Duration> = self.problem.moves.iter().map(gap).collect();
        let cost =
            self.problem.moves.iter().zip(&gaps).map(|(alias, gap)| u128::from(alias.weight) * gap.as_millis()).sum();
        Some(Outcome {
            choice: self.choice.to_vec(),
            loads_at,
            proven_at,
            displaced: self.displaced,
            drains_at,
            gaps,
            cost,
        })
    }
}
