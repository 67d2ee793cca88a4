#!/usr/bin/env python3
"""Makes what capabilities.json has from docs/wire/capabilities.md alone, and compares. `--write` writes the file.

No code is shared with the program; the primitives are those of control.py, written out plainly.

    python3 test-data/wire/capabilities.py
"""

import ipaddress
import json
import pathlib
import struct
import sys

from control import cmac, digest, gcm_siv, hkdf, labelled_hash, signed

DIGITS = "0123456789abcdefghijklmnopqrstuv"
ZONE = "keys.example.net"


def base32(octets):
    bits = "".join(f"{octet:08b}" for octet in octets)
    bits += "0" * (-len(bits) % 5)
    return "".join(DIGITS[int(bits[at : at + 5], 2)] for at in range(0, len(bits), 5))


def u24(number):
    return struct.pack(">I", number)[1:]


def capability(terms, epoch):
    waypoint = ipaddress.ip_address(terms["waypoint"]).packed
    kind = terms["interval"] | (0x20 if terms["narrow"] else 0)
    rest = b""
    if "prefix" in terms:
        prefix = ipaddress.ip_network(terms["prefix"])
        kind |= 0x80
        rest = prefix.network_address.packed + bytes([prefix.prefixlen]) + u24(terms["id"])
        if "sub" in terms:
            kind |= 0x40
            rest += bytes([terms["at"]]) + u24(terms["sub"])
    octets = waypoint + u24(terms["principal"]) + bytes([kind]) + struct.pack(">I", epoch) + rest
    return bytes([4 if len(waypoint) == 4 else 6, len(octets)]) + octets


def account(provider, principal, generation):
    return hkdf("wayleave/capability/account/v1", provider, struct.pack(">II", principal, generation), 16)


def master(provider, generation, terms):
    root = {name: terms[name] for name in ("waypoint", "principal", "interval", "narrow")}
    key = cmac(account(provider, terms["principal"], generation), b"wl-cap-master-v1" + capability(root, 0))
    if "prefix" not in terms:
        return key
    if "sub" in terms:
        net = ipaddress.ip_network(terms["prefix"]).supernet(new_prefix=terms["at"])
        first = {**root, "prefix": str(net), "id": terms["id"]}
        key = cmac(key, b"wl-cap-delega-v1" + capability(first, 0))
    return cmac(key, b"wl-cap-delega-v1" + capability(terms, 0))


def lookup(key, terms, epoch):
    handle = cmac(key, b"wl-cap-handle-v1" + capability(terms, epoch))
    return handle, base32(bytes([terms["interval"]]) + struct.pack(">I", epoch) + handle) + "." + ZONE


def answer(key, terms, epoch, plain):
    associated = capability(terms, epoch) + bytes([len(ZONE)]) + ZONE.encode()
    message_key = cmac(key, b"wl-cap-answer-v1" + associated)
    both = hkdf("wayleave/capability/answer/v1", message_key, b"committing-aead", 64)
    return both[32:] + gcm_siv(both[:32], associated, plain)


def request(key, terms, epoch, time, nonce, order):
    handle, _ = lookup(key, terms, epoch)
    covered = bytes([terms["interval"]]) + struct.pack(">I", epoch) + handle + struct.pack(">Q", time) + nonce + order
    return covered + cmac(key, b"wl-cap-reques-v1" + covered)


def acknowledgement(key, signed, status, number, time):
    digest = labelled_hash("wayleave/capability/request/v1", signed[:-16], signed[-16:])
    octets = struct.pack(">BQQ", status, number, time)
    return octets + cmac(key, b"wl-cap-acknow-v1" + digest + octets)


def prefix_octets(text):
    prefix = ipaddress.ip_network(text)
    return bytes([prefix.version, prefix.prefixlen]) + prefix.network_address.packed[: (prefix.prefixlen + 7) // 8]


def orders():
    """What a holder may order, by kind."""
    within = prefix_octets("203.0.113.0/24")
    sub_delegation = u24(3) + b"\x01" + u24(9)
    return [
        b"\x00",
        b"\x01" + sub_delegation,
        b"\x02" + u24(3) + within,
        b"\x03" + u24(3) + within + struct.pack(">Q", 1_900_000_000),
        b"\x04" + sub_delegation,
        b"\x04" + u24(3) + b"\x00" + u24(0),
        b"\x05" + u24(3) + prefix_octets("192.0.2.0/25") + prefix_octets("203.0.113.9/32"),
        b"\x06",
        b"\x07" + struct.pack(">I", 12),
        b"\x08" + u24(3) + b"\x01" + struct.pack(">QQB", 1_250_000, 2_000, 0),
        b"\x08" + u24(3) + b"\x03" + struct.pack(">QQB", 1_250_000, 0, 0) + struct.pack(">Q", 10 << 40),
        b"\x08" + u24(3) + b"\x00",
        b"\x09",
    ]


def report(key, signed, length, plain):
    request = labelled_hash("wayleave/capability/request/v1", signed[:-16], signed[-16:])
    both = hkdf("wayleave/capability/report/v1", cmac(key, b"wl-cap-report-v1" + request), b"committing-aead", 64)
    return both[32:] + gcm_siv(both[:32], request, plain + bytes(length - len(plain)))


def reports():
    """What a holder is told, by the order that asks for it: octets before sealing, and what is sealed."""
    head = struct.pack(">QQ", 77, 1_800_000_003)
    rate = b"\x01" + struct.pack(">QQB", 1_250_000, 0, 0)
    counts = b"".join(number.to_bytes(16, "big") for number in (5, 5_000, 2, 2_000))
    usage = b"\x01" + counts + struct.pack(">QB", 1_799_000_000, 0)
    status = struct.pack(">QQ", 1_700_000_000, 1_900_000_000) + b"\x01" + struct.pack(">II", 90, 1) + rate
    status += b"\x01" + struct.pack(">Q", 10 << 40) + usage
    held = u24(3) + b"\x01" + u24(9) + bytes([4, 24, 203, 0, 113]) + struct.pack(">Q", 1_900_000_000) + b"\x02\x00\x00"
    page = struct.pack(">IIH", 13, 12, 1) + held
    refused = struct.pack(">HQQH", 2, 1_799_990_000, 1_800_000_000, 2) + struct.pack(">BQBQ", 0, 3, 7, 40)
    return {
        "status": (b"\x06", 192, head + b"\x00" + status),
        "delegations": (b"\x07" + struct.pack(">I", 12), 720, head + b"\x01" + page),
        "refusals": (b"\x09", 192, head + b"\x02" + refused),
    }


def case(terms, generation, epoch):
    provider, secret = bytes(range(32)), bytes(range(100, 116))
    key = master(provider, generation, terms)
    handle, name = lookup(key, terms, epoch)
    signed = request(key, terms, epoch, 1_800_000_000, b"\x01\x02\x03\x04", b"\x00")
    return {
        "terms": terms,
        "generation": generation,
        "epoch": epoch,
        "key": key.hex(),
        "handle": handle.hex(),
        "name": name,
        "secret": answer(key, terms, epoch, b"\x00" + secret + bytes(4)).hex(),
        "bound": answer(key, terms, epoch, b"\x04" + secret + bytes(4)).hex(),
        "not_now": answer(key, terms, epoch, b"\x01" + bytes(16) + struct.pack(">I", 90)).hex(),
        "request": signed.hex(),
        "orders": [request(key, terms, epoch, 1_800_000_000, b"\x01\x02\x03\x04", order).hex() for order in orders()],
        "done": acknowledgement(key, signed, 0, 77, 1_800_000_003).hex(),
        **{
            name: report(
                key, request(key, terms, epoch, 1_800_000_000, b"\x01\x02\x03\x04", order), length, plain
            ).hex()
            for name, (order, length, plain) in reports().items()
        },
    }


def terms_octets(terms):
    waypoint = ipaddress.ip_address(terms["waypoint"])
    flags = 1 if terms["narrow"] else 0
    rest = b""
    if "prefix" in terms:
        flags |= 2
        rest = prefix_octets(terms["prefix"]) + u24(terms["id"])
        if "sub" in terms:
            flags |= 4
            rest += bytes([terms["at"]]) + u24(terms["sub"])
    return bytes([waypoint.version]) + waypoint.packed + u24(terms["principal"]) + bytes([terms["interval"], flags]) + rest


def revocation_octets(principal, delegation, interval, epoch):
    flags = 0 if delegation is None else 1
    return u24(principal) + bytes([flags]) + u24(delegation or 0) + u24(0) + bytes([interval]) + struct.pack(">I", epoch)


def account_octets(principal, generation, name):
    return u24(principal) + struct.pack(">IB", generation, len(name)) + name


def snapshot(grants):
    """Signed changes of a writer whose key's seed is 32 octets of 30, and the snapshot after them."""
    writer, second = bytes([30] * 32), 1_800_000_000
    label = "wayleave/capability/change/v1"
    granted = [struct.pack(">QQ", second - 5, second + 5) + terms_octets(terms) for terms in grants]
    # Of an epoch that was over three epochs ago, and of none.
    revoked = [revocation_octets(7, None, 12, (second >> 12) - 3), revocation_octets(7, 3, 0, 0)]
    bodies = [(0, account_octets(9, 5, b"gone")), (1, u24(9)), (0, account_octets(7, 3, b"customer"))]
    bodies += [(2, grant) for grant in granted] + [(4, entry) for entry in revoked]
    changes, last, past = [], bytes(32), []
    for number, (kind, fields) in enumerate(bodies, 1):
        octets = signed(label, struct.pack(">Q", number) + last + struct.pack(">QB", second, kind) + fields, writer)
        last = digest(label, octets)
        changes.append(octets)
        past.append(last)
    piece = b"\x01" + b"\x01" + struct.pack(">II", 9, 5) + b"\x02" + account_octets(7, 3, b"customer")
    piece += b"".join(b"\x03" + grant for grant in granted) + b"\x04" + revoked[1]
    piece += b"".join(b"\x05" + one for one in past)
    number = struct.pack(">Q", len(changes))
    named = labelled_hash("wayleave/capability/snapshot-piece/v1", number, bytes(8), piece)
    fields = number + last + struct.pack(">QHI", second, 1, len(piece)) + named
    head = signed("wayleave/capability/snapshot/v1", fields, writer)
    return {"changes": [octets.hex() for octets in changes], "head": head.hex(), "piece": piece.hex()}


def withdrawals(terms, branch):
    """Signed changes that withdraw: a grant, one with all below it, and a delegation by its holder; that set two rates and end one;
    that set two payers' sources; what billing knows of an account and of a grant; a quota that is set, used up and ended; that limit a delegation, and end that;
    and an account, a grant and its sources in one."""
    writer, second = bytes([30] * 32), 1_800_000_000
    by_holder = terms_octets(terms) + u24(branch["id"]) + b"\x01" + u24(branch["sub"])
    payers = [u24(7) + b"\x00" + struct.pack(">I", 0), u24(7) + b"\x01" + struct.pack(">I", branch["id"])]
    bodies = [(3, terms_octets(branch)), (9, terms_octets(branch)), (10, by_holder)]
    bodies += [(11, payers[0] + struct.pack(">QQB", 1_250_000, 0, 0)), (11, payers[1] + struct.pack(">QQB", 500, 2_000, 1))]
    bodies += [(12, payers[1])]
    bodies += [(13, payers[0] + b"\x01\x02" + prefix_octets("192.0.2.0/25") + prefix_octets("2001:db8::/36")), (13, payers[1] + b"\x00\x00")]
    text = lambda of: bytes([len(of)]) + of
    pairs = struct.pack(">H", 2) + text(b"contract") + text(b"2026-17") + text(b"team") + text(b"")
    bodies += [(14, u24(7) + b"\x00" + text(b"cust-17") + text(b"EUR 0.42/TB") + pairs)]
    bodies += [(14, u24(7) + b"\x01" + terms_octets(branch) + text(b"") + text(b"gold") + struct.pack(">H", 0))]
    bodies += [(15, u24(7) + b"\x01" + struct.pack(">Q", 8 << 40) + b"\x01" + struct.pack(">Q", 10 << 40))]
    bodies += [(15, u24(7) + b"\x00" + b"\x01" + struct.pack(">Q", 10 << 40))]
    bodies += [(17, payers[0] + struct.pack(">Q", 1_798_761_600)), (16, u24(7))]
    limited = b"\x01" + struct.pack(">QQB", 500, 2_000, 1) + b"\x01" + struct.pack(">Q", 10 << 40)
    bodies += [(18, payers[1] + limited), (18, payers[1] + b"\x00\x00"), (17, payers[1] + struct.pack(">Q", 1_798_761_600))]
    granted = struct.pack(">QQ", second - 5, second + 5) + terms_octets(terms)
    several = [b"\x00" + account_octets(7, 3, b"customer"), b"\x02" + granted, b"\x0d" + payers[0] + b"\x00\x01" + prefix_octets("192.0.2.0/25")]
    bodies += [(19, bytes([len(several)]) + b"".join(several))]
    fields = [struct.pack(">Q", 1) + bytes(32) + struct.pack(">QB", second, kind) + body for kind, body in bodies]
    return [signed("wayleave/capability/change/v1", of, writer).hex() for of in fields]


def statement(branch):
    """A statement for one who pays, signed by the writer whose key's seed is 32 octets of 30."""
    month, day = 1_798_761_600, 1_801_440_000
    lines = [
        b"\x00" + b"\x00" + struct.pack(">QQB", month, month + 31 * 86_400, 0) + bytes(8) + struct.pack(">Q", 5) + bytes(8) + struct.pack(">Q", 584),
        b"\x01" + struct.pack(">I", 3) + b"\x01" + struct.pack(">I", 9) + struct.pack(">QQB", day, day + 86_400, 1) + bytes(15) + b"\x01" + b"\x01" + bytes(15),
    ]
    fields = bytes([len(ZONE)]) + ZONE.encode() + struct.pack(">QI", 2, 7) + b"\x01"
    fields += struct.pack(">QQQ", month, day, day + 90_000) + struct.pack(">H", 1) + struct.pack(">HQ", 11, day - 1)
    fields += struct.pack(">I", len(lines)) + b"".join(lines) + struct.pack(">H", 2)
    fields += b"\x00" + b"\x04gold" + struct.pack(">Q", month - 5) + b"\x01" + struct.pack(">Q", month + 5)
    fields += b"\x01" + terms_octets(branch) + b"\x06silver" + struct.pack(">Q", month + 7) + b"\x00"
    fields += struct.pack(">H", 1) + b"\x01" + struct.pack(">QQQI", month, month + 31 * 86_400, 1_250_000, 3)
    return signed("wayleave/capability/statement/v2", fields, bytes([30] * 32)).hex()


def made():
    v4 = {"waypoint": "198.51.100.1", "principal": 7, "interval": 12, "narrow": False}
    v6 = {"waypoint": "2001:db8::1", "principal": 0xFFFFFF, "interval": 4, "narrow": True}
    cases = [
        case(v4, 0, 439_453),
        case(v4, 3, 439_454),
        case(v6, 0, 0x3FFFFFFF),
        case({**v4, "prefix": "203.0.0.0/8", "id": 3}, 0, 439_453),
        case({**v4, "prefix": "203.0.112.0/20", "id": 3, "at": 8, "sub": 9}, 0, 439_453),
        case({**v6, "prefix": "2001:db8::/32", "id": 1}, 1, 112_500_000),
    ]
    branch = {**v4, "prefix": "203.0.112.0/20", "id": 3, "at": 8, "sub": 9}
    taken = snapshot([v4, {**v4, "waypoint": "2001:db8::1", "narrow": True}, branch])
    return {"format": "capabilities; see docs/wire/capabilities.md", "zone": ZONE, "cases": cases, "snapshot": taken,
            "withdrawals": withdrawals(v4, branch), "statement": statement(branch)}


def main():
    path = pathlib.Path(__file__).with_suffix(".json")
    if sys.argv[1:] == ["--write"]:
        path.write_text(json.dumps(made(), indent=1) + "\n")
    differs = json.loads(path.read_text()) != made()
    print("differs" if differs else "all as published")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
