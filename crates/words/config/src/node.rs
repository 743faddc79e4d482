//! A YAML document as a tree that remembers where everything stood.

use std::fmt::Write;
use std::rc::Rc;

use crate::bounds::VALUE_SHOWN_MAX;

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Line, from 1.
    pub(crate) line: u32,
    /// Column in characters, from 1.
    pub(crate) column: u32,
}

/// A value and where it stands. What an anchor names is shared by its aliases, each with a position of its own.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) data: Rc<Data>,
    /// Values in it, itself included, aliases counted at what they stand for.
    pub(crate) size: usize,
    /// Levels of nesting, itself included.
    pub(crate) depth: usize,
}

/// What a value is.
#[derive(Debug)]
pub(crate) enum Data {
    /// A scalar. Its text is kept as written: `1.10` is no number before somebody asks for one.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Position,
    pub(crate) value: Node,
}

impl Node {
    pub(crate) fn new(at: Position, data: Data) -> Self {
        let (size, depth) = match &data {
            Data::Scalar { .. } => (0, 0),
            Data::List(items) => measure(items.iter()),
            Data::Map(entries) => measure(entries.iter().map(|entry| &entry.value)),
        };
        Self { at, data: Rc::new(data), size: size.saturating_add(1), depth: depth + 1 }
    }

    /// The value of a key of this mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// A key of this mapping.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        match &*self.data {
            Data::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Data::Scalar { .. } | Data::List(_) => None,
        }
    }

    /// One item of this list.
    pub(crate) fn item(&self, index: usize) -> Option<&Self> {
        match &*self.data {
            Data::List(items) => items.get(index),
            Data::Scalar { .. } | Data::Map(_) => None,
        }
    }

    /// The text of a scalar that stands for a value: not of an empty one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &*self.data {
            Data::Scalar { text, plain } => (!(*plain && is_null(text))).then_some(text),
            Data::List(_) | Data::Map(_) => None,
        }
    }

    /// What it is, for messages.
    pub(crate) fn describe(&self) -> &'static str {
        match &*self.data {
            Data::Scalar { text, plain: true } if is_null(text) => "nothing",
            Data::Scalar { .. } => "text",
            Data::List(_) => "a list",
            Data::Map(_) => "a mapping",
        }
    }

    /// The value as a diagnostic repeats it: on one line, shortened.
    pub(crate) fn show(&self) -> String {
        let mut shown = String::new();
        self.write(&mut shown);
        if shown.chars().count() > VALUE_SHOWN_MAX {
            shown = shown.chars().take(VALUE_SHOWN_MAX - 1).collect();
            shown.push('…');
        }
        shown
    }

    fn write(&self, into: &mut String) {
        // Bytes are at least characters: what is longer will be cut anyway.
        if into.len() > VALUE_SHOWN_MAX * 4 {
            return;
        }
        match &*self.data {
            Data::Scalar { text, plain: true } if text.is_empty() => into.push_str("null"),
            Data::Scalar { text, .. } => {
                into.extend(text.chars().take(VALUE_SHOWN_MAX + 1).map(|c| if c.is_control() { ' ' } else { c }));
            }
            Data::List(items) => {
                into.push('[');
                for (index, item) in items.iter().take(VALUE_SHOWN_MAX).enumerate() {
                    into.push_str(if index > 0 { ", " } else { "" });
                    item.write(into);
                }
                into.push(']');
            }
            Data::Map(entries) => {
                into.push('{');
                for (index, entry) in entries.iter().take(VALUE_SHOWN_MAX).enumerate() {
                    let _ = write!(into, "{}{}: ", if index > 0 { ", " } else { "" }, entry.key);
                    if is_secret_key(&entry.key) && entry.value.text().is_some() {
                        into.push_str(NOT_SHOWN);
                    } else {
                        entry.value.write(into);
                    }
                }
                into.push('}');
            }
        }
    }
}

fn measure<'a>(children: impl Iterator<Item = &'a Node>) -> (usize, usize) {
    children.fold((0, 0), |(size, depth), child| (size.saturating_add(child.size), depth.max(child.depth)))
}

/// The plain scalars that YAML's core schema reads as null.
pub(crate) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// What a diagnostic shows instead of the text of a secret.
pub(crate) const NOT_SHOWN: &str = "(not shown)";

/// Whether text under this key is a secret by its name. Secrets have no place in documents, but when somebody puts one
/// there the diagnostic that says so must not spread it into logs.
pub(crate) fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["key", "secret", "password", "passwd", "token", "pepper", "credential", "credentials"]
        .iter()
        .any(|word| key.ends_with(word))
}
