//! The published attacks on KC-RSA in the paper's form, where they succeed. The tests of `wayleave-attestation` run
//! the same attacks against the standard chain, where they fail.
//!
//! KCX-03: a sibling's name, a leaked key, cut and paste against the paper's KC-RSA: they succeed.

use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;
use wayleave_papers::kc_x::certificates::{BitVector, Certificates};
use wayleave_papers::kc_x::raw::{Moduli, RawPrivate};
use wayleave_papers::kc_x::rsa::{Attestation, KcRsa, Mode, Previous};
use wayleave_papers::scheme::Scheme;

use crate::paths::{announcement, chain};

/// AS 1 is the origin, AS 2 its neighbour with the next hops 3 and 4; AS 3 and AS 4 also meet at AS 5, and AS 3 has a
/// neighbour 9 far away.
fn scheme(mode: Mode) -> KcRsa {
    let mut scheme = KcRsa::new(&Secret::new([2; 32]), mode);
    for (a, b) in [(1, 2), (2, 3), (2, 4), (3, 4), (3, 5), (4, 5), (3, 9), (4, 7), (7, 8), (8, 9), (9, 10)] {
        scheme.certificates_mut().connect(Asn(a), Asn(b));
    }
    scheme
}

/// A vector that includes `to`. Anyone can write one, since neighbour lists are public.
fn naming(certificates: &Certificates, from: u32, to: u32) -> BitVector {
    let list = certificates.neighbours(Asn(from));
    let mut vector = BitVector::zeros(u16::try_from(list.len()).expect("a short list"));
    vector.set(list.iter().position(|neighbour| *neighbour == Asn(to)).expect("a neighbour"));
    vector
}

/// An adversary's own pair.
fn own_pair(mode: Mode) -> RawPrivate {
    RawPrivate::generate(&Secret::new([0xad; 32]), mode.moduli())
}

/// A hop of the last AS of `path`, signed with `leaked`, a key that the AS before it granted.
fn forge(
    scheme: &KcRsa,
    mode: Mode,
    received: &Attestation,
    leaked: &RawPrivate,
    path: &[u32],
    to: u32,
) -> Attestation {
    let ases: Vec<Asn> = path.iter().map(|n| Asn(*n)).collect();
    let vector = naming(scheme.certificates(), *path.last().expect("not empty"), to);
    Attestation::extend(mode, Previous::Received(received), &ases, vector, &own_pair(mode), leaked).expect("signs")
}

#[test]
fn a_sibling_signs_as_its_sibling() {
    for mode in [Mode::FullDomain, Mode::Literal] {
        let mut scheme = scheme(mode);
        // AS 2 sends one UPDATE to AS 3 and AS 4, and with it one private key to both.
        let received = chain(&mut scheme, &["192.0.2.0/24"], &[1, 2], 4);
        let received = Attestation::decode(&received).expect("decodes");
        let leaked = RawPrivate::decode(&received.granted, Moduli::Any).expect("the granted key");
        // AS 4 signs a hop for AS 3. AS 3's export policy is bypassed, and AS 3 itself drops the route because of the loop.
        let forged = forge(&scheme, mode, &received, &leaked, &[1, 2, 3], 5);
        let verdict = scheme.verify(&announcement(&["192.0.2.0/24"], &[1, 2, 3]), &forged.encode(), Asn(5));
        // It can continue under its own name, since it chose the key that "AS 3" granted.
        let forged = forge(&scheme, mode, &received, &leaked, &[1, 2, 3], 4);
        let onward = forge(&scheme, mode, &forged, &own_pair(mode), &[1, 2, 3, 4], 5);
        let onward = scheme.verify(&announcement(&["192.0.2.0/24"], &[1, 2, 3, 4]), &onward.encode(), Asn(5));
        // A literal chain may fail because of its domain; this one does not.
        assert!(verdict && onward, "{mode:?}");
    }
}

#[test]
fn a_leaked_key_claims_a_shorter_path() {
    let mode = Mode::FullDomain;
    let mut scheme = scheme(mode);
    // The true path from AS 2 to AS 9 has two more ASes.
    let true_path = [1, 2, 4, 7, 8];
    let received = chain(&mut scheme, &["192.0.2.0/24"], &true_path, 9);
    assert!(scheme.verify(&announcement(&["192.0.2.0/24"], &true_path), &received, Asn(9)));
    // AS 9 knows the key that AS 2 granted, since an optional transitive attribute carries it in clear.
    let early = chain(&mut scheme, &["192.0.2.0/24"], &[1, 2], 4);
    let early = Attestation::decode(&early).expect("decodes");
    let leaked = RawPrivate::decode(&early.granted, mode.moduli()).expect("the granted key");
    // AS 3 is between AS 2 and AS 9 and announced nothing.
    let as_3 = forge(&scheme, mode, &early, &leaked, &[1, 2, 3], 9);
    let as_9 = forge(&scheme, mode, &as_3, &own_pair(mode), &[1, 2, 3, 9], 10);
    let shorter = announcement(&["192.0.2.0/24"], &[1, 2, 3, 9]);
    assert!(shorter.path.len() < true_path.len() + 1);
    assert!(scheme.verify(&shorter, &as_9.encode(), Asn(10)));
    // Only neighbour lists prevent a direct link: AS 2 and AS 9 are not neighbours.
    let vector = BitVector::zeros(8);
    let path = [Asn(1), Asn(2), Asn(9)];
    let direct =
        Attestation::extend(mode, Previous::Received(&early), &path, vector, &own_pair(mode), &leaked).expect("signs");
    assert!(!scheme.verify(&announcement(&["192.0.2.0/24"], &[1, 2, 9]), &direct.encode(), Asn(10)));
}

#[test]
fn one_signature_serves_every_prefix() {
    let mut scheme = scheme(Mode::FullDomain);
    let path = [1, 2, 3];
    let received = chain(&mut scheme, &["192.0.2.0/24"], &path, 5);
    // The formulas contain no prefix: until it expires, a signature can be pasted into any other UPDATE.
    assert!(scheme.verify(&announcement(&["203.0.113.0/24"], &path), &received, Asn(5)));
    assert!(scheme.verify(&announcement(&["192.0.2.128/25"], &path), &received, Asn(5)));
}
