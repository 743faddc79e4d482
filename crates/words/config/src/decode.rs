//! Trees in, `Raw` types out, with every error of the shape and not only the first.
//!
//! serde stops at the first error. Here the place of that error is put aside, as if it had not been written, and the
//! document is read again, until nothing is wrong any more; each round either ends or removes one place, and the
//! number of rounds is bounded by [`SHAPE_ERRORS_MAX`]. For this to work, every key of a `Raw` type may be absent; what
//! is required is said by the checks.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor};

use crate::at::{At, Origin, Report};
use crate::bounds::SHAPE_ERRORS_MAX;
use crate::diagnostic::{Diagnostic, Severity};
use crate::node::{Data, Entry, NOT_SHOWN, Node, Position};
use crate::suggest;

/// The name of the `Raw` type of secrets: text in its place is never repeated.
pub(crate) const SECRET_TYPE: &str = "SecretRef";

/// Separates message and hint in the text of an error made by a type's own `Deserialize`.
pub(crate) const HINT: &str = "\nhint: ";

/// Reads one part of a document, `spec` or `metadata`; what is wrong goes to the report and to [`Origin::wrong`].
/// `None` when nothing of the part could be read.
pub(crate) fn part<T: DeserializeOwned + Default>(
    origin: &mut Origin,
    key: &'static str,
    report: &mut Report,
) -> Option<T> {
    let mut rounds = 0;
    loop {
        let wrong = {
            let root = At::root(origin);
            let at = root.key(key);
            let Some(node) = at.node().filter(|node| node.describe() != "nothing") else {
                return Some(T::default());
            };
            match T::deserialize(Reader { at, node }) {
                Ok(value) => match broken_lists(origin) {
                    lists if lists.is_empty() => return Some(value),
                    lists => {
                        origin.wrong.extend(lists);
                        continue;
                    }
                },
                Err(wrong) => wrong.or_at(&at),
            }
        };
        let path = wrong.place.as_ref().map(|place| place.path.clone()).unwrap_or_default();
        report.add(wrong.into_diagnostic(origin));
        let is_whole = path == key;
        let is_new = origin.wrong.insert(path);
        rounds += 1;
        if is_whole || !is_new || rounds >= SHAPE_ERRORS_MAX {
            origin.wrong.insert(key.to_owned());
            return None;
        }
    }
}

/// Lists that have lost an item: the places of the others have moved, so that nothing more can be said about them.
fn broken_lists(origin: &Origin) -> Vec<String> {
    let list = |path: &String| {
        let (list, index) = path.strip_suffix(']')?.rsplit_once('[')?;
        index.bytes().all(|byte| byte.is_ascii_digit()).then(|| list.to_owned())
    };
    origin.wrong.iter().filter_map(list).filter(|list| !origin.wrong.contains(list)).collect()
}

/// A value that is not what the schema wants.
#[derive(Debug)]
struct Wrong {
    place: Option<Place>,
    message: String,
    hint: Option<String>,
}

#[derive(Debug)]
struct Place {
    path: String,
    at: Position,
    value: Option<String>,
}

impl Wrong {
    fn new(message: String, hint: Option<String>) -> Self {
        Self { place: None, message, hint }
    }

    /// Gives the error a place unless something deeper has.
    fn or_at(mut self, at: &At<'_>) -> Self {
        if self.place.is_none() {
            let position = at.node().map(|node| node.at).unwrap_or_default();
            self.place = Some(Place { path: at.path(), at: position, value: at.value() });
        }
        self
    }

    /// The key itself is wrong.
    fn at_key(mut self, at: &At<'_>, entry: &Entry) -> Self {
        let path = at.key(&entry.key).path();
        self.place = Some(Place { path, at: entry.key_at, value: at.key(&entry.key).value() });
        self
    }

    fn into_diagnostic(self, origin: &Origin) -> Diagnostic {
        let place = self.place.unwrap_or(Place { path: String::new(), at: origin.root.at, value: None });
        Diagnostic {
            file: origin.file.clone(),
            line: place.at.line,
            column: place.at.column,
            severity: Severity::Error,
            document: origin.title.clone(),
            path: place.path,
            value: place.value,
            message: self.message,
            hint: self.hint,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let text = message.to_string();
        match text.split_once(HINT) {
            Some((message, hint)) => Self::new(message.to_owned(), Some(hint.to_owned())),
            None => Self::new(text, None),
        }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {expected}, found {unexpected}"), None)
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(unexpected, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let hint = suggest::nearest(variant, expected.iter().copied())
            .map_or_else(|| format!("write one of {}", expected.join(", ")), |near| format!("did you mean `{near}`?"));
        Self::new(format!("`{variant}` is not one of {}", expected.join(", ")), Some(hint))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let hint = match suggest::nearest(field, expected.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if field == "<<" => "merge keys are not used in documents: write the keys out".to_owned(),
            None => format!("known here: {}", expected.join(", ")),
        };
        Self::new(format!("unknown key `{field}`"), Some(hint))
    }
}

/// A value that is being read.
struct Reader<'a> {
    at: At<'a>,
    node: &'a Node,
}

impl Reader<'_> {
    fn expected(&self, what: &str) -> Wrong {
        Wrong::new(format!("expected {what}, found {}", self.node.describe()), None)
    }

    /// The text of a scalar.
    fn text(&self) -> Result<&str, Wrong> {
        self.node.text().ok_or_else(|| self.expected("text"))
    }

    /// The text of a scalar that is not quoted.
    fn plain(&self, what: &str) -> Result<&str, Wrong> {
        match &*self.node.data {
            Data::Scalar { text, plain: true } if self.node.text().is_some() => Ok(text),
            Data::Scalar { .. } | Data::List(_) | Data::Map(_) => Err(self.expected(what)),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match &*self.node.data {
            Data::List(items) => visitor.visit_seq(ListReader { at: self.at, items: items.iter().enumerate() }),
            Data::Scalar { .. } | Data::Map(_) => Err(self.expected("a list")),
        }
    }

    fn map<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match &*self.node.data {
            Data::Map(entries) => visitor.visit_map(MapReader { at: self.at, entries: entries.iter(), current: None }),
            Data::Scalar { .. } | Data::List(_) => Err(self.expected("a mapping")),
        }
    }
}

macro_rules! whole_numbers {
    ($($method:ident $visit:ident $type:ty),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
            let what = || format!("a whole number from {} to {}", <$type>::MIN, <$type>::MAX);
            let text = self.plain(&what())?;
            match text.parse::<$type>() {
                Ok(number) => visitor.$visit(number),
                Err(_) => Err(Wrong::new(format!("expected {}", what()), None)),
            }
        }
    )+};
}

impl<'de> de::Deserializer<'de> for Reader<'_> {
    type Error = Wrong;

    /// Only free-form settings come here: YAML's core schema decides what a plain scalar is.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let (text, plain) = match &*self.node.data {
            Data::List(_) => return self.list(visitor),
            Data::Map(_) => return self.map(visitor),
            Data::Scalar { text, plain } => (text.as_str(), *plain),
        };
        if !plain {
            return visitor.visit_str(text);
        }
        match text {
            text if crate::node::is_null(text) => visitor.visit_unit(),
            "true" | "True" | "TRUE" => visitor.visit_bool(true),
            "false" | "False" | "FALSE" => visitor.visit_bool(false),
            text => {
                if let Ok(number) = text.parse::<u64>() {
                    visitor.visit_u64(number)
                } else if let Ok(number) = text.parse::<i64>() {
                    visitor.visit_i64(number)
                } else if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
                    && let Ok(number) = text.parse::<f64>()
                    && number.is_finite()
                {
                    visitor.visit_f64(number)
                } else {
                    visitor.visit_str(text)
                }
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.plain("true or false")? {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(Wrong::new("expected true or false".to_owned(), None)),
        }
    }

    whole_numbers!(
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
    );

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let number = self.plain("a number")?.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map_or_else(|| Err(Wrong::new("expected a number".to_owned(), None)), |number| visitor.visit_f64(number))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        if self.node.describe() == "nothing" { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.list(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Wrong> {
        self.list(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        if name == SECRET_TYPE && self.node.text().is_some() {
            let hint = "write {fromEnv: NAME} or {fromFile: PATH}".to_owned();
            let mut wrong = Wrong::new("a secret never stands in a document".to_owned(), Some(hint)).or_at(&self.at);
            if let Some(place) = &mut wrong.place {
                place.value = Some(NOT_SHOWN.to_owned());
            }
            return Err(wrong);
        }
        self.map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_enum(self.text()?.into_deserializer())
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    serde::forward_to_deserialize_any! { bytes byte_buf unit unit_struct tuple_struct ignored_any i128 u128 }
}

struct ListReader<'a> {
    at: At<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> de::SeqAccess<'de> for ListReader<'_> {
    type Error = Wrong;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Wrong> {
        for (index, node) in self.items.by_ref() {
            let at = self.at.index(index);
            if !at.is_set_aside() {
                return seed.deserialize(Reader { at, node }).map(Some).map_err(|wrong| wrong.or_at(&at));
            }
        }
        Ok(None)
    }
}

struct MapReader<'a> {
    at: At<'a>,
    entries: std::slice::Iter<'a, Entry>,
    current: Option<&'a Entry>,
}

impl<'de> de::MapAccess<'de> for MapReader<'_> {
    type Error = Wrong;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Wrong> {
        for entry in self.entries.by_ref() {
            if !self.at.key(&entry.key).is_set_aside() {
                self.current = Some(entry);
                let key: StrDeserializer<'_, Wrong> = entry.key.as_str().into_deserializer();
                return seed.deserialize(key).map(Some).map_err(|wrong| wrong.at_key(&self.at, entry));
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Wrong> {
        let Some(entry) = self.current.take() else {
            return Err(Wrong::new("a value without a key".to_owned(), None));
        };
        let at = self.at.key(&entry.key);
        seed.deserialize(Reader { at, node: &entry.value }).map_err(|wrong| wrong.or_at(&at))
    }
}
