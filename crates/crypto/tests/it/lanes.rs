//! AES-128, CMAC and PMAC in lanes: known answers, and every kernel equal to every other.

use wayleave_crypto::lanes::{
    Aes128, BURST, Block, CmacKey, Columns, CpuKernel, LANES, Parts, PmacKey, cbc_pair_each, cmac_each, columns,
    encrypt_each, rows, tag_columns, tag_rows,
};
use wayleave_crypto::prg::Prg;

fn hex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks(2).map(|two| digit(two[0]) << 4 | digit(two[1])).collect()
}

fn block(text: &str) -> Block {
    hex(text).try_into().expect("16 octets")
}

/// Blocks that follow from `seed`.
fn random(seed: u8, count: usize) -> Vec<Block> {
    let mut blocks = vec![[0; 16]; count];
    Prg::new(&[seed; 16]).fill(0, blocks.as_flattened_mut());
    blocks
}

#[test]
fn the_machine_lists_the_portable_kernel_first_and_the_best_one_last() {
    let kernels: Vec<CpuKernel> = CpuKernel::available().collect();
    assert_eq!(kernels[0], CpuKernel::PORTABLE);
    assert_eq!(*kernels.last().unwrap(), CpuKernel::best());
}

#[test]
fn aes_gives_the_answers_of_fips_197() {
    for kernel in CpuKernel::available() {
        let key = Aes128::with_kernel(&block("000102030405060708090a0b0c0d0e0f"), kernel);
        let cipher = block("69c4e0d86a7b0430d8cdb78070b4c55a");
        assert_eq!(key.encrypt_one(&block("00112233445566778899aabbccddeeff")), cipher, "{kernel:?}");
        let key = Aes128::with_kernel(&block("2b7e151628aed2a6abf7158809cf4f3c"), kernel);
        let cipher = block("3925841d02dc09fbdc118597196a0b32");
        assert_eq!(key.encrypt_one(&block("3243f6a8885a308d313198a2e0370734")), cipher, "{kernel:?}");
    }
}

#[test]
fn cmac_gives_the_answers_of_rfc_4493() {
    let message = hex(concat!(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    ));
    let answers = [
        (0, "bb1d6929e95937287fa37d129b756746"),
        (16, "070a16b46b4d4144f79bdd9dd04a287c"),
        (40, "dfa66747de9ae63030ca32611497c827"),
        (64, "51f0bebf7e3b9d92fc49741779363cfe"),
    ];
    let secret = block("2b7e151628aed2a6abf7158809cf4f3c");
    for kernel in CpuKernel::available() {
        let key = CmacKey::with_kernel(&secret, kernel);
        for (length, answer) in answers {
            assert_eq!(key.tag(&message[..length]), block(answer), "{kernel:?} {length}");
            assert!(bool::from(key.verify(&message[..length], &block(answer)[..6])));
            assert!(!bool::from(key.verify(&message[..length], &[0; 6])));
        }
        let mut one = [message[..16].try_into().unwrap()];
        key.tag_blocks(&mut one);
        assert_eq!(one[0], block(answers[1].1), "{kernel:?}");
        let messages = answers.map(|(length, _)| Parts::whole(&message[..length]));
        let mut tags = [[0; 16]; 4];
        cmac_each(kernel, &[secret; 4], &messages, &mut tags);
        assert_eq!(tags, answers.map(|(_, answer)| block(answer)), "{kernel:?}");
    }
}

#[test]
fn pmac_gives_the_answers_of_its_authors() {
    let message: Vec<u8> = (0..34).collect();
    let answers = [
        (0, "4399572cd6ea5341b8d35876a7098af7"),
        (3, "256ba5193c1b991b4df0c51f388a9e27"),
        (16, "ebbd822fa458daf6dfdad7c27da76338"),
        (20, "0412ca150bbf79058d8c75a58c993f55"),
        (32, "e97ac04e9e5e3399ce5355cd7407bc75"),
        (34, "5cba7d5eb24f7c86ccc54604e53d5512"),
    ];
    for kernel in CpuKernel::available() {
        let key = PmacKey::with_kernel(&block("000102030405060708090a0b0c0d0e0f"), kernel);
        for (length, answer) in answers {
            assert_eq!(key.tag(&message[..length]), block(answer), "{kernel:?} {length}");
        }
        assert_eq!(key.tag(&[0; 1000]), block("c2c9fa1d9985f6f0d2aff915a0e8d910"), "{kernel:?}");
    }
}

#[test]
fn all_kernels_encrypt_alike_for_every_number_of_blocks() {
    let (keys, blocks) = (random(1, 70), random(2, 70));
    for count in 0..=70 {
        let mut results = Vec::new();
        for kernel in CpuKernel::available() {
            let mut one = blocks[..count].to_vec();
            Aes128::with_kernel(&keys[0], kernel).encrypt(&mut one);
            let mut each = blocks[..count].to_vec();
            encrypt_each(kernel, &keys, &mut each);
            let mut tags = blocks[..count].to_vec();
            CmacKey::with_kernel(&keys[0], kernel).tag_blocks(&mut tags);
            results.push((one, each, tags));
        }
        assert!(results.windows(2).all(|two| two[0] == two[1]), "{count}");
    }
}

#[test]
fn all_kernels_give_the_same_tags_at_every_length_from_0_to_2048() {
    let (keys, octets) = (random(3, BURST), random(4, 200));
    let octets = octets.as_flattened();
    for first in (0..=2048).step_by(BURST) {
        // Lengths go up, down or jump about, so that lanes of one burst end at different blocks.
        for order in 0..3 {
            let length = |lane: usize| match order {
                0 => first + lane,
                1 => first + BURST - 1 - lane,
                _ => (first + lane * 37) % 2049,
            };
            let messages: Vec<Parts<'_>> =
                (0..BURST).map(|lane| Parts::whole(&octets[lane..lane + length(lane)])).collect();
            let mut results = Vec::new();
            for kernel in CpuKernel::available() {
                let mut one = vec![[0; 16]; BURST];
                let key = CmacKey::with_kernel(&keys[0], kernel);
                key.tag_burst(&messages, &mut one);
                let mut each = vec![[0; 16]; BURST];
                cmac_each(kernel, &keys, &messages, &mut each);
                let pmac = PmacKey::with_kernel(&keys[0], kernel);
                let pmac: Vec<Block> = messages.iter().map(|message| pmac.tag(message.tail)).collect();
                assert_eq!(key.tag(messages[9].tail), one[9]);
                assert_eq!(CmacKey::with_kernel(&keys[5], kernel).tag(messages[5].tail), each[5]);
                results.push((one, each, pmac));
            }
            assert!(results.windows(2).all(|two| two[0] == two[1]), "{first} {order}");
        }
    }
}

#[test]
fn a_message_in_two_parts_has_the_tag_of_the_whole() {
    let blocks = random(5, 20);
    let octets = blocks.as_flattened();
    for kernel in CpuKernel::available() {
        let key = CmacKey::with_kernel(&[7; 16], kernel);
        for head in 0..4 {
            let message = |length: usize| Parts { head: &blocks[..head], tail: &octets[head * 16..][..length] };
            let messages: Vec<Parts<'_>> = (0..150).map(message).collect();
            let mut tags = vec![[0; 16]; 150];
            key.tag_burst(&messages, &mut tags);
            for (length, tag) in tags.iter().enumerate() {
                assert_eq!(*tag, key.tag(&octets[..head * 16 + length]), "{kernel:?} {head} {length}");
            }
        }
    }
}

#[test]
fn a_pair_of_blocks_under_a_key_each_is_encrypted_twice_with_the_second_in_between() {
    for count in 0..=70 {
        let (keys, first, second) = (random(6, count), random(7, count), random(8, count));
        for kernel in CpuKernel::available() {
            let mut found = first.clone();
            cbc_pair_each(kernel, &keys, &mut found, &second);
            for (lane, found) in found.iter().enumerate() {
                let cipher = Aes128::with_kernel(&keys[lane], kernel);
                let between = cipher.encrypt_one(&first[lane]);
                let between = std::array::from_fn(|at| between[at] ^ second[lane][at]);
                assert_eq!(*found, cipher.encrypt_one(&between), "{kernel:?} {count}");
            }
        }
    }
}

#[test]
fn columns_are_the_words_of_each_packet_and_rows_are_those_packets() {
    let octets = random(7, 100);
    for kernel in CpuKernel::available() {
        for count in 0..=LANES {
            for shortest in 0..80 {
                // Lengths from the shortest on, the one after 64 octets too.
                let packets: Vec<&[u8]> =
                    (0..count).map(|p| &octets.as_flattened()[p * 90..][..shortest + p * (p % 3)]).collect();
                let mut words: Columns = [[!0; LANES]; LANES];
                columns(kernel, &packets, &mut words);
                let mut back = [[[!0; 16]; 4]; LANES];
                rows(kernel, &words, &mut back);
                for (p, row) in back.iter().enumerate() {
                    let mut front = packets.get(p).map_or(vec![], |packet| packet.to_vec());
                    front.resize(64, 0);
                    assert_eq!(row.as_flattened(), front, "{kernel:?}, {shortest}");
                    for (w, word) in front.as_chunks().0.iter().enumerate() {
                        assert_eq!(words[w][p], u32::from_ne_bytes(*word), "{kernel:?}, {shortest}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_have_the_tags_of_their_messages_under_derived_keys() {
    let octets = random(11, 16 * 100);
    let rows: [[Block; 4]; LANES] = std::array::from_fn(|lane| *octets[lane * 5..].first_chunk().expect("four blocks"));
    for kernel in CpuKernel::available() {
        let word = |row: usize, word: usize| rows[row].as_flattened().as_chunks().0[word];
        let columns: Columns =
            std::array::from_fn(|index| std::array::from_fn(|row| u32::from_ne_bytes(word(row, index))));
        for own in CpuKernel::available() {
            let keys = [[3; 16], [4; 16]].map(|key| CmacKey::with_kernel(&key, own));
            for (blocks, lanes) in
                (0..=40).map(|blocks| (blocks, 0b1010_1101_0011_0110)).chain([(94, 0), (128, 0xffff)])
            {
                // Lengths differ within the last block.
                let length = |lane: usize| if blocks == 0 { 0 } else { 16 * blocks - (lane * 7 + blocks) % 16 };
                let tails: [&[u8]; LANES] =
                    std::array::from_fn(|lane| &octets.as_flattened()[lane * 1_200 % 9_999..][..length(lane)]);
                let mut tags = [[0; 16]; LANES];
                // The other lanes have the key itself in their rows.
                let other = !lanes & 0x7bbf;
                let both = [(&keys[0], lanes), (&keys[1], other)];
                assert!(tag_rows(kernel, &both, &rows, &tails, &mut tags));
                let mut by_columns = [[0; 16]; LANES];
                assert!(tag_columns(kernel, &both, &columns, &tails, &mut by_columns));
                assert_eq!(by_columns, tags, "{kernel:?} {own:?} {blocks}");
                for lane in 0..LANES {
                    let input = &rows[lane][0];
                    let secret = CmacKey::new(&match (lanes >> lane & 1, other >> lane & 1) {
                        (0, 0) => *input,
                        (1, _) => keys[0].tag(input),
                        _ => keys[1].tag(input),
                    });
                    let message = [rows[lane][1..].as_flattened(), tails[lane]].concat();
                    assert_eq!(tags[lane], secret.tag(&message), "{kernel:?} {own:?} {blocks} {lane}");
                }
            }
        }
        let key = CmacKey::new(&[3; 16]);
        for (place, length) in [(0, 17), (7, 15), (15, 33)] {
            let mut tails = [&octets.as_flattened()[..32]; LANES];
            tails[place] = &octets.as_flattened()[..length];
            let is_even = length == 17;
            let mut tags = [[0; 16]; LANES];
            assert_eq!(tag_rows(kernel, &[(&key, !0)], &rows, &tails, &mut tags), is_even, "{kernel:?}");
            assert_eq!(tag_columns(kernel, &[(&key, !0)], &columns, &tails, &mut tags), is_even, "{kernel:?}");
        }
    }
}
