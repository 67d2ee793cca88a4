use super::*;

fn octets(count: usize) -> Vec<u8> {
    (0..count as u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}

#[test]
fn every_kernel_finds_zeros_fills_joins_and_halves_alike() {
    let octets = octets(1_024);
    for kernel in CpuKernel::available() {
        for mask in (0..=u16::MAX).step_by(7).chain([u16::MAX]) {
            let lanes: [u32; LANES] = std::array::from_fn(|lane| u32::from(mask >> lane & 1) << (lane + 3));
            assert_eq!(zeros(kernel, &lanes), !mask, "{kernel:?}");
            let mut filled = [5; LANES];
            fill(kernel, mask, 0xdead_beef, &mut filled);
            for (lane, word) in filled.into_iter().enumerate() {
                assert_eq!(word, if mask >> lane & 1 != 0 { 0xdead_beef } else { 5 }, "{kernel:?}");
            }
        }
        let half = |at: usize| u64::from_ne_bytes(*octets[8 * at..].first_chunk().expect("there"));
        let (first, second) =
            (std::array::from_fn(|lane| half(3 * lane)), std::array::from_fn(|lane| half(100 - lane)));
        let mut blocks = [[0; 16]; LANES];
        join(kernel, &first, &second, &mut blocks);
        for (lane, block) in blocks.iter().enumerate() {
            assert_eq!(block[..8], first[lane].to_ne_bytes(), "{kernel:?} {lane}");
            assert_eq!(block[8..], second[lane].to_ne_bytes(), "{kernel:?} {lane}");
        }
        assert_eq!(first_halves(kernel, &blocks), first, "{kernel:?}");
    }
}

#[test]
fn vector_code_gives_the_same_on_every_kernel() {
    struct Sum<'a>(&'a [u32]);
    impl VectorCode for Sum<'_> {
        type Output = u32;
        #[inline(always)]
        fn run(self) -> u32 {
            self.0.iter().fold(0, |sum, word| sum.wrapping_add(word.swap_bytes()))
        }
    }
    let words: Vec<u32> = (0..1_000u32).map(|word| word.wrapping_mul(0x9e37_79b9)).collect();
    let sums: Vec<u32> = CpuKernel::available().map(|kernel| Sum(&words).run_on(kernel)).collect();
    assert!(sums.iter().all(|sum| *sum == sums[0]));
}
