//! Several threads of one node.
//!
//! ICD-08, paths: what one thread has verified is no proof at another; a policy is walked through once.

use std::sync::Arc;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::icing::{Action, Config, Reason, Router};
use wayleave_packet::icing::header::Version;
use wayleave_packet::icing::mint::{Form, TagMaster};

use super::network::{self, LINK, OPEN, packet, process, sender};

/// The threads of node 1 of three.
fn threads<const COUNT: usize>() -> [Router; COUNT] {
    let mut first = network::router(1, 3);
    let shared = first.shared();
    let mut first = Some(first);
    std::array::from_fn(|_| {
        first.take().unwrap_or_else(|| {
            let config = Config { replay_capacity: 0, ..network::config(1, 3) };
            let mut router = Router::new(config, CpuKernel::best()).unwrap();
            router.share(&shared);
            router
        })
    })
}

#[test]
fn a_path_of_another_thread_is_kept_for_a_packet_that_is_verified_and_admitted_here() {
    let [mut first, mut other] = threads();
    let sender = sender(&[0, 1, 2]);
    let taken = packet(&sender, Form::Path, 1, b"the first one");
    assert!(matches!(process(&mut first, &taken, LINK).0, Action::Forward { .. }));
    let right = packet(&sender, Form::Handle, 2, b"to another thread");
    // Its first proof: a consent of eight octets, and then the verifier.
    let (consent, verifier) = (32, 40);
    for (octet, reason) in [(consent, Reason::UnknownHandle), (verifier, Reason::Verifier)] {
        let mut spoiled = right.clone();
        spoiled[octet] ^= 1;
        assert_eq!(process(&mut other, &spoiled, LINK).0, Action::Drop(reason));
        assert_eq!(other.paths(), 0, "nothing is left of it");
    }
    assert_eq!(process(&mut other, &right, OPEN).0, Action::Drop(Reason::Ingress));
    assert_eq!(process(&mut other, &taken, LINK).0, Action::Drop(Reason::Replayed));
    assert_eq!(other.paths(), 0, "a repeated packet is not admitted");
    assert!(matches!(process(&mut other, &right, LINK).0, Action::Forward { .. }));
    assert_eq!((other.paths(), other.counters().agreements), (1, 0));
}

#[test]
fn the_policy_of_a_thread_decides_on_the_paths_that_another_has_learnt() {
    let [mut first, mut other] = threads();
    let mut policy = network::policy(1, 3);
    policy.rules.clear();
    other.set_policy(policy).unwrap();
    let sender = sender(&[0, 1, 2]);
    assert!(matches!(process(&mut first, &packet(&sender, Form::Path, 1, b""), LINK).0, Action::Forward { .. }));
    // The first thread has not heard of the policy that is in force since: what it learns stays its own.
    let by_handle = |number| packet(&sender, Form::Handle, number, b"");
    assert_eq!(process(&mut other, &by_handle(2), LINK).0, Action::Drop(Reason::UnknownHandle));
    other.set_policy(network::policy(1, 3)).unwrap();
    first.set_policy(network::policy(1, 3)).unwrap();
    let again = network::sender_of(Version::Sealed, &[0, 1, 2]);
    assert!(matches!(process(&mut first, &packet(&again, Form::Path, 3, &[7; 64]), LINK).0, Action::Forward { .. }));
    let mut policy = network::policy(1, 3);
    policy.rules.clear();
    let by_handle = |number| packet(&again, Form::Handle, number, &[7; 64]);
    let mut late = network::router(1, 3);
    late.share(&first.shared());
    late.set_policy(policy).unwrap();
    assert_eq!(process(&mut late, &by_handle(4), LINK).0, Action::Drop(Reason::UnknownTag));
    assert_eq!(late.paths(), 0);
    assert!(matches!(process(&mut other, &by_handle(5), LINK).0, Action::Forward { .. }));
}

#[test]
fn a_change_of_policy_is_one_walk_through_what_all_threads_have_learnt_and_none_if_it_changes_nothing() {
    let mut all: [Router; 3] = threads();
    let sender = sender(&[0, 1, 2]);
    process(&mut all[0], &packet(&sender, Form::Path, 1, b""), LINK);
    process(&mut all[1], &packet(&sender, Form::Handle, 2, b""), LINK);
    let decided = |all: &[Router; 3]| all.each_ref().map(|router| router.counters().decided);
    let mut policy = network::policy(1, 3);
    policy.agreed = Arc::default();
    all.iter_mut().for_each(|router| router.set_policy(policy.clone()).unwrap());
    assert_eq!(decided(&all), [0, 0, 0], "the same as before");
    policy.rules[0].meaning.queue = 5;
    all.iter_mut().for_each(|router| router.set_policy(policy.clone()).unwrap());
    // Each thread its own paths; and the first that hears of it, one time for all, those in common.
    assert_eq!(decided(&all), [2, 1, 0]);
    policy.masters = vec![(0, TagMaster::new(Key128::new([9; 16])))];
    all.iter_mut().rev().for_each(|router| router.set_policy(policy.clone()).unwrap());
    assert_eq!(decided(&all), [3, 2, 1]);
    assert_eq!(all.each_ref().map(Router::paths), [0, 0, 0], "nobody here has consented under this master");
    let by_handle = packet(&sender, Form::Handle, 3, b"");
    assert_eq!(process(&mut all[2], &by_handle, LINK).0, Action::Drop(Reason::UnknownHandle));
}
