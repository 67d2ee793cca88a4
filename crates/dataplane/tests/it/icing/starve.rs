//! One payer against all others: an account at one link takes nothing from the same account at another, nor from anybody else.
//!
//! ICD-08, starve: an account far above its rate at one link; ten times its rate beside another link's, and a flood of
//! the pool; copies; restarts at any moment: other links and accounts pass all, or lose less than a hundredth; no
//! token, no place; no packet twice.
//! ICD-08, paths: first packets of 50 paths above their payer's rate, and again; hundreds of new paths of one payer:
//! only what is admitted makes a path known; the others' paths stay known.

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::icing::{Action, Config, Reason, Router};
use wayleave_packet::icing::header::{Tag, Version};
use wayleave_packet::icing::mint::{Form, Sender};

use super::network::{self, EXPIRY, LINK, TAGS, TIME, at_micros, packet_at};

/// Node 1 of four, with these accounts and a filter for `capacity` packets a turn.
fn router(accounts: &[Option<(u64, u64)>], capacity: usize, started: u64) -> Router {
    let policy = network::with_accounts(network::policy(1, 4), accounts);
    let started = UnixTime(started * 1_000_000);
    let config = Config { policy, replay_capacity: capacity, started, ..network::config(1, 4) };
    Router::new(config, CpuKernel::best()).unwrap()
}

/// From node `from` over node 1 to node 2, charged to account `account`, counted from 1; 0 is none.
fn sender(from: usize, account: u32) -> Sender {
    let order = [from, 1, 2];
    let path = network::path_with(&order, Tag(TAGS | account << 8), EXPIRY);
    let consents = network::consents(&order, &path, Version::Standard);
    Sender::new(Version::Standard, &path, &network::secret(from), &consents).unwrap()
}

/// How many of these packets pass that come from node `from` at `micros` after the beginning.
fn passed(router: &mut Router, from: usize, mut packets: Vec<Vec<u8>>, micros: u64) -> usize {
    let (ingress, now) = (Ingress::External(LINK + from as u16), at_micros(u64::from(TIME) * 1_000_000 + micros));
    let mut passed = 0;
    for burst in packets.chunks_mut(BURST) {
        let mut frames: Vec<Frame<'_>> = burst.iter_mut().map(|octets| Frame { octets, ingress }).collect();
        let count = frames.len();
        let actions = router.process(&mut frames, now);
        passed += actions[..count].iter().filter(|action| matches!(action, Action::Forward { .. })).count();
    }
    passed
}

/// New packets of one sender, with their path in the first one.
fn packets(sender: &Sender, numbers: std::ops::Range<u32>, micros: u64) -> Vec<Vec<u8>> {
    let secs = TIME + (micros / 1_000_000) as u32;
    let form = |n: u32| if n.is_multiple_of(64) { Form::Path } else { Form::Handle };
    numbers.map(|n| packet_at(sender, form(n), n, secs, b"")).collect()
}

#[test]
fn an_account_far_above_its_rate_at_one_link_takes_nothing_from_another_link_or_account() {
    let mut router = router(&[Some((1_000, 2_000)), None], 10_000, 0);
    let flood = packets(&sender(0, 1), 0..30_000, 0);
    let first = flood[0].len() as u64;
    let own = passed(&mut router, 0, flood, 0);
    assert!(own <= 2_000 / 80 && own as u64 * first >= 1_000, "{own}");
    // The same account by another link; an account without a rate; none at all.
    assert!(passed(&mut router, 3, packets(&sender(3, 1), 0..5, 0), 0) == 5);
    for account in [2, 0] {
        let others = passed(&mut router, 3, packets(&sender(3, account), 0..1_000, 0), 0);
        assert_eq!(others, 1_000, "{:?}", router.counters());
    }
    assert_eq!(router.counters().of(Reason::ReplayFull), 0);
}

#[test]
fn of_two_links_one_at_ten_times_its_rate_the_other_loses_less_than_a_hundredth_and_a_full_pool_takes_nothing() {
    // As many packets of 200 octets as a payer may send: the filter has just room for four payers of this account.
    let (rate, depth) = (100_000, 10_000);
    let capacity = 4 * (5 * rate + depth) as usize / 56 * 4 / 3 + 40;
    let mut router = router(&[Some((rate, depth)), None], capacity, 0);
    let (greedy, modest, flood) = (sender(0, 1), sender(3, 1), sender(0, 2));
    let mut counts = [0; 2];
    let length = packets(&modest, 1..2, 0)[0].len();
    let a_second = rate as usize * 99 / 100 / length;
    for tick in 0..60u64 {
        let (micros, first) = (tick * 100_000, tick as u32 * 8_192);
        passed(&mut router, 0, packets(&greedy, first..first + a_second as u32, micros), micros);
        passed(&mut router, 0, packets(&flood, first..first + 2_000, micros), micros);
        let number = first + 1..first + 1 + (a_second / 10) as u32;
        counts[0] += number.len();
        // The path first: it need not count.
        if tick == 0 {
            passed(&mut router, 3, packets(&modest, 0..1, micros), micros);
        }
        counts[1] += passed(&mut router, 3, packets(&modest, number, micros), micros);
    }
    assert!(counts[1] * 100 > counts[0] * 99, "{counts:?} {:?}", router.counters());
    assert!(router.counters().of(Reason::ReplayFull) > 1_000, "the pool was full");
    let own = router.partitions(at_micros(u64::from(TIME) * 1_000_000)).filter(|(state, _)| state.payer.is_some());
    assert!(own.map(|(state, _)| state.refused.partition).sum::<u64>() == 0);
}

#[test]
fn a_replayed_packet_takes_no_token_and_no_place() {
    let mut router = router(&[Some((100, 2_000))], 10_000, 0);
    let sender = sender(0, 1);
    let first = packets(&sender, 0..1, 0);
    assert_eq!(passed(&mut router, 0, vec![first[0].clone(); 10_000], 0), 1);
    let more = packets(&sender, 1..100, 0);
    let expected = (2_000 - first[0].len()) / more[0].len();
    assert_eq!(passed(&mut router, 0, more, 0), expected);
    assert_eq!(router.counters().of(Reason::Replayed), 9_999);
    let taken: u64 = router.partitions(at_micros(u64::from(TIME) * 1_000_000)).map(|(_, taken)| taken).sum();
    assert_eq!(taken, 1 + expected as u64);
}

/// The first packets of so many paths, one each, from node `from` over node 1 to node 2: they differ in when their consents end.
fn many_paths(from: usize, account: u32, count: u32) -> impl Iterator<Item = Sender> {
    let (secret, order) = (network::secret(from), [from, 1, 2]);
    (0..count).map(move |number| {
        let path = network::path_with(&order, Tag(TAGS | account << 8), EXPIRY + 1 + number);
        let consents = network::consents(&order, &path, Version::Standard);
        Sender::new(Version::Standard, &path, &secret, &consents).unwrap()
    })
}

#[test]
fn whoever_sends_more_than_its_rate_or_repeats_packets_makes_no_path_known() {
    let mut router = router(&[Some((10, 200))], 10_000, 0);
    let first = |sender: &Sender| packet_at(sender, Form::Path, 64, TIME, b"");
    let firsts: Vec<Vec<u8>> = many_paths(0, 1, 50).map(|sender| first(&sender)).collect();
    let allowed = passed(&mut router, 0, firsts.clone(), 0);
    assert!((1..=200 / firsts[0].len()).contains(&allowed), "{allowed}");
    assert_eq!((router.paths(), router.counters().of(Reason::Rate)), (allowed, 50 - allowed as u64));
    // The router learnt the others' keys all the same: a path costs no agreement twice.
    assert_eq!(router.counters().agreements, 2);
    assert_eq!(passed(&mut router, 0, firsts[..allowed].to_vec(), 0), 0);
    assert_eq!(router.paths(), allowed);
}

#[test]
fn a_payer_with_ever_new_paths_takes_no_other_payers_path_away() {
    let policy = network::with_accounts(network::policy(1, 4), &[None]);
    let config = Config { policy, paths: 64, ..network::config(1, 4) };
    let mut router = Router::new(config, CpuKernel::best()).unwrap();
    let quiet: Vec<Sender> = many_paths(3, 0, 4).collect();
    let form =
        |form: Form, n: u32| quiet.iter().map(|sender| packet_at(sender, form, n, TIME, b"")).collect::<Vec<_>>();
    assert_eq!(passed(&mut router, 3, form(Form::Path, 0), 0), 4);
    // By another link; and by the same one, for another account.
    for (from, account, count) in [(0, 0, 500), (3, 1, 500)] {
        let flood =
            many_paths(from, account, count).map(|sender| packet_at(&sender, Form::Path, 0, TIME, b"")).collect();
        assert_eq!(passed(&mut router, from, flood, 0), count as usize);
    }
    assert_eq!(router.paths(), 64);
    assert_eq!(passed(&mut router, 3, form(Form::Handle, 1), 0), 4, "{:?}", router.counters());
}

#[test]
fn a_restart_forgets_no_replay() {
    let sender = sender(0, 0);
    for restart in 0..8_000u64 / 250 {
        let (made, restart) = (2_000_000, restart * 250_000);
        let mut before = router(&[], 1_000, u64::from(TIME) - 10);
        let octets = packets(&sender, 0..1, made);
        let mut copies = passed(&mut before, 0, octets.clone(), restart);
        let mut after = router(&[], 1_000, u64::from(TIME) + restart / 1_000_000);
        for later in 0..20 {
            copies += passed(&mut after, 0, octets.clone(), restart + later * 500_000);
        }
        assert!(copies <= 1, "{restart}");
        // Two seconds later at most everything fresh passes.
        let micros = restart + 10_000_000;
        assert_eq!(passed(&mut after, 0, packets(&sender, 64..65, micros), micros), 1);
    }
}
