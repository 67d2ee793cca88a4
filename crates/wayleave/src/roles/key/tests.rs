//! A replica that is behind, at a writer that compacts its records all the time; and a panic with the server in hand.
//!
//! PLA-06, behind and set back: a replica far behind at a writer that compacts after each message: one transfer, and
//! none if it is too far behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use wayleave_control::capability::{ChannelMessage, KeyServer};
use wayleave_core::{IdentityKey, Now, UnixTime};
use wayleave_crypto::signed::Signed;
use wayleave_runtime::Clock;

use super::copies::Copies;
use super::core::{Core, lock};
use super::fetching::{Fault, Fetching};
use super::follow_records;
use crate::config::testing::{NOW, Provider};
use crate::key_files::changes::Changes;
use crate::roles::Events;

const LINK: u64 = 1;
const REPLICA: IdentityKey = IdentityKey([3; 32]);

/// What the follower of a replica does, without a link.
struct Replica {
    of: Provider,
    server: KeyServer,
    changes: Changes,
    fetching: Option<Fetching>,
    /// Heads and pieces of snapshots that came.
    heads: usize,
    pieces: usize,
}

impl Replica {
    fn new(of: Provider) -> Self {
        let (server, changes) = of.server();
        Self { of, server, changes, fetching: None, heads: 0, pieces: 0 }
    }

    fn number(&self) -> u64 {
        self.server.state().number()
    }

    fn ask(&self) -> ChannelMessage {
        ChannelMessage::Copy { after: self.number() }
    }

    /// Takes a message; the answers to it, or why it is refused.
    fn take(&mut self, octets: &[u8]) -> Result<Vec<ChannelMessage>, Fault> {
        match ChannelMessage::decode(octets).expect("a message") {
            ChannelMessage::End { number, last } => {
                self.server.state().is_within(number, &last)?;
                Ok(Vec::new())
            }
            ChannelMessage::Changes(changes) => {
                for octets in changes {
                    let change = Signed::decode(&octets).expect("a change");
                    self.server.accepts(&change).expect("the next");
                    assert!(self.changes.append(&change)?.is_empty());
                    self.server.apply(&change).expect("the next");
                }
                Ok(vec![self.ask()])
            }
            ChannelMessage::Snapshot(head) => {
                self.heads += 1;
                self.fetching = Some(Fetching::begin(&self.server, &self.of.records(), &head)?);
                self.fetch()
            }
            ChannelMessage::SnapshotPiece { number, piece, octets } => {
                self.pieces += 1;
                let fetching = self.fetching.as_mut().expect("asked for");
                assert_eq!((fetching.number(), fetching.next()), (number, Some(piece)));
                fetching.take(&octets)?;
                self.fetch()
            }
            other => panic!("{other:?}"),
        }
    }

    fn fetch(&mut self) -> Result<Vec<ChannelMessage>, Fault> {
        let fetching = self.fetching.take().expect("begun");
        let number = fetching.number();
        if let Some(piece) = fetching.next() {
            self.fetching = Some(fetching);
            return Ok(vec![ChannelMessage::Fetch { number, piece }]);
        }
        fetching.check(&self.server)?.finish(Changes::open(&self.of.records())?)?;
        self.changes.read_new()?.apply(&mut self.server)?;
        Ok(vec![self.ask()])
    }
}

fn copies_of(writer: &Provider) -> Copies {
    let of = writer.folder.clone();
    let end = move || {
        let source = crate::config::Source::read(&of.join("key.toml")).expect("a file");
        let config = crate::config::key::KeyFile::parse(&source).expect("a configuration");
        let (server, _) = config.server(&source).expect("records");
        let number = server.state().number();
        (number, server.state().digest_of(number).unwrap_or_default())
    };
    let mut copies = Copies::new(writer.records(), [REPLICA].into(), Box::new(end));
    assert!(copies.up(LINK, &REPLICA));
    copies
}

fn compacted(writer: &Provider) {
    let (config, source) = writer.config();
    config.compact(&source, NOW).expect("compacted");
}

fn sent(copies: &mut Copies, message: &ChannelMessage) -> Vec<Vec<u8>> {
    copies.frame(LINK, &message.encode()).expect("a replica's link").expect("taken")
}

#[test]
fn a_replica_that_is_far_behind_has_all_after_one_transfer_however_often_the_records_are_compacted() {
    let writer = Provider::new("copies-writer");
    let mut replica = Replica::new(writer.replica("copies-replica"));
    writer.open_accounts(6_000);
    compacted(&writer);
    let mut copies = copies_of(&writer);
    let mut inbox = sent(&mut copies, &ChannelMessage::Holds { snapshot: 0 });
    inbox.extend(sent(&mut copies, &replica.ask()));
    let mut rounds = 0;
    while replica.number() < writer.server().0.state().number() {
        rounds += 1;
        assert!(rounds < 40, "{} heads, {} pieces", replica.heads, replica.pieces);
        let octets = if inbox.is_empty() { Vec::new() } else { inbox.remove(0) };
        let answers =
            if octets.is_empty() { Vec::new() } else { replica.take(&octets).unwrap_or_else(|_| panic!("refused")) };
        // Until it has the snapshot, each message finds the records changed and compacted.
        if replica.number() == 0 {
            writer.append();
            compacted(&writer);
            inbox.extend(copies.sweep().into_iter().map(|(_, octets)| octets));
        }
        for answer in answers {
            inbox.extend(sent(&mut copies, &answer));
        }
    }
    assert!(replica.number() > 6_003, "there were changes meanwhile");
    assert_eq!((replica.heads, replica.pieces), (1, 3), "one transfer");
    // It goes on with changes, and with a snapshot for each compaction, one at a time.
    compacted(&writer);
    for _ in 0..40 {
        inbox.extend(copies.sweep().into_iter().map(|(_, octets)| octets));
        for octets in std::mem::take(&mut inbox) {
            let answers = replica.take(&octets).unwrap_or_else(|_| panic!("refused"));
            answers.iter().for_each(|answer| inbox.extend(sent(&mut copies, answer)));
        }
    }
    assert_eq!(replica.heads, 2);
    let read = |of: &Provider| std::fs::read(of.records()).expect("there");
    assert!(read(&writer) == read(&replica.of), "its file is the writer's");
}

#[test]
fn a_replica_that_is_too_far_behind_learns_it_from_the_head_and_fetches_nothing() {
    let writer = Provider::new("copies-far-writer");
    writer.open_accounts(10);
    let mut replica = Replica::new(writer.replica("copies-far-replica"));
    writer.open_accounts(4_200);
    compacted(&writer);
    for link in 0..3 {
        let mut copies = copies_of(&writer);
        let mut inbox = sent(&mut copies, &ChannelMessage::Holds { snapshot: 0 });
        inbox.extend(sent(&mut copies, &replica.ask()));
        let refused = inbox.iter().find_map(|octets| replica.take(octets).err());
        let Some(Fault::Peer(why)) = refused else { panic!("link {link}: not refused") };
        assert!(why.contains("copy the writer's file of records to it"), "{why}");
    }
    assert_eq!((replica.heads, replica.pieces, replica.number()), (3, 0, 10));
}

#[test]
fn a_change_that_is_not_durable_is_not_sent() {
    let writer = Provider::new("copies-durable-writer");
    writer.open_accounts(5);
    let mut replica = Replica::new(writer.replica("copies-durable-replica"));
    writer.open_accounts(2);
    // What the writer's process knows to be durable ends before the last change in the file.
    let durable = 6;
    let mut copies = Copies::new(writer.records(), [REPLICA].into(), Box::new(move || (durable, [0; 32])));
    assert!(copies.up(LINK, &REPLICA));
    let answers = sent(&mut copies, &replica.ask());
    let changes =
        answers.iter().find(|octets| matches!(ChannelMessage::decode(octets), Ok(ChannelMessage::Changes(_))));
    let requests = replica.take(changes.expect("one")).unwrap_or_else(|_| panic!("refused"));
    assert_eq!(replica.number(), 6);
    assert!(sent(&mut copies, &requests[0]).is_empty());
    assert!(copies.sweep().is_empty());
}

#[test]
fn a_replica_learns_with_the_first_answer_that_the_writer_was_set_back() {
    let writer = Provider::new("copies-back-writer");
    writer.open_accounts(5);
    let old = writer.replica("copies-back-old");
    writer.open_accounts(3);
    let mut replica = Replica::new(writer.replica("copies-back-replica"));
    let first = |replica: &mut Replica, writer: &Provider| {
        let mut copies = copies_of(writer);
        let answers = sent(&mut copies, &replica.ask());
        replica.take(&answers[0])
    };
    assert!(first(&mut replica, &writer).is_ok());
    // The writer has no change to send: without this answer the replica would wait, and both would answer by other records.
    std::fs::copy(old.records(), writer.records()).expect("set back");
    let Err(Fault::Peer(why)) = first(&mut replica, &writer) else { panic!("not refused") };
    assert!(why.contains("end with change 5") && why.contains("restore the writer's"), "{why}");
    // It goes on to the number that the replica has, with other changes.
    let (mut server, mut changes) = writer.server();
    for number in 20..23 {
        let principal = wayleave_packet::platypus::header::Principal::new(number).expect("24 bits");
        let body = wayleave_control::capability::ChangeBody::Account { principal, generation: 9, name: String::new() };
        let change = server.sign(body, NOW).expect("a writer").expect("allowed");
        assert!(changes.append(&change).expect("appended").is_empty());
        server.apply(&change).expect("the next");
    }
    let Err(Fault::Peer(why)) = first(&mut replica, &writer) else { panic!("not refused") };
    assert!(why.contains("does not continue change 8"), "{why}");
}

#[tokio::test]
async fn a_panic_with_the_server_in_hand_ends_the_role() {
    let provider = Provider::new("poisoned");
    let (config, source) = provider.config();
    let clock = Clock::start();
    let (core, _) = Core::open(&config, &source, clock, Events::default()).expect("opened");
    let core = Arc::new(Mutex::new(core));
    let in_hand = Arc::clone(&core);
    let thread = std::thread::spawn(move || {
        let _server = lock(&in_hand);
        panic!("a bug");
    });
    assert!(thread.join().is_err());
    let (failed, mut failures) = mpsc::channel(1);
    follow_records((core, Arc::default()), clock, None, failed).await;
    assert!(failures.try_recv().expect("reported").to_string().contains("`state` of the key server stopped"));
}

#[test]
fn a_list_that_a_clock_signed_which_was_ahead_is_signed_anew_when_it_has_gone_back() {
    let provider = Provider::new("list-clock");
    let (config, source) = provider.config();
    let clock = Clock::start();
    let (core, writer) = Core::open(&config, &source, clock, Events::default()).expect("opened");
    let (core, mut writer) = (Mutex::new(core), writer.expect("one"));
    let list = lock(&core).list().expect("one");
    let number = || list.written().list.expect("written").0;
    let begun = clock.now();
    let at = |minutes: u64, ahead: u64| Now {
        instant: begun.instant + Duration::from_secs(minutes * 60),
        unix: UnixTime(begun.unix.0 + (minutes * 60 + ahead) * 1_000_000),
    };
    let mut numbers = vec![number()];
    // An hour has passed when the clock is a year ahead; then it is right again, and a list is due after an hour.
    for (minutes, ahead) in [(30, 0), (61, 31_536_000), (62, 0), (63, 0), (121, 0), (123, 0)] {
        writer.look(&core, at(minutes, ahead));
        numbers.push(number());
    }
    let is_new: Vec<bool> = numbers.windows(2).map(|pair| pair[0] < pair[1]).collect();
    assert_eq!(is_new, [false, true, true, false, false, true]);
}
