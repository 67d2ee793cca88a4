#!/usr/bin/env python3
"""Makes what control.json has from docs/wire/control.md and docs/wire/icing.md alone, and compares.

No code is shared with the program: Ed25519 (RFC 8032), X25519 (RFC 7748), HKDF (RFC 5869), AES, AES-CMAC (RFC 4493) and
AES-256-GCM-SIV (RFC 8452) are written out below, slowly and plainly.

    python3 test-data/wire/control.py
"""

import base64
import hashlib
import hmac
import json
import pathlib
import struct
import sys

# Ed25519

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def point_add(a, b):
    (x1, y1), (x2, y2) = a, b
    dxy = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + dxy, P - 2, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - dxy, P - 2, P)
    return x % P, y % P


def base_point():
    y = 4 * pow(5, P - 2, P) % P
    xx = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    return (P - x if x & 1 else x), y


BASE = base_point()


def point_mul(n, point=BASE):
    result = (0, 1)
    while n:
        if n & 1:
            result = point_add(result, point)
        point, n = point_add(point, point), n >> 1
    return result


def compress(point):
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def expand(seed):
    h = hashlib.sha512(seed).digest()
    a = int.from_bytes(h[:32], "little") & ((1 << 254) - 8) | 1 << 254
    return a, h[32:]


def ed25519_public(seed):
    return compress(point_mul(expand(seed)[0]))


def ed25519_sign(seed, message):
    a, prefix = expand(seed)
    public = compress(point_mul(a))
    r = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % L
    R = compress(point_mul(r))
    k = int.from_bytes(hashlib.sha512(R + public + message).digest(), "little") % L
    return R + ((r + k * a) % L).to_bytes(32, "little")


# X25519


def x25519(k, u):
    k = int.from_bytes(k, "little") & ((1 << 254) - 8) | 1 << 254
    x1, x2, z2, x3, z3 = u, 1, 0, u, 1
    for t in reversed(range(255)):
        bit = k >> t & 1
        if bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        aa, bb = a * a % P, b * b % P
        e = aa - bb
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
        if bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def x25519_public(seed):
    return x25519(seed, 9)


# Hashes and keys


def labelled_hash(label, *parts):
    data = b"".join(struct.pack(">Q", len(part)) + part for part in (label.encode(), *parts))
    return hashlib.sha256(data).digest()


def hkdf(salt, secret, info, length):
    prk = hmac.new(salt.encode(), secret, hashlib.sha256).digest()
    out, block = b"", b""
    for number in range(1, 256):
        if len(out) >= length:
            break
        block = hmac.new(prk, block + info + bytes([number]), hashlib.sha256).digest()
        out += block
    return out[:length]


# AES


def make_sbox():
    exp, x = [], 1
    for _ in range(255):
        exp.append(x)
        x ^= x << 1
        x = (x ^ 0x11B) & 0xFF if x & 0x100 else x
    log = {value: index for index, value in enumerate(exp)}
    sbox = []
    for value in range(256):
        inverse = exp[-log[value] % 255] if value else 0
        out = 0x63
        for shift in range(5):
            out ^= (inverse << shift | inverse >> (8 - shift)) & 0xFF
        sbox.append(out)
    return sbox


SBOX = make_sbox()


def double(value):
    return (value << 1 ^ (0x11B if value & 0x80 else 0)) & 0xFF


def aes(key, block):
    count = len(key) // 4
    words = [list(key[4 * i : 4 * i + 4]) for i in range(count)]
    rcon = 1
    while len(words) < 4 * (count + 7):
        word = list(words[-1])
        if len(words) % count == 0:
            word = [SBOX[octet] for octet in word[1:] + word[:1]]
            word[0] ^= rcon
            rcon = double(rcon)
        elif count > 6 and len(words) % count == 4:
            word = [SBOX[octet] for octet in word]
        words.append([a ^ b for a, b in zip(word, words[-count])])
    keys = [sum(words[4 * i : 4 * i + 4], []) for i in range(count + 7)]
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number in range(1, count + 7):
        state = [SBOX[state[(5 * i) % 16]] for i in range(16)]
        if number < count + 6:
            mixed = []
            for c in range(0, 16, 4):
                column = state[c : c + 4]
                for i in range(4):
                    a, b, d, e = (column[(i + j) % 4] for j in range(4))
                    mixed.append(double(a) ^ double(b) ^ b ^ d ^ e)
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[number])]
    return bytes(state)


def xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b))


def cmac(key, message):
    def shifted(block):
        number = int.from_bytes(block, "big") << 1
        return ((number ^ 0x87 if number >> 128 else number) & (1 << 128) - 1).to_bytes(16, "big")

    first = shifted(aes(key, bytes(16)))
    blocks = [message[at : at + 16] for at in range(0, len(message), 16)] or [b""]
    last = blocks.pop()
    if len(last) == 16:
        last = xor(last, first)
    else:
        last = xor(last + b"\x80" + bytes(15 - len(last)), shifted(first))
    state = bytes(16)
    for block in [*blocks, last]:
        state = aes(key, xor(state, block))
    return state


def polyval(key, data):
    modulus = 1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1

    def multiply(a, b):
        out = 0
        while b:
            out ^= a if b & 1 else 0
            a, b = a << 1, b >> 1
        for bit in reversed(range(128, out.bit_length())):
            if out >> bit & 1:
                out ^= modulus << bit - 128
        return out

    inverse = 1 << 127 | 1 << 124 | 1 << 121 | 1 << 114 | 1
    factor = multiply(int.from_bytes(key, "little"), inverse)
    state = 0
    for at in range(0, len(data), 16):
        state = multiply(state ^ int.from_bytes(data[at : at + 16], "little"), factor)
    return state.to_bytes(16, "little")


def gcm_siv(key, associated, plain):
    """Under a nonce of zeros."""
    nonce = bytes(12)
    parts = [aes(key, struct.pack("<I", number) + nonce)[:8] for number in range(6)]
    authentication, encryption = b"".join(parts[:2]), b"".join(parts[2:])
    padded = [data + bytes(-len(data) % 16) for data in (associated, plain)]
    lengths = struct.pack("<QQ", 8 * len(associated), 8 * len(plain))
    digest = bytearray(polyval(authentication, b"".join(padded) + lengths))
    digest[15] &= 0x7F
    tag = aes(encryption, bytes(digest))
    counter = bytearray(tag)
    counter[15] |= 0x80
    cipher = b""
    for at in range(0, len(plain), 16):
        cipher += xor(plain[at : at + 16], aes(encryption, bytes(counter)))
        counter[:4] = struct.pack("<I", (struct.unpack("<I", counter[:4])[0] + 1) % 2**32)
    return cipher + tag


# The nodes of the vectors

NOW = 1_800_000_000
DAY = 86_400


def seed(kind, number):
    return struct.pack(">I", number) + bytes([kind]) * 28


def identity(node):
    return ed25519_public(seed(1, node))


def node_seed(node, epoch):
    return hkdf("wayleave/icing/node/v1", seed(3, node), struct.pack(">I", epoch), 32)


def node_id(node, epoch=20_000):
    return x25519_public(node_seed(node, epoch))


REALM = ed25519_public(seed(2, 0))


def u16(number):
    return struct.pack(">H", number)


def u32(number):
    return struct.pack(">I", number)


def u64(number):
    return struct.pack(">Q", number)


def items(entries):
    entries = list(entries)
    return u16(len(entries)) + b"".join(entries)


def text(characters):
    return bytes([len(characters)]) + characters.encode()


def blob(octets):
    return u32(len(octets)) + octets


def server(node):
    return identity(node) + text(f"192.0.2.{node % 250}:7000")


def sign(label, message, key):
    return ed25519_sign(key, labelled_hash(label, message))


def signed(label, fields, key, version=1):
    body = bytes([version]) + fields
    return body + sign(label, body, key)


def digest(label, octets):
    return labelled_hash("wayleave/control/object/v1", label.encode(), octets)


def grants(node):
    prefix = bytes([4, 24, 10, node // 256, node % 256])
    return u16(3) + items([text(f"n{node}")]) + items([prefix])


def epoch_key(node, later):
    begin = NOW - 40_000 + later * DAY
    fields = u32(20_000 + later) + u32(begin) + u32(begin + 90_000) + node_id(node, 20_000 + later)
    return fields + sign("wayleave/icing/epoch-key/v1", fields, seed(1, node))


def membership(node):
    fields = REALM + u64(1) + identity(node) + x25519_public(seed(4, node)) + grants(node)
    return signed("wayleave/control/membership/v1", fields + u64(NOW - 100) + u64(NOW + 30 * DAY), seed(2, 0))


def list_key(generation):
    fields = REALM + u64(generation) + ed25519_public(seed(7, 1)) + u64(NOW - 10) + u64(NOW + 1_000)
    return signed("wayleave/control/list-key/v1", fields, seed(2, 0))


def revocations(number, nodes, generation=0, by=None):
    fields = REALM + u64(generation) + u64(number) + u64(NOW) + u64(NOW + 600)
    fields += (b"\x01" + blob(by) if by else b"\x00") + items(sorted(map(identity, nodes)))
    return signed("wayleave/control/revocations/v1", fields, seed(7, 1) if by else seed(2, 0), version=2)


def rolls():
    fields = REALM + bytes([1]) + ed25519_public(seed(2, 1)) + u64(NOW - 100) + u64(NOW) + u64(NOW + 1_000)
    return items([blob(signed("wayleave/control/key-roll/v1", fields, seed(2, 0)))])


def membership_of_next_key():
    fields = REALM + u64(2) + identity(1) + x25519_public(seed(4, 1)) + grants(1)
    fields += u64(NOW) + u64(NOW + 30 * DAY) + rolls()
    return signed("wayleave/control/membership/v1", fields, seed(2, 1), version=2)


def revocations_of_next_key():
    by = REALM + u64(3) + ed25519_public(seed(7, 1)) + u64(NOW) + u64(NOW + 1_000) + items([identity(3)]) + rolls()
    by = signed("wayleave/control/list-key/v1", by, seed(2, 1), version=2)
    fields = REALM + u64(3) + u64(NOW * 1_000_000) + u64(NOW) + u64(NOW + 600) + b"\x01" + blob(by)
    fields += items([node + u64(NOW + 30 * DAY) for node in sorted(map(identity, [1, 2]))]) + rolls()
    return signed("wayleave/control/revocations/v1", fields, seed(7, 1), version=3)


def revocations_version_1(number, nodes):
    fields = REALM + u64(number) + u64(NOW) + items(sorted(map(identity, nodes)))
    return signed("wayleave/control/revocations/v1", fields, seed(2, 0))


def exchange():
    """The seed of the invitation's X25519 key."""
    return hkdf("wayleave/control/join-exchange/v1", seed(2, 0), ed25519_public(seed(9, 7)), 32)


def invitation():
    fields = REALM + ed25519_public(seed(9, 7)) + x25519_public(exchange()) + grants(7) + u64(NOW) + u64(NOW + 3_600) + u64(DAY)
    return signed("wayleave/control/invitation/v2", fields + items([server(900), server(901)]), seed(2, 0))


def join():
    noise = x25519_public(seed(4, 7))
    claim = REALM + ed25519_public(seed(9, 7)) + identity(7) + noise
    possession = sign("wayleave/control/join-identity/v1", claim, seed(1, 7))
    shared = x25519(seed(4, 7), int.from_bytes(x25519_public(exchange()), "little"))
    assert shared == x25519(exchange(), int.from_bytes(noise, "little"))
    proof = hkdf("wayleave/control/join-noise/v1", shared, claim, 32)
    fields = blob(invitation()) + identity(7) + noise + possession + proof
    return signed("wayleave/control/join/v2", fields, seed(9, 7))


def advert(node, neighbours, unreachable=None, endpoint=None, extensions=()):
    """By `unreachable` nobody begins a session to it; `endpoint` is that of an open node."""

    def link(neighbour, relationship):
        endpoint = b"\x00" if neighbour == unreachable else b"\x01" + text(f"198.51.100.{node % 250}:49254")
        return identity(neighbour) + bytes([relationship, 1]) + u16(neighbour + 1) + endpoint

    fields = REALM + identity(node) + u64(1) + u64(NOW) + bytes([30]) + u16(1_400 + node % 50)
    fields += items([epoch_key(node, 0), epoch_key(node, 1)])
    fields += items(sorted(link(*neighbour) for neighbour in neighbours))
    fields += items([u32(0x40000000) + b"\x01" + text("transit"), u32(0x80000000) + b"\x02" + text("delivery")])
    fields += b"\x01" + server(1_000 + node)
    fields += b"\x01" + text(endpoint) if endpoint else b"\x00"
    fields += items([u16(kind) + blob(value) for kind, value in extensions])
    return signed("wayleave/control/advert/v2", fields, seed(1, node), version=2)


HOPS = [(1, 0x40000000), (3, 0x40000000), (4, 0x80000000)]
EXPIRY = NOW + 600


def consent_request(version=1):
    fields = REALM + identity(1_001) + identity(0) + bytes([7]) * 16 + u64(NOW) + node_id(0)
    fields += items(node_id(node) + u32(tag) for node, tag in HOPS)
    fields += b"\x01" + u32(EXPIRY) + epoch_key(0, 0)
    return signed("wayleave/control/consent-request/v1", fields, seed(1, 0), version=version)


def proof_of_consent():
    path = b"Ip1h\x01\x04" + node_id(0) + b"".join(node_id(node) + u32(tag) for node, tag in HOPS)
    key = cmac(bytes([1 ^ 0x5A]) * 16, b"It1r" + u32(EXPIRY >> 12))
    for level in range(1, 33):
        bit = 0x40000000 >> (32 - level) & 1
        key = aes(key, b"It1s" + bytes([level, bit]) + bytes(10))
    return cmac(key, b"Ic1p" + bytes([1, 0, 0, 0]) + u32(EXPIRY) + hashlib.sha256(path).digest())


def consent_answer():
    request = digest("wayleave/control/consent-request/v1", consent_request())
    ephemeral = x25519_public(seed(5, 1))
    context = ephemeral + node_id(0) + REALM + identity(1_001) + request + u32(EXPIRY)
    shared = x25519(seed(5, 1), int.from_bytes(node_id(0), "little"))
    assert shared == x25519(node_seed(0, 20_000), int.from_bytes(ephemeral, "little"))
    key = hkdf("wayleave/control/consent-key/v1", shared, context, 16)
    both = hkdf("wayleave/control/consent-seal/v1", key, b"committing-aead", 64)
    sealed = both[32:] + gcm_siv(both[:32], context, proof_of_consent())
    fields = REALM + identity(1_001) + request + u32(EXPIRY) + ephemeral + sealed
    return signed("wayleave/control/consent-answer/v1", fields, seed(1, 1_001))


def frames():
    """Those of all types; None for the long ones, whose parts are compared above."""
    steps = items(map(identity, [0, 1, 3])) + b"\x01\x01"
    list_of_two = revocations(5, [1, 2])
    node_0 = advert(0, [(1, 1), (2, 1)])
    records = [b"\x03" + blob(list_of_two), b"\x01" + blob(membership(0)), b"\x02" + blob(node_0)]
    bodies = [
        (1, blob(membership(0)) + blob(node_0)),
        (2, u64(77)),
        (3, blob(list_of_two)),
        (4, u64(1) + u64(2)),
        (5, u64(1) + u64(2) + b"\x01" + items(map(blob, records))),
        (6, b"\x01" + text("n4") + items([steps])),
        (6, b"\x02" + identity(4) + items([steps])),
        (6, b"\x03\x04" + bytes([10, 0, 4, 1]) + items([steps])),
        (6, b"\x03\x06\xfd" + bytes(14) + b"\x01" + items([steps])),
        (7, items([])),
        (8, None),
        (9, b"\x11\x00" + u64(0)),
        (9, b"\x65\x00" + u64(9)),
        (9, b"\x66\x01" + identity(3) + u64(0)),
        (10, blob(membership(0)) + blob(consent_request())),
        (11, blob(consent_answer())),
        (12, blob(join())),
        (13, b"\x00" + blob(membership(0))),
        (13, b"\x06"),
        (14, u64(3)),
        (15, bytes([9]) * 32),
        (16, blob(invitation())),
        (17, b""),
        (18, b"\x00"),
        (18, b"\x01" + blob(revocations(NOW * 1_000_000, [1, 2], 3, list_key(3)))),
        (19, items([u32(439_453) + bytes([1 ^ 0x5A]) * 16, u32(439_460) + bytes([2 ^ 0x5A]) * 16])),
        (20, b""),
    ]
    # The path by 0, 1, 3 and 4: interfaces are the neighbour's number and one.
    hops = []
    nodes = [(0, 0), *HOPS]
    for at, (node, tag) in enumerate(nodes):
        before = nodes[at - 1][0] + 1 if at else 0
        behind = nodes[at + 1][0] + 1 if at + 1 < len(nodes) else 0
        hops.append(identity(node) + node_id(node) + u32(tag) + u16(before) + u16(behind))
    label = b"\x02" + text("green") + identity(700)
    path = b"\x03" + u64(NOW + 1_800) + u16(1_400) + items(hops) + items([label])
    bodies[10] = (8, b"\x00" + items([path]) + items(map(blob, records)))
    return [bytes([1, kind]) + u32(number) + body for number, (kind, body) in enumerate(bodies, 1)]


def main():
    published = json.loads((pathlib.Path(__file__).parent / "control.json").read_text())
    made = {
        "membership": membership(1),
        "list-key": list_key(3),
        "revocations": revocations(5, [1, 2]),
        "revocations-by-list-key": revocations(NOW * 1_000_000, [1, 2], 3, list_key(3)),
        "revocations-version-1": revocations_version_1(NOW, [1, 2]),
        "membership-of-next-key": membership_of_next_key(),
        "revocations-of-next-key": revocations_of_next_key(),
        "invitation": invitation(),
        "join": join(),
        "advert": advert(1, [(0, 3), (3, 1), (5, 2)], 5, "open.example.net:49252", [(7, b"later")]),
        "advert-with-extensions": advert(
            1, [(0, 3), (3, 1), (5, 2)], extensions=[(1, b"tls.example.net:443"), (2, b"\x01\x02")]
        ),
        "consent-request": consent_request(),
        "consent-request-sealed": consent_request(2),
        "consent-answer": consent_answer(),
    }
    failed = []
    for entry in published["objects"]:
        octets = made.pop(entry["kind"])
        if octets.hex() != entry["octets"] or digest(entry["label"], octets).hex() != entry["digest"]:
            failed.append(entry["kind"])
    failed += list(made)
    token = base64.urlsafe_b64encode(seed(9, 7) + invitation()).decode().rstrip("=")
    if published["token"] != "wayleave-join-v2." + token:
        failed.append("token")
    if published["consent"]["proof"] != proof_of_consent().hex():
        failed.append("proof of consent")
    for number, (octets, frame) in enumerate(zip(frames(), published["frames"], strict=True), 1):
        if octets.hex() != frame:
            failed.append(f"frame {number}")
    print("differs: " + ", ".join(failed) if failed else "all as published")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
