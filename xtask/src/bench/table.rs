//! The table, for people and for scripts.

use serde_json::{Value, json};

use super::figures::{Column, Figure, Goal};
use crate::terminal::say;

/// Prints the table to standard output.
pub(super) fn print<C: Column>(figures: &[Figure<C>]) {
    let mut rows = vec![header::<C>()];
    rows.extend(figures.iter().map(row));
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 | 1 => format!("{cell:<width$}"),
            _ if column + 2 >= columns => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        say!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// The same as a Markdown table.
pub(super) fn markdown<C: Column>(figures: &[Figure<C>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header::<C>());
    text.push_str(&line(header::<C>().iter().map(|_| "---".to_owned()).collect()));
    for figure in figures {
        text.push_str(&line(row(figure)));
    }
    text
}

fn header<C: Column>() -> Vec<String> {
    let mut cells = vec!["figure".to_owned(), "unit".to_owned()];
    cells.extend(C::ALL.iter().map(|column| column.name().to_owned()));
    cells.extend([format!("× {}", C::BESIDE.name()), "goal".to_owned(), "met".to_owned()]);
    cells
}

fn row<C: Column>(figure: &Figure<C>) -> Vec<String> {
    let mut cells = vec![figure.name.clone(), figure.unit.to_owned()];
    cells
        .extend(C::ALL.iter().map(|target| figure.values.get(target).map_or_else(String::new, |value| number(*value))));
    cells.push(figure.ratio(C::BESIDE).map_or_else(String::new, |ratio| format!("{ratio:.2}")));
    cells.push(figure.goals.iter().map(|goal| words(*goal)).collect::<Vec<_>>().join(", "));
    cells.push(figure.goals.iter().map(|goal| verdict(figure.meets(*goal))).collect::<Vec<_>>().join(", "));
    cells
}

/// Three significant digits, without an exponent.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn words<C: Column>(goal: Goal<C>) -> String {
    match goal {
        Goal::AtLeast(bound) => format!("≥ {bound}"),
        Goal::AtMost(bound) => format!("≤ {bound}"),
        Goal::Exactly(wanted) => format!("= {wanted}"),
        Goal::TimesAtMost(peer, bound) => format!("≤ {bound}× {}", peer.name()),
        Goal::TimesAtLeast(peer, bound) => format!("≥ {bound:.2}× {}", peer.name()),
    }
}

const fn verdict(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "not measured",
    }
}

/// The same for scripts.
pub(super) fn json<C: Column>(figures: &[Figure<C>]) -> Value {
    let figure = |figure: &Figure<C>| {
        let peers = figure.values.iter().filter(|(target, _)| **target != C::OWN);
        let peers: serde_json::Map<_, _> =
            peers.map(|(target, value)| (target.name().to_owned(), json!(value))).collect();
        let ratios = C::ALL.iter().filter_map(|peer| Some((peer.name().to_owned(), json!(figure.ratio(*peer)?))));
        let ratios: serde_json::Map<_, _> = ratios.filter(|(peer, _)| peer != C::OWN.name()).collect();
        let goals = figure.goals.iter().map(|goal| json!({"goal": words(*goal), "met": figure.meets(*goal)}));
        json!({
            "figure": figure.name,
            "unit": figure.unit,
            "value": figure.values.get(&C::OWN),
            "peers": peers,
            "ratios": ratios,
            "goals": goals.collect::<Vec<_>>(),
        })
    };
    json!({"bench": C::BENCH, "figures": figures.iter().map(figure).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::stand::Target;
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column_and_a_verdict_for_each_goal() {
        let values = BTreeMap::from([(Target::Tidegate, 30.0), (Target::Nginx, 20.0)]);
        let figure =
            Figure::new("cpu", "us", values).wants(Goal::TimesAtMost(Target::Nginx, 2.0)).wants(Goal::AtMost(10.0));
        let cells = row(&figure);
        assert_eq!(cells.len(), header::<Target>().len());
        assert_eq!(cells[7..], ["1.50", "≤ 2× nginx, ≤ 10", "yes, NO"]);
        let json = json(&[figure]);
        assert_eq!(json["figures"][0]["goals"][1]["met"], false);
        assert_eq!(json["figures"][0]["ratios"]["nginx"], 1.5);
    }
}
