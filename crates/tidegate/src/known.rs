//! What verbs need to know of the documents when no process runs: kept in the state folder at each load.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tidegate_config::Site;
use tidegate_config::site::{SecretRef, Store};

const FILE: &str = "documents.json";

/// A digest of the documents in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Known {
    /// Where the store is, when it is SQLite.
    pub(crate) sqlite: Option<PathBuf>,
    /// Where the documents were.
    pub(crate) documents: PathBuf,
    /// Environment variable or file of the pepper, when it is not the state folder's own.
    pub(crate) pepper: Option<Pepper>,
    /// IANA name of the site's zone.
    pub(crate) zone: String,
    /// Teams.
    pub(crate) teams: Vec<String>,
    /// Shifts.
    pub(crate) shifts: Vec<String>,
    /// Whether a Schedule says which of them is in force.
    pub(crate) schedule: bool,
}

/// Where the pepper of API keys comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Pepper {
    /// An environment variable.
    FromEnv(String),
    /// A file.
    FromFile(PathBuf),
}

impl Pepper {
    fn of(from: &SecretRef) -> Self {
        match from {
            SecretRef::Env(name) => Self::FromEnv(name.to_string()),
            SecretRef::File(path) => Self::FromFile(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        }
    }

    /// As the documents name it.
    pub(crate) fn secret(&self) -> SecretRef {
        match self {
            Self::FromEnv(name) => SecretRef::Env(name.as_str().into()),
            Self::FromFile(path) => SecretRef::File(path.clone()),
        }
    }
}

impl Known {
    pub(crate) fn of(site: &Site, documents: &Path) -> Self {
        Self {
            sqlite: match &site.store {
                Store::Sqlite(path) => Some(path.clone()),
                Store::Postgres(_) => None,
            },
            documents: documents.canonicalize().unwrap_or_else(|_| documents.to_owned()),
            pepper: site.identity.key_pepper.as_ref().map(Pepper::of),
            zone: site.time_zone.iana_name().unwrap_or("UTC").to_owned(),
            teams: site.teams.keys().map(ToString::to_string).collect(),
            shifts: site.shifts().iter().map(ToString::to_string).collect(),
            schedule: !site.schedules.is_empty(),
        }
    }

    /// The same with the store and the pepper of the process that runs: a reload does not change those.
    pub(crate) fn opened_as(self, opened: &Self) -> Self {
        Self { sqlite: opened.sqlite.clone(), pepper: opened.pepper.clone(), ..self }
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
