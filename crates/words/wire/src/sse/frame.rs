//! Event boundaries and lines, by the rules of server-sent events: a line ends with LF, CR LF or CR, an event with an
//! empty line.

/// A byte order mark, which may stand at the very start of a stream and says nothing.
pub(crate) const MARK: &[u8] = b"\xEF\xBB\xBF";

/// Finds ends of events in a text that grows. Positions are relative to the start of the event being read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framer {
    /// Where the current line starts.
    line: usize,
    /// Up to here nothing ends a line.
    scanned: usize,
}

impl Framer {
    /// Where the event at the start of `text` ends, its empty line included; `None` when it is not all there. A CR at
    /// the very end waits, since an LF may follow that belongs to it. Call again with the same text, longer.
    pub(crate) fn end(&mut self, text: &[u8]) -> Option<usize> {
        loop {
            let Some(found) = memchr::memchr2(b'\n', b'\r', text.get(self.scanned..)?) else {
                self.scanned = text.len();
                return None;
            };
            let at = self.scanned + found;
            let next = match (text[at], text.get(at + 1)) {
                (b'\r', None) => {
                    self.scanned = at;
                    return None;
                }
                (b'\r', Some(b'\n')) => at + 2,
                _ => at + 1,
            };
            let empty = at == self.line;
            (self.line, self.scanned) = (next, next);
            if empty {
                *self = Self::default();
                return Some(next);
            }
        }
    }
}

/// The data of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Comments and fields without data.
    None,
    /// One `data` line: where its value is in the event.
    Line { start: usize, end: usize },
    /// Several, which stand for their values with line feeds between them.
    Lines,
}

/// The parts of one event that matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    /// The event's name, if it has one.
    pub(crate) name: Option<&'a [u8]>,
    pub(crate) data: Data,
}

/// Reads the lines of one whole event.
pub(crate) fn parts(event: &[u8]) -> Parts<'_> {
    let mut parts = Parts { name: None, data: Data::None };
    let mut at = 0;
    while at < event.len() {
        let end = memchr::memchr2(b'\n', b'\r', &event[at..]).map_or(event.len(), |found| at + found);
        if let Some(start) = value(event, at, end, b"data") {
            parts.data = match parts.data {
                Data::None => Data::Line { start, end },
                Data::Line { .. } | Data::Lines => Data::Lines,
            };
        } else if let Some(start) = value(event, at, end, b"event") {
            parts.name = Some(&event[start..end]);
        }
        // An LF after a CR gives one more empty line, which says nothing.
        at = end + 1;
    }
    parts
}

/// Where the value starts if the line is of the field `name`.
fn value(event: &[u8], at: usize, end: usize, name: &[u8]) -> Option<usize> {
    let rest = event[at..end].strip_prefix(name)?;
    match rest {
        [] => Some(end),
        [b':', b' ', ..] => Some(end - rest.len() + 2),
        [b':', ..] => Some(end - rest.len() + 1),
        _ => None,
    }
}

/// The data of an event with several `data` lines.
pub(crate) fn joined(event: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(event.len());
    let mut any = false;
    let mut at = 0;
    while at < event.len() {
        let end = memchr::memchr2(b'\n', b'\r', &event[at..]).map_or(event.len(), |found| at + found);
        if let Some(start) = value(event, at, end, b"data") {
            if any {
                out.push(b'\n');
            }
            any = true;
            out.extend_from_slice(&event[start..end]);
        }
        at = end + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(text: &[u8]) -> Vec<usize> {
        let (mut ends, mut start, mut framer) = (Vec::new(), 0, Framer::default());
        while let Some(end) = framer.end(&text[start..]) {
            start += end;
            ends.push(start);
        }
        ends
    }

    #[test]
    fn events_end_with_an_empty_line_whatever_ends_a_line() {
        assert_eq!(ends(b"data: a\n\ndata: b\n\n"), [9, 18]);
        assert_eq!(ends(b"data: a\r\n\r\ndata: b\r\n\r\nx"), [11, 22]);
        assert_eq!(ends(b"data: a\r\rdata: b\r\rx"), [9, 18]);
        assert_eq!(ends(b"\n\n"), [1, 2]);
        assert_eq!(ends(b"data: a\n"), [] as [usize; 0]);
    }

    #[test]
    fn a_carriage_return_at_the_end_waits_for_its_line_feed() {
        assert_eq!(ends(b"data: a\r\n\r"), [] as [usize; 0]);
        assert_eq!(ends(b"data: a\r\n\r\n"), [11]);
    }

    #[test]
    fn fields_are_read_with_and_without_a_space_and_comments_are_no_data() {
        assert_eq!(parts(b"data:x\n\n").data, Data::Line { start: 5, end: 6 });
        assert_eq!(parts(b"data: x\n\n").data, Data::Line { start: 6, end: 7 });
        assert_eq!(parts(b"data\n\n").data, Data::Line { start: 4, end: 4 });
        assert_eq!(parts(b": data: x\n\n").data, Data::None);
        assert_eq!(parts(b"database: x\n\n").data, Data::None);
        assert_eq!(parts(b"event: e\ndata: x\n\n").name, Some(&b"e"[..]));
        assert_eq!(parts(b"data: x\r\ndata: y\r\n\r\n").data, Data::Lines);
        assert_eq!(joined(b"data: x\r\ndata: y\r\n\r\n"), b"x\ny");
    }
}
