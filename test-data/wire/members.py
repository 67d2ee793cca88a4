#!/usr/bin/env python3
"""Makes what members.json has from docs/protocol.md ("Who is a member") alone, and compares; `--write` writes the file.

No code is shared with the program; Ed25519 (RFC 8032) and the labelled hash are those of control.py, beside this file.

    python3 test-data/wire/members.py
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True

from control import ed25519_public, ed25519_sign, labelled_hash, u32, u64

EXCHANGE = b"test-ix"
# Seeds of 32 equal octets: the operators' keys, and party 2's operator's next one.
ONE, TWO, TWO_NEXT = 200, 201, 202


def seed(number):
    return bytes([number]) * 32


def public(number):
    return ed25519_public(seed(number))


def sign(number, label, message):
    return ed25519_sign(seed(number), labelled_hash("wayleave/directory/" + label + "/v2", message))


def counted(octets):
    return u32(len(octets)) + octets


def items(entries):
    return u32(len(entries)) + b"".join(entries)


def address4(number):
    return b"\x04" + bytes([192, 0, 2, number + 1])


def address6(number):
    return b"\x06" + bytes.fromhex("20010db8ffff") + bytes(8) + bytes([0, number + 1])


def claim(number, asn, name, serial=1, attest=(), v6=True):
    addresses = [address4(number)] + ([address6(number)] if v6 else [])
    keys = [bytes([suite]) + bytes([key]) * 32 for suite, key in attest]
    return u64(serial) + u32(asn) + counted(name) + bytes([number]) * 32 + public(number) + items(keys) + items(addresses)


def signed_claim(number, of, label="claim"):
    return sign(number, label, counted(EXCHANGE) + of)


def join(number, of, standing, limit):
    return b"\x01" + of + signed_claim(number, of) + standing + u32(limit)


def asns(*numbers):
    return len(numbers).to_bytes(2, "big") + b"".join(u32(number) for number in numbers)


def profile():
    lengths, hops, refused = bytes([8, 24, 12, 48]), bytes([32]), b"\x01\x01\x00\x01"
    blackhole = (
        b"\x01" + bytes([192, 0, 2, 66])
        + b"\x01" + bytes.fromhex("20010db8ffff") + bytes(9) + b"\x66"
        + b"\x01" + asns(64_497, 64_498)
    )
    return lengths + hops + refused + asns(174, 3356) + b"\x01" + blackhole


def step(number, previous, changes):
    return u64(number) + previous + items(changes)


def main():
    operators = [public(ONE), public(TWO)]
    origin = labelled_hash("wayleave/directory/origin/v2", EXCHANGE, *operators)
    first = claim(1, 64_497, b"alpha", attest=[(1, 91), (3, 92)])
    second = claim(2, 64_498, b"beta", v6=False)
    further = claim(3, 64_497, b"alpha 2")
    held = claim(4, 64_498, b"beta 2")
    renewed = claim(5, 64_498, b"beta", serial=2)
    endorsed = b"\x01" + u32(0) + signed_claim(1, further, "further-slot")
    of_steps = [
        lambda number, previous: [join(1, first, b"\x00", 100), join(2, second, b"\x00", 0)],
        lambda number, previous: [join(3, further, endorsed, 50), join(4, held, b"\x02", 50)],
        lambda number, previous: [
            b"\x02" + u32(1) + renewed + signed_claim(5, renewed) + signed_claim(2, renewed, "renewal"),
            b"\x03" + u32(0) + items([address4(9), address6(1)]) + u32(200),
            b"\x04" + u32(3) + u32(1) + signed_claim(5, held, "further-slot"),
            b"\x07" + profile(),
        ],
        lambda number, previous: [
            b"\x05" + u32(2),
            b"\x06\x02"
            + public(TWO_NEXT)
            + sign(TWO_NEXT, "operator", u64(number) + previous + b"\x02" + public(TWO_NEXT)),
        ],
    ]
    heads, steps = [origin], []
    for number, changes in enumerate(of_steps, 1):
        octets = step(number, heads[-1], changes(number, heads[-1]))
        heads.append(labelled_hash("wayleave/directory/step/v2", octets))
        steps.append(octets + sign(ONE, "step", octets) + sign(TWO, "step", octets))
    fields = u64(4) + u32(0) + u32(64_497) + b"\x01"
    removal = fields + sign(ONE, "removal", origin + fields)
    directory = b"\x02" + counted(EXCHANGE) + b"".join(operators) + items(steps) + items([removal])
    # Four steps, a slot that left by a step, and a removal that no step confirms.
    in_force = labelled_hash("wayleave/directory/in-force/v2", heads[-1] + items([u32(0)]))
    request = (
        b"\x02" + counted(EXCHANGE) + further + signed_claim(3, further)
        + b"\x02" + public(1) + signed_claim(1, further, "further-slot")
    )
    of_next = step(5, heads[-1], [b"\x05" + u32(0)])
    proposal = b"\x02\x02" + sign(TWO_NEXT, "step", of_next) + of_next
    made = {
        "directory": directory.hex(),
        "heads": [head.hex() for head in heads],
        "in-force": {"number": 6, "hash": in_force.hex()},
        "removal": removal.hex(),
        "request": request.hex(),
        "proposal": proposal.hex(),
    }
    path = pathlib.Path(__file__).parent / "members.json"
    if "--write" in sys.argv:
        path.write_text(json.dumps(made, indent=1) + "\n")
    published = json.loads(path.read_text())
    failed = [name for name in made | published if made.get(name) != published.get(name)]
    print("differs: " + ", ".join(failed) if failed else "all as published")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
