//! Who may depend on whom.
//!
//! ```text
//! tidegate -> rooms -> edges -> decisions -> words        testkit: for tests only; xtask: for nobody
//! ```

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Finding;

/// Layers from the bottom up. A crate may use those below its own, and in `words` its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    Words,
    Decisions,
    Edges,
    Rooms,
    Binary,
    Testkit,
    Tools,
}

/// Edges that know a neighbour, each with its reason. Words know their neighbours; rooms and decisions never do.
const NEIGHBOURS: &[(&str, &str, &str)] =
    &[("tidegate-store", "tidegate-identity", "the store keeps the keyring's records, whose one type is identity's")];

/// What no decision or word crate may list: runtimes, sockets, files watched, databases, clusters.
const OUTSIDE_WORLD: &[&str] = &[
    "async-std",
    "axum",
    "hyper",
    "hyper-util",
    "kube",
    "libc",
    "mio",
    "notify",
    "object_store",
    "prometheus-client",
    "redis",
    "reqwest",
    "rusqlite",
    "rustix",
    "rustls",
    "smol",
    "socket2",
    "sqlx",
    "tokio",
    "tokio-rustls",
    "tokio-util",
    "tonic",
    "tower",
    "ureq",
];

/// Crates that are heavy to compile or rule how a program is shaped, and the only places that may list them.
const HEAVY: &[(&str, &[&str])] = &[
    ("axum", &["tidegate-console"]),
    ("k8s-openapi", &["tidegate-kubernetes"]),
    ("kube", &["tidegate-kubernetes"]),
    ("object_store", &["tidegate-modelcache"]),
    ("redis", &["tidegate-store"]),
    ("sqlx", &["tidegate-store"]),
    ("tokenizers", &["tidegate-engine"]),
    ("tonic", &["tidegate-picker", "tidegate"]),
];

/// How a dependency is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Dev,
    Build,
}

#[derive(Clone, Debug)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Folder relative to the root, `/` between its parts.
    pub(super) folder: String,
    pub(super) dependencies: Vec<Dependency>,
}

/// What `cargo metadata` says of the workspace's own crates.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub(super) members: Vec<Member>,
}

impl Graph {
    /// Reads the output of `cargo metadata --format-version 1 --no-deps`.
    ///
    /// # Errors
    /// It has not that shape.
    pub(super) fn parse(metadata: &str) -> Result<Self> {
        let metadata: Value = serde_json::from_str(metadata).context("cargo metadata is not JSON")?;
        let root = text(&metadata, "workspace_root")?;
        let ids = metadata["workspace_members"].as_array().context("cargo metadata without workspace_members")?;
        let mut graph = Self::default();
        for package in metadata["packages"].as_array().context("cargo metadata without packages")? {
            if ids.contains(&package["id"]) {
                graph.members.push(member(package, root)?);
            }
        }
        Ok(graph)
    }
}

fn member(package: &Value, root: &str) -> Result<Member> {
    let manifest = text(package, "manifest_path")?;
    let folder = manifest.strip_prefix(root).and_then(|path| path.strip_suffix("/Cargo.toml")).unwrap_or_default();
    let listed = package["dependencies"].as_array().context("a package without dependencies")?;
    let dependencies = listed.iter().map(dependency).collect::<Result<_>>()?;
    Ok(Member {
        name: text(package, "name")?.to_owned(),
        folder: folder.trim_start_matches('/').to_owned(),
        dependencies,
    })
}

fn dependency(listed: &Value) -> Result<Dependency> {
    let kind = match listed["kind"].as_str() {
        Some("dev") => Kind::Dev,
        Some("build") => Kind::Build,
        _ => Kind::Normal,
    };
    Ok(Dependency { name: text(listed, "name")?.to_owned(), kind })
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("cargo metadata without {key}"))
}

fn layer(folder: &str) -> Option<Layer> {
    let mut parts = folder.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("crates"), Some("words"), Some(_)) => Some(Layer::Words),
        (Some("crates"), Some("decisions"), Some(_)) => Some(Layer::Decisions),
        (Some("crates"), Some("edges"), Some(_)) => Some(Layer::Edges),
        (Some("crates"), Some("rooms"), Some(_)) => Some(Layer::Rooms),
        (Some("crates"), Some("tidegate"), None) => Some(Layer::Binary),
        (Some("crates"), Some("testkit"), None) => Some(Layer::Testkit),
        (Some("xtask"), _, _) => Some(Layer::Tools),
        _ => None,
    }
}

/// Every violation in the graph.
pub(super) fn check(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &graph.members {
        let Some(own) = layer(&member.folder) else {
            findings.push(Finding::new("house", &member.name, format!("{} is no place for a crate", member.folder)));
            continue;
        };
        // a crate that lists itself does so for a feature that only its tests need
        for dependency in member.dependencies.iter().filter(|dependency| dependency.name != member.name) {
            let target = graph.members.iter().find(|other| other.name == dependency.name);
            match target.and_then(|other| layer(&other.folder)) {
                Some(other) => findings.extend(inside(member, own, dependency, other)),
                None => findings.extend(outside(member, own, dependency)),
            }
        }
    }
    findings.extend(stale_exceptions(graph));
    findings
}

/// Exceptions that nothing uses any more: one must not outlive its reason.
fn stale_exceptions(graph: &Graph) -> Vec<Finding> {
    let unused = NEIGHBOURS.iter().filter(|(from, to, _)| {
        let user = graph.members.iter().find(|member| member.name == *from);
        user.is_some_and(|member| !member.dependencies.iter().any(|dependency| dependency.name == *to))
    });
    let finding = |(from, to, _): &(&str, &str, &str)| {
        Finding::new("layers", *from, format!("no longer uses {to}: take out the exception"))
    };
    unused.map(finding).collect()
}

/// An edge between two crates of the workspace.
fn inside(member: &Member, own: Layer, dependency: &Dependency, other: Layer) -> Option<Finding> {
    let name = &dependency.name;
    if other == Layer::Testkit {
        let fine = dependency.kind == Kind::Dev || own == Layer::Tools;
        let what = format!("lists {name}, which is for tests only: make it a dev-dependency");
        return (!fine).then(|| Finding::new("layers", &member.name, what));
    }
    let fine = match own {
        // tests of the binary and of rooms may use whatever the binary is made of
        Layer::Testkit | Layer::Tools => other != Layer::Tools,
        Layer::Words => other == Layer::Words,
        Layer::Edges => other < own || NEIGHBOURS.iter().any(|(from, to, _)| *from == member.name && to == name),
        Layer::Decisions | Layer::Rooms | Layer::Binary => other < own,
    };
    let what = format!("{own:?} may not depend on {name} ({other:?})").to_lowercase();
    (!fine).then(|| Finding::new("layers", &member.name, what))
}

/// An edge to a crate of somebody else.
fn outside(member: &Member, own: Layer, dependency: &Dependency) -> Vec<Finding> {
    let name = dependency.name.as_str();
    let mut findings = Vec::new();
    // their tests may drive futures; what they are made of may not know a runtime
    if own <= Layer::Decisions && dependency.kind != Kind::Dev && OUTSIDE_WORLD.contains(&name) {
        let what = format!("lists {name}: words and decisions are pure and synchronous");
        findings.push(Finding::new("pure", &member.name, what));
    }
    if let Some((_, places)) = HEAVY.iter().find(|(heavy, _)| *heavy == name)
        && !places.contains(&member.name.as_str())
    {
        let what = format!("lists {name}, whose place is {}", places.join(" or "));
        findings.push(Finding::new("heavy crates", &member.name, what));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(folder: &str, dependencies: &[(&str, Kind)]) -> Member {
        let name = folder.rsplit('/').next().unwrap_or_default();
        let name =
            if folder.starts_with("crates/") && name != "tidegate" { format!("tidegate-{name}") } else { name.into() };
        let dependencies =
            dependencies.iter().map(|(name, kind)| Dependency { name: (*name).to_owned(), kind: *kind }).collect();
        Member { name, folder: folder.to_owned(), dependencies }
    }

    fn house(extra: Member) -> Graph {
        let mut members = vec![
            krate("crates/words/core", &[("serde", Kind::Normal)]),
            krate("crates/decisions/policy", &[("tidegate-core", Kind::Normal), ("tokio", Kind::Dev)]),
            krate("crates/edges/identity", &[("tidegate-policy", Kind::Normal)]),
            krate("crates/edges/store", &[("tidegate-identity", Kind::Normal), ("sqlx", Kind::Normal)]),
            krate("crates/edges/engine", &[("tidegate-testkit", Kind::Dev)]),
            krate("crates/rooms/gateway", &[("tidegate-store", Kind::Normal), ("tokio", Kind::Normal)]),
            krate("crates/rooms/console", &[("axum", Kind::Normal)]),
            krate("crates/tidegate", &[("tidegate-gateway", Kind::Normal)]),
            krate("crates/testkit", &[("tidegate-core", Kind::Normal)]),
            krate("xtask", &[("tidegate-core", Kind::Normal)]),
        ];
        members.retain(|member| member.name != extra.name);
        members.push(extra);
        Graph { members }
    }

    fn only_finding(extra: Member) -> String {
        let findings = check(&house(extra));
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings[0].to_string()
    }

    #[test]
    fn a_house_in_order_has_no_finding() {
        assert_eq!(check(&house(krate("crates/words/wire", &[("tidegate-core", Kind::Normal)]))), []);
    }

    #[test]
    fn a_layer_that_reaches_up_is_found() {
        let found = only_finding(krate("crates/decisions/routing", &[("tidegate-store", Kind::Normal)]));
        assert_eq!(found, "tidegate-routing: [layers] decisions may not depend on tidegate-store (edges)");
        let found = only_finding(krate("crates/words/wire", &[("tidegate-policy", Kind::Normal)]));
        assert_eq!(found, "tidegate-wire: [layers] words may not depend on tidegate-policy (decisions)");
        let found = only_finding(krate("crates/edges/node", &[("tidegate-gateway", Kind::Dev)]));
        assert_eq!(found, "tidegate-node: [layers] edges may not depend on tidegate-gateway (rooms)");
    }

    #[test]
    fn a_room_that_knows_another_room_is_found() {
        let found = only_finding(krate("crates/rooms/picker", &[("tidegate-gateway", Kind::Normal)]));
        assert_eq!(found, "tidegate-picker: [layers] rooms may not depend on tidegate-gateway (rooms)");
    }

    #[test]
    fn an_edge_or_a_decision_that_knows_its_neighbour_is_found() {
        let found = only_finding(krate("crates/edges/node", &[("tidegate-engine", Kind::Normal)]));
        assert_eq!(found, "tidegate-node: [layers] edges may not depend on tidegate-engine (edges)");
        let found = only_finding(krate("crates/edges/store", &[("sqlx", Kind::Normal)]));
        assert_eq!(found, "tidegate-store: [layers] no longer uses tidegate-identity: take out the exception");
        let found = only_finding(krate("crates/decisions/planner", &[("tidegate-policy", Kind::Normal)]));
        assert_eq!(found, "tidegate-planner: [layers] decisions may not depend on tidegate-policy (decisions)");
    }

    #[test]
    fn a_pure_crate_that_lists_a_runtime_is_found() {
        for name in ["tokio", "hyper", "tower"] {
            let found = only_finding(krate("crates/decisions/planner", &[(name, Kind::Normal)]));
            assert!(found.contains("pure and synchronous"), "{found}");
            let found = only_finding(krate("crates/words/wire", &[(name, Kind::Build)]));
            assert!(found.contains("pure and synchronous"), "{found}");
        }
    }

    #[test]
    fn a_heavy_crate_in_a_second_place_is_found() {
        let found = only_finding(krate("crates/rooms/picker", &[("sqlx", Kind::Normal)]));
        assert_eq!(found, "tidegate-picker: [heavy crates] lists sqlx, whose place is tidegate-store");
        let found = only_finding(krate("crates/edges/node", &[("kube", Kind::Dev)]));
        assert!(found.contains("whose place is tidegate-kubernetes"), "{found}");
    }

    #[test]
    fn testkit_in_what_ships_is_found() {
        let found = only_finding(krate("crates/rooms/picker", &[("tidegate-testkit", Kind::Normal)]));
        assert!(found.contains("for tests only"), "{found}");
    }

    #[test]
    fn a_crate_outside_the_house_is_found() {
        let found = only_finding(krate("crates/helpers", &[]));
        assert!(found.contains("no place for a crate"), "{found}");
    }

    #[test]
    fn cargo_metadata_is_read() {
        let metadata = r#"{"workspace_root":"/w","workspace_members":["path+file:///w/crates/words/core#0.1.0"],"packages":[
            {"id":"path+file:///w/crates/words/core#0.1.0","name":"tidegate-core","version":"0.1.0",
             "manifest_path":"/w/crates/words/core/Cargo.toml","dependencies":[{"name":"serde","kind":null},{"name":"x","kind":"dev"}]}]}"#;
        let graph = Graph::parse(metadata).unwrap();
        assert_eq!(graph.members.len(), 1);
        assert_eq!(graph.members[0].folder, "crates/words/core");
        assert_eq!(graph.members[0].dependencies[1].kind, Kind::Dev);
        assert!(Graph::parse("{}").is_err());
    }
}
