//! The conformance suite on SQLite.

use tempfile::TempDir;
use tidegate_store::conformance::Bench;
use tidegate_store::{Store, StoreError};

struct Sqlite(TempDir);

impl Sqlite {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Bench for Sqlite {
    async fn open(&self, name: &str) -> Result<Store, StoreError> {
        Store::open_sqlite(&self.0.path().join(format!("{name}.db"))).await
    }
}

tidegate_store::store_conformance!(Sqlite::new());
