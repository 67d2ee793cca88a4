//! `shadow`: compares the tables of a running route server with what Wayleave would give each member. Nothing is announced or installed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use wayleave_bgp::aspa::Aspas;
use wayleave_bgp::origins::{Vrp, Vrps};
use wayleave_route_server::shadow::{Exchange, Tables};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::rpki::file as roas;

use super::shadow_files as files;
use super::shadow_live as live;
use super::shadow_report as report;
use crate::config::shadow::{SHADOW, ShadowConfig};
use crate::config::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json, warn};

#[derive(Args, Debug)]
pub struct Shadow {
    /// The exchange as it is, and where its route server's tables are to be had: `wayleave init shadow` prints one.
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Also write the report to this file, as one page of HTML without anything beside it.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write every difference to this file, one JSON object a line; the report has examples of each cause.
    #[arg(long, value_name = "FILE")]
    pub differences: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// What the sources gave besides tables.
#[derive(Debug, Default)]
pub struct Read {
    /// What of a source was not used, and why.
    pub notes: Vec<String>,
    /// Numbers of sources by peer or file.
    numbers: BTreeMap<String, u32>,
}

impl Read {
    /// The number of a source of this name.
    pub fn number(&mut self, name: String) -> u32 {
        let next = self.numbers.len() as u32 + 1;
        *self.numbers.entry(name).or_insert(next)
    }
}

/// There are no data without keys of operators that sign them.
const DATA_NOT_APPLIED: &str = "[profile.data] is not applied: this has no data of the routing registries, and what they would \
                                refuse is not refused here";

pub fn run(command: &Shadow) -> Outcome {
    let source = Source::read(&command.config)?;
    let config = ShadowConfig::parse(&source)?;
    let mut exchange = Exchange::new(config.members.clone(), *config.file.shadow.asn.get_ref(), config.martians());
    (exchange.vrps, exchange.aspas) = rpki(&config, &source)?.unzip();
    exchange.policies = config.policies.clone();
    let (mut tables, mut read) = (Tables::new(), Read::default());
    if config.profile_has_data {
        read.notes.push(DATA_NOT_APPLIED.to_owned());
    }
    files::read_all(&config, &source, &exchange, &mut tables, &mut read)?;
    if config.is_live() {
        live::read_all(&config, &exchange, &mut tables, &mut read)?;
    }
    if tables.members_given().next().is_none() {
        let failure = Failure::new("no table of what the server gives a member: there is nothing to compare with");
        return Err(failure.help("`given` of [[member]] names a file, and [bmp] takes Adj-RIB-Out (RFC 8671)").into());
    }
    read.notes.iter().for_each(|note| warn(note));
    let mut every = command.differences.as_deref().map(Lines::create).transpose()?;
    let found = exchange.compare(&tables, |difference| {
        if let Some(lines) = &mut every {
            lines.write(&report::difference(&difference, exchange.members()));
        }
    });
    if let Some(lines) = every {
        lines.finish()?;
    }
    let described = report::describe(&found, &exchange, &read.notes);
    if let Some(path) = &command.html {
        let failed = |error: std::io::Error| Failure::system(path.display(), &error);
        let mut file = File::create(path).map_err(failed)?;
        file.write_all(report::page(&described, unix_now().secs()).as_bytes()).map_err(failed)?;
    }
    if command.json {
        print_json(described);
    } else {
        print(&report::in_words(&described));
    }
    Ok(())
}

/// What the RPKI says of origins and of paths, if a file has it.
fn rpki(config: &ShadowConfig, source: &Source) -> Outcome<Option<(Vrps, Aspas)>> {
    let Some(path) = &config.file.shadow.roas else { return Ok(None) };
    let resolved = source.resolve(path.get_ref());
    let read = roas::read(&resolved, unix_now().secs()).map_err(|error| {
        let fault = Fault::at(path.span(), format!("{}: {error}", resolved.display()));
        source.failure(
            fault.help("`routinator vrps --format json --output FILE` writes it, and so does `rpki-client -j`"),
        )
    })?;
    let vrps = read.vrps.all.iter().map(|vrp| Vrp { prefix: vrp.prefix, max_length: vrp.max_length, asn: vrp.asn });
    Ok(Some((vrps.collect(), read.aspas.all.into_iter().collect())))
}

/// A file of JSON objects, one a line.
struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
    error: Option<std::io::Error>,
}

impl Lines {
    fn create(path: &Path) -> Outcome<Self> {
        let file = File::create(path).map_err(|error| Failure::system(path.display(), &error))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), error: None })
    }

    /// The first error ends the writing, and is told by [`Self::finish`].
    fn write(&mut self, line: &serde_json::Value) {
        if self.error.is_none() {
            self.error = writeln!(self.file, "{line}").err();
        }
    }

    fn finish(mut self) -> Outcome {
        match self.error.take().or_else(|| self.file.flush().err()) {
            Some(error) => Err(Failure::system(self.path.display(), &error).into()),
            None => Ok(()),
        }
    }
}

/// What every failure about a source says to do.
pub fn see_guide() -> String {
    format!("docs/guide/{SHADOW}.md has the lines for BIRD and OpenBGPD")
}
