//! Every configuration key of every role stands in the guide, and neither the guide nor a template has another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use wayleave_config::check::RoleConfig;
use wayleave_config::profile::ProfileFile;
use wayleave_config::rs::{Recommendation, RsConfig};
use wayleave_config::shadow::{SHADOW, ShadowFile};
use wayleave_config::{ROLES, attest, consent, console, gateway, key, member, path, realm, router, shadow, stamper};
use wayleave_control::consent::PolicyFile;

use super::pages::{GUIDE, Page, joined, keys_of_table, qualified, settings};
use super::sections::{Fields, Section, sections};

/// A role's files, and the pages that are their reference.
#[derive(Clone)]
struct Reference {
    role: &'static str,
    sections: Vec<Section>,
    pages: Vec<&'static str>,
}

/// What all roles have in common.
const COMMON: &str = "commands.md";
/// Pages about laboratories, whose files are no role's.
const LABORATORIES: [&str; 2] = ["applications.md", "lab.md"];
/// Tables whose keys the operator chooses.
const CHOSEN: [&str; 2] = ["groups.", "recommendation."];

/// Those of all roles, and of the command that has one.
fn configurations() -> Vec<&'static RoleConfig> {
    ROLES.into_iter().chain([&shadow::COMMAND]).collect()
}

fn references() -> Vec<Reference> {
    let of = |role, sections: [Vec<Section>; 2], pages: &[&'static str]| Reference {
        role,
        sections: sections.concat(),
        pages: [pages, &[COMMON]].concat(),
    };
    let all = vec![
        of(
            "rs",
            [sections::<RsConfig>(), [sections::<Recommendation>(), sections::<ProfileFile>()].concat()],
            &["exchange.md", "profile.md"],
        ),
        of("member", [sections::<member::MemberFile>(), vec![]], &["member.md", "policies.md", "two-pairs.md"]),
        of("attest", [sections::<attest::AttestFile>(), vec![]], &["attest.md"]),
        of(
            "router",
            [sections::<router::RouterFile>(), vec![]],
            &["router.md", "stamper.md", "overlay.md", "capabilities.md"],
        ),
        of("realm", [sections::<realm::RealmFile>(), vec![]], &["overlay.md"]),
        of("path", [sections::<path::PathFile>(), vec![]], &["overlay.md"]),
        of("consent", [sections::<consent::ConsentFile>(), sections::<PolicyFile>()], &["overlay.md"]),
        of("gateway", [sections::<gateway::GatewayFile>(), vec![]], &["gateway.md", "overlay.md"]),
        of("stamper", [sections::<stamper::HostFile>(), vec![]], &["stamper.md"]),
        of("key", [sections::<key::KeyFile>(), vec![]], &["capabilities.md", "invitations.md"]),
        of("console", [sections::<console::ConsoleFile>(), vec![]], &["console.md"]),
    ];
    let all = [all, vec![of(SHADOW, [sections::<ShadowFile>(), vec![]], &["shadow.md"])]].concat();
    let names: Vec<&str> = all.iter().map(|reference| reference.role).collect();
    let with_files: Vec<&str> = configurations().iter().map(|role| role.name).collect();
    assert_eq!(names, with_files, "each role, and each command with a configuration, has its files and pages here");
    all
}

/// The whole keys of these sections.
fn whole_keys<'a>(sections: impl IntoIterator<Item = &'a Section>) -> BTreeSet<String> {
    sections.into_iter().flat_map(|section| section.fields.1.iter().map(|key| joined(&section.path, key))).collect()
}

fn is_known(known: &BTreeSet<String>, key: &str) -> bool {
    known.contains(key) || CHOSEN.iter().any(|table| key.starts_with(table))
}

#[test]
fn every_key_of_every_role_stands_in_the_guide() {
    let references = references();
    // Where roles share a section, one page suffices for all of them.
    let mut shared: BTreeMap<(Fields, &str), Vec<(&Reference, &Section)>> = BTreeMap::new();
    for reference in &references {
        for section in &reference.sections {
            for key in section.fields.1 {
                shared.entry((section.fields, key)).or_default().push((reference, section));
            }
        }
    }
    let pages: BTreeMap<&str, Page> =
        references.iter().flat_map(|reference| &reference.pages).map(|name| (*name, Page::read(name))).collect();
    let mut missing = Vec::new();
    for ((_, key), places) in shared {
        let is_documented = |(reference, section): &(&Reference, &Section)| {
            let with_key =
                reference.sections.iter().map(|section| section.fields).filter(|(_, keys)| keys.contains(&key));
            let is_only = with_key.collect::<BTreeSet<Fields>>().len() == 1;
            reference.pages.iter().any(|name| pages[name].has(&section.path, key, is_only))
        };
        if !places.iter().any(is_documented) {
            let (Reference { role, pages, .. }, section) = places[0];
            missing.push(format!("{role}: `{key}` of [{}], on {}", section.path, pages.join(" or ")));
        }
    }
    assert!(
        missing.is_empty(),
        "keys on no page of docs/guide: write what each does, its default, unit and bounds, as `key` in the table or paragraph that has \
         `[section]` as well, or in a snippet of TOML under it:\n{}",
        missing.join("\n")
    );
}

#[test]
fn neither_the_guide_nor_a_template_has_a_key_that_no_role_has() {
    let references = references();
    let known = whole_keys(references.iter().flat_map(|reference| &reference.sections));
    let mut wrong = Vec::new();
    for (role, reference) in configurations().into_iter().zip(&references) {
        let known = whole_keys(&reference.sections);
        let keys = [1, 2].into_iter().flat_map(|party| settings(&(role.template)(party)));
        wrong.extend(
            keys.filter(|key| !is_known(&known, key)).map(|key| format!("`wayleave init {}`: {key}", role.name)),
        );
    }
    for file in fs::read_dir(GUIDE).expect("the guide") {
        let name = file.expect("a page").file_name().into_string().expect("a name");
        if LABORATORIES.contains(&name.as_str()) {
            continue;
        }
        let of_page = references.iter().filter(|reference| reference.pages.contains(&name.as_str()));
        let of_page: Vec<&Section> = of_page.flat_map(|reference| &reference.sections).collect();
        for block in &Page::read(&name).blocks {
            let keys = qualified(block).into_iter().filter(|key| !is_known(&known, key));
            wrong.extend(keys.map(|key| format!("{name}: {key}")));
            // Other pages have tables of other keys, such as `attest.key`.
            let (table, keys) = keys_of_table(block);
            let is_meant = |section: &&&Section| table.is_empty() || section.path.rsplit('.').next() == Some(&table);
            let sections: Vec<&&Section> = of_page.iter().filter(is_meant).collect();
            let has = |key: &String| sections.iter().any(|section| section.fields.1.contains(&key.as_str()));
            let keys = keys.iter().filter(|key| !of_page.is_empty() && !has(key));
            wrong.extend(keys.map(|key| format!("{name}: {} in a table of keys", joined(&table, key))));
        }
    }
    assert!(wrong.is_empty(), "keys that no configuration has: correct or remove them:\n{}", wrong.join("\n"));
}
