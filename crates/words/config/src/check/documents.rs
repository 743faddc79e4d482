//! Texts in, documents by kind out: what stands around a `spec`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::at::{At, Name, Origin, Report};
use crate::bounds::{DOCUMENTS_MAX, FILE_BYTES_MAX, FILES_MAX, TOTAL_BYTES_MAX};
use crate::node::{Data, Node, Position};
use crate::raw::alias::Alias;
use crate::raw::deployment::Deployment;
use crate::raw::model::Model;
use crate::raw::profile::ModelProductionProfile;
use crate::raw::reservation::Reservation;
use crate::raw::schedule::Schedule;
use crate::raw::site::Site;
use crate::raw::team::Team;
use crate::raw::{self, Metadata};
use crate::{API_VERSION, Source, decode, suggest, yaml};

/// All kinds, in the order of the reference page.
pub(crate) const KINDS: [&str; 9] =
    ["Site", "Node", "Reservation", "Model", "Deployment", "Alias", "Schedule", "Team", "ModelProductionProfile"];

/// A document of one kind.
#[derive(Debug)]
pub(crate) struct Doc<T> {
    pub(crate) origin: Origin,
    /// Its name, empty when it has none.
    pub(crate) name: Name,
    /// `None` when nothing of it could be read.
    pub(crate) spec: Option<T>,
}

/// All documents of one kind, each name once.
#[derive(Debug)]
pub(crate) struct Docs<T> {
    docs: Vec<Doc<T>>,
    by_name: BTreeMap<Name, usize>,
}

impl<T> Default for Docs<T> {
    fn default() -> Self {
        Self { docs: Vec::new(), by_name: BTreeMap::new() }
    }
}

impl<T> Docs<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Doc<T>> {
        self.docs.iter()
    }

    /// Documents whose spec could be read.
    pub(crate) fn readable(&self) -> impl Iterator<Item = (&Doc<T>, &T)> {
        self.docs.iter().filter_map(|doc| doc.spec.as_ref().map(|spec| (doc, spec)))
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Doc<T>> {
        self.by_name.get(name).and_then(|&index| self.docs.get(index))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.by_name.keys().map(|name| &**name)
    }

    /// Whether nothing was wrong with the shape of one part, such as `spec.groups`, in any document of the kind: only
    /// then can absence be told from breakage.
    pub(crate) fn is_sound(&self, part: &str) -> bool {
        let is_under = |path: &String| part.starts_with(path.as_str()) || path.starts_with(part);
        self.docs.iter().all(|doc| doc.spec.is_some() && !doc.origin.wrong.iter().any(is_under))
    }

    fn push(&mut self, doc: Doc<T>, report: &mut Report) {
        if doc.name.is_empty() {
            self.docs.push(doc);
            return;
        }
        if let Some(first) = self.get(&doc.name) {
            let (file, line) = (first.origin.file.display(), first.origin.root.at.line);
            let message = format!("the name `{}` is taken by the document at {file}:{line}", doc.name);
            let root = At::root(&doc.origin);
            report.error(&root.key("metadata").key("name"), message);
            return;
        }
        self.by_name.insert(Arc::clone(&doc.name), self.docs.len());
        self.docs.push(doc);
    }
}

/// All documents.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    pub(crate) sites: Docs<Site>,
    pub(crate) nodes: Docs<raw::node::Node>,
    pub(crate) reservations: Docs<Reservation>,
    pub(crate) models: Docs<Model>,
    pub(crate) deployments: Docs<Deployment>,
    pub(crate) aliases: Docs<Alias>,
    pub(crate) schedules: Docs<Schedule>,
    pub(crate) teams: Docs<Team>,
    pub(crate) profiles: Docs<ModelProductionProfile>,
    /// Whether documents may be missing here because there are too many.
    is_cut: bool,
    /// The words of what could not be read as documents, and names of documents of unknown kinds.
    torn: HashSet<String>,
}

impl Documents {
    /// Whether a document of this name may be among those that could not be read: then its absence is not reported.
    pub(crate) fn may_have(&self, name: &str) -> bool {
        self.is_cut || self.torn.contains(name)
    }

    /// Whether everything could be read.
    pub(crate) fn is_complete(&self) -> bool {
        !self.is_cut && self.torn.is_empty()
    }

    /// Remembers what stands in text that could not be read.
    fn tear(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'));
        self.torn.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
    }
}

/// Reads all documents of all sources.
pub(crate) fn read(sources: &[Source], report: &mut Report) -> Documents {
    let mut documents = Documents::default();
    let mut count = 0;
    if sources.len() > FILES_MAX {
        let message = format!("more than {FILES_MAX} files");
        report.about_file(std::path::Path::new(""), Position::default(), message, None);
        documents.is_cut = true;
    }
    let mut bytes: usize = 0;
    for source in sources.iter().take(FILES_MAX) {
        bytes = bytes.saturating_add(source.text.len());
        if bytes > TOTAL_BYTES_MAX {
            let message = format!("more than {TOTAL_BYTES_MAX} bytes in all files together");
            report.about_file(&source.path, Position::default(), message, None);
            documents.is_cut = true;
            break;
        }
        if source.text.len() > FILE_BYTES_MAX {
            let message = format!("file is larger than {FILE_BYTES_MAX} bytes");
            let hint = "documents may be spread over several files".to_owned();
            report.about_file(&source.path, Position::default(), message, Some(hint));
            documents.tear(&source.text);
            continue;
        }
        let yaml = yaml::read_bytes(&source.text);
        for torn in yaml.torn.iter().filter_map(|range| source.text.get(range.clone())) {
            documents.tear(torn);
        }
        for fault in yaml.faults {
            report.about_file(&source.path, fault.at, fault.message, fault.hint);
        }
        for (index, root) in yaml.documents.into_iter().enumerate() {
            count += 1;
            if count > DOCUMENTS_MAX {
                let message = format!("more than {DOCUMENTS_MAX} documents");
                report.about_file(&source.path, root.at, message, None);
                documents.is_cut = true;
                return documents;
            }
            let place = if index == 0 && !yaml.is_first_lost { Place::First } else { Place::Later };
            document(source, root, place, &mut documents, report);
        }
    }
    documents
}

/// Where a document stands in its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Later,
}

fn document(source: &Source, root: Node, place: Place, documents: &mut Documents, report: &mut Report) {
    let Data::Map(entries) = &*root.data else {
        let message = format!("expected a document, found {}", root.describe());
        let hint = "a document has the keys apiVersion, kind, metadata and spec".to_owned();
        report.about_file(&source.path, root.at, message, Some(hint));
        return;
    };
    let keys: Vec<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    let kind = root.get("kind").and_then(Node::text).map(str::to_owned);
    let name = root.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Node::text);
    let title = kind.as_ref().map(|kind| name.map_or_else(|| kind.clone(), |name| format!("{kind} {name}")));
    let mut origin = Origin { file: source.path.clone(), title, root, wrong: BTreeSet::new() };
    {
        let at = At::root(&origin);
        for key in keys.iter().filter(|key| !["apiVersion", "kind", "metadata", "spec"].contains(&key.as_str())) {
            let near = suggest::nearest(key, ["apiVersion", "kind", "metadata", "spec"]);
            let hint = near.map(|near| format!("did you mean `{near}`?"));
            report.error_hint(&at.key(key), format!("unknown key `{key}`"), hint);
        }
        api_version(&at, place, report);
    }
    let metadata: Metadata = decode::part(&mut origin, "metadata", report).unwrap_or_default();
    let name = {
        let root = At::root(&origin);
        let at = root.key("metadata");
        let name = report.required(&at, "name", metadata.name.as_ref());
        // A bad name is reported, and the document is checked under it all the same.
        name.map(|name| {
            check_name(&at, name, report);
            Name::from(name.as_str())
        })
    };
    let Some(kind) = kind else {
        report.error_hint(&At::root(&origin).key("kind"), "`kind` is missing", format!("one of {}", KINDS.join(", ")));
        documents.torn.extend(name.map(|name| name.to_string()));
        return;
    };
    dispatch(&kind, origin, name, documents, report);
}

fn check_name(at: &At<'_>, name: &str, report: &mut Report) {
    super::check_name(&at.key("name"), name, report);
}

fn api_version(at: &At<'_>, place: Place, report: &mut Report) {
    let at = at.key("apiVersion");
    match at.node() {
        None if place == Place::First => {
            report.error_hint(
                &at,
                "`apiVersion` is missing in the file's first document",
                format!("write {API_VERSION}"),
            );
        }
        Some(node) if node.text() != Some(API_VERSION) => {
            report.error_hint(&at, "unknown `apiVersion`", format!("write {API_VERSION}"));
        }
        None | Some(_) => {}
    }
}

fn dispatch(kind: &str, origin: Origin, name: Option<Name>, documents: &mut Documents, report: &mut Report) {
    match kind {
        "Site" => add(origin, name, &mut documents.sites, report),
        "Node" => add(origin, name, &mut documents.nodes, report),
        "Reservation" => add(origin, name, &mut documents.reservations, report),
        "Model" => add(origin, name, &mut documents.models, report),
        "Deployment" => add(origin, name, &mut documents.deployments, report),
        "Alias" => add(origin, name, &mut documents.aliases, report),
        "Schedule" => add(origin, name, &mut documents.schedules, report),
        "Team" => add(origin, name, &mut documents.teams, report),
        "ModelProductionProfile" => add(origin, name, &mut documents.profiles, report),
        unknown => {
            let root = At::root(&origin);
            let hint = suggest::nearest(unknown, KINDS)
                .map_or_else(|| format!("one of {}", KINDS.join(", ")), |near| format!("did you mean `{near}`?"));
            report.error_hint(&root.key("kind"), format!("unknown kind `{unknown}`"), hint);
            documents.torn.extend(name.map(|name| name.to_string()));
        }
    }
}

fn add<T>(mut origin: Origin, name: Option<Name>, docs: &mut Docs<T>, report: &mut Report)
where
    T: DeserializeOwned + Default,
{
    let spec = decode::part(&mut origin, "spec", report);
    // Without a name nothing can refer to it, but it is checked all the same; no name that is written is empty.
    let name = name.unwrap_or_else(|| Name::from(""));
    docs.push(Doc { origin, name, spec }, report);
}
