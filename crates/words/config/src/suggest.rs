//! Did you mean: the nearest known name.

/// Longest name that is compared, in bytes: the work is the square of it.
const COMPARED_BYTES_MAX: usize = 64;
/// Most candidates that are compared.
const COMPARED_MAX: usize = 2_000;

/// The candidate nearest to `given`, when it is near enough to be a slip: an edit distance of at most a third of the
/// length (and at least one), ties going to the first.
pub(crate) fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (given.chars().count() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates.into_iter().take(COMPARED_MAX) {
        let is_same = candidate.eq_ignore_ascii_case(given);
        let distance = if is_same { Some(0) } else { distance(given, candidate, allowed) };
        let Some(distance) = distance else { continue };
        if best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// A hint for an unknown name: the nearest candidate, or the list when it is short, or nothing.
pub(crate) fn hint<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> Option<String> {
    const LISTED_MAX: usize = 8;
    if let Some(near) = nearest(given, candidates.clone()) {
        return Some(format!("did you mean `{near}`?"));
    }
    let known: Vec<&str> = candidates.into_iter().collect();
    (!known.is_empty() && known.len() <= LISTED_MAX).then(|| format!("known: {}", known.join(", ")))
}

/// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours; `None` when there are more
/// than `allowed`.
fn distance(a: &str, b: &str, allowed: usize) -> Option<usize> {
    if a.len() > COMPARED_BYTES_MAX || b.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > allowed {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substituted = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = substituted.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        // A swap reaches back two rows: only when both are beyond the bound can nothing come back under it.
        let is_beyond = |row: &[usize]| row.iter().all(|&distance| distance > allowed);
        if is_beyond(&next) && is_beyond(&row) {
            return None;
        }
        before = std::mem::replace(&mut row, next);
    }
    Some(row[b.len()]).filter(|&distance| distance <= allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        assert_eq!(distance("targte", "target", 2), Some(1));
        assert_eq!(distance("", "abc", 3), Some(3));
        assert_eq!(distance("", "abc", 2), None);
        assert_eq!(nearest("deploymnet", ["deployment", "model"]), Some("deployment"));
        assert_eq!(nearest("TARGETS", ["targets"]), Some("targets"));
        assert_eq!(nearest("banana", ["deployment", "model"]), None);
        assert_eq!(nearest("tp", ["ep", "pp", "tpm"]), Some("ep"), "ties go to the first");
        assert_eq!(hint("banana", ["model"]), Some("known: model".to_owned()));
        assert_eq!(nearest(&"x".repeat(65), [""]), None, "longer names are not compared");
    }
}
