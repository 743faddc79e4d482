//! What an engine compiles in its first load, laid out before the next: minutes of every start.
//!
//! Only for models of the store, whose digest says which they are, and only where engine, driver and GPU are known. It is
//! a help and no more: whatever fails here is said in the log, and the engine compiles as it would have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_engine::Dialect;
use tidegate_engine::launch::{CommandLine, EngineSpec};

use crate::fleet::FleetSettings;
use crate::folders::{CompiledFor, ModelFolders};
use crate::member::{Launch, Member};

/// Where one replica's engine keeps what it compiles.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    of: CompiledFor,
    folder: PathBuf,
    dialect: Dialect,
}

/// What was found before a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The engine has what an earlier load compiled.
    Hit,
    /// It compiles, and what it compiles is worth keeping.
    Miss,
}

impl Compiled {
    /// `None` where the engine compiles nothing, or where it is not known what for.
    pub(crate) fn new(settings: &FleetSettings, member: &Member, launch: &Launch, instance: &str) -> Option<Self> {
        if member.dialect.compile_cache_env().is_empty() {
            return None;
        }
        let driver = settings.driver.as_ref()?;
        let engine = launch.engine.as_ref();
        let version = engine.and_then(|engine| engine.image.as_ref().or(engine.version.as_ref()));
        let Some(version) = version else {
            tracing::debug!(
                replica = instance,
                "the documents say neither image nor version of the engine: nothing compiled is kept"
            );
            return None;
        };
        Some(Self {
            of: CompiledFor {
                engine: member.dialect.as_str(),
                engine_version: Arc::clone(version),
                driver: Arc::clone(&driver.version),
                gpu: Arc::clone(&driver.gpu),
                tensor_parallel: launch.deployment.parallel.tp,
                flags: flags(member.dialect, launch),
            },
            folder: settings.folder.join(format!("{instance}.compiled")),
            dialect: member.dialect,
        })
    }

    /// Makes the engine's folder anew, with what an earlier load has left.
    pub(crate) async fn lay_out(&self, folders: &dyn ModelFolders, model: &Path) -> Found {
        if let Err(error) = remove(&self.folder) {
            warn("what an engine compiled before is in the way", &error.to_string());
        }
        match folders.lay_out_compiled(model, &self.of, &self.folder).await {
            Ok(true) => {
                inform("compiled code of an earlier load is laid out", model);
                Found::Hit
            }
            Ok(false) => {
                inform("no compiled code yet: what the engine compiles will be kept", model);
                Found::Miss
            }
            Err(why) => {
                warn("compiled code is not laid out: the engine compiles anew", &why);
                Found::Miss
            }
        }
    }

    /// Saves what the engine has compiled by the time that it serves.
    pub(crate) async fn keep(&self, folders: &dyn ModelFolders, model: &Path) {
        if !fs::read_dir(&self.folder).is_ok_and(|mut entries| entries.next().is_some()) {
            return inform("the engine has compiled nothing", model);
        }
        match folders.keep_compiled(model, &self.of, &self.folder).await {
            Ok(()) => inform("compiled code is kept for the next load", model),
            Err(why) => warn("compiled code is not kept: the next load compiles anew", &why),
        }
    }

    /// Tells the engine, unless the documents have told it otherwise.
    pub(crate) fn tell(&self, env: &mut BTreeMap<Arc<str>, Arc<str>>) {
        for (name, below) in self.dialect.compile_cache_env() {
            let place = self.folder.join(below);
            env.entry((*name).into()).or_insert_with(|| place.to_string_lossy().into());
        }
    }
}

/// The arguments as they are rendered, without where the engine listens and where the model lies.
fn flags(dialect: Dialect, launch: &Launch) -> Vec<String> {
    let command = CommandLine::render(&EngineSpec {
        dialect,
        engine: launch.engine.as_ref(),
        deployment: &launch.deployment,
        model: Path::new(""),
        host: "",
        port: "",
        gpu_memory_bytes: None,
        may_sleep: false,
    });
    command.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

fn inform(what: &str, model: &Path) {
    tracing::info!(model = %model.display(), "{what}");
}

fn warn(what: &str, why: &str) {
    tracing::warn!(why, "{what}");
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
