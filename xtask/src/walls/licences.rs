//! Whose terms are built in: every package's licence against the list in `deny.toml`. cargo-deny says the same and reads
//! the licence texts besides; building it takes longer than all other steps of this check, so CI does not depend on it.

use anyhow::{Context as _, Result};

use super::Finding;
use super::sources::File;

/// How deep the parentheses of an expression may stand.
const NESTED_MAX: usize = 16;

/// A package that is built and the licence that its manifest states; empty when it states none.
pub(super) type Licensed = (String, String);

/// Reads the output of `cargo tree --prefix none` in the format `{p}`, tab, `{l}`.
pub(super) fn packages(tree: &str) -> Vec<Licensed> {
    let lines = tree.lines().filter_map(|line| {
        let (package, licence) = line.split_once('\t')?;
        // A package that was printed before is marked.
        let licence = licence.strip_suffix("(*)").unwrap_or(licence);
        Some((package.split(" (").next()?.to_owned(), licence.trim().to_owned()))
    });
    let mut all: Vec<_> = lines.collect();
    all.sort();
    all.dedup();
    all
}

/// Every package whose licence is not allowed.
///
/// # Errors
/// There is no `deny.toml`, or it allows nothing, or no package was read: then this check would check nothing.
pub(super) fn check(packages: &[Licensed], files: &[File]) -> Result<Vec<Finding>> {
    let file = files.iter().find(|file| file.path == "deny.toml").context("there is no deny.toml")?;
    let allowed = allowed(&file.text);
    anyhow::ensure!(!allowed.is_empty(), "deny.toml allows no licence");
    anyhow::ensure!(!packages.is_empty(), "cargo tree names no package with its licence");
    let refused = packages.iter().filter_map(|(package, licence)| {
        let what = match is_allowed(licence, &allowed) {
            Some(true) => return None,
            Some(false) => format!("{licence:?} is not among the licences that deny.toml allows"),
            None if licence.is_empty() => "states no licence".to_owned(),
            None => format!("{licence:?} is no licence expression"),
        };
        Some(Finding::new("licences", package, what))
    });
    Ok(refused.collect())
}

/// The strings of `allow = […]` under `[licenses]`.
fn allowed(deny: &str) -> Vec<&str> {
    let section = deny.lines().map(str::trim).skip_while(|line| *line != "[licenses]").skip(1);
    let section = section.take_while(|line| !line.starts_with('['));
    let list = section.skip_while(|line| *line != "allow = [").skip(1).take_while(|line| *line != "]");
    list.filter_map(|line| line.strip_prefix('"')?.split_once('"').map(|(name, _)| name)).collect()
}

/// Whether an SPDX expression can be met with licences of the list alone; `None` when it is none. `/` is what old manifests
/// write for `OR`.
fn is_allowed(expression: &str, allowed: &[&str]) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<_> = spaced.split_ascii_whitespace().collect();
    let mut reader = Reader { words: &words, allowed, nested: 0 };
    let verdict = reader.any()?;
    reader.words.is_empty().then_some(verdict)
}

struct Reader<'a> {
    /// What is still to be read.
    words: &'a [&'a str],
    allowed: &'a [&'a str],
    nested: usize,
}

impl Reader<'_> {
    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    /// `all OR all OR …`
    fn any(&mut self) -> Option<bool> {
        let mut verdict = self.all()?;
        while self.takes("OR") {
            verdict |= self.all()?;
        }
        Some(verdict)
    }

    /// `one AND one AND …`: binds closer than `OR`.
    fn all(&mut self) -> Option<bool> {
        let mut verdict = self.one()?;
        while self.takes("AND") {
            verdict &= self.one()?;
        }
        Some(verdict)
    }

    /// A licence, one with an exception, or an expression in parentheses.
    fn one(&mut self) -> Option<bool> {
        if self.takes("(") {
            self.nested += 1;
            let verdict = if self.nested > NESTED_MAX { None } else { self.any() }?;
            self.nested -= 1;
            return self.takes(")").then_some(verdict);
        }
        let name = self.name()?;
        if self.takes("WITH") {
            let exception = self.name()?;
            return Some(self.allowed.contains(&format!("{name} WITH {exception}").as_str()));
        }
        Some(self.allowed.contains(&name.as_str()))
    }

    fn name(&mut self) -> Option<String> {
        let (first, rest) = self.words.split_first()?;
        let is_name = !["OR", "AND", "WITH", "(", ")"].contains(first);
        self.words = rest;
        is_name.then(|| (*first).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "[bans]\nallow = [\n  \"Not-Here\",\n]\n[licenses]\nconfidence-threshold = 0.9\nallow = [\n  \
        \"Apache-2.0\",\n  \"Apache-2.0 WITH LLVM-exception\", # two\n  \"MIT\",\n]\n\n[sources]\nx = [\n \"Nor-Here\",\n]\n";

    fn found(licence: &str) -> Vec<String> {
        let files = vec![File { path: "deny.toml".to_owned(), text: DENY.to_owned() }];
        let findings = check(&[("x v1.0.0".to_owned(), licence.to_owned())], &files).unwrap();
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_package_under_a_licence_that_is_not_allowed_is_found() {
        let refused = "is not among the licences that deny.toml allows";
        for licence in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR Apache-2.0) AND Unicode-3.0", "Not-Here"] {
            assert_eq!(found(licence), [format!("x v1.0.0: [licences] {licence:?} {refused}")]);
        }
        assert_eq!(found("MIT WITH LLVM-exception").len(), 1, "an exception is allowed with its licence only");
    }

    #[test]
    fn a_choice_is_allowed_when_one_of_its_licences_is() {
        for licence in [
            "MIT",
            "MIT OR GPL-3.0-only",
            "GPL-3.0-only OR MIT AND Apache-2.0",
            "MIT/GPL-2.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0-only",
            "(MIT OR GPL-3.0-only) AND ((Apache-2.0))",
        ] {
            assert_eq!(found(licence), Vec::<String>::new(), "{licence}");
        }
    }

    #[test]
    fn a_licence_that_is_missing_or_cannot_be_read_is_found() {
        assert_eq!(found(""), ["x v1.0.0: [licences] states no licence"]);
        let deep = "(".repeat(NESTED_MAX + 1) + "MIT" + &")".repeat(NESTED_MAX + 1);
        for licence in ["MIT OR", "(MIT", "MIT)", "AND MIT", "MIT Apache-2.0", "MIT WITH", &deep] {
            assert_eq!(found(licence), [format!("x v1.0.0: [licences] {licence:?} is no licence expression")]);
        }
        assert!(found(&("(".repeat(NESTED_MAX) + "MIT" + &")".repeat(NESTED_MAX))).is_empty());
    }

    #[test]
    fn the_tree_is_read_with_its_licences() {
        let tree = "a v0.1.0 (somewhere)\tApache-2.0\nb v1.0.2 (proc-macro)\tMIT OR Apache-2.0\n\nb v1.0.2 (proc-macro)\tMIT OR Apache-2.0 (*)\nc v1.0.0\t\n";
        let expected = [("a v0.1.0", "Apache-2.0"), ("b v1.0.2", "MIT OR Apache-2.0"), ("c v1.0.0", "")];
        let expected = expected.map(|(package, licence)| (package.to_owned(), licence.to_owned()));
        assert_eq!(packages(tree), expected);
    }

    #[test]
    fn a_check_of_nothing_is_an_error() {
        let deny = |text: &str| vec![File { path: "deny.toml".to_owned(), text: text.to_owned() }];
        let one = [("x".to_owned(), "MIT".to_owned())];
        assert!(check(&one, &deny("[licenses]\n")).is_err() && check(&one, &[]).is_err());
        assert!(check(&[], &deny(DENY)).is_err());
    }

    #[test]
    fn the_projects_own_list_is_read() {
        let text = std::fs::read_to_string(crate::workspace::root().join("deny.toml")).unwrap();
        let allowed = allowed(&text);
        assert!(allowed.contains(&"Apache-2.0 WITH LLVM-exception") && allowed.contains(&"MIT"), "{allowed:?}");
        assert!(!allowed.contains(&"GPL-3.0-only"));
    }
}
