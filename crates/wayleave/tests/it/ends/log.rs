//! Whoever reads a role's log may go away, or stop reading: the role goes on.
//!
//! OPS, log: the reader of standard error goes away (pipe, socket) or stops reading, at each role: it reloads, serves
//! and stops; what was lost is counted.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use super::world::with_each;

/// What a pipe holds.
const PIPE: usize = 65_536;

#[test]
fn a_role_whose_log_nobody_reads_any_more_goes_on_reloads_and_stops() {
    with_each("reader", |role| {
        // As a pipe to `head`, and as journald's stream.
        let (read, write) = std::io::pipe().expect("a pipe");
        let (journal, stream) = UnixStream::pair().expect("two sockets");
        let ways: [(OwnedFd, OwnedFd); 2] = [(read.into(), write.into()), (journal.into(), stream.into())];
        for (reader, stderr) in ways {
            let mut process = role.start(stderr, &[]);
            drop(reader);
            // Each writes lines.
            process.reloads();
            process.reloads();
            process.signal(Signal::TERM);
            process.expect("STOPPING=1");
            assert_eq!(process.ended().code(), Some(0), "{}", process.role);
        }
    });
}

#[test]
fn a_role_whose_log_is_not_read_goes_on_and_says_later_what_was_lost() {
    with_each("stalled", |role| {
        let (mut read, mut write) = std::io::pipe().expect("a pipe");
        write.write_all(&[b'\n'; PIPE]).expect("it holds so many");
        let mut process = role.start(write, &[]);
        process.reloads();
        // It is read again, and the next lines come.
        let mut filled = vec![0; PIPE];
        read.read_exact(&mut filled).expect("read");
        process.reloads();
        process.signal(Signal::TERM);
        assert_eq!(process.ended().code(), Some(0), "{}", process.role);
        let mut log = String::new();
        read.read_to_string(&mut log).expect("read");
        assert!(log.contains("lines of this log are lost") && log.contains("stopping"), "{}: {log}", process.role);
    });
}
