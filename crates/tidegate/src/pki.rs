//! `tidegate pki`: a site's certificate authority, and certificates for its nodes and its controllers.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use jiff::civil::Date;
use jiff::{Timestamp, ToSpan as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use tidegate_node::tls::{Party, TlsFiles, names};

use crate::terminal;

/// Longest life of an authority, in days.
const CA_DAYS_MAX: u16 = 7_300;
/// Longest life of a certificate, in days.
const DAYS_MAX: u16 = 825;
/// Life of the controller's first certificate, in days.
const CONTROLLER_DAYS: u16 = 90;
/// The stem of the controllers' files.
const CONTROLLER: &str = "controller";

const EXAMPLES: &str = "\
A controller and the agents of its nodes show each other certificates and believe nobody else. One authority signs both.

Example, for a site named `munich` whose node `gpu-1` has an agent:
  tidegate pki init --dir pki --site munich      ca.pem, ca.key, and the controller's certificate; keep ca.key away
                                                 from nodes and from Git
  tidegate pki issue --dir pki node gpu-1        gpu-1.pem and gpu-1.key: take both, and ca.pem, to the node
  tidegate agent gpu-1 --certificates pki --check --documents site/
  tidegate pki issue --dir pki --renew node gpu-1        before its 90 days end

Running processes read certificates again when the files change: nothing is restarted. In Kubernetes cert-manager does the
same: a certificate's URI is tidegate://SITE/node/NAME or tidegate://SITE/controller.";

/// `tidegate pki`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Pki {
    #[command(subcommand)]
    verb: PkiVerb,
}

/// Where certificates are.
#[derive(Debug, Args, Clone)]
struct Folder {
    /// Folder of certificates and keys.
    #[arg(long = "dir", value_name = "DIR", default_value = "pki", global = true)]
    path: PathBuf,
}

#[derive(Debug, Subcommand)]
enum PkiVerb {
    /// Make a site's authority, and the controller's certificate. Refuses where there is one.
    Init(Init),
    /// Make a certificate with a key of its own, signed by the site's authority.
    Issue(Issue),
}

#[derive(Debug, Args)]
struct Init {
    /// The site's name: metadata.name of its Site document.
    #[arg(long)]
    site: String,
    /// How long the authority is valid.
    #[arg(long, default_value_t = 3_650, value_parser = clap::value_parser!(u16).range(1..=i64::from(CA_DAYS_MAX)))]
    days: u16,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, Args)]
struct Issue {
    #[command(subcommand)]
    whom: Whom,
    /// How long the certificate is valid.
    #[arg(
        long,
        default_value_t = 90,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DAYS_MAX)),
        global = true
    )]
    days: u16,
    /// Replace a certificate that is there.
    #[arg(long, global = true)]
    renew: bool,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, Subcommand)]
enum Whom {
    /// For a node: its agent.
    Node {
        /// The node's name: metadata.name of its Node document.
        name: String,
    },
    /// For the site's controllers: `tidegate up`.
    Controller,
}

pub(crate) fn pki(args: &Pki) -> anyhow::Result<ExitCode> {
    match &args.verb {
        PkiVerb::Init(args) => init(args)?,
        PkiVerb::Issue(args) => {
            let replace = if args.renew { Replace::Yes } else { Replace::No };
            issue(&args.whom, &args.folder.path, args.days, replace)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn init(args: &Init) -> anyhow::Result<()> {
    let folder = &args.folder.path;
    // The name is checked as it will stand in certificates.
    uri(&Party::Controller { site: args.site.as_str().into() })?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(|| folder.display().to_string())?;
    let key = KeyPair::generate()?;
    let mut params = authority(&args.site)?;
    lifetime(&mut params, args.days)?;
    let certificate = params.self_signed(&key)?;
    // The key first: a second call stops at it, and never makes another certificate for it.
    write(&folder.join("ca.key"), &key.serialize_pem(), 0o600, Replace::No)?;
    write(&folder.join("ca.pem"), &certificate.pem(), 0o644, Replace::No)?;
    terminal::answer(&format!("authority of site {}: {}", args.site, folder.join("ca.pem").display()));
    issue(&Whom::Controller, folder, CONTROLLER_DAYS, Replace::No)
}

fn issue(whom: &Whom, folder: &Path, days: u16, replace: Replace) -> anyhow::Result<()> {
    let missing = || format!("there is no authority in {}: make one with `tidegate pki init`", folder.display());
    let key = fs::read_to_string(folder.join("ca.key")).with_context(missing)?;
    let key = KeyPair::from_pem(&key).context("ca.key holds no key that can sign")?;
    let site = site(&folder.join("ca.pem"))?;
    let issuer = Issuer::new(authority(&site)?, key);
    let site: std::sync::Arc<str> = site.into();
    let (stem, party) = match whom {
        Whom::Node { name } if name == "ca" || name == CONTROLLER => {
            bail!("a node named {name} would have another's files")
        }
        Whom::Node { name } => (name.as_str(), Party::Node { site, name: name.as_str().into() }),
        Whom::Controller => (CONTROLLER, Party::Controller { site }),
    };
    let mut params = CertificateParams::new(Vec::new())?;
    params.subject_alt_names = vec![SanType::URI(uri(&party)?.try_into()?)];
    params.distinguished_name.push(DnType::CommonName, stem);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match party {
        Party::Node { .. } => ExtendedKeyUsagePurpose::ServerAuth,
        Party::Controller { .. } => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    params.use_authority_key_identifier_extension = true;
    lifetime(&mut params, days)?;
    let own = KeyPair::generate()?;
    let certificate = params.signed_by(&own, &issuer)?;
    let files = TlsFiles::in_folder(folder, stem);
    write(&files.key, &own.serialize_pem(), 0o600, replace)?;
    write(&files.cert, &certificate.pem(), 0o644, replace)?;
    // As the other end will look at it: an authority that has run out is found now.
    files.check(&party, UnixTime::now())?;
    terminal::answer(&format!("{party}, {days} days: {}", files.cert.display()));
    Ok(())
}

fn uri(party: &Party) -> anyhow::Result<String> {
    party.uri().with_context(|| format!("{party}: a name has 1 to 253 of a-z, A-Z, 0-9, '.', '-' and '_'"))
}

/// An authority as it stands in what it signs: the same from every call.
fn authority(site: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, format!("tidegate {site}"));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.subject_alt_names = vec![SanType::URI(format!("tidegate://{site}").try_into()?)];
    Ok(params)
}

/// The site that an authority is for.
fn site(path: &Path) -> anyhow::Result<String> {
    let read = CertificateDer::from_pem_file(path).ok();
    let names = read.map(|certificate| names(&certificate)).unwrap_or_default();
    let site = names.iter().find_map(|name| name.strip_prefix("tidegate://")).filter(|site| !site.contains('/'));
    site.map(str::to_owned).with_context(|| format!("{} is no authority that `pki init` made", path.display()))
}

/// From yesterday, since clocks differ, for so many days.
fn lifetime(params: &mut CertificateParams, days: u16) -> anyhow::Result<()> {
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let at = |date: Date| -> anyhow::Result<_> {
        Ok(date_time_ymd(i32::from(date.year()), u8::try_from(date.month())?, u8::try_from(date.day())?))
    };
    params.not_before = at(today.checked_sub(1.days())?)?;
    params.not_after = at(today.checked_add(i64::from(days).days())?.checked_add(1.days())?)?;
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replace {
    No,
    Yes,
}

/// A file that is whole or not there.
fn write(path: &Path, text: &str, mode: u32, replace: Replace) -> anyhow::Result<()> {
    if replace == Replace::No && path.exists() {
        bail!(
            "{} is there already and is not overwritten: take another --dir, or --renew a certificate",
            path.display()
        );
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    let made = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        match replace {
            Replace::Yes => fs::rename(&new, path),
            // Unlike a rename, a link never replaces what somebody else has made meanwhile.
            Replace::No => fs::hard_link(&new, path),
        }
    };
    let outcome = made();
    let _ = fs::remove_file(&new);
    outcome.with_context(|| format!("cannot write {}", path.display()))
}
