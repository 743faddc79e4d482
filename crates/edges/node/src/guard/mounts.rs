//! Where the kernel's cgroup hierarchies are mounted, and where in them this process is.

use std::path::{Path, PathBuf};

/// One hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Whether it is version 2.
    pub(super) is_v2: bool,
    /// Controllers of a v1 hierarchy, or its name as `name=…`; empty for v2, which says them itself.
    pub(super) controllers: Vec<String>,
    /// The folder of this process in it.
    pub(super) own: PathBuf,
}

/// Reads `/proc/self/mountinfo` and `/proc/self/cgroup`.
pub(super) fn hierarchies(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    mountinfo.lines().filter_map(|line| hierarchy(line, cgroup)).collect()
}

fn hierarchy(line: &str, cgroup: &str) -> Option<Hierarchy> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    let root = unescaped(mount.nth(3)?);
    let point = PathBuf::from(unescaped(mount.next()?));
    let mut filesystem = filesystem.split(' ');
    let is_v2 = match filesystem.next()? {
        "cgroup2" => true,
        "cgroup" => false,
        _ => return None,
    };
    let options = filesystem.nth(1)?;
    let known = |option: &&str| !matches!(*option, "rw" | "ro" | "xattr" | "none" | "clone_children");
    let controllers = if is_v2 { Vec::new() } else { options.split(',').filter(known).map(str::to_owned).collect() };
    let inside = own_path(cgroup, is_v2, &controllers)?;
    // A container sees its own part of the hierarchy as a mount of its own.
    let inside = Path::new(inside).strip_prefix(&root).or_else(|_| Path::new(inside).strip_prefix("/")).ok()?;
    let own = point.join(inside);
    Some(Hierarchy { is_v2, controllers, own: if own.is_dir() { own } else { point } })
}

/// The path of this process: `0::PATH` for v2, `N:CONTROLLERS:PATH` for v1.
fn own_path<'a>(cgroup: &'a str, is_v2: bool, controllers: &[String]) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = if is_v2 {
            number == "0" && names.is_empty()
        } else {
            names.split(',').any(|name| controllers.iter().any(|controller| controller == name))
        };
        is_it.then_some(path)
    })
}

/// Blanks and backslashes stand in octal there.
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().to_str().unwrap().to_owned();
        for part in ["memory/box/a", "unified/slice", "part/here"] {
            std::fs::create_dir_all(folder.path().join(part)).unwrap();
        }
        let mountinfo = format!(
            "31 23 0:28 / /sys rw,relatime - tmpfs tmpfs rw\n\
             32 31 0:29 / {at}/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n\
             33 31 0:30 / {at}/unified rw - cgroup2 cgroup2 rw,nsdelegate\n\
             34 31 0:31 /kube/pod7 {at}/part rw - cgroup cgroup rw,pids\n\
             35 31 0:32 / {at}/gone\\040x rw - cgroup cgroup rw,cpu,cpuacct\n\
             junk\n"
        );
        let cgroup = "7:cpu,cpuacct:/x\n5:pids:/kube/pod7/here\n4:memory:/box/a\n0::/slice\n";
        let found = hierarchies(&mountinfo, cgroup);
        let own = |name: &str| found.iter().find(|h| h.controllers.iter().any(|c| c == name)).map(|h| h.own.clone());
        assert_eq!(own("memory"), Some(folder.path().join("memory/box/a")));
        assert_eq!(own("pids"), Some(folder.path().join("part/here")));
        assert_eq!(own("cpuacct"), Some(folder.path().join("gone x")), "its own mount, where its path is not seen");
        let v2: Vec<_> = found.iter().filter(|h| h.is_v2).map(|h| h.own.clone()).collect();
        assert_eq!(v2, [folder.path().join("unified/slice")]);
        assert_eq!(hierarchies("", ""), []);
    }
}
