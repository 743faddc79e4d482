//! The little XML that is read here: single elements of S3's and STS's answers.

/// Text of the first element of that name, entities resolved; `None` where there is none.
pub(super) fn element(xml: &str, name: &str) -> Option<String> {
    let mut rest = xml;
    loop {
        let at = rest.find('<')?;
        let inner = rest[at + 1..].strip_prefix(name);
        rest = &rest[at + 1..];
        // attributes may follow; `<CodeX>` is another element
        let Some(inner) = inner.filter(|inner| inner.starts_with(['>', ' ', '\n', '\t'])) else {
            continue;
        };
        let text = &inner[inner.find('>')? + 1..];
        return Some(unescape(&text[..text.find('<')?]));
    }
}

fn unescape(text: &str) -> String {
    let pairs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    pairs.iter().fold(text.trim().to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_their_whole_name() {
        let xml = "<?xml?><E><CodeX>no</CodeX><Code a=\"1\"> A&amp;lt; </Code><M>x</M></E>";
        assert_eq!(element(xml, "Code").as_deref(), Some("A&lt;"));
        assert_eq!(element(xml, "M").as_deref(), Some("x"));
        assert_eq!(element(xml, "N"), None);
    }

    #[test]
    fn broken_xml_ends_in_none() {
        for broken in ["", "<", "<Code", "<Code>", "<Code>x", "Code>", "é<Code", "<Code <", "<é<Code>é"] {
            assert_eq!(element(broken, "Code"), None, "{broken}");
        }
    }
}
