//! YAML text in, trees out; every fault of every document is reported, not only the first.
//!
//! The event parser beneath serde-saphyr is used directly, because its typed interface stops at the first error, reads
//! `1.10` as a number before it is known that a version is wanted, and cannot go on with the next document after a
//! broken one. Work and memory are bounded: nesting by [`DEPTH_MAX`], values by [`VALUES_MAX`] with aliases counted at
//! what they stand for (they share memory, so a bomb is refused by arithmetic, not by running out of anything).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};

use crate::bounds::{DEPTH_MAX, VALUES_MAX};
use crate::node::{Data, Entry, Node, Position};

/// What was read from one text.
#[derive(Debug, Default)]
pub(crate) struct Yaml {
    /// The documents that could be read to their end, empty ones left out.
    pub(crate) documents: Vec<Node>,
    pub(crate) faults: Vec<Fault>,
    /// Where documents stand that were given up in the middle, in bytes of the text.
    pub(crate) torn: Vec<Range<usize>>,
    /// Whether one was given up before any other could be read.
    pub(crate) is_first_lost: bool,
}

/// Something in the text that is no YAML, or YAML that documents do not use.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) at: Position,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// Reads all documents of a file; bytes that are not UTF-8 are a fault, and what stands before them is read.
pub(crate) fn read_bytes(bytes: &[u8]) -> Yaml {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return read(text),
        Err(error) => error,
    };
    let good = bytes.get(..error.valid_up_to()).and_then(|good| std::str::from_utf8(good).ok()).unwrap_or_default();
    let line_start = good.rfind('\n').map_or(0, |end| end + 1);
    let at = position(good.matches('\n').count() + 1, good[line_start..].chars().count());
    // The document that is cut off in the middle is not read: it would be reported for what it lacks.
    let whole = good.rfind("\n---").map_or("", |end| &good[..=end]);
    let mut yaml = read(whole);
    yaml.torn.push(whole.len()..bytes.len());
    yaml.is_first_lost |= yaml.documents.is_empty();
    yaml.faults.push(Fault { at, message: "not UTF-8".to_owned(), hint: None });
    yaml
}

/// Reads all documents of a text.
pub(crate) fn read(text: &str) -> Yaml {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.emit_unresolved_aliases = true;
    // The builder counts both kinds of nesting together; this only keeps the parser from going deeper than that.
    options.flow_nesting_limit = DEPTH_MAX + 1;
    options.block_nesting_limit = DEPTH_MAX + 1;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut yaml = Yaml::default();
    while let Some(end) = read_document(&mut parser, &mut yaml) {
        let End::Abandoned { start } = end else { continue };
        yaml.is_first_lost |= yaml.documents.is_empty();
        // Up to where the next document begins, if one does.
        yaml.torn.push(start..text.len());
        if !matches!(parser.proceed_next_document(), Ok(true)) {
            break;
        }
    }
    yaml
}

/// How the reading of one document ended.
enum End {
    /// At its end.
    Complete,
    /// In the middle: the rest of it is skipped. It begins at this byte.
    Abandoned { start: usize },
}

/// Reads up to the end of the next document; `None` at the end of the text.
fn read_document<'t>(parser: &mut Parser<'t, StrInput<'t>>, yaml: &mut Yaml) -> Option<End> {
    let mut tree = Tree::default();
    let mut start = 0;
    loop {
        let (event, span) = match parser.next_event()? {
            Ok(event) => event,
            Err(error) => {
                let at = position(error.marker().line(), error.marker().col());
                yaml.faults.append(&mut tree.faults);
                yaml.faults.push(Fault { at, message: error.info(), hint: None });
                return Some(End::Abandoned { start });
            }
        };
        match event {
            Event::StreamEnd => return None,
            Event::DocumentStart(..) => {
                start = span.start.byte_offset().unwrap_or(0);
                if let Some(before) = yaml.torn.last_mut() {
                    before.end = before.end.min(start.max(before.start));
                }
            }
            Event::DocumentEnd => {
                yaml.faults.append(&mut tree.faults);
                yaml.documents.extend(tree.root.filter(|root| root.describe() != "nothing"));
                return Some(End::Complete);
            }
            event => {
                if let Err(fault) = tree.take(event, &span) {
                    yaml.faults.append(&mut tree.faults);
                    yaml.faults.push(fault);
                    return Some(End::Abandoned { start });
                }
            }
        }
    }
}

fn position(line: usize, column_from_0: usize) -> Position {
    Position {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column_from_0.saturating_add(1)).unwrap_or(u32::MAX),
    }
}

/// A document that is being built.
#[derive(Default)]
struct Tree {
    root: Option<Node>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    /// Values so far, aliases counted at what they stand for.
    values: usize,
    faults: Vec<Fault>,
}

/// A list or mapping that has not ended yet.
struct Open {
    at: Position,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    /// `lines` has the line of every key so far: a mapping may have as many keys as a document has values.
    Map {
        entries: Vec<Entry>,
        lines: HashMap<String, u32>,
        key: Key,
    },
}

/// Where a mapping stands between its events.
enum Key {
    /// A key comes next.
    Expected,
    /// The value of this key comes next.
    Read(String, Position),
    /// A value comes next that has no usable key: it is read and dropped.
    Unusable,
}

impl Tree {
    /// Takes one event.
    ///
    /// # Errors
    /// What makes the rest of the document meaningless or too large.
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Fault> {
        let at = position(span.start.line(), span.start.col());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, at)?;
                let plain = style == ScalarStyle::Plain && !self.is_text_by_tag(tag, at);
                self.finish(Node::new(at, Data::Scalar { text: text.into_owned(), plain }), anchor);
            }
            Event::SequenceStart(_, anchor, tag) => self.open(at, anchor, tag, Content::List(Vec::new()))?,
            Event::MappingStart(_, anchor, tag) => {
                let content = Content::Map { entries: Vec::new(), lines: HashMap::new(), key: Key::Expected };
                self.open(at, anchor, tag, content)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, at)?,
            Event::UnresolvedAlias(name) => {
                self.fault(at, format!("no anchor `&{name}` stands before this alias"), None);
                self.count(1, at)?;
                self.finish(Node::new(at, Data::Scalar { text: String::new(), plain: true }), 0);
            }
            // Starts of stream and document, and events that the options leave out.
            _ => {}
        }
        Ok(())
    }

    fn fault(&mut self, at: Position, message: String, hint: Option<String>) {
        self.faults.push(Fault { at, message, hint });
    }

    /// Whether a tag says that the scalar is text; any tag but `!!str` is reported.
    fn is_text_by_tag(&mut self, tag: Option<Cow<'_, Tag>>, at: Position) -> bool {
        let Some(tag) = tag else { return false };
        let is_text = tag.is_yaml_core_schema_tag("str");
        if !is_text {
            self.fault(at, format!("tag `{}` is not used in documents", tag.original()), None);
        }
        is_text
    }

    fn count(&mut self, values: usize, at: Position) -> Result<(), Fault> {
        self.values = self.values.saturating_add(values);
        if self.values > VALUES_MAX {
            let message = format!("more than {VALUES_MAX} values in one document, aliases counted in full");
            return Err(Fault { at, message, hint: Some("split it into several documents".to_owned()) });
        }
        Ok(())
    }

    fn nest(&self, levels: usize, at: Position) -> Result<(), Fault> {
        if self.open.len() + levels > DEPTH_MAX {
            return Err(Fault { at, message: format!("nested deeper than {DEPTH_MAX} levels"), hint: None });
        }
        Ok(())
    }

    fn open(&mut self, at: Position, anchor: usize, tag: Option<Cow<'_, Tag>>, content: Content) -> Result<(), Fault> {
        self.count(1, at)?;
        self.nest(1, at)?;
        if let Some(tag) = tag {
            self.fault(at, format!("tag `{}` is not used in documents", tag.original()), None);
        }
        self.open.push(Open { at, anchor, content });
        Ok(())
    }

    fn close(&mut self) {
        let Some(Open { at, anchor, content }) = self.open.pop() else { return };
        let data = match content {
            Content::List(items) => Data::List(items),
            Content::Map { entries, lines: _, key: _ } => Data::Map(entries),
        };
        self.finish(Node::new(at, data), anchor);
    }

    fn alias(&mut self, id: usize, at: Position) -> Result<(), Fault> {
        let Some(node) = self.anchors.get(&id).cloned() else {
            return Err(Fault { at, message: "alias stands inside the value that it names".to_owned(), hint: None });
        };
        self.count(node.size, at)?;
        self.nest(node.depth, at)?;
        self.finish(Node { at, ..node }, 0);
        Ok(())
    }

    /// Puts a complete value where it belongs.
    fn finish(&mut self, node: Node, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let fault = match self.open.last_mut() {
            None => {
                self.root = Some(node);
                None
            }
            Some(Open { content: Content::List(items), .. }) => {
                items.push(node);
                None
            }
            Some(Open { content: Content::Map { entries, lines, key }, .. }) => put(entries, lines, key, node),
        };
        self.faults.extend(fault);
    }
}

/// Takes a key or the value of the key before it.
fn put(entries: &mut Vec<Entry>, lines: &mut HashMap<String, u32>, key: &mut Key, node: Node) -> Option<Fault> {
    match std::mem::replace(key, Key::Expected) {
        Key::Read(name, key_at) => {
            entries.push(Entry { key: name, key_at, value: node });
            None
        }
        Key::Unusable => None,
        Key::Expected => {
            let at = node.at;
            let Data::Scalar { text, .. } = &*node.data else {
                *key = Key::Unusable;
                let message = format!("a key is text, this is {}", node.describe());
                return Some(Fault { at, message, hint: Some("quote a value that begins with `{` or `[`".to_owned()) });
            };
            if let Some(line) = lines.get(text) {
                *key = Key::Unusable;
                let message = format!("key `{text}` stands twice, first in line {line}");
                return Some(Fault { at, message, hint: None });
            }
            lines.insert(text.clone(), at.line);
            *key = Key::Read(text.clone(), at);
            None
        }
    }
}
