//! The files that a configuration names, by the setting that names each: what a copy for worse days has, and what it leaves out.

use std::path::{Component, Path, PathBuf};

use super::Source;
use super::gateway::DEFAULT_CHOICES;
use super::key::{DATABASE, POSITION};
use super::key_api::DEFAULT_IDENTITY;

/// What becomes of a file when its machine is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// It is gone: a copy is to be kept.
    ForGood,
    /// The same, of a file that is continued: programs refuse or name a copy that lacks what counts elsewhere.
    Continued,
    /// The role makes it anew. An old copy would be worse than none, or says nothing.
    MadeAnew,
    /// It is not this role's own to keep.
    Elsewhere,
}

/// Every setting that names a file or a folder, without the indices of lists.
const SETTINGS: [(&str, Loss); 72] = [
    ("attest.state", Loss::MadeAnew),
    ("attestation.keys.anchor", Loss::ForGood),
    ("attestation.keys.objects", Loss::Continued),
    ("attestation.keys.signing", Loss::ForGood),
    ("attestation.rpki.anchors", Loss::ForGood),
    ("attestation.rpki.certificates", Loss::ForGood),
    ("attestation.rpki.tls.authorities", Loss::ForGood),
    ("consent.audit", Loss::Elsewhere),
    ("consent.node.delegated", Loss::ForGood),
    ("consent.node.tags", Loss::ForGood),
    ("consent.policy", Loss::ForGood),
    ("console.token", Loss::ForGood),
    ("data.file", Loss::Elsewhere),
    ("forwarding.keys", Loss::ForGood),
    ("forwarding.state", Loss::MadeAnew),
    ("gateway.choices", Loss::ForGood),
    ("gateway.consent_policy", Loss::ForGood),
    ("gateway.state", Loss::MadeAnew),
    ("host.socket", Loss::Elsewhere),
    ("icing.identity", Loss::ForGood),
    ("key.accounts", Loss::ForGood),
    ("key.api.certificate", Loss::ForGood),
    ("key.api.identity", Loss::ForGood),
    ("key.api.private_key", Loss::ForGood),
    // A SQLite file; PostgreSQL is not of this machine, and named by no path.
    ("key.database", Loss::Continued),
    ("key.follow.identity", Loss::ForGood),
    ("key.position", Loss::MadeAnew),
    ("key.records", Loss::Continued),
    ("key.revocations", Loss::Continued),
    ("key.routers.identity", Loss::ForGood),
    ("key.waypoint.key", Loss::ForGood),
    ("key.writer_key", Loss::ForGood),
    ("keys.anchor", Loss::ForGood),
    ("keys.objects", Loss::Continued),
    ("keys.signing", Loss::ForGood),
    ("laboratory.file", Loss::ForGood),
    ("learned.bird", Loss::Elsewhere),
    ("learned.mrt", Loss::Elsewhere),
    ("member.given", Loss::Elsewhere),
    ("member.key", Loss::ForGood),
    ("member.state", Loss::MadeAnew),
    ("overlay.identity", Loss::ForGood),
    ("overlay.ids", Loss::ForGood),
    ("overlay.membership", Loss::ForGood),
    ("overlay.noise", Loss::ForGood),
    ("overlay.state", Loss::MadeAnew),
    ("overlay.tags", Loss::ForGood),
    ("pair.data.file", Loss::Elsewhere),
    ("pair.inside.password_file", Loss::ForGood),
    ("pair.member.key", Loss::ForGood),
    ("pair.member.state", Loss::MadeAnew),
    ("pair.outside.password_file", Loss::ForGood),
    ("pair.router.password_file", Loss::ForGood),
    ("party.key", Loss::ForGood),
    ("party.members", Loss::Continued),
    ("party.recommendation", Loss::ForGood),
    ("party.state", Loss::MadeAnew),
    ("party.trial", Loss::Elsewhere),
    ("path.identity", Loss::ForGood),
    ("path.membership", Loss::ForGood),
    ("path.state", Loss::MadeAnew),
    ("platypus.provider.identity", Loss::ForGood),
    ("platypus.revocations.file", Loss::Continued),
    ("realm.identity", Loss::ForGood),
    ("realm.key", Loss::ForGood),
    ("realm.list_key", Loss::ForGood),
    ("realm.next_key", Loss::ForGood),
    ("realm.records", Loss::Continued),
    ("realm.servers", Loss::ForGood),
    ("router.password_file", Loss::ForGood),
    ("shadow.profile", Loss::Elsewhere),
    ("shadow.roas", Loss::Elsewhere),
];
/// The same for what several formats and roles have alike.
const ENDINGS: [(&str, Loss); 8] = [
    ("routes.capabilities", Loss::ForGood),
    ("routes.reply", Loss::ForGood),
    ("rpki.anchors", Loss::ForGood),
    ("rpki.certificates", Loss::ForGood),
    ("rpki.file", Loss::Elsewhere),
    ("rpki.source.file", Loss::Elsewhere),
    ("tls.authorities", Loss::ForGood),
    ("provider.identity", Loss::ForGood),
];

/// A file that a role has in a section without a setting.
struct DefaultFile {
    section: &'static str,
    key: &'static str,
    path: &'static str,
    /// Another setting of the section that takes its place.
    instead: Option<&'static str>,
}

const DEFAULTS: [DefaultFile; 4] = [
    DefaultFile { section: "gateway", key: "choices", path: DEFAULT_CHOICES, instead: None },
    DefaultFile { section: "key", key: "database", path: DATABASE, instead: None },
    DefaultFile { section: "key", key: "position", path: POSITION, instead: None },
    DefaultFile { section: "key.api", key: "identity", path: DEFAULT_IDENTITY, instead: Some("certificate") },
];

impl DefaultFile {
    /// The file, if this configuration has it.
    fn of(&self, file: &toml::Table) -> Option<NamedFile> {
        let inner = |table: Option<&'_ toml::Table>, name: &str| table?.get(name)?.as_table().cloned();
        let section = self.section.split('.').try_fold(file.clone(), |table, name| inner(Some(&table), name))?;
        let is_named = section.contains_key(self.key) || self.instead.is_some_and(|other| section.contains_key(other));
        let setting = format!("{}.{}", self.section, self.key);
        let loss = loss_of(&setting).filter(|_| !is_named)?;
        Some(NamedFile { setting, path: self.path.into(), loss, is_named: false })
    }
}

/// A file that a configuration names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFile {
    /// Such as `party.members`.
    pub setting: String,
    /// As the configuration has it: relative to its own folder, or absolute.
    pub path: PathBuf,
    pub loss: Loss,
    /// The configuration names it; else it is where the role has it without the setting.
    pub is_named: bool,
}

impl NamedFile {
    /// What the file is to the role, in words that follow its path.
    #[must_use]
    pub fn origin(&self) -> String {
        let setting = &self.setting;
        if self.is_named {
            format!("which `{setting}` names")
        } else {
            format!("which the role has as `{setting}` without a setting")
        }
    }
}

/// The files that a configuration names, in its order; one that two settings name, once.
#[must_use]
pub fn named_files(source: &Source) -> Vec<NamedFile> {
    let table: toml::Table = source.text().parse().unwrap_or_default();
    let mut found: Vec<NamedFile> = DEFAULTS.iter().filter_map(|file| file.of(&table)).collect();
    each_text(&table, &mut |setting, text| {
        let path = PathBuf::from(text);
        if setting == "key.database" && text.contains("://") {
            return;
        }
        if let Some(loss) = loss_of(setting)
            && !found.iter().any(|known| is_same(&known.path, &path))
        {
            found.push(NamedFile { setting: setting.to_owned(), path, loss, is_named: true });
        }
    });
    // A list goes with records that are not older than it: before them, since a running server adds to both.
    found.sort_by_key(|file| file.setting != "key.revocations");
    found
}

/// What is known of a setting that names a file.
#[must_use]
pub fn loss_of(setting: &str) -> Option<Loss> {
    let whole = SETTINGS.iter().find(|(name, _)| *name == setting);
    let is_of = |rest: &str| rest.is_empty() || rest.ends_with('.');
    let ending = || ENDINGS.iter().find(|(name, _)| setting.strip_suffix(name).is_some_and(is_of));
    whole.or_else(ending).map(|(_, loss)| *loss)
}

/// Whether two paths of one configuration are alike but for `.`.
fn is_same(one: &Path, other: &Path) -> bool {
    fn parts(path: &Path) -> impl Iterator<Item = Component<'_>> {
        path.components().filter(|part| *part != Component::CurDir)
    }
    parts(one).eq(parts(other))
}

/// Calls `of` with each setting of a configuration that is a text, such as `key.api.listen`; of a list of sections or texts the setting is
/// the list's.
pub fn each_text(file: &toml::Table, of: &mut impl FnMut(&str, &str)) {
    fn walk(setting: &str, value: &toml::Value, of: &mut impl FnMut(&str, &str)) {
        match value {
            toml::Value::Table(table) => {
                table.iter().for_each(|(key, value)| walk(&format!("{setting}.{key}"), value, of))
            }
            toml::Value::Array(all) => all.iter().for_each(|value| walk(setting, value, of)),
            toml::Value::String(text) => of(setting, text),
            _ => {}
        }
    }
    file.iter().for_each(|(section, value)| walk(section, value, of));
}

#[cfg(test)]
mod tests {
    //! OPS, backup: every path of every configuration is found.

    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    /// This crate's own text, file by file.
    fn source_files() -> Vec<String> {
        let (mut found, mut folders) = (Vec::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(fs::read_to_string(&path).expect("a source file")),
                }
            }
        }
        found
    }

    /// The names of fields of configurations that are paths, read from this crate's own text: whoever adds one says what its loss means.
    #[test]
    fn every_path_of_a_configuration_is_known() {
        let mut fields = BTreeSet::new();
        for text in source_files() {
            let mut is_section = false;
            for line in text.lines().map(str::trim) {
                is_section = (is_section || line.contains("Deserialize")) && line != "}";
                let field = line.strip_prefix("pub ").and_then(|line| line.split_once(": "));
                if let Some((name, kind)) = field.filter(|_| is_section)
                    && kind.contains("PathBuf")
                {
                    fields.insert(name.to_owned());
                }
            }
        }
        assert!(fields.len() > 25, "{fields:?}");
        let known: BTreeSet<&str> =
            SETTINGS.iter().chain(&ENDINGS).filter_map(|(setting, _)| setting.rsplit('.').next()).collect();
        let unknown: Vec<&String> = fields.iter().filter(|field| !known.contains(field.as_str())).collect();
        assert!(unknown.is_empty(), "no setting of SETTINGS ends with {unknown:?}");
    }

    /// A setting of a file that has a default is in a configuration that does not name it, too.
    #[test]
    fn every_file_with_a_default_is_found_where_no_setting_names_it() {
        let found = |text: &str| -> Vec<(String, String)> {
            let file = std::env::temp_dir().join(format!("wayleave-default-files-{}", std::process::id()));
            fs::write(&file, text).expect("written");
            let found = named_files(&Source::read(&file).expect("a configuration"));
            fs::remove_file(&file).expect("removed");
            let pair = |file: NamedFile| {
                let path = file.path.display().to_string();
                assert_eq!(file.is_named, text.contains(&format!("\"{path}\"")), "{}", file.origin());
                (file.setting, path)
            };
            found.into_iter().map(pair).collect()
        };
        let pair = |setting: &str, path: &str| (setting.to_owned(), path.to_owned());
        let [database, position] = [pair("key.database", DATABASE), pair("key.position", POSITION)];
        let identity = pair("key.api.identity", DEFAULT_IDENTITY);
        assert_eq!(found("[gateway]\n"), [pair("gateway.choices", DEFAULT_CHOICES)]);
        assert_eq!(found("[key]\n"), [database.clone(), position.clone()]);
        assert_eq!(found("[key]\n[key.api]\nlisten = \"[::1]:1\"\n"), [database.clone(), position.clone(), identity]);
        let own = found("[key]\n[key.api]\ncertificate = \"c.pem\"\nprivate_key = \"k.pem\"\n");
        let [chain, key] = [pair("key.api.certificate", "c.pem"), pair("key.api.private_key", "k.pem")];
        assert_eq!(own, [database, position, chain, key]);
        let other = found("[key]\nposition = \"p\"\ndatabase = \"postgresql://db/w\"\n[key.api]\nidentity = \"i\"\n");
        assert_eq!(other, [pair("key.api.identity", "i"), pair("key.position", "p")]);
    }

    /// A field of a configuration that is a path and has a default, or an optional one that code has a default for, read from this
    /// crate's own text: whoever adds one adds it to [`DEFAULTS`].
    #[test]
    fn every_default_that_is_a_file_is_known() {
        let mut defaults = BTreeSet::new();
        for text in source_files() {
            let mut has_default = false;
            for line in text.lines().map(str::trim) {
                let field = line.strip_prefix("pub ").and_then(|line| line.split_once(": "));
                if let Some((name, kind)) = field.filter(|_| has_default)
                    && (kind.contains("PathBuf") || kind.contains("Location"))
                    && !kind.contains("Vec<")
                {
                    defaults.insert(name.to_owned());
                }
                has_default = line.starts_with("#[serde(default") || has_default && line.starts_with("#[");
                // A default that code has for an optional path.
                let is_of_code = line.contains("map_or(Path::new(DEFAULT_");
                let optional = line.split("self.").nth(1).filter(|_| is_of_code);
                if let Some(name) = optional.and_then(|line| line.split('.').next()) {
                    defaults.insert(name.to_owned());
                }
            }
        }
        let known: BTreeSet<String> = DEFAULTS.iter().map(|file| file.key.to_owned()).collect();
        assert_eq!(defaults, known);
    }

    /// What a role's template names, written out or as an example, is known by its whole name.
    #[test]
    fn every_file_of_every_template_is_found() {
        for role in crate::ROLES {
            let text = (role.template)(1);
            for line in text.lines().map(|line| line.trim_start_matches('#').trim()) {
                let Some((name, value)) = line.split_once(" = ") else { continue };
                let is_file = [".key", ".redb", ".cer", ".pem", ".password", ".pub", ".toml"]
                    .iter()
                    .any(|end| value.contains(&format!("{end}\"")));
                let known = SETTINGS.iter().any(|(setting, _)| setting.rsplit('.').next() == Some(name));
                // Tables on one line, whose settings are known by their own names.
                let is_table = value.starts_with(['{', '[']);
                assert!(known || !is_file || is_table, "{}: {line}", role.name);
            }
        }
        for setting in ["rpki.anchors", "rpki.certificates", "rpki.tls.authorities", "attestation.rpki.anchors"] {
            assert_eq!(loss_of(setting), Some(Loss::ForGood), "{setting}");
        }
        assert_eq!(loss_of("rpki.source.tls.authorities"), Some(Loss::ForGood));
        let files = ["rpki.file", "attestation.rpki.file", "rpki.source.file", "attestation.rpki.source.file"];
        assert_eq!(files.map(loss_of), [Some(Loss::Elsewhere); 4]);
    }

    #[test]
    fn files_are_found_by_their_settings_and_words_that_are_no_files_are_not() {
        let text = "[party]\nkey = \"a.key\"\nexchange = \"x\"\nstate = \"s.redb\"\n[[pair]]\nkeys = \"granted\"\n\
                    inside = { password_file = \"p\" }\n[stamper]\nroutes = [{ name = \"n\", capabilities = [\"one\", \"two\"] }]\n";
        let file = std::env::temp_dir().join(format!("wayleave-named-files-{}", std::process::id()));
        fs::write(&file, text).expect("written");
        let found = named_files(&Source::read(&file).expect("a configuration"));
        fs::remove_file(&file).expect("removed");
        let seen: Vec<(&str, &str)> =
            found.iter().map(|file| (file.setting.as_str(), file.path.to_str().expect("text"))).collect();
        assert_eq!(
            seen,
            [
                ("pair.inside.password_file", "p"),
                ("party.key", "a.key"),
                ("party.state", "s.redb"),
                ("stamper.routes.capabilities", "one"),
                ("stamper.routes.capabilities", "two"),
            ]
        );
    }
}
