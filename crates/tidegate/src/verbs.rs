//! The verbs of the command line: each is one request to the admin API, shown for people or as JSON.

use std::process::ExitCode;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};
use http::Method;
use serde_json::Value;
use tidegate_console::{AuditAnswer, CreateKey, CreatedKey, KeyView, RotateKey, SetShift, UsageQueryText};
use tidegate_core::{Limits, Unix};
use tidegate_store::store::Bucket;

use crate::admin_client::ask;
use crate::cli::{Audit, By, Key, KeyCreate, KeyVerb, Per, Reach, Shift, ShiftVerb, Status, Usage};
use crate::terminal;

/// `tidegate key`.
pub(crate) fn key(args: &Key) -> anyhow::Result<ExitCode> {
    match &args.verb {
        KeyVerb::Create(args) => create(args)?,
        KeyVerb::Ls(args) => {
            let query = args.team.as_ref().map_or_else(String::new, |team| format!("?team={}", encode(team)));
            let path = format!("/admin/v1/keys{query}");
            show(&args.reach, &ask::<Vec<KeyView>>(&args.reach, Method::GET, &path, "")?, |keys| key_table(keys))?;
        }
        KeyVerb::Rotate(args) => {
            let body = RotateKey { grace_seconds: Some(seconds(&args.grace, "--grace")?) };
            let path = format!("/admin/v1/keys/{}/rotate", encode(&args.id));
            let key: CreatedKey = ask(&args.reach, Method::POST, &path, &serde_json::to_string(&body)?)?;
            show(&args.reach, &key, created)?;
        }
        KeyVerb::Revoke(args) => {
            let path = format!("/admin/v1/keys/{}/revoke", encode(&args.id));
            let key: KeyView = ask(&args.reach, Method::POST, &path, "")?;
            show(&args.reach, &key, |key| {
                format!("key {} is revoked; requests with it are refused from now on", key.id)
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(args: &KeyCreate) -> anyhow::Result<()> {
    let body = CreateKey {
        team: args.team.clone(),
        caller: args.caller.clone(),
        aliases: args.aliases.clone(),
        expires_in_seconds: Some(seconds(&args.expires, "--expires")?),
        limits: Limits {
            rpm: args.rpm,
            tpm: args.tpm,
            concurrency: args.concurrency,
            daily_tokens: args.daily_tokens,
            monthly_tokens: args.monthly_tokens,
        },
        admin: args.admin,
        test: args.test,
    };
    let key: CreatedKey = ask(&args.reach, Method::POST, "/admin/v1/keys", &serde_json::to_string(&body)?)?;
    show(&args.reach, &key, created)
}

fn created(key: &CreatedKey) -> String {
    let until = key.key.expires.map_or_else(|| "for ever".to_owned(), |expires| format!("until {}", day(expires)));
    terminal::note(&format!(
        "key {} of team {}, caller {}, valid {until}; it is shown this once",
        key.key.id, key.key.team, key.key.caller
    ));
    key.secret.clone()
}

fn key_table(keys: &[KeyView]) -> String {
    let mut table = table(&["key", "team", "caller", "aliases", "state", "expires", "last used", "ends in"]);
    for key in keys {
        let aliases = key.aliases.as_ref().map_or_else(
            || "all granted".to_owned(),
            |aliases| aliases.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        );
        table.add_row([
            key.id.to_string(),
            if key.admin { "(admin)".to_owned() } else { key.team.to_string() },
            key.caller.to_string(),
            aliases,
            key.state.clone(),
            key.expires.map_or_else(|| "never".to_owned(), day),
            key.last_used.map_or_else(|| "never".to_owned(), minute),
            key.last4.clone(),
        ]);
    }
    table.to_string()
}

/// `tidegate usage`.
pub(crate) fn usage(args: &Usage) -> anyhow::Result<ExitCode> {
    let by: Vec<_> = args.by.iter().map(|by| by.as_str()).collect();
    let query = UsageQueryText {
        by: by.join(","),
        per: match args.per {
            Per::Hour => Bucket::Hour,
            Per::Day => Bucket::Day,
            Per::Month => Bucket::Month,
            Per::Total => Bucket::Total,
        },
        from: args.from.clone(),
        until: args.until.clone(),
        zone: args.zone.clone(),
        team: args.team.clone(),
        ..UsageQueryText::default()
    };
    let path = format!("/admin/v1/usage?{}", query_string(&serde_json::to_value(&query)?));
    let answer: Value = ask(&args.reach, Method::GET, &path, "")?;
    if args.csv {
        terminal::answer(&usage_csv(args, &answer));
    } else {
        show(&args.reach, &answer, |answer| usage_table(args, answer))?;
    }
    Ok(ExitCode::SUCCESS)
}

const SUMS: [&str; 8] =
    ["requests", "ok", "failed", "cancelled", "orphaned", "prompt_tokens", "cached_tokens", "output_tokens"];

fn usage_rows<'a>(args: &'a Usage, answer: &'a Value) -> impl Iterator<Item = Vec<String>> + 'a {
    let zone = jiff::tz::TimeZone::get(answer["zone"].as_str().unwrap_or("UTC")).unwrap_or(jiff::tz::TimeZone::UTC);
    answer["rows"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(move |row| {
        let period = Some(period(args.per, row, &zone)).filter(|_| args.per != Per::Total);
        let names = args.by.iter().map(|by| row[by.as_str()].as_str().unwrap_or("-").to_owned());
        let sums = SUMS.iter().map(|sum| row[*sum].as_u64().unwrap_or(0).to_string());
        period.into_iter().chain(names).chain(sums).collect()
    })
}

fn usage_header(args: &Usage) -> Vec<&'static str> {
    let period = Some(args.per.as_str()).filter(|_| args.per != Per::Total);
    period.into_iter().chain(args.by.iter().map(|by: &By| by.as_str())).chain(SUMS).collect()
}

fn period(per: Per, row: &Value, zone: &jiff::tz::TimeZone) -> String {
    let from = Unix::from_ms(row["from"].as_i64().unwrap_or(0)).to_timestamp().to_zoned(zone.clone());
    let format = match per {
        Per::Hour => "%Y-%m-%d %H:00",
        Per::Day => "%Y-%m-%d",
        Per::Month => "%Y-%m",
        Per::Total => "",
    };
    from.strftime(format).to_string()
}

fn usage_table(args: &Usage, answer: &Value) -> String {
    let header = usage_header(args);
    let mut table = table(&header);
    let first_sum = header.len() - SUMS.len();
    for column in table.column_iter_mut().skip(first_sum) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut totals = [0_u64; SUMS.len()];
    let mut rows = 0;
    for row in usage_rows(args, answer) {
        for (total, value) in totals.iter_mut().zip(&row[first_sum..]) {
            *total += value.parse::<u64>().unwrap_or(0);
        }
        rows += 1;
        table.add_row(row);
    }
    if rows > 1 {
        let mut row = vec![String::new(); first_sum];
        if let Some(first) = row.first_mut() {
            "total".clone_into(first);
        }
        row.extend(totals.iter().map(ToString::to_string));
        table.add_row(row);
    }
    let (from, until) = (answer["from"].as_str().unwrap_or(""), answer["until"].as_str().unwrap_or(""));
    format!("{table}\n{from} to {until} ({})", answer["zone"].as_str().unwrap_or("UTC"))
}

fn usage_csv(args: &Usage, answer: &Value) -> String {
    let mut text = usage_header(args).join(",");
    text.push('\n');
    for row in usage_rows(args, answer) {
        let cells: Vec<_> = row.iter().map(|cell| csv_cell(cell)).collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// One cell by RFC 4180; what a spreadsheet would take for a formula is quoted as text.
fn csv_cell(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '@', '-']) && text != "-" { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// `tidegate shift`.
pub(crate) fn shift(args: &Shift) -> anyhow::Result<ExitCode> {
    let ShiftVerb::Set(args) = &args.verb;
    let body = serde_json::to_string(&SetShift { name: args.name.clone() })?;
    let set: Value = ask(&args.reach, Method::PUT, "/admin/v1/shift", &body)?;
    show(&args.reach, &set, |set| match set["desired"].as_str() {
        Some(shift) if set["later"] == true => format!("shift {shift} is switched to when `tidegate up` starts"),
        Some(shift) => format!("switching to {shift}; `tidegate switch status` says how far it is"),
        None => {
            format!("shift {} is in force from the next start of `tidegate up` on", set["name"].as_str().unwrap_or(""))
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `tidegate audit`.
pub(crate) fn audit(args: &Audit) -> anyhow::Result<ExitCode> {
    let path = format!("/admin/v1/audit?limit={}", args.limit);
    let answer: AuditAnswer = ask(&args.reach, Method::GET, &path, "")?;
    show(&args.reach, &answer.rows, |rows| {
        let mut table = table(&["number", "when", "who", "action", "subject", "detail"]);
        for row in rows {
            let detail = if row.detail == "{}" { "" } else { &row.detail };
            table.add_row([
                row.seq.to_string(),
                minute(row.at),
                row.who.clone(),
                row.action.clone(),
                row.subject.clone(),
                detail.to_owned(),
            ]);
        }
        table.to_string()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `tidegate status`.
pub(crate) fn status(args: &Status) -> anyhow::Result<ExitCode> {
    let status: Value = ask(&args.reach, Method::GET, "/admin/v1/status", "")?;
    show(&args.reach, &status, status_text)?;
    Ok(ExitCode::SUCCESS)
}

fn status_text(status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    // One of another version may not be readable: the rest still is.
    let lifecycle = serde_json::from_value(status["lifecycle"].clone()).unwrap_or_default();
    let lifecycle = crate::switch::lifecycle_text(&lifecycle);
    if status["running"] == false {
        let first = format!("not running; the documents were at {}", text(&status["documents"]["path"]));
        return std::iter::once(first).chain(lifecycle).collect::<Vec<_>>().join("\n");
    }
    let shift = &status["shift"];
    let mut lines = vec![
        format!("site       {} ({})", text(&status["site"]), text(&status["version"])),
        format!("gate       {}", text(&status["gate"])),
        format!("shift      {} ({})", text(&shift["name"]), text(&shift["source"])),
        format!(
            "documents  generation {}, loaded {}",
            status["documents"]["generation"],
            text(&status["documents"]["loadedAt"])
        ),
        format!("in flight  {}", status["inFlight"]),
    ];
    let cache = &status["modelCache"];
    if let Some(path) = cache["path"].as_str() {
        let why = cache["waitingFor"].as_str().map_or_else(String::new, |why| format!(" (not ours yet: {why})"));
        lines.push(format!("models     {path}, from {}{why}", text(&cache["store"])));
    }
    lines.extend(lifecycle);
    if let Some(refused) = status["documents"]["refused"].as_str() {
        lines.push(format!("REFUSED    the documents on disk are not in force:\n{refused}"));
    }
    if let Some(failing) = status["ledger"]["failing"].as_str() {
        lines.push(format!("LEDGER     {failing}; the journal keeps what waits"));
    }
    let mut replicas = table(&["replica", "state", "address", "in flight", "waiting", "KV", "context", "problem"]);
    for replica in status["replicas"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let number = |name: &str| replica[name].as_f64().map_or_else(|| "-".to_owned(), |value| value.to_string());
        replicas.add_row([
            text(&replica["replica"]),
            text(&replica["state"]),
            text(&replica["address"]),
            number("in_flight"),
            number("waiting"),
            replica["kv_usage"].as_f64().map_or_else(|| "-".to_owned(), |usage| format!("{:.0} %", usage * 100.0)),
            number("context_tokens"),
            replica["problem"].as_str().unwrap_or("").to_owned(),
        ]);
    }
    let mut aliases = table(&["alias", "class", "served by"]);
    for alias in status["aliases"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let targets = alias["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let by: Vec<_> =
            targets.iter().map(|target| format!("{} ({})", text(&target["deployment"]), target["weight"])).collect();
        let by = match (by.is_empty(), alias["substitute"].as_str()) {
            (false, _) => by.join(", "),
            (true, Some(substitute)) => format!("absent; {substitute} serves instead"),
            (true, None) => "absent in this shift".to_owned(),
        };
        aliases.add_row([text(&alias["alias"]), text(&alias["class"]), by]);
    }
    lines.push(format!("\n{replicas}\n\n{aliases}"));
    lines.join("\n")
}

/// Shows an answer: as JSON when asked, else as `text` makes it.
pub(crate) fn show<T: serde::Serialize>(
    reach: &Reach,
    answer: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    if reach.json {
        let mut out = Vec::new();
        let mut json = serde_json::Serializer::pretty(&mut out);
        answer.serialize(&mut json)?;
        terminal::answer(std::str::from_utf8(&out)?);
    } else {
        terminal::answer(&text(answer));
    }
    Ok(())
}

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().map(|name| name.replace('_', " ")));
    table
}

fn day(at: Unix) -> String {
    at.to_timestamp().strftime("%Y-%m-%d").to_string()
}

pub(crate) fn minute(at: Unix) -> String {
    at.to_timestamp().strftime("%Y-%m-%d %H:%MZ").to_string()
}

/// `12h`, `30d`: seconds.
pub(crate) fn seconds(text: &str, option: &str) -> anyhow::Result<u64> {
    let wrong = || format!("{option} takes a time such as 12h or 30d, not {text:?}");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok().with_context(wrong)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => anyhow::bail!(wrong()),
    };
    number.checked_mul(unit).with_context(wrong)
}

fn query_string(query: &Value) -> String {
    let pairs = query.as_object().into_iter().flatten();
    let pairs: Vec<_> = pairs.filter_map(|(name, value)| Some(format!("{name}={}", encode(value.as_str()?)))).collect();
    pairs.join("&")
}

/// Percent-encodes everything that is not unreserved (RFC 3986).
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~,".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        assert_eq!(seconds("30d", "--expires").unwrap(), 30 * 86_400);
        assert_eq!(seconds("90s", "--expires").unwrap(), 90);
        for wrong in ["", "d", "30", "30y", "-1d", "99999999999999999999d", "9999999999999999999w"] {
            assert!(seconds(wrong, "--expires").is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_cell_cannot_become_a_formula_or_two_cells() {
        assert_eq!(csv_cell("a"), "a");
        assert_eq!(csv_cell("-"), "-");
        assert_eq!(csv_cell("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(csv_cell("=1+1"), "'=1+1");
    }
}
