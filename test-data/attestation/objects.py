#!/usr/bin/env python3
"""Makes what objects.json has from docs/attestation.md ("Objects") alone, and compares; `--write` writes the file.

No code is shared with the program. SLH-DSA-SHA2-128s (FIPS 205, deterministic, pure) is written out below; Ed25519, HKDF and the
labelled hash are those of control.py in test-data/wire.

    python3 test-data/attestation/objects.py
"""

import hashlib
import hmac
import json
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "wire"))

from control import ed25519_public, ed25519_sign, hkdf, labelled_hash, u16, u32, u64

# SLH-DSA-SHA2-128s: FIPS 205, table 2.

N, HEIGHT, LAYERS, TREE_HEIGHT, FORS_HEIGHT, FORS_TREES = 16, 63, 7, 9, 12, 14
WOTS_HASH, WOTS_PK, TREE, FORS_TREE, FORS_ROOTS, WOTS_PRF, FORS_PRF = range(7)


class SlhDsa:
    def __init__(self, seed):
        seeds = hkdf("wayleave/attestation/slh-dsa/key/v1", seed, b"", 3 * N)
        self.secret, self.randomiser, self.seed = seeds[:N], seeds[N : 2 * N], seeds[2 * N :]
        # Every hash begins with a block of the public seed (section 11.2.1).
        self.begun = hashlib.sha256(self.seed + bytes(64 - N))
        self.root = self.tree(LAYERS - 1, 0, 0)[0]

    def public(self):
        return self.seed + self.root

    def hash(self, layer, tree, kind, a, b, c, data):
        state = self.begun.copy()
        state.update(struct.pack(">BQBIII", layer, tree, kind, a, b, c) + data)
        return state.digest()[:N]

    def chain(self, layer, tree, leaf, number, value, begin, end):
        for step in range(begin, end):
            value = self.hash(layer, tree, WOTS_HASH, leaf, number, step, value)
        return value

    def wots_secret(self, layer, tree, leaf, number):
        return self.hash(layer, tree, WOTS_PRF, leaf, number, 0, self.secret)

    def leaf(self, layer, tree, leaf):
        ends = [
            self.chain(layer, tree, leaf, number, self.wots_secret(layer, tree, leaf, number), 0, 15)
            for number in range(35)
        ]
        return self.hash(layer, tree, WOTS_PK, leaf, 0, 0, b"".join(ends))

    def wots_sign(self, layer, tree, leaf, message):
        digits = [digit for octet in message for digit in (octet >> 4, octet & 15)]
        checksum = sum(15 - digit for digit in digits)
        digits += [checksum >> 8 & 15, checksum >> 4 & 15, checksum & 15]
        return b"".join(
            self.chain(layer, tree, leaf, number, self.wots_secret(layer, tree, leaf, number), 0, digit)
            for number, digit in enumerate(digits)
        )

    def merkle(self, nodes, index, combine):
        """The root over these leaves, and the path of the one with this index."""
        path, height = [], 0
        while len(nodes) > 1:
            path.append(nodes[index ^ 1])
            height += 1
            nodes = [combine(height, at // 2, nodes[at] + nodes[at + 1]) for at in range(0, len(nodes), 2)]
            index //= 2
        return nodes[0], b"".join(path)

    def tree(self, layer, tree, leaf):
        leaves = [self.leaf(layer, tree, number) for number in range(1 << TREE_HEIGHT)]
        combine = lambda height, index, pair: self.hash(layer, tree, TREE, 0, height, index, pair)
        return self.merkle(leaves, leaf, combine)

    def fors_sign(self, tree, leaf, digest):
        bits, out, roots = int.from_bytes(digest, "big"), [], []
        for number in range(FORS_TREES):
            chosen = bits >> (len(digest) * 8 - (number + 1) * FORS_HEIGHT) & ((1 << FORS_HEIGHT) - 1)
            first = number << FORS_HEIGHT
            secret = lambda at: self.hash(0, tree, FORS_PRF, leaf, 0, first + at, self.secret)
            leaves = [
                self.hash(0, tree, FORS_TREE, leaf, 0, first + at, secret(at)) for at in range(1 << FORS_HEIGHT)
            ]
            combine = lambda height, index, pair: self.hash(
                0, tree, FORS_TREE, leaf, height, (first >> height) + index, pair
            )
            root, path = self.merkle(leaves, chosen, combine)
            out.append(secret(chosen) + path)
            roots.append(root)
        return b"".join(out), self.hash(0, tree, FORS_ROOTS, leaf, 0, 0, b"".join(roots))

    def sign(self, message):
        message = b"\x00\x00" + message  # pure, with an empty context (algorithm 22)
        r = hmac.new(self.randomiser, self.seed + message, hashlib.sha256).digest()[:N]
        inner = hashlib.sha256(r + self.seed + self.root + message).digest()
        digest = hashlib.sha256(r + self.seed + inner + bytes(4)).digest()[:30]
        tree = int.from_bytes(digest[21:28], "big") & ((1 << (HEIGHT - TREE_HEIGHT)) - 1)
        leaf = int.from_bytes(digest[28:], "big") & ((1 << TREE_HEIGHT) - 1)
        signature, value = self.fors_sign(tree, leaf, digest[:21])
        signature = r + signature
        for layer in range(LAYERS):
            root, path = self.tree(layer, tree, leaf)
            signature += self.wots_sign(layer, tree, leaf, value) + path
            value, leaf, tree = root, tree & ((1 << TREE_HEIGHT) - 1), tree >> TREE_HEIGHT
        assert value == self.root and len(signature) == 7_856
        return signature


# Objects

ANCHOR, IDENTITY, HOPS = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32
ATTEST_ROLE, IDENTITY_ROLE, ED25519_SUITE = 1, 2, 1
AS = 64_496
BEGIN, END = 1_700_000_000, 1_900_000_000


def header(version, kind, asn, sequence):
    return bytes([version, kind]) + u32(asn) + u64(sequence) + u64(BEGIN) + u64(END)


def keys(entries):
    entries = sorted(entries)
    return u16(len(entries)) + b"".join(
        bytes([role, suite]) + u16(len(public)) + public for role, suite, public in entries
    )


def prefix4(octets, length, longest):
    return b"\x01" + bytes([length, longest]) + octets


def signed(octets, classical, post_quantum=None):
    label = b"wayleave/pki/object/v1"
    message = u16(len(label)) + label + octets
    out = octets + ed25519_sign(classical, message)
    return out + post_quantum.sign(message) if octets[0] == 2 else out


def listed(octets):
    """The entry of an object in a manifest: kind, AS and sequence stand where the object has them."""
    return octets[1:14] + octets[22:30] + labelled_hash("wayleave/pki/object-hash/v1", octets)


def manifest(version, publisher, number, objects):
    entries = sorted(map(listed, objects))
    return header(version, 4, publisher, number) + u32(len(entries)) + b"".join(entries)


def main():
    anchor = SlhDsa(ANCHOR)
    added = keys([(ATTEST_ROLE, ED25519_SUITE, ed25519_public(bytes([4]) * 32))])
    owned = [
        (IDENTITY_ROLE, ED25519_SUITE, ed25519_public(IDENTITY)),
        (ATTEST_ROLE, ED25519_SUITE, ed25519_public(HOPS)),
    ]
    record = b"\x03" + u64(BEGIN + 86_400) + u16(2) + prefix4(bytes([192, 0, 2]), 24, 26)
    record += b"\x02" + bytes([32, 48]) + bytes.fromhex("20010db8")
    made = {"anchor": ed25519_public(ANCHOR).hex(), "anchor-post-quantum": anchor.public().hex(), "objects": []}
    for version in (1, 2):
        objects = [
            ("profile", signed(header(version, 1, AS, 7) + keys(owned), ANCHOR, anchor)),
            ("record", signed(header(version, 2, AS, 8) + record, ANCHOR, anchor)),
        ]
        own = [("addition", signed(header(1, 3, AS, 9) + added, IDENTITY))]
        lists = [
            ("manifest", signed(manifest(version, 0, 10, [octets for _, octets in objects]), ANCHOR, anchor)),
            ("manifest of the AS", signed(manifest(1, AS, 11, [octets for _, octets in own]), IDENTITY)),
        ]
        for kind, octets in objects + (own if version == 1 else []) + (lists if version == 1 else lists[:1]):
            made["objects"].append({"kind": kind, "version": version, "octets": octets.hex()})
    path = pathlib.Path(__file__).parent / "objects.json"
    if "--write" in sys.argv:
        path.write_text(json.dumps(made, indent=1) + "\n")
    failed = [name for name, value in json.loads(path.read_text()).items() if made[name] != value]
    print("differs: " + ", ".join(failed) if failed else "all as published")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
