//! How a refused admission reads.

use std::time::Duration;

use tidegate_core::{Case, Dimension, Fault, Refusal, Unix};

/// What `Retry-After` says when a slot has to come free: no time can be computed, a second is short for a caller and
/// long for a gate.
pub const CONCURRENCY_RETRY: Duration = Duration::from_secs(1);

/// Why an admission did not happen. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// A limit.
    Limit(Refusal),
    /// A bound of the counters themselves: too many requests in flight or subjects known at once.
    Full,
    /// The request ended already, or was never admitted here: it cannot be moved.
    Ended,
}

impl From<Refusal> for AdmitError {
    fn from(refusal: Refusal) -> Self {
        Self::Limit(refusal)
    }
}

impl AdmitError {
    /// The fault that answers the request at wall time `now`. Names level, dimension and limit.
    #[must_use]
    pub fn to_fault(&self, now: Unix) -> Fault {
        match self {
            Self::Limit(refusal) => limit_fault(refusal, now),
            Self::Full => Fault::new(Case::Overloaded)
                .retry_after(CONCURRENCY_RETRY)
                .internal("the counters hold as many requests or subjects as they may"),
            Self::Ended => Fault::new(Case::Internal).internal("a reservation was moved after its end"),
        }
    }
}

fn limit_fault(refusal: &Refusal, now: Unix) -> Fault {
    let Refusal { level, dimension, limit, retry_after, too_large } = *refusal;
    let what = match dimension {
        Dimension::Requests => "requests per minute",
        Dimension::Tokens => "tokens per minute",
        Dimension::Concurrency => "requests in flight",
        Dimension::DailyTokens => "tokens per day",
        Dimension::MonthlyTokens => "tokens per month",
    };
    let limit = format!("limit of {limit} {what} at level {level}");
    let case = match dimension {
        Dimension::Requests => Case::RateRequests,
        Dimension::Concurrency => Case::Concurrency,
        Dimension::Tokens | Dimension::DailyTokens | Dimension::MonthlyTokens if too_large => Case::TooLargeForLimit,
        Dimension::Tokens => Case::RateTokens,
        Dimension::DailyTokens | Dimension::MonthlyTokens => Case::Quota,
    };
    let fault = Fault::new(case);
    if too_large {
        let fault = fault.saying(format!("this request alone is larger than the {limit}; waiting will not help"));
        return Fault { should_retry: Some(false), ..fault };
    }
    match (case, retry_after) {
        (Case::Quota, Some(wait)) => {
            let next = Unix::from_ms(now.ms.saturating_add(wait.as_millis() as i64)).to_timestamp();
            fault.saying(format!("{limit} is used up; the next period starts at {next}"))
        }
        (Case::Concurrency, _) => fault.saying(format!("{limit} reached")).retry_after(CONCURRENCY_RETRY),
        (_, Some(wait)) => fault.saying(format!("{limit} reached")).retry_after(wait),
        (_, None) => fault.saying(format!("{limit} reached")),
    }
}
