//! The user as whom a server runs: it refuses root.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// `nobody`, in place of root. It has to have a name, which `initdb` looks up.
const NOBODY: u32 = 65_534;

/// How a server is kept from being root.
enum User {
    /// Whoever calls is not root.
    Own,
    /// Root becomes [`NOBODY`].
    Other,
    /// Root of a user namespace, which has no other user, is called [`NOBODY`] in a further one.
    Renamed,
}

fn user() -> User {
    if !rustix::process::geteuid().is_root() {
        return User::Own;
    }
    let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if has_user(&users, NOBODY) { User::Other } else { User::Renamed }
}

/// Whether a user namespace has a user, by its `uid_map`: lines with a first ID inside, one outside, and a length.
fn has_user(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().unwrap_or_default());
        let (first, length) = (numbers.next().unwrap_or_default(), numbers.nth(1).unwrap_or_default());
        id.checked_sub(first).is_some_and(|offset| offset < length)
    })
}

/// A command that runs a server's program as that user. It is told to shut down at once when the thread that starts it ends.
pub(super) fn command(program: &Path) -> Command {
    // SIGQUIT, not SIGKILL: a server that is killed leaves shared memory behind.
    let ends_with_us = ["setpriv", "--pdeathsig", "QUIT"];
    let id = NOBODY.to_string();
    let words: Vec<&str> = match user() {
        User::Own => ends_with_us.to_vec(),
        User::Other => {
            // It keeps the right to pass through folders, since the program may lie below one that is root's alone. Its
            // programs ask by access(2), which looks at this right only without the fix-up.
            let user = ["--reuid", &id, "--regid", &id, "--clear-groups", "--securebits", "+no_setuid_fixup"];
            let right = ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"];
            [&ends_with_us[..], &user, &right].concat()
        }
        User::Renamed => [&["unshare", "--user", "--map-user", &id, "--map-group", &id][..], &ends_with_us].concat(),
    };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(program);
    command
}

/// Gives a folder to that user.
pub(super) fn give(folder: &Path) -> io::Result<()> {
    match user() {
        User::Own | User::Renamed => Ok(()),
        User::Other => chown(folder, Some(NOBODY), Some(NOBODY)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_root_alone_has_no_other_user() {
        assert!(has_user("         0          0 4294967295\n", NOBODY));
        assert!(has_user("0 1000 1\n1 100000 65536\n", NOBODY));
        assert!(!has_user("         0       1000          1\n", NOBODY));
        assert!(!has_user("", NOBODY));
    }
}
