//! What every implementation of [`Counters`] must do, as cases that any test can run.
//!
//! Time is the bench's: in memory it is a number, for a store with a clock of its own the bench sets that clock.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{AliasName, Dimension, KeyId, Level, Limits, Monotonic, Refusal, RequestId, TeamName, Unix};

use crate::limiter::{AdmitError, Counters, Demand, Rules, SubjectKey, WINDOW};

/// Fresh counters and the time that they live in.
pub trait Bench: Sync {
    /// What is tested.
    type Counters: Counters;
    /// The counters, empty at the start of a case.
    fn counters(&self) -> &Self::Counters;
    /// Time now.
    fn now(&self) -> Monotonic;
    /// Wall time now; the bench starts at noon UTC of a day in the middle of a month.
    fn wall(&self) -> Unix;
    /// Lets time pass on both clocks.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;
}

/// One case: its name, and its run on a fresh bench.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// Runs every case, each on a bench of its own.
        ///
        /// # Errors
        /// Names every case that failed, with what was expected.
        pub async fn check<B: Bench>(make: impl Fn() -> B) -> Result<(), String> {
            let mut failed = String::new();
            $(
                if let Err(why) = $name(&Case { bench: make(), ids: Default::default() }).await {
                    // Writing to a string cannot fail.
                    let _ = writeln!(failed, "{}: {why}", stringify!($name).replace('_', " "));
                }
            )*
            if failed.is_empty() { Ok(()) } else { Err(failed) }
        }

        /// Names of all cases.
        pub const CASES: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    each_dimension_of_each_level_admits_exactly_its_limit,
    a_refusal_takes_nothing_anywhere,
    an_id_admitted_twice_is_counted_once,
    settling_refunds_once,
    releasing_frees_one_slot_once,
    use_above_the_estimate_is_charged_in_full,
    the_longest_wait_is_named_and_ties_go_by_level_then_dimension,
    waiting_as_told_admits,
    no_window_of_sixty_seconds_admits_twice_the_limit,
    a_request_larger_than_the_limit_says_so,
    a_limit_of_zero_passes_nothing,
    a_transfer_counts_shared_subjects_once_and_frees_the_old_ones,
    a_refused_transfer_leaves_the_old_reservation,
    what_was_settled_or_released_is_not_moved,
    new_rules_keep_the_counts,
    older_rules_do_not_undo_newer_ones,
    a_new_day_brings_the_quota_back_and_late_refunds_go_to_their_own_day,
    the_view_includes_the_reservation_just_made,
}

struct Case<B> {
    bench: B,
    ids: std::sync::atomic::AtomicU64,
}

type Outcome = Result<(), String>;
type AdmittedOf<B> = <<B as Bench>::Counters as Counters>::Admitted;
type SubjectsOf<B> = Arc<<<B as Bench>::Counters as Counters>::Subjects>;

impl<B: Bench> Case<B> {
    fn id(&self) -> RequestId {
        let next = self.ids.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        RequestId::new(self.bench.wall().ms as u64, u128::from(next))
    }

    async fn subjects(&self, wanted: &[(SubjectKey, Rules)]) -> Result<SubjectsOf<B>, String> {
        let prepared = self.bench.counters().subjects(wanted, self.bench.now(), self.bench.wall()).await;
        prepared.map_err(|error| format!("subjects were refused: {error:?}"))
    }

    async fn admit(&self, subjects: &SubjectsOf<B>, tokens: u64) -> Result<AdmittedOf<B>, AdmitError> {
        self.admit_as(self.id(), subjects, tokens).await
    }

    async fn admit_as(
        &self,
        id: RequestId,
        subjects: &SubjectsOf<B>,
        tokens: u64,
    ) -> Result<AdmittedOf<B>, AdmitError> {
        self.bench.counters().admit(id, self.demand(subjects, tokens)).await
    }

    fn demand<'a>(&self, subjects: &'a SubjectsOf<B>, tokens: u64) -> Demand<'a, <B::Counters as Counters>::Subjects> {
        Demand { subjects, tokens, now: self.bench.now(), wall: self.bench.wall() }
    }

    async fn passes(&self, subjects: &SubjectsOf<B>, tokens: u64) -> Result<AdmittedOf<B>, String> {
        self.admit(subjects, tokens).await.map_err(|error| format!("{tokens} tokens were refused: {error:?}"))
    }

    async fn refused(&self, subjects: &SubjectsOf<B>, tokens: u64) -> Result<Refusal, String> {
        match self.admit(subjects, tokens).await {
            Err(AdmitError::Limit(refusal)) => Ok(refusal),
            Err(other) => Err(format!("refused by {other:?}, not by a limit")),
            Ok(_) => Err(format!("{tokens} tokens were admitted")),
        }
    }

    async fn allowance(&self, subjects: &SubjectsOf<B>) -> Option<u64> {
        self.bench.counters().token_allowance(subjects, self.bench.now(), self.bench.wall()).await
    }

    async fn end(&self, admitted: &AdmittedOf<B>, tokens: u64) {
        self.bench.counters().settle(admitted, tokens).await;
        self.bench.counters().release(admitted).await;
    }
}

fn expect(what: &str, holds: bool) -> Outcome {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: found {found:?}, expected {expected:?}")) }
}

fn rules(limits: Limits) -> Rules {
    Rules { generation: 1, limits, ..Rules::default() }
}

fn limits_of(dimension: Dimension, limit: u64) -> Limits {
    let mut limits = Limits::default();
    match dimension {
        Dimension::Requests => limits.rpm = Some(limit),
        Dimension::Tokens => limits.tpm = Some(limit),
        Dimension::Concurrency => limits.concurrency = Some(limit),
        Dimension::DailyTokens => limits.daily_tokens = Some(limit),
        Dimension::MonthlyTokens => limits.monthly_tokens = Some(limit),
    }
    limits
}

fn key_at(level: Level) -> SubjectKey {
    let (team, alias) = (TeamName::from("t"), AliasName::from("a"));
    match level {
        Level::Alias => SubjectKey::alias(&alias),
        Level::Team => SubjectKey::team(&team),
        Level::TeamAlias => SubjectKey::team_alias(&team, &alias),
        Level::Caller => SubjectKey::caller_parts("keyring", "c", &team),
        Level::Key => SubjectKey::key(&KeyId::from("00000000")),
    }
}

fn alias(name: &str) -> SubjectKey {
    SubjectKey::alias(&AliasName::from(name))
}

async fn each_dimension_of_each_level_admits_exactly_its_limit<B: Bench>(case: &Case<B>) -> Outcome {
    for level in Level::ALL {
        for dimension in Dimension::ALL {
            let wanted: Vec<_> = Level::ALL
                .iter()
                .map(|at| (key_at(*at), rules(if *at == level { limits_of(dimension, 6) } else { Limits::default() })))
                .collect();
            let subjects = case.subjects(&wanted).await?;
            let mut held = Vec::new();
            for _ in 0..6 {
                held.push(case.passes(&subjects, 1).await?);
            }
            let refusal = case.refused(&subjects, 1).await?;
            equal("what refused", &(refusal.level, refusal.dimension, refusal.limit), &(level, dimension, 6))?;
            for admitted in &held {
                case.end(admitted, 0).await;
            }
            case.bench.advance(Duration::from_secs(60)).await;
        }
    }
    Ok(())
}

async fn a_refusal_takes_nothing_anywhere<B: Bench>(case: &Case<B>) -> Outcome {
    let tight = rules(Limits { rpm: Some(2), ..Limits::default() });
    let wide = Limits {
        rpm: Some(100),
        tpm: Some(1_000),
        concurrency: Some(3),
        daily_tokens: Some(900),
        monthly_tokens: Some(5_000),
    };
    let wide = (key_at(Level::Team), rules(wide));
    let team = case.subjects(std::slice::from_ref(&wide)).await?;
    let both = case.subjects(&[(alias("a"), tight), wide]).await?;
    let first = case.passes(&both, 10).await?;
    let second = case.passes(&both, 10).await?;
    let before = (case.bench.counters().view(&team, case.bench.now()).await, case.allowance(&team).await);
    for _ in 0..50 {
        equal("level", &case.refused(&both, 10).await?.level, &Level::Alias)?;
    }
    let after = (case.bench.counters().view(&team, case.bench.now()).await, case.allowance(&team).await);
    equal("the team's counts after refusals by the alias", &after, &before)?;
    let third = case.passes(&team, 880).await?;
    expect("a third slot of the team was taken by a refusal", case.refused(&team, 1).await.is_ok())?;
    for admitted in [first, second, third] {
        case.end(&admitted, 0).await;
    }
    Ok(())
}

async fn an_id_admitted_twice_is_counted_once<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { rpm: Some(2), tpm: Some(20), concurrency: Some(2), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    let id = case.id();
    let first = case.admit_as(id, &subjects, 10).await.map_err(|error| format!("{error:?}"))?;
    for _ in 0..5 {
        let again = case.admit_as(id, &subjects, 10).await;
        expect("the same id was refused", again.is_ok())?;
    }
    equal("allowance", &case.allowance(&subjects).await, &Some(10))?;
    let other = case.passes(&subjects, 10).await?;
    case.end(&first, 10).await;
    case.end(&other, 10).await;
    Ok(())
}

async fn settling_refunds_once<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { tpm: Some(100), daily_tokens: Some(100), monthly_tokens: Some(100), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    let first = case.passes(&subjects, 60).await?;
    let second = case.passes(&subjects, 40).await?;
    for _ in 0..3 {
        case.bench.counters().settle(&first, 10).await;
    }
    equal("allowance after one refund of 50", &case.allowance(&subjects).await, &Some(50))?;
    case.end(&first, 0).await;
    case.end(&second, 40).await;
    equal("allowance after all ended", &case.allowance(&subjects).await, &Some(50))
}

async fn releasing_frees_one_slot_once<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { concurrency: Some(2), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    let first = case.passes(&subjects, 1).await?;
    let second = case.passes(&subjects, 1).await?;
    case.bench.counters().settle(&first, 1).await;
    expect("a settled request still has its slot", case.refused(&subjects, 1).await.is_ok())?;
    for _ in 0..3 {
        case.bench.counters().release(&first).await;
    }
    let third = case.passes(&subjects, 1).await?;
    let refusal = case.refused(&subjects, 1).await?;
    equal("what refused", &refusal.dimension, &Dimension::Concurrency)?;
    case.end(&second, 1).await;
    case.end(&third, 1).await;
    Ok(())
}

async fn use_above_the_estimate_is_charged_in_full<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { tpm: Some(100), daily_tokens: Some(100), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    let admitted = case.passes(&subjects, 10).await?;
    case.end(&admitted, 70).await;
    equal("allowance", &case.allowance(&subjects).await, &Some(30))
}

async fn the_longest_wait_is_named_and_ties_go_by_level_then_dimension<B: Bench>(case: &Case<B>) -> Outcome {
    let one = Limits { rpm: Some(1), tpm: Some(10), concurrency: Some(1), ..Limits::default() };
    let wanted = [(key_at(Level::Key), rules(one)), (key_at(Level::Team), rules(one))];
    let subjects = case.subjects(&wanted).await?;
    let admitted = case.passes(&subjects, 10).await?;
    let refusal = case.refused(&subjects, 1).await?;
    equal("of equals", &(refusal.level, refusal.dimension), &(Level::Team, Dimension::Requests))?;
    let daily = Limits { daily_tokens: Some(10), ..one };
    let wanted = [(key_at(Level::Key), rules(daily)), (key_at(Level::Team), rules(one))];
    let subjects = case.subjects(&wanted).await?;
    let refusal = case.refused(&subjects, 1).await?;
    equal("the day is longer", &(refusal.level, refusal.dimension), &(Level::Key, Dimension::DailyTokens))?;
    equal("time to midnight", &refusal.retry_after, &Some(Duration::from_secs(12 * 3_600)))?;
    case.end(&admitted, 10).await;
    Ok(())
}

async fn waiting_as_told_admits<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { rpm: Some(300), tpm: Some(1_000), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    for step in 0..300_u64 {
        let admitted = case.passes(&subjects, 3).await?;
        case.end(&admitted, 3).await;
        case.bench.advance(Duration::from_millis(step % 7)).await;
    }
    let mut refusals = 0;
    for tokens in [1, 150, 900, 1_000] {
        // What one wait set free may be enough for the next one too.
        let admitted = match case.admit(&subjects, tokens).await {
            Ok(admitted) => admitted,
            Err(AdmitError::Limit(Refusal { retry_after: Some(wait), .. })) => {
                refusals += 1;
                expect("a wait of nothing, or of more than the window", !wait.is_zero() && wait <= WINDOW)?;
                case.bench.advance(wait).await;
                case.passes(&subjects, tokens).await?
            }
            Err(error) => return Err(format!("no wait for {tokens} tokens: {error:?}")),
        };
        case.end(&admitted, tokens).await;
    }
    expect("too few were refused for this case to say anything", refusals >= 3)
}

async fn no_window_of_sixty_seconds_admits_twice_the_limit<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { rpm: Some(100), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    case.bench.advance(Duration::from_millis(59_900)).await;
    for _ in 0..100 {
        let admitted = case.passes(&subjects, 0).await?;
        case.end(&admitted, 0).await;
    }
    for _ in 0..59 {
        case.bench.advance(Duration::from_secs(1)).await;
        expect("a window reset itself", case.refused(&subjects, 0).await.is_ok())?;
    }
    case.bench.advance(Duration::from_secs(1)).await;
    let admitted = case.passes(&subjects, 0).await?;
    case.end(&admitted, 0).await;
    Ok(())
}

async fn a_request_larger_than_the_limit_says_so<B: Bench>(case: &Case<B>) -> Outcome {
    for dimension in [Dimension::Tokens, Dimension::DailyTokens, Dimension::MonthlyTokens] {
        let subjects = case.subjects(&[(alias(dimension.as_str()), rules(limits_of(dimension, 100)))]).await?;
        let refusal = case.refused(&subjects, 101).await?;
        equal("too large, no wait", &(refusal.too_large, refusal.retry_after), &(true, None))?;
        let admitted = case.passes(&subjects, 100).await?;
        case.end(&admitted, 100).await;
    }
    Ok(())
}

async fn a_limit_of_zero_passes_nothing<B: Bench>(case: &Case<B>) -> Outcome {
    for dimension in Dimension::ALL {
        let subjects = case.subjects(&[(alias(dimension.as_str()), rules(limits_of(dimension, 0)))]).await?;
        let refusal = case.refused(&subjects, 1).await?;
        equal("waiting never helps", &(refusal.too_large, refusal.retry_after), &(true, None))?;
    }
    Ok(())
}

async fn a_transfer_counts_shared_subjects_once_and_frees_the_old_ones<B: Bench>(case: &Case<B>) -> Outcome {
    let one =
        Limits { rpm: Some(1), tpm: Some(100), concurrency: Some(1), daily_tokens: Some(100), ..Limits::default() };
    let team = (key_at(Level::Team), rules(one));
    let alone = rules(Limits { rpm: None, ..one });
    let old_alias = case.subjects(&[(alias("old"), alone.clone())]).await?;
    let old = case.subjects(&[(alias("old"), alone.clone()), team.clone()]).await?;
    let new = case.subjects(&[(alias("new"), alone), team]).await?;
    let first = case.passes(&old, 80).await?;
    let moved = case.bench.counters().transfer(&first, case.demand(&new, 100)).await;
    let moved = moved.map_err(|error| format!("the team counted the request twice: {error:?}"))?;
    equal("the new alias is full", &case.allowance(&new).await, &Some(0))?;
    equal("the old alias is as before", &case.allowance(&old_alias).await, &Some(100))?;
    let next = case.passes(&old_alias, 100).await?;
    // Ends of the old reservation say nothing any more.
    case.end(&first, 0).await;
    equal("the new alias is still full", &case.allowance(&new).await, &Some(0))?;
    let again = case.bench.counters().transfer(&first, case.demand(&new, 1)).await;
    expect("an ended reservation was moved", matches!(again, Err(AdmitError::Ended)))?;
    case.end(&moved, 30).await;
    case.end(&next, 100).await;
    equal("after the end", &case.allowance(&new).await, &Some(70))
}

async fn a_refused_transfer_leaves_the_old_reservation<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { tpm: Some(100), concurrency: Some(2), ..Limits::default() };
    let old = case.subjects(&[(alias("old"), rules(limits))]).await?;
    let new = case.subjects(&[(alias("new"), rules(Limits { tpm: Some(10), ..limits }))]).await?;
    let first = case.passes(&old, 60).await?;
    let moved = case.bench.counters().transfer(&first, case.demand(&new, 11)).await;
    expect("a transfer over the limit passed", matches!(moved, Err(AdmitError::Limit(refusal)) if refusal.too_large))?;
    equal("the old alias", &case.allowance(&old).await, &Some(40))?;
    equal("the new alias", &case.allowance(&new).await, &Some(10))?;
    case.end(&first, 20).await;
    equal("the old alias after the end", &case.allowance(&old).await, &Some(80))
}

async fn what_was_settled_or_released_is_not_moved<B: Bench>(case: &Case<B>) -> Outcome {
    let old = case.subjects(&[(alias("old"), rules(limits_of(Dimension::Tokens, 100)))]).await?;
    let new = case.subjects(&[(alias("new"), rules(limits_of(Dimension::Tokens, 100)))]).await?;
    let (settled, released) = (case.passes(&old, 10).await?, case.passes(&old, 10).await?);
    case.bench.counters().settle(&settled, 5).await;
    case.bench.counters().release(&released).await;
    for half_over in [&settled, &released] {
        let moved = case.bench.counters().transfer(half_over, case.demand(&new, 10)).await;
        expect("it was moved", matches!(moved, Err(AdmitError::Ended)))?;
    }
    equal("the old alias", &case.allowance(&old).await, &Some(85))?;
    equal("the new alias", &case.allowance(&new).await, &Some(100))?;
    case.bench.counters().release(&settled).await;
    case.bench.counters().settle(&released, 0).await;
    equal("the old alias after the end", &case.allowance(&old).await, &Some(95))
}

async fn new_rules_keep_the_counts<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { tpm: Some(100), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    let first = case.passes(&subjects, 60).await?;
    let raised = Limits { tpm: Some(150), daily_tokens: Some(80), ..limits };
    case.subjects(&[(alias("a"), Rules { generation: 2, limits: raised, ..Rules::default() })]).await?;
    equal("allowance under the new rules", &case.allowance(&subjects).await, &Some(20))?;
    case.end(&first, 60).await;
    Ok(())
}

async fn older_rules_do_not_undo_newer_ones<B: Bench>(case: &Case<B>) -> Outcome {
    let at = |generation, tpm| Rules { generation, limits: limits_of(Dimension::Tokens, tpm), ..Rules::default() };
    case.subjects(&[(alias("a"), at(7, 50))]).await?;
    let subjects = case.subjects(&[(alias("a"), at(6, 5_000))]).await?;
    equal("allowance", &case.allowance(&subjects).await, &Some(50))
}

async fn a_new_day_brings_the_quota_back_and_late_refunds_go_to_their_own_day<B: Bench>(case: &Case<B>) -> Outcome {
    let limits = Limits { daily_tokens: Some(100), ..Limits::default() };
    let subjects = case.subjects(&[(alias("a"), rules(limits))]).await?;
    let yesterday = case.passes(&subjects, 100).await?;
    let wait = case.refused(&subjects, 1).await?.retry_after.ok_or("no wait until the next day")?;
    case.bench.advance(wait).await;
    let today = case.passes(&subjects, 90).await?;
    case.end(&yesterday, 0).await;
    equal("today's allowance", &case.allowance(&subjects).await, &Some(10))?;
    case.end(&today, 90).await;
    Ok(())
}

async fn the_view_includes_the_reservation_just_made<B: Bench>(case: &Case<B>) -> Outcome {
    let alias_limits = Limits { rpm: Some(100), tpm: Some(1_000), ..Limits::default() };
    let key_limits = Limits { rpm: Some(10), tpm: Some(100_000), ..Limits::default() };
    let wanted = [(alias("a"), rules(alias_limits)), (key_at(Level::Key), rules(key_limits))];
    let subjects = case.subjects(&wanted).await?;
    let admitted = case.passes(&subjects, 300).await?;
    let view = case.bench.counters().view(&subjects, case.bench.now()).await;
    let pair = |rate: Option<crate::limiter::Rate>| rate.map(|rate| (rate.limit, rate.remaining));
    equal("requests: the key's share is the smallest", &pair(view.requests), &Some((10, 9)))?;
    equal("tokens: the alias's share is the smallest", &pair(view.tokens), &Some((1_000, 700)))?;
    let reset = view.tokens.map(|rate| rate.reset).ok_or("no reset")?;
    case.end(&admitted, 300).await;
    case.bench.advance(reset).await;
    let whole = case.passes(&subjects, 1_000).await?;
    case.end(&whole, 0).await;
    Ok(())
}
