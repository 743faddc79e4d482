//! The guarantee that no process of an engine is left, in layers, each of which holds alone.
//!
//! | layer | how an engine's processes are found | how they are ended |
//! | --- | --- | --- |
//! | cgroup v2 | they cannot leave it | `cgroup.kill`: the kernel ends all of it at once |
//! | cgroup v1 | they cannot leave it | its list, again and again until it is empty |
//! | recorded tree | the minder adopts every orphan and writes down whom it has seen; what has the instance's mark in its environment | each by pidfd, compared with its start time |
//!
//! The last layer works below the others too, always. Which is in force, and why it is not a better one, is in
//! [`GuardFacts`]. Limits on memory and CPUs are held by whichever version has the controller: a machine may have v2
//! without controllers and v1 with them.

mod cage;
mod mounts;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

pub(crate) use cage::Cage;
use cage::CageFolder;
use mounts::{Hierarchy, hierarchies};

use crate::facts::{GuardFacts, KillBy, LimitBy};
use crate::id::InstanceId;

/// Which layers may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardChoice {
    /// The best there is.
    #[default]
    Best,
    /// cgroup v1, even where there is v2.
    NoV2,
    /// No cgroup at all.
    RecordedTree,
}

/// What an instance may have of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) memory_max_bytes: Option<u64>,
    pub(crate) cpu_milli: Option<u64>,
    /// Empty: unbound.
    pub(crate) cpus: BTreeSet<u32>,
    pub(crate) numa: Option<u32>,
}

/// Controllers that hold limits; without one of them what it would hold is not held.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "cpuset"];
/// v1 hierarchies whose lists are used to find processes, in this order.
const V1_LISTS: [&str; 5] = ["pids", "freezer", "memory", "cpu", "name=systemd"];
/// Time over which a share of CPU is counted, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// What this machine offers.
#[derive(Debug)]
pub(crate) struct Guard {
    facts: GuardFacts,
    v2: Option<V2>,
    v1: Vec<V1>,
}

#[derive(Debug)]
struct V2 {
    /// The folder below which instances have theirs.
    group: PathBuf,
    controllers: BTreeSet<String>,
}

#[derive(Debug)]
struct V1 {
    group: PathBuf,
    controllers: Vec<String>,
}

impl V1 {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|own| own == controller)
    }
}

impl Guard {
    /// Looks at the machine. `group` is the name of our folders: one for each state folder.
    pub(crate) fn detect(choice: GuardChoice, group: &str) -> Self {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::among(choice, group, &hierarchies(&mountinfo, &cgroup))
    }

    fn among(choice: GuardChoice, group: &str, found: &[Hierarchy]) -> Self {
        let mut why = Vec::new();
        let v2 = match (choice, found.iter().find(|hierarchy| hierarchy.is_v2)) {
            (GuardChoice::NoV2 | GuardChoice::RecordedTree, _) => {
                why.push("cgroup v2 is switched off".to_owned());
                None
            }
            (GuardChoice::Best, None) => {
                why.push("no cgroup v2 is mounted".to_owned());
                None
            }
            (GuardChoice::Best, Some(hierarchy)) => {
                V2::new(&hierarchy.own, group).map_err(|error| why.push(format!("cgroup v2: {error}"))).ok()
            }
        };
        let v1 = match choice {
            GuardChoice::RecordedTree => Vec::new(),
            GuardChoice::Best | GuardChoice::NoV2 => v1_groups(found, group, v2.as_ref()),
        };
        let kill = match (&v2, v1.iter().any(|v1| V1_LISTS.iter().any(|name| v1.has(name)))) {
            (Some(_), _) => KillBy::CgroupV2,
            (None, true) => KillBy::CgroupV1,
            (None, false) => {
                why.push("no cgroup v1 can be written".to_owned());
                KillBy::RecordedTree
            }
        };
        let by = |controller: &str| match (&v2, v1.iter().any(|v1| v1.has(controller))) {
            (Some(v2), _) if v2.controllers.contains(controller) => Some(LimitBy::CgroupV2),
            (_, true) => Some(LimitBy::CgroupV1),
            (_, false) => None,
        };
        let memory = by("memory");
        if memory.is_none() {
            why.push("no cgroup with the memory controller can be written: limits on memory are not held".to_owned());
        }
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).is_ok();
        let cpus = by("cpuset").unwrap_or(LimitBy::Inherited);
        Self { facts: GuardFacts { kill, pidfd, memory, cpus, why }, v2, v1 }
    }

    /// What is in force.
    pub(crate) const fn facts(&self) -> &GuardFacts {
        &self.facts
    }

    /// Removes our own folders, as far as no instance is in them.
    pub(crate) fn tidy(&self) {
        for group in self.v2.iter().map(|v2| &v2.group).chain(self.v1.iter().map(|v1| &v1.group)) {
            let _: io::Result<()> = fs::remove_dir(group);
        }
    }

    /// Makes the folders of an instance, with its limits: all or none.
    pub(crate) fn cage(&self, instance: &InstanceId, limits: &Limits) -> io::Result<Cage> {
        let mut cage = Cage::default();
        let made = self.make(instance, limits, &mut cage.folders);
        if made.is_err() {
            let _: io::Result<()> = cage.remove();
        }
        made.map(|()| cage)
    }

    fn make(&self, instance: &InstanceId, limits: &Limits, folders: &mut Vec<CageFolder>) -> io::Result<()> {
        let v2 = self.v2.iter().map(|v2| (v2.group.join(instance.as_str()), true));
        let v1 = self.v1.iter().map(|v1| (v1.group.join(instance.as_str()), false));
        for (path, is_v2) in v2.chain(v1) {
            fs::create_dir_all(&path)?;
            folders.push(CageFolder { path, is_v2 });
        }
        if let Some(v2) = &self.v2 {
            v2.limit(instance, limits)?;
        }
        self.v1.iter().try_for_each(|v1| v1.limit(instance, limits))
    }
}

/// The v1 hierarchies that are of use: those with a controller that v2 does not have, and one for its list when there is
/// no v2.
fn v1_groups(found: &[Hierarchy], group: &str, v2: Option<&V2>) -> Vec<V1> {
    let mut groups: Vec<V1> = Vec::new();
    let wanted = V1_LISTS.iter().chain(&CONTROLLERS);
    for (place, name) in wanted.enumerate() {
        let is_list = place < V1_LISTS.len();
        let is_needed = if is_list {
            v2.is_none() && !groups.iter().any(|v1| V1_LISTS.iter().any(|list| v1.has(list)))
        } else {
            v2.is_none_or(|v2| !v2.controllers.contains(*name)) && !groups.iter().any(|v1| v1.has(name))
        };
        let hierarchy = found.iter().find(|h| !h.is_v2 && h.controllers.iter().any(|own| own == name));
        if let (true, Some(hierarchy)) = (is_needed, hierarchy) {
            let path = hierarchy.own.join(group);
            if fs::create_dir_all(&path).and_then(|()| writable(&path)).is_ok() {
                groups.push(V1 { group: path, controllers: hierarchy.controllers.clone() });
            }
        }
    }
    groups
}

fn writable(group: &Path) -> io::Result<()> {
    let probe = group.join(format!(".{}", std::process::id()));
    fs::create_dir(&probe)?;
    fs::remove_dir(&probe)
}

impl V2 {
    fn new(own: &Path, name: &str) -> io::Result<Self> {
        let group = own.join(name);
        fs::create_dir_all(&group)?;
        let wanted = read_set(&own.join("cgroup.controllers"));
        for controller in CONTROLLERS.iter().filter(|controller| wanted.contains(**controller)) {
            if let Err(error) = enable(own, controller).and_then(|()| enable(&group, controller)) {
                tracing::warn!(controller, %error, "cgroup controller cannot be used: give the service Delegate=yes");
            }
        }
        writable(&group)?;
        if !group.join("cgroup.kill").is_file() {
            return Err(io::Error::other("this kernel has no cgroup.kill"));
        }
        let controllers = read_set(&group.join("cgroup.subtree_control"));
        Ok(Self { group, controllers })
    }

    fn limit(&self, instance: &InstanceId, limits: &Limits) -> io::Result<()> {
        let path = self.group.join(instance.as_str());
        if let (Some(bytes), true) = (limits.memory_max_bytes, self.controllers.contains("memory")) {
            fs::write(path.join("memory.max"), bytes.to_string())?;
        }
        if let (Some(milli), true) = (limits.cpu_milli, self.controllers.contains("cpu")) {
            fs::write(path.join("cpu.max"), format!("{} {CPU_PERIOD_US}", quota_us(milli)))?;
        }
        if !limits.cpus.is_empty() && self.controllers.contains("cpuset") {
            fs::write(path.join("cpuset.cpus"), list(&limits.cpus))?;
            if let Some(numa) = limits.numa {
                fs::write(path.join("cpuset.mems"), numa.to_string())?;
            }
        }
        Ok(())
    }
}

/// Hands a controller down to the children of a cgroup. One that has processes of its own may not: when that is us
/// alone, we move into a child first.
fn enable(cgroup: &Path, controller: &str) -> io::Result<()> {
    let control = cgroup.join("cgroup.subtree_control");
    if read_set(&control).contains(controller) {
        return Ok(());
    }
    let told = fs::write(&control, format!("+{controller}"));
    let own = getpid().as_raw_nonzero().to_string();
    let procs = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    match told {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && procs.trim() == own => {
            let main = cgroup.join("tidegate-main");
            fs::create_dir_all(&main)?;
            fs::write(main.join("cgroup.procs"), "0\n")?;
            fs::write(&control, format!("+{controller}"))
        }
        told => told,
    }
}

impl V1 {
    fn limit(&self, instance: &InstanceId, limits: &Limits) -> io::Result<()> {
        let path = self.group.join(instance.as_str());
        if let (Some(bytes), true) = (limits.memory_max_bytes, self.has("memory")) {
            fs::write(path.join("memory.limit_in_bytes"), bytes.to_string())?;
        }
        if let (Some(milli), true) = (limits.cpu_milli, self.has("cpu")) {
            fs::write(path.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
            fs::write(path.join("cpu.cfs_quota_us"), quota_us(milli).to_string())?;
        }
        if self.has("cpuset") {
            // Nobody can be in a cpuset that has none; ours get what their parent has.
            for folder in [&self.group, &path] {
                inherit(folder, "cpuset.cpus")?;
                inherit(folder, "cpuset.mems")?;
            }
            if !limits.cpus.is_empty() {
                fs::write(path.join("cpuset.cpus"), list(&limits.cpus))?;
                if let Some(numa) = limits.numa {
                    fs::write(path.join("cpuset.mems"), numa.to_string())?;
                }
            }
        }
        Ok(())
    }
}

/// Gives a cpuset what its parent has, if it has nothing.
fn inherit(folder: &Path, file: &str) -> io::Result<()> {
    if !fs::read_to_string(folder.join(file))?.trim().is_empty() {
        return Ok(());
    }
    let parent = folder.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::write(folder.join(file), fs::read_to_string(parent.join(file))?.trim())
}

/// CPU time in a period; the kernel takes no less than a millisecond.
const fn quota_us(cpu_milli: u64) -> u64 {
    let quota = cpu_milli.saturating_mul(CPU_PERIOD_US) / 1_000;
    if quota < 1_000 { 1_000 } else { quota }
}

fn list(cpus: &BTreeSet<u32>) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn read_set(path: &Path) -> BTreeSet<String> {
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_cgroups_has_the_recorded_tree_and_says_why() {
        let guard = Guard::among(GuardChoice::Best, "tidegate-test", &[]);
        assert_eq!(guard.facts().kill, KillBy::RecordedTree);
        assert_eq!((guard.facts().memory, guard.facts().cpus), (None, LimitBy::Inherited));
        assert!(guard.facts().why.contains(&"no cgroup v2 is mounted".to_owned()), "{:?}", guard.facts().why);
        let cage = guard.cage(&InstanceId::new("a").unwrap(), &Limits::default()).unwrap();
        assert!(cage.procs().is_empty() && cage.oom_kills().is_none());
        cage.enter().unwrap();
        cage.remove().unwrap();
    }

    #[test]
    fn a_cgroup_that_cannot_be_written_is_passed_over_with_the_reason() {
        let own = PathBuf::from("/proc/tidegate-none");
        let found = [
            Hierarchy { is_v2: true, controllers: Vec::new(), own: own.clone() },
            Hierarchy { is_v2: false, controllers: vec!["memory".to_owned()], own },
        ];
        let guard = Guard::among(GuardChoice::Best, "tidegate-test", &found);
        assert_eq!(guard.facts().kill, KillBy::RecordedTree);
        assert!(guard.facts().why[0].starts_with("cgroup v2: "), "{:?}", guard.facts().why);
    }

    #[test]
    fn shares_of_cpu_are_within_what_the_kernel_takes() {
        assert_eq!(quota_us(2_000), 200_000);
        assert_eq!(quota_us(1), 1_000);
        assert_eq!(list(&BTreeSet::from([0, 2, 64])), "0,2,64");
    }
}
