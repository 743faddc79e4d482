//! Small sites for tests.

use jiff::Timestamp;
use tidegate_config::{Site, Source, check};

/// The site of these documents (without the Site document itself); panics with what is wrong with them.
pub(crate) fn site(documents: &str) -> Site {
    let head = "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {name: s}\nspec: {timeZone: Asia/Seoul, launcher: processes}\n---\n";
    let checked = check(&[Source::new("site.yaml", format!("{head}{documents}"))]);
    let said: Vec<String> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
    checked.site.unwrap_or_else(|| panic!("{}", said.join("\n")))
}

/// A site with these Schedules; every shift loads deployment `d`.
pub(crate) fn scheduled(schedules: &[&str]) -> Site {
    let mut documents = String::from(
        "kind: Model\nmetadata: {name: m}\nspec: {engine: vllm}\n---\nkind: Deployment\nmetadata: {name: d}\nspec: {model: m, endpoints: [{url: 'http://127.0.0.1:9000'}]}\n---\nkind: Alias\nmetadata: {name: a}\nspec: {targets: [{deployment: d}]}\n",
    );
    for (index, spec) in schedules.iter().enumerate() {
        documents.push_str(&format!("---\nkind: Schedule\nmetadata: {{name: s{index}}}\nspec: {spec}\n"));
    }
    site(&documents)
}

/// An instant from RFC 3339.
pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}
