//! What verbs need to know of the documents when no process runs: kept in the state folder at each load.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tidegate_config::Site;
use tidegate_config::site::Store;

const FILE: &str = "documents.json";

/// A digest of the documents in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Known {
    /// Where the store is, when it is SQLite.
    pub(crate) sqlite: Option<PathBuf>,
    /// Where the documents were.
    pub(crate) documents: PathBuf,
    /// IANA name of the site's zone.
    pub(crate) zone: String,
    /// Teams.
    pub(crate) teams: Vec<String>,
    /// Shifts.
    pub(crate) shifts: Vec<String>,
}

impl Known {
    pub(crate) fn of(site: &Site, documents: &Path) -> Self {
        Self {
            sqlite: match &site.store {
                Store::Sqlite(path) => Some(path.clone()),
                Store::Postgres(_) => None,
            },
            documents: documents.canonicalize().unwrap_or_else(|_| documents.to_owned()),
            zone: site.time_zone.iana_name().unwrap_or("UTC").to_owned(),
            teams: site.teams.keys().map(ToString::to_string).collect(),
            shifts: site.shifts().iter().map(ToString::to_string).collect(),
        }
    }

    /// Keeps it: whole or not at all.
    pub(crate) fn save(&self, state: &Path) -> anyhow::Result<()> {
        let path = state.join(FILE);
        let next = state.join(format!("{FILE}.new"));
        std::fs::write(&next, serde_json::to_vec_pretty(self)?)
            .and_then(|()| std::fs::rename(&next, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn read(state: &Path) -> anyhow::Result<Self> {
        let path = state.join(FILE);
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "no process runs on {} and none ever has: start one with `tidegate up DIR --state {}`",
                state.display(),
                state.display()
            )
        })?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
    }
}
