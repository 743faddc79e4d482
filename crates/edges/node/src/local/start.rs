//! Starting an engine.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::Shared;
use super::gpus::Seen;
use super::table::{Entry, Record};
use crate::facts::FactSource;
use crate::fault::NodeError;
use crate::files::{self, Lock};
use crate::guard::{Cage, Limits};
use crate::id::InstanceId;
use crate::instance_folder::{InstanceFolder, Launch, Minding};
use crate::order::{
    ARGS_MAX, COMPILED, ENV_MAX, GPUS_MAX, HOST, MARKS_MAX, MODEL, ModelAt, ModelFile, ModelOrder, PORT, StartOrder,
    WORD_BYTES_MAX,
};
use crate::port;
use crate::process::{INSTANCE_VARIABLE, STATE_VARIABLE};
use crate::proof::Measured;
use crate::report::{Happened, InstanceReport};
use crate::seam::HeldModel;

/// Longest that a minder may take to say that the engine's first process runs.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Longest line with which it says so.
const READY_BYTES_MAX: u64 = 4_096;
/// The variable that says which GPUs an engine sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Everything a start needs, and a start on the next port needs again. Never on disk: the environment may hold secrets.
#[derive(Clone, Debug)]
pub(crate) struct Filled {
    order: Arc<StartOrder>,
    model: Option<PathBuf>,
    compiled: Option<PathBuf>,
    visible: Option<String>,
    limits: Limits,
}

impl Shared {
    /// Starts an engine, or says how it is if it was started before.
    pub(crate) async fn start(
        self: Arc<Self>,
        generation: u64,
        order: StartOrder,
    ) -> Result<InstanceReport, NodeError> {
        validate(&order)?;
        let lock = self.lock_of(&order.instance);
        let _one_at_a_time = lock.lock().await;
        if let Ok(report) = self.with(&order.instance, |entry| entry.report()) {
            return Ok(report);
        }
        let held = self.hold(&order).await?;
        let compiled = self.compiled(&order, held.as_ref()).await?;
        let seen = self.see().await;
        let measured = self.found_free(&order, &seen)?;
        let filled = Filled {
            model: held.as_ref().map(|held| model_file(&held.path, &order)).transpose()?,
            compiled,
            visible: visible(&order, &seen)?,
            limits: self.limits(&order, &seen),
            order: Arc::new(order),
        };
        self.launch(generation, filled, held, measured, &seen).await
    }

    async fn launch(
        self: Arc<Self>,
        generation: u64,
        filled: Filled,
        held: Option<HeldModel>,
        measured: BTreeMap<u32, Measured>,
        seen: &Seen,
    ) -> Result<InstanceReport, NodeError> {
        let order = Arc::clone(&filled.order);
        let path = self.instances.join(order.instance.as_str());
        files::private_folder(&path).map_err(|error| NodeError::io("cannot make an instance's folder", error))?;
        let folder = InstanceFolder::new(path);
        let record = Record {
            instance: order.instance.clone(),
            generation,
            deployment: order.deployment.clone(),
            replica: order.replica,
            revision: order.revision,
            gpus: order.gpus.clone(),
            uuids: order.gpus.iter().filter_map(|index| Some((*index, seen.gpu(*index)?.uuid.clone()?))).collect(),
            marks: order.marks.clone(),
            model: order.model.clone(),
            host: order.host,
            port: None,
            started_at: Timestamp::now(),
            source: seen.inventory.source,
            cage: Cage::default(),
            log_from: 0,
            boot: Vec::new(),
            own_pids: BTreeSet::new(),
            measured,
            ended: None,
            proof: None,
            released: BTreeMap::new(),
        };
        let mut entry = Entry::new(folder.clone(), record);
        entry.model = held;
        let outcome = self.run(&mut entry.record, &folder, &filled, 0).await;
        match outcome {
            Ok((minding, child)) => {
                entry.minding = Some(minding);
                let report = entry.report();
                self.table.lock().insert(order.instance.clone(), entry);
                self.events.push(Happened::Started { instance: order.instance.clone() });
                Self::watch(&self, order.instance.clone(), Some(child), Some(filled));
                Ok(report)
            }
            Err(error) => {
                self.undo(&folder, &entry.record).await;
                Err(error)
            }
        }
    }

    /// Books a port, makes the cgroups, writes everything down and starts the minder. `above`: the port that was taken.
    pub(crate) async fn run(
        &self,
        record: &mut Record,
        folder: &InstanceFolder,
        filled: &Filled,
        above: u16,
    ) -> Result<(Minding, Child), NodeError> {
        let port = self.book(&record.instance, &filled.order, above)?;
        record.port = Some(port);
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| NodeError::Launch { why: format!("{what}: {error}") }
        };
        record.cage = self.guard.cage(&record.instance, &filled.limits).map_err(failed("cgroup"))?;
        record.log_from = fs::metadata(folder.log()).map_or(0, |metadata| metadata.len());
        let command = filled.command(port)?;
        let launch = Launch {
            lead: self.lead.clone(),
            program: command.0,
            args: command.1,
            cage: record.cage.clone(),
            cpus: filled.limits.cpus.clone(),
            numa: filled.limits.numa,
            orphan_after_ms: self.orphan_after_ms(),
        };
        let Some(lock) = folder.try_lock().map_err(failed("lock"))? else {
            return Err(NodeError::Launch { why: "another minder has its folder".to_owned() });
        };
        folder.clear().map_err(failed("folder"))?;
        files::write(&folder.launch(), &launch).map_err(failed("launch.json"))?;
        files::write(&folder.record(), record).map_err(failed("record.json"))?;
        let child = self.spawn_minder(folder, lock, &record.instance, filled.env(port)).map_err(failed("minder"))?;
        ready(child, folder, record.log_from).await
    }

    fn spawn_minder(
        &self,
        folder: &InstanceFolder,
        lock: Lock,
        instance: &InstanceId,
        env: BTreeMap<String, String>,
    ) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(folder.log())?;
        let program = self.settings.minder.first().cloned().unwrap_or_default();
        let mut command = Command::new(program);
        command.args(&self.settings.minder[1.min(self.settings.minder.len())..]).arg("--instance").arg(folder.path());
        for (name, _) in std::env::vars_os() {
            // Keys and peppers may be among ours.
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command.envs(env).env(INSTANCE_VARIABLE, instance.as_str()).env(STATE_VARIABLE, &self.state);
        // The lock is the minder's for as long as it lives: the kernel keeps it open as its standard input.
        command.stdin(lock.hand_over().map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped()).stderr(log);
        command.spawn()
    }

    /// A start that failed leaves nothing.
    async fn undo(&self, folder: &InstanceFolder, record: &Record) {
        self.sweep(folder, &record.instance, &record.cage).await;
        self.unbook(&record.instance);
        let removed = fs::remove_dir_all(folder.path());
        if let Err(error) = removed.and_then(|()| record.cage.remove()) {
            tracing::warn!(instance = %record.instance, %error, "a start that failed left a folder behind");
        }
    }

    /// The lowest free port of the order's range, above one that was taken.
    fn book(&self, instance: &InstanceId, order: &StartOrder, above: u16) -> Result<u16, NodeError> {
        let mut booked = self.ports.lock();
        booked.remove(instance);
        let (first, last) = order.ports;
        let taken: BTreeSet<u16> = booked.values().copied().collect();
        let range = first.max(above.saturating_add(1))..=last;
        let no_port = || NodeError::NoPort { first, last, host: order.host.to_string() };
        let port = port::lowest_free(range, &taken, order.host).ok_or_else(no_port)?;
        booked.insert(instance.clone(), port);
        Ok(port)
    }

    pub(crate) fn unbook(&self, instance: &InstanceId) {
        self.ports.lock().remove(instance);
    }

    async fn hold(&self, order: &StartOrder) -> Result<Option<HeldModel>, NodeError> {
        let Some(wanted) = &order.model else { return Ok(None) };
        match &wanted.at {
            ModelAt::Local(path) => {
                if !path.exists() {
                    let (model, why) = (path.display().to_string(), "no such folder or file on this node".to_owned());
                    return Err(NodeError::UnknownModel { model, why });
                }
                Ok(Some(HeldModel { path: path.clone(), digest: None, held: Box::new(()) }))
            }
            ModelAt::Stored { path, digest } => {
                let hands = self.hands()?;
                let model = ModelOrder { path: path.clone(), digest: digest.clone() };
                hands.hold(model, &order.instance).await.map(Some)
            }
        }
    }

    async fn compiled(&self, order: &StartOrder, held: Option<&HeldModel>) -> Result<Option<PathBuf>, NodeError> {
        let words = order.command.args.iter().chain(order.command.env.values());
        if !words.into_iter().any(|word| word.contains(COMPILED)) {
            return Ok(None);
        }
        let held = held.ok_or_else(|| NodeError::bad("compiled code belongs to a model, and the order names none"))?;
        self.hands()?.compiled(order, held).await.map(Some)
    }

    /// What an instance may have of the host. A NUMA node that this machine does not have binds nothing.
    fn limits(&self, order: &StartOrder, seen: &Seen) -> Limits {
        let numa = order.numa.and_then(|node| seen.inventory.numa.iter().find(|numa| numa.node == node));
        let online: BTreeSet<u32> = self.settings.machine.numa().iter().flat_map(|numa| numa.cpus.clone()).collect();
        let cpus: BTreeSet<u32> =
            numa.map(|numa| numa.cpus.intersection(&online).copied().collect()).unwrap_or_default();
        let has_memory = |node: &u32| self.settings.machine.numa().iter().any(|numa| numa.node == *node);
        if order.numa.is_some() && cpus.is_empty() {
            tracing::warn!(instance = %order.instance, numa = order.numa, "no such numa node here: left unbound");
        }
        Limits {
            memory_max_bytes: order.memory_max_bytes,
            cpu_milli: order.cpu_milli,
            numa: order.numa.filter(|node| !cpus.is_empty() && has_memory(node)),
            cpus,
        }
    }
}

/// Waits until the minder has said that the engine's first process runs.
async fn ready(mut child: Child, folder: &InstanceFolder, log_from: u64) -> Result<(Minding, Child), NodeError> {
    let mut line = String::new();
    let said = match child.stdout.take() {
        Some(stdout) => {
            let mut stdout = BufReader::new(stdout.take(READY_BYTES_MAX));
            timeout(READY_WITHIN, stdout.read_line(&mut line)).await.is_ok_and(|read| read.is_ok())
        }
        None => false,
    };
    match serde_json::from_str(&line) {
        Ok(minding) if said => Ok((minding, child)),
        Ok(_) | Err(_) => {
            let log = crate::log::part(&folder.log(), log_from, 4_096).map(|part| part.text).unwrap_or_default();
            let why = log.lines().last().unwrap_or("its minder said nothing").to_owned();
            Err(NodeError::Launch { why })
        }
    }
}

impl Filled {
    /// Program and arguments.
    fn command(&self, port: u16) -> Result<(String, Vec<String>), NodeError> {
        let command = &self.order.command;
        let program = self.fill(&command.program, port)?;
        let args = command.args.iter().map(|arg| self.fill(arg, port)).collect::<Result<_, _>>()?;
        for value in command.env.values() {
            self.fill(value, port)?;
        }
        Ok((program, args))
    }

    /// Its own environment, on top of ours.
    fn env(&self, port: u16) -> BTreeMap<String, String> {
        let own = self.order.command.env.iter();
        let filled = own.filter_map(|(name, value)| Some((name.clone(), self.fill(value, port).ok()?)));
        let mut env: BTreeMap<String, String> = filled.collect();
        env.extend(self.visible.iter().map(|gpus| (VISIBLE.to_owned(), gpus.clone())));
        env
    }

    /// Fills the places of one word, each once: what is filled in is not looked at again.
    fn fill(&self, word: &str, port: u16) -> Result<String, NodeError> {
        let mut filled = String::new();
        let mut rest = word;
        while let Some(start) = rest.find("{{") {
            filled.push_str(&rest[..start]);
            rest = &rest[start..];
            let places: [(&str, Option<String>); 4] = [
                (PORT, Some(port.to_string())),
                (HOST, Some(self.order.host.to_string())),
                (MODEL, self.model.as_deref().map(text)),
                (COMPILED, self.compiled.as_deref().map(text)),
            ];
            match places.into_iter().find(|(place, _)| rest.starts_with(place)) {
                Some((place, Some(value))) => {
                    filled.push_str(&value);
                    rest = &rest[place.len()..];
                }
                Some((place, None)) => return Err(NodeError::bad(format!("the order names no model for {place}"))),
                None => {
                    filled.push('{');
                    rest = &rest[1..];
                }
            }
        }
        filled.push_str(rest);
        Ok(filled)
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The value of `CUDA_VISIBLE_DEVICES`: UUIDs, none for an instance without GPUs. Where the documents alone say what GPUs
/// there are they are booking units, and the engine sees what it sees.
fn visible(order: &StartOrder, seen: &Seen) -> Result<Option<String>, NodeError> {
    if seen.inventory.source != FactSource::Nvml {
        return Ok(None);
    }
    let name = |index: &u32| {
        let uuid = seen.gpu(*index).and_then(|gpu| gpu.uuid.as_ref());
        let unnamed = || NodeError::GpuTaken { gpu: *index, by: "a driver that does not say its UUID".to_owned() };
        uuid.map(|uuid| uuid.as_str().to_owned()).ok_or_else(unnamed)
    };
    let names: Vec<String> = order.gpus.iter().map(name).collect::<Result<_, _>>()?;
    Ok(Some(names.join(",")))
}

/// What the engine is given of a model.
fn model_file(path: &Path, order: &StartOrder) -> Result<PathBuf, NodeError> {
    let is_gguf = order.model.as_ref().is_some_and(|model| model.file == ModelFile::Gguf);
    if !is_gguf || path.is_file() {
        return Ok(path.to_owned());
    }
    let unknown = |why: String| NodeError::UnknownModel { model: path.display().to_string(), why };
    let entries = fs::read_dir(path).map_err(|error| unknown(error.to_string()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "gguf")).collect();
    files.sort();
    let is_first_shard = |file: &Path| file.to_string_lossy().contains("-00001-of-");
    match &files[..] {
        [one] => Ok(one.clone()),
        [first, ..] if is_first_shard(first) => Ok(first.clone()),
        [] => Err(unknown("it has no .gguf file".to_owned())),
        [..] => Err(unknown("it has several .gguf files that are no shards: name one".to_owned())),
    }
}

/// Everything from outside is within bounds.
fn validate(order: &StartOrder) -> Result<(), NodeError> {
    let command = &order.command;
    let (names, values) = (command.env.keys(), command.env.values());
    let is_bad_word = |word: &String| word.len() > WORD_BYTES_MAX || word.contains('\0');
    let is_bad_name = |name: &String| name.is_empty() || name.contains('=') || name.starts_with("TIDEGATE_");
    let mut gpus = order.gpus.clone();
    gpus.sort_unstable();
    gpus.dedup();
    let words = || [&command.program].into_iter().chain(&command.args).chain(names.clone()).chain(values);
    let why = if command.program.is_empty() {
        "the command has no program"
    } else if command.args.len() > ARGS_MAX || command.env.len() > ENV_MAX || order.marks.len() > MARKS_MAX {
        "the command has too many arguments, variables or marks"
    } else if words().any(is_bad_word) || order.marks.iter().any(|mark| is_bad_word(&mark.text)) {
        "a word of the command is too long or has a zero byte"
    } else if command.env.keys().any(is_bad_name) {
        "a variable's name is empty, has '=' or begins with TIDEGATE_"
    } else if gpus.len() != order.gpus.len() || gpus.len() > GPUS_MAX {
        "a gpu is named twice, or there are too many"
    } else if order.ports.0 == 0 || order.ports.0 > order.ports.1 {
        "the range of ports is empty"
    } else {
        return Ok(());
    };
    Err(NodeError::bad(why))
}

/// The words after the program that lead to the minder.
pub(crate) fn lead(minder: &[OsString]) -> Vec<String> {
    minder.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Command as Rendered, LogMark};

    fn order() -> StartOrder {
        StartOrder {
            engine: None,
            instance: InstanceId::new("a-0-g1").unwrap(),
            deployment: "a".to_owned(),
            replica: 0,
            revision: 1,
            command: Rendered { program: "x".to_owned(), args: Vec::new(), env: BTreeMap::new() },
            model: None,
            gpus: Vec::new(),
            gpu_free_bytes: None,
            numa: None,
            memory_max_bytes: None,
            cpu_milli: None,
            ports: (1, 1),
            host: [127, 0, 0, 1].into(),
            marks: Vec::new(),
        }
    }

    fn filled(model: Option<&str>) -> Filled {
        Filled {
            order: Arc::new(order()),
            model: model.map(PathBuf::from),
            compiled: None,
            visible: None,
            limits: Limits::default(),
        }
    }

    #[test]
    fn places_are_filled_once_and_what_is_none_stays() {
        let filled = filled(Some("/m/{{port}}"));
        let fill = |word: &str| filled.fill(word, 8001).unwrap();
        assert_eq!(fill("--port={{port}}"), "--port=8001");
        assert_eq!(fill("http://{{host}}:{{port}}/"), "http://127.0.0.1:8001/");
        assert_eq!(fill("{{model}}"), "/m/{{port}}", "a path is not a pattern");
        assert_eq!(fill("{\"a\":{{b}}} {{{port}}}"), "{\"a\":{{b}}} {8001}");
        assert_eq!(filled.fill("{{compiled}}", 1).unwrap_err().code(), "bad_request");
    }

    #[test]
    fn an_order_beyond_its_bounds_is_refused() {
        let is_refused = |edit: fn(&mut StartOrder)| {
            let mut order = order();
            edit(&mut order);
            validate(&order).is_err()
        };
        assert!(validate(&order()).is_ok());
        assert!(!is_refused(|order| order.command.args = vec!["x".repeat(WORD_BYTES_MAX); ARGS_MAX]));
        assert!(is_refused(|order| order.command.args = vec![String::new(); ARGS_MAX + 1]));
        assert!(is_refused(|order| order.command.args = vec!["x".repeat(WORD_BYTES_MAX + 1)]));
        assert!(is_refused(|order| order.command.args = vec!["a\0".to_owned()]));
        assert!(is_refused(|order| order.command.program = String::new()));
        assert!(is_refused(|order| order.command.env = [("TIDEGATE_X".to_owned(), String::new())].into()));
        assert!(is_refused(|order| order.command.env = [("A=B".to_owned(), String::new())].into()));
        let variables = |count: usize| (0..count).map(|n| (format!("V{n}"), String::new())).collect();
        let mut many = order();
        many.command.env = variables(ENV_MAX);
        assert!(validate(&many).is_ok());
        many.command.env = variables(ENV_MAX + 1);
        assert!(validate(&many).is_err());
        let mark = LogMark { phase: String::new(), text: String::new() };
        many = order();
        many.marks = vec![mark.clone(); MARKS_MAX];
        assert!(validate(&many).is_ok());
        many.marks.push(mark);
        assert!(validate(&many).is_err());
        assert!(is_refused(|order| order.gpus = vec![1, 1]));
        assert!(!is_refused(|order| order.gpus = (0..GPUS_MAX as u32).collect()));
        assert!(is_refused(|order| order.gpus = (0..=GPUS_MAX as u32).collect()));
        assert!(is_refused(|order| order.ports = (0, 5)));
        assert!(is_refused(|order| order.ports = (6, 5)));
    }

    #[test]
    fn the_first_shard_is_given_of_several() {
        let folder = tempfile::tempdir().unwrap();
        let mut order = order();
        order.model = Some(crate::ModelUse { at: ModelAt::Local(folder.path().into()), file: ModelFile::Gguf });
        let given =
            |order: &StartOrder| model_file(folder.path(), order).map(|path| path.file_name().map(ToOwned::to_owned));
        assert!(given(&order).is_err());
        fs::write(folder.path().join("m-00002-of-00002.gguf"), "").unwrap();
        assert_eq!(given(&order).unwrap().unwrap(), "m-00002-of-00002.gguf");
        fs::write(folder.path().join("m-00001-of-00002.gguf"), "").unwrap();
        assert_eq!(given(&order).unwrap().unwrap(), "m-00001-of-00002.gguf");
        fs::write(folder.path().join("a.gguf"), "").unwrap();
        assert!(given(&order).is_err());
    }
}
