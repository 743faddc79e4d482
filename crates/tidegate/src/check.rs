//! `tidegate check`: every error of the documents at once.

use std::process::ExitCode;

use crate::cli::Check;
use crate::{EXIT_DOCUMENTS, load, terminal};

/// Checks and reports.
pub(crate) fn check(args: &Check) -> anyhow::Result<ExitCode> {
    let (checked, notices) = load::planned(&args.documents)?;
    let errors = checked.errors();
    if args.json {
        let answer = serde_json::json!({"ok": errors == 0, "errors": errors, "diagnostics": checked.diagnostics});
        terminal::answer(&serde_json::to_string_pretty(&answer)?);
    } else {
        for diagnostic in &checked.diagnostics {
            terminal::note(&diagnostic.render());
        }
        notices.iter().for_each(|notice| terminal::note(&format!("note: {notice}")));
        match &checked.site {
            Some(site) => terminal::answer(&format!(
                "{}: {} models, {} deployments, {} aliases, {} teams; shifts: {}",
                site.name,
                site.models.len(),
                site.deployments.len(),
                site.aliases.len(),
                site.teams.len(),
                site.shifts().iter().map(|shift| shift.as_str()).collect::<Vec<_>>().join(", "),
            )),
            None => terminal::note(&format!("{errors} error(s); nothing of these documents would be taken")),
        }
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DOCUMENTS) })
}
