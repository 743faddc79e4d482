//! Setting and dropping members of an object: one pass over its members, one output buffer, all other bytes as they
//! were.

use super::{Object, text};

/// A new value for a member.
#[derive(Clone, Debug)]
pub(crate) enum New<'a> {
    /// A string, escaped when written.
    Str(&'a str),
    /// A number.
    U64(u64),
    /// A number.
    I64(i64),
    /// JSON text.
    Raw(Vec<u8>),
}

impl New<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Str(text) => text::write_str(out, text),
            Self::U64(number) => text::write_u64(out, *number),
            Self::I64(number) => text::write_i64(out, *number),
            Self::Raw(json) => out.extend_from_slice(json),
        }
    }
}

/// What to change in an object.
pub(crate) struct Edit<'e> {
    /// Members to set: in their place when the object has them, else at its end.
    pub(crate) set: Vec<(&'static str, New<'e>)>,
    /// Names to leave out, unless they are set.
    pub(crate) drop: &'e [&'static str],
}

impl Edit<'_> {
    /// Writes the edited text of `object`.
    pub(crate) fn write(&self, object: &Object<'_>, out: &mut Vec<u8>) {
        let text = object.text;
        let open = memchr::memchr(b'{', text).unwrap_or(0) + 1;
        out.extend_from_slice(&text[..open]);
        let mut end = open;
        let mut kept = false;
        let mut done = 0_u32;
        for member in object.members.iter() {
            let value = member.value_range();
            let set = self.set.iter().position(|(key, _)| object.is(member, key));
            if set.is_none() && self.drop.iter().any(|key| object.is(member, key)) {
                end = value.end;
                continue;
            }
            // Without a member before it, what separates it from a dropped one goes too.
            let from = if kept || end == open { end } else { member.key_range().start - 1 };
            kept = true;
            match set {
                Some(index) => {
                    out.extend_from_slice(&text[from..value.start]);
                    self.set[index].1.write(out);
                    done |= 1 << index;
                }
                None => out.extend_from_slice(&text[from..value.end]),
            }
            end = value.end;
        }
        for (index, (key, value)) in self.set.iter().enumerate() {
            if done & (1 << index) != 0 {
                continue;
            }
            if kept {
                out.push(b',');
            }
            kept = true;
            text::write_str(out, key);
            out.push(b':');
            value.write(out);
        }
        out.extend_from_slice(&text[end..]);
    }
}
