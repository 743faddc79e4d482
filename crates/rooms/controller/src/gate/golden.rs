//! Golden prompts: what a healthy replica is asked, and how its answer is judged.
//!
//! The file of `spec.warmup.prompts` is JSON lines, one object each; empty lines and lines that begin with `#` or `//`
//! are skipped. An object has exactly one question:
//!
//! | member | question |
//! | --- | --- |
//! | `messages` | a conversation, asked as a chat |
//! | `prompt` | a text that is continued |
//! | `input` | a text or a list of texts, for embeddings |
//! | `query` and `documents` | for rerankers |
//!
//! and may have `name` (for people), `max_tokens` (default 16, at most 4,096), `within` (a time such as `20s` or
//! `1500ms`, for the whole answer; default 60s), and `expect` with any of:
//!
//! | member | the answer |
//! | --- | --- |
//! | `not_empty` | `true`: says something (the default is `spec.warmup.expectNonEmpty`) |
//! | `contains` | has this text, or all of these |
//! | `matches` | matches this regular expression somewhere |
//! | `sha256` | has this digest, byte for byte |
//! | `json` | `true`: is JSON; an object: is one that has these members with these values (`null`: any) |
//! | `dimensions` | is vectors of this length |
//! | `first` | ranks this document first, counted from 0 |
//!
//! Besides, every answer is looked at for garbage: see [`super::sane`].

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use tidegate_config::site::DeploymentKind;
use tidegate_engine::trial::Question;

use super::fault::{GateFault, shown};

/// Bytes of a file of golden prompts.
pub const FILE_MAX: usize = 4 * 1024 * 1024;
/// Golden prompts of one deployment.
pub const GOLDENS_MAX: usize = 64;
/// Most tokens of an answer that a golden prompt may ask for.
pub const TOKENS_MAX: u64 = 4_096;
/// Tokens of an answer when a golden prompt does not say.
pub const TOKENS_DEFAULT: u64 = 16;
/// Longest time of a whole answer when a golden prompt does not say.
pub const WITHIN_DEFAULT: Duration = Duration::from_secs(60);
/// Longest time that a golden prompt may ask for.
pub const WITHIN_MAX: Duration = Duration::from_mins(10);
/// Bytes of a compiled regular expression.
const REGEX_MAX: usize = 1 << 20;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    Generate(Question),
    Embed(Vec<String>),
    Rerank { query: String, documents: Vec<String> },
}

/// How an answer has to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Expect {
    pub(super) not_empty: bool,
    contains: Vec<String>,
    matches: Option<Regex>,
    sha256: Option<String>,
    json: Option<Value>,
    pub(super) dimensions: Option<usize>,
    pub(super) first: Option<usize>,
}

/// One golden prompt.
#[derive(Clone, Debug)]
pub struct Golden {
    /// For people.
    pub(super) name: String,
    pub(super) asked: Asked,
    pub(super) tokens_max: u64,
    pub(super) within: Duration,
    pub(super) expect: Expect,
    /// A model without a chat template may be asked this without one.
    pub(super) as_text: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: Option<String>,
    messages: Option<Value>,
    prompt: Option<String>,
    input: Option<OneOrMore>,
    query: Option<String>,
    documents: Option<Vec<String>>,
    max_tokens: Option<u64>,
    within: Option<String>,
    #[serde(default)]
    expect: LineExpect,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineExpect {
    not_empty: Option<bool>,
    contains: Option<OneOrMore>,
    matches: Option<String>,
    sha256: Option<String>,
    json: Option<Value>,
    dimensions: Option<usize>,
    first: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::More(more) => more,
        }
    }
}

/// Reads a file of golden prompts.
///
/// # Errors
/// [`GateFault::Prompts`] with the line that cannot be used.
pub fn parse(text: &str, expect_non_empty: bool) -> Result<Vec<Golden>, GateFault> {
    if text.len() > FILE_MAX {
        return Err(GateFault::Prompts(format!("over {FILE_MAX} bytes")));
    }
    let mut goldens = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        if goldens.len() == GOLDENS_MAX {
            return Err(GateFault::Prompts(format!("line {number}: more than {GOLDENS_MAX} prompts")));
        }
        let golden = golden(line, number, expect_non_empty);
        goldens.push(golden.map_err(|why| GateFault::Prompts(format!("line {number}: {why}")))?);
    }
    if goldens.is_empty() { Err(GateFault::Prompts("there is none in the file".to_owned())) } else { Ok(goldens) }
}

fn golden(line: &str, number: usize, expect_non_empty: bool) -> Result<Golden, String> {
    let Line { name, messages, prompt, input, query, documents, max_tokens, within, expect } =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let asked = match (messages, prompt, input, query, documents) {
        (Some(messages), None, None, None, None) if messages.as_array().is_some_and(|list| !list.is_empty()) => {
            Asked::Generate(Question::Chat(messages))
        }
        (Some(_), None, None, None, None) => return Err("`messages` is a list of messages".to_owned()),
        (None, Some(prompt), None, None, None) => Asked::Generate(Question::Completion(prompt)),
        (None, None, Some(input), None, None) => Asked::Embed(input.into_vec()),
        (None, None, None, Some(query), Some(documents)) if !documents.is_empty() => Asked::Rerank { query, documents },
        _ => return Err("one of `messages`, `prompt`, `input`, `query` with `documents`".to_owned()),
    };
    let tokens_max = max_tokens.unwrap_or(TOKENS_DEFAULT);
    if !(1..=TOKENS_MAX).contains(&tokens_max) {
        return Err(format!("`max_tokens` is from 1 to {TOKENS_MAX}"));
    }
    let within = within.map_or(Some(WITHIN_DEFAULT), |text| time(&text));
    let within = within.filter(|time| !time.is_zero() && *time <= WITHIN_MAX);
    let within = within.ok_or_else(|| format!("`within` is a time such as 20s, up to {}s", WITHIN_MAX.as_secs()))?;
    Ok(Golden {
        name: name.unwrap_or_else(|| format!("golden prompt in line {number}")),
        asked,
        tokens_max,
        within,
        expect: Expect::read(expect, expect_non_empty)?,
        as_text: None,
    })
}

/// `1500ms`, `20s`, `2m`.
fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    }
}

impl Expect {
    fn read(line: LineExpect, expect_non_empty: bool) -> Result<Self, String> {
        let LineExpect { not_empty, contains, matches, sha256, json, dimensions, first } = line;
        let compile = |text: String| {
            let built = regex::RegexBuilder::new(&text).size_limit(REGEX_MAX).build();
            built.map_err(|error| format!("`matches`: {error}"))
        };
        let sha256 = sha256.map(|text| text.trim_start_matches("sha256:").to_ascii_lowercase());
        let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if sha256.as_ref().is_some_and(|text| !is_digest(text)) {
            return Err("`sha256` is 64 hexadecimal digits".to_owned());
        }
        if json.as_ref().is_some_and(|json| *json != Value::Bool(true) && !json.is_object()) {
            return Err("`json` is true, or an object of members".to_owned());
        }
        Ok(Self {
            not_empty: not_empty.unwrap_or(expect_non_empty),
            contains: contains.map(OneOrMore::into_vec).unwrap_or_default(),
            matches: matches.map(compile).transpose()?,
            sha256,
            json,
            dimensions,
            first,
        })
    }

    /// What of it a text does not have.
    pub(super) fn judge(&self, prompt: &str, text: &str) -> Result<(), GateFault> {
        let unexpected = |why: String| GateFault::Unexpected { prompt: prompt.to_owned(), why, sample: shown(text) };
        if let Some(missing) = self.contains.iter().find(|part| !text.contains(&**part)) {
            return Err(unexpected(format!("the answer does not contain {}", shown(missing))));
        }
        if let Some(wanted) = self.matches.as_ref().filter(|regex| !regex.is_match(text)) {
            return Err(unexpected(format!("the answer does not match {}", shown(wanted.as_str()))));
        }
        if let Some(wanted) = &self.sha256 {
            let have = hex(digest(&SHA256, text.as_bytes()).as_ref());
            if have != *wanted {
                return Err(unexpected(format!("the answer's sha256 is {have}")));
            }
        }
        match &self.json {
            Some(wanted) if !has(&serde_json::from_str(text.trim()).unwrap_or_default(), wanted) => {
                Err(unexpected("the answer is not the JSON that was expected".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a value is JSON (`true`), or has these members.
fn has(value: &Value, wanted: &Value) -> bool {
    match wanted.as_object() {
        Some(members) => {
            members.iter().all(|(name, wanted)| value.get(name).is_some_and(|have| wanted.is_null() || have == wanted))
        }
        // what is no JSON was read as null
        None => !value.is_null(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a deployment is asked when nobody said.
pub(super) fn built_in(kind: DeploymentKind, expect_non_empty: bool) -> Vec<Golden> {
    const QUESTION: &str = "What is the capital of France? Answer in one sentence.";
    let golden = |asked, as_text: Option<&str>| Golden {
        name: "the built-in prompt".to_owned(),
        asked,
        tokens_max: TOKENS_DEFAULT,
        within: WITHIN_DEFAULT,
        expect: Expect { not_empty: expect_non_empty, ..Expect::default() },
        as_text: as_text.map(ToOwned::to_owned),
    };
    match kind {
        DeploymentKind::Llm => {
            let messages = serde_json::json!([{"role": "user", "content": QUESTION}]);
            vec![golden(Asked::Generate(Question::Chat(messages)), Some(QUESTION))]
        }
        DeploymentKind::Vlm => {
            let picture = serde_json::json!({"type": "image_url", "image_url": {"url": PICTURE}});
            let text = serde_json::json!({"type": "text", "text": "What colour is this picture?"});
            let messages = serde_json::json!([{"role": "user", "content": [picture, text]}]);
            vec![golden(Asked::Generate(Question::Chat(messages)), None)]
        }
        DeploymentKind::Embedding => {
            let texts = ["The tide is high.", "The tide is high.", "An invoice over three boxes of screws."];
            vec![golden(Asked::Embed(texts.map(ToOwned::to_owned).to_vec()), None)]
        }
        DeploymentKind::Rerank => {
            let documents = ["Bananas are yellow.", "Paris is the capital of France."].map(ToOwned::to_owned).to_vec();
            let query = "What is the capital of France?".to_owned();
            let mut one = golden(Asked::Rerank { query, documents }, None);
            one.expect.first = Some(1);
            vec![one]
        }
        // a worker has no tokens; its golden input comes with its documents
        DeploymentKind::Document => Vec::new(),
    }
}

/// 64 by 64 pixels of red: large enough for the patches of every vision model.
const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAT0lEQVR42u3PQQkAAAgEsIty/dMYyQi+hcEKLNO+FgEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQGBywI6LQEAwyG+sAAAAABJRU5ErkJggg==";
