//! Large allocations have huge pages once a role has asked for them, and small ones do not.
#![allow(clippy::disallowed_methods, reason = "a test of a driver reads files")]

use wayleave_runtime::huge_pages::{Allocator, enable};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Whether the system was asked for huge pages at this place: `hg` among the flags of its mapping (proc_pid_smaps(5)).
fn is_advised(place: *const u8) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let mut is_here = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(begin), Some(end))) = range.map(|(begin, end)| (number(begin), number(end))) {
            is_here = (begin..end).contains(&place.addr());
        }
        if let (true, Some(flags)) = (is_here, line.strip_prefix("VmFlags:")) {
            return flags.split_whitespace().any(|flag| flag == "hg");
        }
    }
    panic!("no mapping at {place:?}");
}

#[test]
fn large_tables_have_huge_pages_once_they_are_asked_for() {
    const LENGTH: usize = 9 << 20;
    let middle = |octets: &[u8]| octets.as_ptr().wrapping_add(octets.len() / 2);
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
        return;
    }
    let before = vec![1u8; LENGTH];
    // The system's allocator may be configured to request them by itself.
    assert!(!is_advised(middle(&before)) || std::env::var_os("GLIBC_TUNABLES").is_some());
    enable();
    let (filled, zeroed, small) = (vec![1u8; LENGTH], vec![0u8; LENGTH], vec![1u8; 1 << 16]);
    let mut grown = filled.clone();
    grown.resize(5 * LENGTH, 2);
    assert_eq!([&filled, &zeroed, &grown, &small].map(|octets| is_advised(middle(octets))), [true, true, true, false]);
    // What they hold is as it was.
    assert!(filled.iter().all(|octet| *octet == 1) && zeroed.iter().all(|octet| *octet == 0));
    assert!(grown[..LENGTH] == filled && grown[LENGTH..].iter().all(|octet| *octet == 2));
}
