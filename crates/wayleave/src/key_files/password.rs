//! Passwords of BGP sessions (TCP MD5): one line in a file that only its owner can read.

use std::path::Path;

use wayleave_runtime::bgp_tcp::Password;

use super::private;
use crate::failure::Failure;

/// The password in the file, without the end of its line.
pub fn read(path: &Path) -> Result<Password, Failure> {
    let text = private::read(path)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let wrong = |what: &str| {
        Failure::new(format!("{}: {what}", path.display()))
            .help(format!("a password is one line of 1 to {} octets, the same at both ends", Password::MAX_OCTETS))
    };
    if line.chars().any(char::is_control) {
        return Err(wrong("more than one line, or a control character"));
    }
    Password::new(line.as_bytes()).ok_or_else(|| match line.len() {
        0 => wrong("no password in it"),
        octets => wrong(&format!("a password of {octets} octets, but TCP MD5 takes at most {}", Password::MAX_OCTETS)),
    })
}
