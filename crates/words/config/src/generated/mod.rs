//! What is made from the `Raw` types: the JSON Schema for editors, the reference page, the examples. CI writes them
//! anew and fails when the repository holds something else.

mod examples;
mod reference;
mod schema;

pub use examples::examples;
pub use reference::reference;
pub use schema::schema;

/// Every generated file: its path in the repository and its content.
#[must_use]
pub fn generated_files() -> Vec<(String, String)> {
    let mut files = vec![
        ("docs/schema/tidegate.schema.json".to_owned(), format!("{:#}\n", schema())),
        ("docs/reference/documents.md".to_owned(), reference()),
    ];
    files.extend(examples().iter().map(|(name, text)| (format!("examples/{name}"), (*text).to_owned())));
    files
}
