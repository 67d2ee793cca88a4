//! A party that deviates in the extension, against the private state of both ends: what it could recover without the check of a
//! chunk, what the check refuses, and what a guess costs.
//!
//! MPC-12: delta with 64 chosen lanes: refused; a guess of the bits of a group: as many links end as its bits say; the view of a party that
//! passes: explained by all choices and by every delta that its guesses leave.

use proptest::prelude::*;

use super::*;
use crate::pool::Pool;

const CHUNK: Chunk = Chunk { width: Width::ALL[3], count: 256 };

fn random_blocks(seed: u64, count: usize) -> Vec<[u8; 16]> {
    let mut out = vec![[0; 16]; count];
    Prg::new(&u128::from(seed).to_le_bytes()).blocks(0, &mut out);
    out
}

/// The extension of both parties, with trees that passed; `delta` is party 1's.
fn pair_with_delta(group: GroupBits, seed: u64, delta: Option<u128>) -> [OtExtension; 2] {
    let each = 1 << group.get();
    let blocks = random_blocks(seed, 2 * group.groups() * each + 2);
    let mut deltas = [blocks[0], blocks[1]].map(u128::from_le_bytes);
    deltas[0] = delta.unwrap_or(deltas[0]);
    let seeds = |blocks: &[[u8; 16]]| -> Vec<Leaves> {
        let of_group = |leaves: &[[u8; 16]]| leaves.iter().map(|leaf| Secret::new(*leaf)).collect();
        blocks.chunks_exact(each).map(of_group).collect()
    };
    let (of_one, of_two) = blocks[2..].split_at(group.groups() * each);
    let (of_one, of_two) = (seeds(of_one), seeds(of_two));
    let without = |trees: &[Leaves], delta: u128| -> Vec<Punctured> {
        let bit = |column: usize| (delta >> column) & 1;
        let missing = |number: usize| {
            (0..group.get()).fold(0, |leaf, level| 2 * leaf + bit(number * group.get() + level) as usize)
        };
        let known =
            |(number, leaves): (usize, &Leaves)| (1..each).map(|leaf| leaves[leaf ^ missing(number)].clone()).collect();
        trees.iter().enumerate().map(known).collect()
    };
    let (tag, session) = (SessionTag(blocks[0]), [7; 32]);
    let secret = |delta: u128| Secret::new(delta.to_le_bytes());
    [
        OtExtension::new(Role::Party1, tag, session, group, &of_one, &without(&of_two, deltas[0]), secret(deltas[0])),
        OtExtension::new(Role::Party2, tag, session, group, &of_two, &without(&of_one, deltas[1]), secret(deltas[1])),
    ]
}

fn pair(group: GroupBits, seed: u64) -> [OtExtension; 2] {
    pair_with_delta(group, seed, None)
}

fn delta(extension: &OtExtension) -> u128 {
    u128::from_le_bytes(*extension.delta().expose())
}

/// The bits of `delta` of a group, in place.
fn bits_of(group: GroupBits, number: usize) -> u128 {
    (u128::MAX >> (128 - group.get())) << (number * group.get())
}

/// The message of a receiver that chooses with another bit in one transfer of each of these groups, and hopes that the sender's delta has the
/// bits of `guess` there: its proof is right for a sender of which that is so. Transfers from `count` on are those of the check.
fn deviating(receiver: &mut OtExtension, chunk: Chunk, changes: &[(usize, usize)], guess: u128) -> Vec<u8> {
    let mut message = receiver.send(chunk);
    let (stride, levels) = (column_bytes(chunk.count), receiver.group.get());
    let apart = stride + SPREAD;
    message.truncate(message.len() - check::PROOF_BYTES);
    for (group, transfer) in changes {
        let (octet, bit) = (transfer / 8, 1u8 << (transfer % 8));
        // The first group has no piece: what differs there is the same as a change of all others.
        for number in 1..receiver.group.groups() {
            if number == *group || *group == 0 {
                message[HEADER_BYTES + (number - 1) * stride + octet] ^= bit;
            }
        }
        if *group == 0 {
            receiver.scratch.bits.as_flattened_mut()[octet] ^= bit;
        }
        for column in group * levels..(group + 1) * levels {
            receiver.scratch.columns[column * apart + octet] ^= bit * ((guess >> column) & 1) as u8;
        }
    }
    let hash = receiver.linear_hash(chunk, receiver.role.peer(), &message);
    message.extend(hash.prove(&receiver.scratch.bits, &receiver.scratch.columns, apart));
    message
}

/// The rows of a receiver's transfers.
fn rows(receiver: &OtExtension, chunk: Chunk) -> Vec<u128> {
    let mut rows = Vec::new();
    for place in 0..=chunk.count / SQUARE {
        let mut square: Square = [[0; 2]; SQUARE];
        rows_of(&receiver.scratch.columns, column_bytes(chunk.count) + SPREAD, place, &mut square);
        rows.extend(square.iter().map(join));
    }
    rows
}

/// `a`, `B` and `C` of each correlation.
fn opened(correlations: Correlations, chunk: Chunk) -> Vec<[u128; 3]> {
    let (width, words) = (chunk.width.bits(), chunk.count / 64);
    let mut planes = vec![0; (1 + 2 * width) * words];
    let mut pool = Pool::new(usize::MAX);
    pool.add(correlations).unwrap();
    pool.take(chunk.width, width, chunk.count, &mut planes);
    let bit = |plane: usize, lane: usize| u128::from((planes[plane * words + lane / 64] >> (lane % 64)) & 1);
    let number = |first: usize, lane: usize| (0..width).fold(0, |n, place| n | bit(first + place, lane) << place);
    (0..chunk.count).map(|lane| [bit(0, lane), number(1, lane), number(1 + width, lane)]).collect()
}

/// What a receiver finds of delta that chose with another bit in one transfer of each group, the `n`-th in the `n`-th transfer, when
/// members in league say what the sender has of these transfers.
fn recovered(hostile: &mut OtExtension, honest: &OtExtension, rows: &[u128], seen: &[[u128; 3]]) -> u128 {
    let low = |block: [u8; 16]| u128::from_le_bytes(block) & 0xff;
    let levels = hostile.group.get();
    (0..hostile.group.groups()).fold(0, |delta, group| {
        let [a, vector, product] = seen[group];
        // The output of the other direction's transfer, in which the hostile party sends, so that it knows both.
        let zero = product ^ low(honest.scratch.chosen[group]) ^ (a * vector);
        let own = u128::from(hostile.scratch.bits.as_flattened()[group / 8] >> (group % 8) & 1);
        let output = zero ^ (own * vector);
        let explains = |bits: &u128| {
            let mut row = [(rows[group] ^ bits).to_le_bytes()];
            hostile.hash.hash(direction(honest.role), group as u64, &mut row);
            low(row[0]) == output
        };
        let mut candidates = (0..1u128 << levels).map(|bits| bits << (group * levels));
        delta | candidates.find(explains).expect("one of them is the truth")
    })
}

#[test]
fn delta_with_64_chosen_lanes_is_recovered_without_the_check_and_refused_with_it() {
    let group = GroupBits::STANDARD;
    let changes: Vec<_> = (0..group.groups()).map(|number| (number, number)).collect();
    let ends = || {
        let [mut honest, mut hostile] = pair(group, 1);
        honest.send(CHUNK);
        let message = deviating(&mut hostile, CHUNK, &changes, 0);
        (honest, hostile, message)
    };

    let (mut honest, mut hostile, message) = ends();
    let rows = rows(&hostile, CHUNK);
    honest.sender_columns(CHUNK, &message[HEADER_BYTES..message.len() - check::PROOF_BYTES]);
    let seen = opened(honest.combine(CHUNK), CHUNK);
    assert_eq!(recovered(&mut hostile, &honest, &rows, &seen), delta(&honest), "the attack is no attack");

    let (mut honest, _, message) = ends();
    assert_eq!(honest.receive(&message).map(|_| ()), Err(Fault::Transfers));
    assert!(honest.scratch.columns.is_empty() && honest.scratch.chosen.is_empty(), "what was made is wiped");
}

/// Whether the check accepts a receiver with these changes and this guess.
fn survives(ends: [OtExtension; 2], changes: &[(usize, usize)], guess: u128) -> bool {
    let [mut honest, mut hostile] = ends;
    honest.send(CHUNK);
    let message = deviating(&mut hostile, CHUNK, changes, guess);
    match honest.receive(&message) {
        Ok(_) => true,
        Err(fault) => {
            assert_eq!(fault, Fault::Transfers);
            false
        }
    }
}

#[test]
fn a_change_in_any_group_passes_for_the_right_guess_of_its_bits_alone() {
    for group in GroupBits::ALL {
        for number in 0..group.groups() {
            for transfer in [0, 100, CHUNK.count - 1, CHUNK.count, CHUNK.count + CHECKED - 1] {
                let ends = || pair(group, number as u64);
                let right = delta(&ends()[0]);
                let changes = [(number, transfer)];
                assert!(survives(ends(), &changes, right), "{group:?}, group {number}, transfer {transfer}");
                for wrong in [1, (1u128 << group.get()) - 1] {
                    let guess = right ^ (wrong << (number * group.get()));
                    assert!(!survives(ends(), &changes, guess), "{group:?}, group {number}, transfer {transfer}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_changes_pass_for_the_right_guess_of_all_their_groups_alone(
        seed in any::<u64>(),
        changes in prop::collection::btree_map(0usize..64, 0..CHUNK.count + CHECKED, 1..6),
        wrong in any::<prop::sample::Index>(),
        by in 1u128..4,
    ) {
        let group = GroupBits::STANDARD;
        let changes: Vec<_> = changes.into_iter().collect();
        let right = delta(&pair(group, seed)[0]);
        prop_assert!(survives(pair(group, seed), &changes, right));
        let (number, _) = changes[wrong.index(changes.len())];
        prop_assert!(!survives(pair(group, seed), &changes, right ^ (by << (number * group.get()))));
    }
}

#[test]
fn a_guess_of_each_bit_of_delta_ends_the_link_with_probability_one_half() {
    // Sessions of 400 that survive where a receiver guesses at this many groups; the seeds are fixed.
    let surviving = |group: GroupBits, groups: usize| {
        let changes: Vec<_> = (0..groups).map(|number| (3 * number, 5 + number)).collect();
        (0..400).filter(|seed| survives(pair(group, 1000 + seed), &changes, 0x1234_5678_9abc_def0 << 9)).count()
    };
    for (k, groups, expected) in [(1, 1, 200), (1, 2, 100), (2, 1, 100), (2, 2, 25), (4, 1, 25)] {
        let group = GroupBits::new(k).unwrap();
        let survivors = surviving(group, groups);
        // Five standard deviations: 400 p (1 - p) is at most `expected`.
        let bound = 5.0 * f64::from(expected).sqrt();
        assert!(
            (survivors as f64 - f64::from(expected)).abs() < bound,
            "{k} bits, {groups} groups: {survivors} of 400"
        );
    }
}

#[test]
fn what_passes_says_of_delta_only_what_was_guessed() {
    let (group, number) = (GroupBits::STANDARD, 5);
    let guess = delta(&pair(group, 1)[0]);
    for other in random_blocks(2, 60).into_iter().map(u128::from_le_bytes) {
        // Any delta with the guessed bits of the group passes, whatever its others are; any other is refused.
        let agrees = (other & !bits_of(group, number)) | (guess & bits_of(group, number));
        assert!(survives(pair_with_delta(group, 1, Some(agrees)), &[(number, 77)], guess));
        let differs = agrees ^ (1 << (number * group.get() + usize::from(other & 1 == 1)));
        assert!(!survives(pair_with_delta(group, 1, Some(differs)), &[(number, 77)], guess));
    }
}

#[test]
fn every_choice_explains_what_the_peer_sees() {
    // The peer lacks one leaf of each group. Had the streams of these leaves the sum `change` besides, the bits `a` would differ by it, and
    // the columns by `change` times the peer's delta: the same message, octet by octet, where the linear function takes `change` to zero.
    for seed in 0..50 {
        let [peer, mut honest] = pair(GroupBits::STANDARD, seed);
        let message = honest.send(CHUNK);
        let apart = column_bytes(CHUNK.count) + SPREAD;
        let hash = honest.linear_hash(CHUNK, peer.role, &message[..message.len() - check::PROOF_BYTES]);
        let before = hash.prove(&honest.scratch.bits, &honest.scratch.columns, apart);
        assert_eq!(message[message.len() - check::PROOF_BYTES..], before);
        let mut change = random_blocks(1 << 40 | seed, CHUNK.count / SQUARE);
        change.push([0; 16]);
        let last = hash.of(&change).to_le_bytes();
        *change.last_mut().unwrap() = last;
        let change = change.as_flattened();
        xor(honest.scratch.bits.as_flattened_mut(), change);
        for (number, column) in honest.scratch.columns.chunks_exact_mut(apart).enumerate() {
            if (delta(&peer) >> number) & 1 == 1 {
                xor(&mut column[..apart - SPREAD], change);
            }
        }
        // The matrix is the same too: in each group the sum of the leaves and `a` change alike.
        assert_eq!(hash.prove(&honest.scratch.bits, &honest.scratch.columns, apart), before);
    }
}

#[test]
fn the_bits_that_a_proof_shows_are_hidden_by_transfers_that_serve_nothing_else() {
    let mut ones = [0; 128];
    for seed in 0..400 {
        let [mut honest, _] = pair(GroupBits::STANDARD, 5000 + seed);
        let message = honest.send(CHUNK);
        let shown: [u8; 16] = *message[message.len() - check::PROOF_BYTES..].first_chunk().unwrap();
        let shown = u128::from_le_bytes(shown);
        (0..128).for_each(|bit| ones[bit] += (shown >> bit) & 1);
        let secret = u128::from_le_bytes(*honest.scratch.bits.last().unwrap());
        assert_ne!(shown, secret, "the others have a part in it");
    }
    // Five standard deviations of 400 coins, for all bits.
    assert!(ones.iter().all(|ones| (150..=250).contains(ones)), "{ones:?}");
}

#[test]
fn a_message_that_is_sent_back_or_again_is_refused() {
    // Sent back: both directions have the same header, numbers and tag, and other trees.
    let [mut one, _] = pair(GroupBits::STANDARD, 1);
    let own = one.send(CHUNK);
    assert_eq!(one.receive(&own).map(|_| ()), Err(Fault::Transfers));
    // Sent again for the next chunk: refused by its number, and with the number put right by the check.
    for width in [CHUNK.width, Width::ALL[0]] {
        let ends = || {
            let [mut one, mut two] = pair(GroupBits::STANDARD, 1);
            one.send(CHUNK);
            let first = two.send(CHUNK);
            one.receive(&first).unwrap();
            let next = Chunk { width, ..CHUNK };
            one.send(next);
            let header = one.header(next);
            (one, first, header)
        };
        let (mut one, first, _) = ends();
        assert_eq!(one.receive(&first).map(|_| ()), Err(Fault::OutOfStep));
        let (mut one, mut first, header) = ends();
        first[..HEADER_BYTES].copy_from_slice(&header);
        assert_eq!(one.receive(&first).map(|_| ()), Err(Fault::Transfers));
    }
}

#[test]
fn the_challenge_is_bound_to_session_direction_header_and_every_octet() {
    let (session, header, matrix) = ([1; 32], [2; HEADER_BYTES], [3; 100]);
    let proof = |session: [u8; 32], sender, header: &[u8], matrix: &[u8]| {
        check::LinearHash::new(&session, sender, header, matrix, 3).prove(
            &[[9; 16]; 3],
            &[7; (48 + SPREAD) * 128],
            48 + SPREAD,
        )
    };
    let mut all = vec![
        proof(session, Role::Party1, &header, &matrix),
        proof(session, Role::Party2, &header, &matrix),
        proof([4; 32], Role::Party1, &header, &matrix),
        proof(session, Role::Party1, &header, &matrix[1..]),
    ];
    for octet in 0..HEADER_BYTES {
        let mut header = header;
        header[octet] ^= 1;
        all.push(proof(session, Role::Party1, &header, &matrix));
    }
    for octet in 0..matrix.len() {
        let mut matrix = matrix;
        matrix[octet] ^= 0x80;
        all.push(proof(session, Role::Party1, &header, &matrix));
    }
    // Neither what is shown of the bits nor the hash is ever the same.
    for part in [0..16, 16..check::PROOF_BYTES] {
        let mut parts: Vec<_> = all.iter().map(|proof| &proof[part.clone()]).collect();
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn no_transfer_has_two_uses_in_chunks_of_any_width_and_size() {
    // A transfer is a row of the receiver's columns: the same streams at one place would give one row again, also where one chunk checks
    // with it and another one hashes it.
    let [mut one, mut two] = pair(GroupBits::STANDARD, 3);
    let (mut seen, mut transfers) = (std::collections::HashSet::new(), 0);
    for (width, count) in [(0, 128), (7, 256), (3, 128), (0, 1024), (7, 128), (1, 384)] {
        let chunk = Chunk { width: Width::ALL[width], count };
        assert_eq!(one.next, transfers as u64);
        let (of_one, of_two) = (one.send(chunk), two.send(chunk));
        seen.extend(rows(&one, chunk));
        transfers += count + CHECKED;
        assert_eq!(seen.len(), transfers, "a row that was there before");
        assert_eq!(one.receive(&of_two).unwrap().count(), count, "what was made for the check is not given out");
        two.receive(&of_one).unwrap();
    }
}

#[test]
fn a_proof_of_another_message_is_refused() {
    for (place, octet) in [(0, 0), (15, 1), (16, 1), (47, 0x80)] {
        let [mut one, mut two] = pair(GroupBits::STANDARD, 4);
        one.send(CHUNK);
        let mut message = two.send(CHUNK);
        let start = message.len() - check::PROOF_BYTES;
        message[start + place] ^= octet;
        let expected = if octet == 0 { Ok(()) } else { Err(Fault::Transfers) };
        assert_eq!(one.receive(&message).map(|_| ()), expected);
    }
}
