//! A plan as a picture: one lane per GPU, time from left to right.

use std::fmt::Write as _;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{clock, frame};
use crate::plan::{Bar, BarKind, Lane, Plan, lanes};

const WIDTH: i64 = 1_000;
const LEFT: i64 = 150;
const TOP: i64 = 56;
const BAR: i64 = 18;
const GAP: i64 = 10;
/// Steps of the time axis, in minutes: the first one that gives at most twelve marks.
const MARKS: [i64; 8] = [1, 2, 5, 10, 15, 30, 60, 240];
const MARKS_MAX: i64 = 12;

/// The plan as an SVG document, times in `zone`. It needs nothing from outside, and reads in light and dark.
#[must_use]
pub fn svg(plan: &Plan, zone: &TimeZone) -> String {
    let (from, until) = frame(plan);
    let lanes = lanes(plan, from, until);
    let scale = Scale { from, until };
    let mut body = String::new();
    let mut y = TOP;
    for lane in &lanes {
        y = draw(lane, &scale, zone, y, &mut body);
    }
    let height = y + 34;
    let mut out = String::new();
    let title =
        format!("{} to {}, {}", plan.from, plan.to, plan.at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M %Z"));
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n<text x=\"12\" y=\"22\" font-size=\"15\">{}</text>\n",
        escape(&title),
        escape(&title)
    );
    marks(&scale, zone, y, &mut out);
    out.push_str(&body);
    let hour = scale.x(plan.at);
    let _ = writeln!(out, "<line class=\"hour\" x1=\"{hour}\" y1=\"{}\" x2=\"{hour}\" y2=\"{y}\"/>", TOP - 8);
    legend(y + 22, &mut out);
    out.push_str("</svg>\n");
    out
}

const STYLE: &str = "text{fill:currentColor}.mark{stroke:#8884}.hour{stroke:#c33;stroke-width:2}.serves{fill:#2a78c8}.loads{fill:#e0a030}.warms{fill:#e8c860}.waits{fill:#8fc08f}.drains{fill:#9bb8d8}.stops{fill:#b05050}.sleeps{fill:#9088b8}.name{fill:#fff}";

struct Scale {
    from: Timestamp,
    until: Timestamp,
}

impl Scale {
    fn x(&self, at: Timestamp) -> i64 {
        let whole = self.until.duration_since(self.from).as_secs().max(1);
        let part = at.duration_since(self.from).as_secs().clamp(0, whole);
        LEFT + part * (WIDTH - LEFT - 12) / whole
    }
}

/// Draws a lane from `y` on, a row for each deployment; returns where the next one begins.
fn draw(lane: &Lane, scale: &Scale, zone: &TimeZone, y: i64, out: &mut String) -> i64 {
    let _ = writeln!(out, "<text x=\"12\" y=\"{}\">{}</text>", y + 13, escape(&lane.gpu.to_string()));
    let mut row = y;
    let mut last: Option<&Bar> = None;
    for bar in &lane.bars {
        if last.is_some_and(|last| last.deployment != bar.deployment) {
            row += BAR + 2;
        }
        let (x, end) = (scale.x(bar.from), scale.x(bar.until));
        let width = (end - x).max(1);
        let (kind, name) = (bar.kind.as_str(), escape(bar.deployment.as_str()));
        let _ = writeln!(
            out,
            "<rect class=\"{kind}\" x=\"{x}\" y=\"{row}\" width=\"{width}\" height=\"{BAR}\"><title>{name} {kind} {} - {}</title></rect>",
            clock(bar.from, zone),
            clock(bar.until, zone)
        );
        // about seven units a letter: a name that does not fit is left to the tooltip
        if bar.kind == BarKind::Serves && width > 7 * bar.deployment.as_str().chars().count() as i64 + 8 {
            let _ = writeln!(out, "<text class=\"name\" x=\"{}\" y=\"{}\">{name}</text>", x + 4, row + 13);
        }
        last = Some(bar);
    }
    row + BAR + GAP
}

fn marks(scale: &Scale, zone: &TimeZone, bottom: i64, out: &mut String) {
    let minutes = scale.until.duration_since(scale.from).as_secs() / 60;
    let step =
        MARKS.into_iter().find(|step| minutes / step <= MARKS_MAX).unwrap_or_else(|| minutes / MARKS_MAX + 1) * 60;
    let first = scale.from.as_second().div_euclid(step) * step + step;
    let mut at = Timestamp::from_second(first).unwrap_or(scale.until);
    while at < scale.until {
        let x = scale.x(at);
        let _ = writeln!(out, "<line class=\"mark\" x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{bottom}\"/>", TOP - 8);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", x - 15, TOP - 14, clock(at, zone));
        let Ok(next) = at.checked_add(SignedDuration::from_secs(step)) else { break };
        at = next;
    }
}

fn legend(y: i64, out: &mut String) {
    let kinds = [
        BarKind::Serves,
        BarKind::Loads,
        BarKind::Warms,
        BarKind::Waits,
        BarKind::Drains,
        BarKind::Stops,
        BarKind::Sleeps,
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        let x = LEFT + number as i64 * 90;
        let name = kind.as_str();
        let _ = writeln!(
            out,
            "<rect class=\"{name}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"{y}\">{name}</text>",
            y - 10,
            x + 17
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
