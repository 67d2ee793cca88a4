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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Reads a file with this content and mode.
    fn read_file(name: &str, content: &str, mode: u32) -> Result<Password, String> {
        let path = std::env::temp_dir().join(format!("wayleave-password-{name}-{}", std::process::id()));
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        let read = read(&path).map_err(|failure| format!("{failure}; {}", failure.remedy().unwrap_or_default()));
        let _ = fs::remove_file(&path);
        read
    }

    #[test]
    fn a_password_is_one_line_that_only_its_owner_can_read() {
        for good in ["secret", "secret\n", "secret\r\n", &"x".repeat(80), "two words, and \u{fc}"] {
            assert!(read_file("good", good, 0o600).is_ok(), "{good:?}");
        }
        let long = "x".repeat(81);
        for (bad, why) in [
            ("", "no password in it"),
            ("\n", "no password in it"),
            ("secret\nanother\n", "more than one line"),
            (&long, "a password of 81 octets, but TCP MD5 takes at most 80"),
        ] {
            let said = read_file("bad", bad, 0o600).expect_err(bad);
            assert!(said.contains(why) && !said.contains("secret") && !said.contains("xx"), "{said}");
        }
        let said = read_file("open", "secret", 0o640).expect_err("others can read it");
        assert!(said.contains("chmod 600") && !said.contains("secret"), "{said}");
    }
}
