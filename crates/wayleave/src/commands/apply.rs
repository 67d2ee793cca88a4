//! `apply`, `confirm` and `undo`: another configuration for a role that runs, and the way back.
//!
//! Beside the configuration lie `NAME.before`, the configuration that `undo` puts back, and `NAME.unconfirmed` while a change waits for
//! `confirm`. Whoever removes the latter decides: `confirm`, `undo`, or the process that waits for the end of the time. The role's own
//! user may be barred from writing the configuration, as its unit has it, so that process is one of whoever applied the change.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use wayleave_runtime::clock::{unix_now, utc};

use super::reload;
use crate::config::{Source, check, replace};
use crate::failure::{Failure, Failures, Outcome};
use crate::fetch::{self, Target};
use crate::output::{print, warn};

/// The bounds of `--confirm`: a shorter time cannot be met by typing, and who has not confirmed for a day will not.
const LEAST: Duration = Duration::from_secs(2);
const MOST: Duration = Duration::from_secs(86_400);
/// How often the process that waits looks whether it is still needed.
const LOOKED_AT: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub struct Apply {
    /// The changed configuration, in the folder of the one that is replaced: files that it names are looked for there.
    pub file: PathBuf,
    #[command(flatten)]
    pub running: Running,
    /// Undo the change unless `wayleave confirm` comes within this time, such as 90s, 5m or 1h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub confirm: Option<Duration>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Confirm {
    #[command(flatten)]
    pub running: Running,
}

#[derive(Args, Debug)]
pub struct Undo {
    #[command(flatten)]
    pub running: Running,
    #[arg(long)]
    pub json: bool,
    /// Wait until then, in Unix seconds, and undo what nobody has confirmed.
    #[arg(long, hide = true)]
    pub unless_confirmed_until: Option<u64>,
}

/// The configuration of the role that runs.
#[derive(Args, Debug)]
pub struct Running {
    /// The configuration with which the role runs.
    #[arg(long, short, value_name = "FILE", default_value = "wayleave.toml")]
    pub config: PathBuf,
}

impl Running {
    fn target(&self) -> Target {
        Target { url: None, config: Some(self.config.clone()) }
    }

    fn before(&self) -> PathBuf {
        beside(&self.config, ".before")
    }

    fn unconfirmed(&self) -> PathBuf {
        beside(&self.config, ".unconfirmed")
    }

    /// Takes the change as decided; `false` if it was already, or none waits.
    fn decide(&self) -> Outcome<bool> {
        let path = self.unconfirmed();
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Failure::system(path.display(), &error).into()),
        }
    }

    /// Puts a text in the place of the configuration, and keeps the one that was there for `undo`.
    fn put(&self, text: &str) -> Outcome {
        let (before, failed) = (self.before(), |error| Failure::system(self.config.display(), &error));
        let permissions = std::fs::metadata(&self.config).map_err(failed)?.permissions();
        replace::replace(&before, Source::read(&self.config)?.text())?;
        std::fs::set_permissions(&before, permissions).map_err(|error| Failure::system(before.display(), &error))?;
        replace::replace(&self.config, text)
    }

    /// Swaps the configuration and the one before, and has the role read it.
    fn swap(&self, is_json: bool) -> Outcome {
        let before = Source::read(&self.before()).map_err(|failure| {
            failure.help("nothing was applied here: `wayleave apply` keeps the configuration before")
        })?;
        self.put(before.text())?;
        reload::show(&fetch::order(&self.target(), "/api/v1/reload")?, "reload", is_json)
    }
}

/// The file's name with a suffix.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Reads a time: a number with `s`, `m` or `h`.
fn time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time from 2s to 24h, such as 90s, 5m or 1h".to_owned();
    let unit = text.chars().last().ok_or_else(expected)?;
    let secs = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        _ => return Err(expected()),
    };
    let number: u64 = text.strip_suffix(unit).unwrap_or_default().parse().map_err(|_| expected())?;
    let time = number.checked_mul(secs).map(Duration::from_secs).ok_or_else(expected)?;
    if (LEAST..=MOST).contains(&time) { Ok(time) } else { Err(expected()) }
}

pub fn apply(command: &Apply) -> Outcome {
    let running = &command.running;
    let changed = checked(&command.file, &running.config)?;
    if running.unconfirmed().exists() {
        let help = "`wayleave confirm` keeps it, `wayleave undo` takes it back";
        return Err(Failure::new("the change before waits for its confirmation").help(help).into());
    }
    // A role that does not run would take the file at its start, whatever became of the time.
    fetch::json(&running.target(), "/api/v1/status")?;
    let former = Source::read(&running.config)?;
    let until = command.confirm.map(|time| unix_now().secs() + time.as_secs());
    if let Some(until) = until {
        wait_for_confirmation(running, until, || running.put(changed.text()))?;
    } else {
        running.put(changed.text())?;
    }
    let said = fetch::order(&running.target(), "/api/v1/reload").map_err(Failures::from);
    let taken = said.and_then(|said| reload::show(&said, "reload", command.json));
    if taken.is_err() {
        // The role goes on with what it has; so the file says it again.
        replace::replace(&running.config, former.text())?;
        running.decide()?;
        return taken;
    }
    if let (Some(until), false) = (until, command.json) {
        print(&format!(
            "until {}: `wayleave confirm --config {}`, or it is undone\n",
            utc(until),
            running.config.display()
        ));
    }
    Ok(())
}

/// Reads the changed configuration, which must be valid and lie where the running one does.
fn checked(file: &Path, running: &Path) -> Outcome<Source> {
    let whole = |path: &Path| {
        std::fs::canonicalize(path)
            .map_err(|error| Failure::system(path.display(), &error).help("name the file of a configuration"))
    };
    let (changed, present) = (whole(file)?, whole(running)?);
    if present.is_dir() {
        let help = "change the files in it, and `wayleave reload` takes them";
        return Err(Failure::new(format!("{} is a folder, and no file", running.display())).help(help).into());
    }
    if changed == present {
        let help = "copy it, change the copy, and apply that; `wayleave reload` takes what was changed in place";
        return Err(Failure::usage("both are the same file").help(help).into());
    }
    if changed.parent() != present.parent() {
        let help =
            "files that a configuration names are looked for in its folder: put it beside the one that it replaces";
        return Err(Failure::usage(format!("{} lies in another folder", file.display())).help(help).into());
    }
    let source = Source::read(file)?;
    if source.is_folder() {
        let help =
            "change its files, and `wayleave reload` takes them; `wayleave diff` says beforehand what that changes";
        return Err(Failure::new(format!("{} is a folder of a SCION router, and no file", file.display()))
            .help(help)
            .into());
    }
    let mut found = check(&source);
    found.errors.append(&mut found.examples);
    if found.errors.is_empty() { Ok(source) } else { Err(Failures(found.errors)) }
}

/// Says beside the configuration that the change waits, makes it, and starts the process that undoes it. It is in a process group of
/// its own, so that it outlives the terminal: an operator may have cut off himself.
fn wait_for_confirmation(running: &Running, until: u64, put: impl FnOnce() -> Outcome) -> Outcome {
    replace::replace(&running.unconfirmed(), &format!("{until}\n"))?;
    put().or_else(|failures| running.decide().and(Err(failures)))?;
    let program = std::env::current_exe().map_err(|error| Failure::system("this program", &error))?;
    let started = Command::new(program)
        .arg("undo")
        .arg("--config")
        .arg(&running.config)
        .args(["--unless-confirmed-until", &until.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    match started {
        Ok(_) => Ok(()),
        Err(error) => {
            running.decide()?;
            let former = Source::read(&running.before())?;
            replace::replace(&running.config, former.text())?;
            Err(Failure::system("the process that would undo the change", &error).into())
        }
    }
}

pub fn confirm(command: &Confirm) -> Outcome {
    let running = &command.running;
    if !running.decide()? {
        let help =
            "its time was over and it was undone, it was confirmed before, or it was applied without `--confirm`";
        return Err(Failure::new("no change waits for a confirmation").help(help).into());
    }
    print(&format!("confirmed: {} stays; `wayleave undo` takes it back\n", running.config.display()));
    Ok(())
}

pub fn undo(command: &Undo) -> Outcome {
    let running = &command.running;
    let Some(until) = command.unless_confirmed_until else {
        running.decide()?;
        return running.swap(command.json);
    };
    let own = format!("{until}\n");
    // Another change may wait by now, with a process of its own.
    let is_waited_for = || std::fs::read_to_string(running.unconfirmed()).is_ok_and(|text| text == own);
    while is_waited_for() {
        if unix_now().secs() < until {
            std::thread::sleep(LOOKED_AT);
        } else if running.decide()? {
            return running.swap(true);
        }
    }
    Ok(())
}

/// Until when, in Unix seconds, the change of a configuration waits to be confirmed; `None` if none waits.
pub fn unconfirmed_until(config: &Path) -> Option<u64> {
    std::fs::read_to_string(beside(config, ".unconfirmed")).ok()?.trim().parse().ok()
}

/// What a person is told whose change is not confirmed.
pub fn warn_of_unconfirmed(config: &Path) {
    if unconfirmed_until(config).is_some() {
        let path = config.display();
        warn(&format!(
            "{path} is not confirmed: `wayleave confirm --config {path}` keeps it, `wayleave undo` takes it back"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_bounds() {
        for (text, secs) in [("2s", 2), ("90s", 90), ("5m", 300), ("24h", 86_400)] {
            assert_eq!(time(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for wrong in
            ["", "s", "5", "1s", "25h", "-5m", "5 m", "5d", "99999999999999999999h", "18446744073709551615h", "5µ"]
        {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_beside_a_configuration_have_its_name_whole() {
        assert_eq!(beside(Path::new("a/alpha.toml"), ".before"), Path::new("a/alpha.toml.before"));
    }
}
