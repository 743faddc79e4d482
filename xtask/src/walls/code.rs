//! Just enough of Rust's grammar to count lines: what is code, what is a comment or text, what is only for tests, and
//! where functions begin and end. Offsets and line breaks of the original are kept throughout.

use std::ops::Range;

/// The source with comments and the insides of text and character literals replaced by blanks.
pub(super) fn blank(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_end(bytes, at),
            b'"' => text_end(bytes, at),
            b'r' if !after_word(bytes, at) => match raw_text_end(bytes, at) {
                Some(end) => end,
                None => at,
            },
            b'\'' => character_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // only whole literals and comments were replaced, byte by byte with blanks, so this cannot lose anything
    String::from_utf8_lossy(&out).into_owned()
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| from + length)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = from;
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn text_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `r"…"` and `r#"…"#`, also behind `b` or `c`, which stay as they are.
fn raw_text_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = from + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    let length = bytes[open + 1..].windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| open + 1 + length + close.len()))
}

/// A character literal; `None` for a lifetime.
fn character_end(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from + 1..)?;
    if rest.first() == Some(&b'\\') {
        return rest.iter().skip(2).position(|byte| *byte == b'\'').map(|length| from + 4 + length);
    }
    let first = std::str::from_utf8(&rest[..rest.len().min(4)]).map_or_else(|e| e.valid_up_to(), |text| text.len());
    let width = std::str::from_utf8(&rest[..first]).ok()?.chars().next()?.len_utf8();
    (rest.get(width) == Some(&b'\'')).then_some(from + width + 2)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether the byte goes on with a word, so that it cannot begin a literal; `b` and `c` are prefixes of literals.
fn after_word(bytes: &[u8], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|index| bytes.get(index)).copied();
    match before(1) {
        Some(b'b' | b'c') => before(2).is_some_and(is_word),
        Some(byte) => is_word(byte),
        None => false,
    }
}

/// Where items under `#[cfg(test)]` stand in a blanked source.
pub(super) fn test_items(blanked: &str) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let mut from = 0;
    while let Some(found) = blanked[from..].find("#[cfg(test)]") {
        let start = from + found;
        from = item_end(blanked, start + "#[cfg(test)]".len());
        items.push(start..from);
    }
    items
}

/// The blanked source with its test items blanked too.
pub(super) fn without_tests(blanked: &str) -> String {
    let mut out = blanked.as_bytes().to_vec();
    for item in test_items(blanked) {
        for byte in &mut out[item] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    // whole items were replaced, which begin and end between letters
    String::from_utf8_lossy(&out).into_owned()
}

/// The end of the item that starts somewhere after `from`: its closing brace or its semicolon.
fn item_end(blanked: &str, from: usize) -> usize {
    let mut nesting = 0_usize;
    for (offset, byte) in blanked.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => nesting += 1,
            b')' | b']' => nesting = nesting.saturating_sub(1),
            b';' if nesting == 0 => return offset + 1,
            b'{' if nesting == 0 => return brace_end(blanked, offset),
            _ => {}
        }
    }
    blanked.len()
}

/// The offset behind the brace that closes the one at `open`.
fn brace_end(blanked: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in blanked.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return offset + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    blanked.len()
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Line of its `fn`, from 1.
    pub(super) line: usize,
    /// Lines of code between its braces: neither blank nor only a comment.
    pub(super) length: usize,
    /// What stands before it up to the end of the item above: where its attributes are.
    pub(super) before: Range<usize>,
}

/// All functions of a blanked source, nested ones too.
pub(super) fn functions(blanked: &str) -> Vec<Function> {
    let bytes = blanked.as_bytes();
    let mut found = Vec::new();
    for (start, _) in blanked.match_indices("fn ") {
        if start > 0 && is_word(bytes[start - 1]) {
            continue;
        }
        let name: String =
            blanked[start + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let end = item_end(blanked, start);
        if name.is_empty() || !blanked[..end].ends_with('}') {
            continue;
        }
        let Some(open) = blanked[start..end].find('{') else { continue };
        let body = &blanked[start + open + 1..end - 1];
        let above = blanked[..start].rfind(['}', ';', '{']).map_or(0, |index| index + 1);
        found.push(Function {
            name,
            line: line_of(blanked, start),
            length: body.lines().filter(|line| !line.trim().is_empty()).count(),
            before: above..start,
        });
    }
    found
}

/// The line of an offset, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let source = "let a = \"{ // \\\" }\"; // }\n/* { /* { */ } */ let b = 'x'; let c: &'static str = r#\"}\"#;\nlet d = b'{'; br\"}\"";
        let blanked = blank(source);
        assert_eq!(blanked.len(), source.len());
        assert_eq!(blanked.lines().count(), source.lines().count());
        assert!(!blanked.contains(['{', '}', '"']), "{blanked}");
        assert!(blanked.contains("&'static str"), "{blanked}");
        assert!(blanked.contains("let b ="), "{blanked}");
    }

    #[test]
    fn escaped_and_wide_characters_are_literals_and_lifetimes_are_not() {
        for (source, gone) in [("'\\''", true), ("'\\u{7d}'", true), ("'ü'", true), ("'{'", true), ("<'a>", false)] {
            assert_eq!(blank(source).trim().is_empty(), gone, "{source}");
        }
    }

    #[test]
    fn what_is_only_for_tests_is_not_counted() {
        let source = "fn a() {}\n#[cfg(test)]\n#[path = \"x\"]\nmod tests {\n fn b() { if true {} }\n}\nfn c() {}\n#[cfg(test)]\nuse x;\nfn d() {}\n";
        let code = without_tests(&blank(source));
        let names: Vec<_> = functions(&code).into_iter().map(|function| function.name).collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert!(!code.contains("use x"));
    }

    #[test]
    fn functions_have_the_length_of_their_code() {
        let source = "trait T { fn declared(&self) -> [u8; 4]; }\n\n#[inline]\npub fn long(x: fn(u8) -> u8) -> u8\nwhere u8: Copy,\n{\n  // why\n  let a = 1;\n\n  if a > 0 {\n    a\n  } else { 0 }\n}\n";
        let found = functions(&blank(source));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].name.as_str(), found[0].line, found[0].length), ("long", 4, 4));
        assert!(source[found[0].before.clone()].contains("#[inline]"));
    }
}
