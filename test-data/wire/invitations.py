#!/usr/bin/env python3
"""Makes what invitations.json has from docs/wire/capabilities.md alone, and compares. `--write` writes the file.

No code is shared with the program; the primitives are those of control.py, written out plainly.

    python3 test-data/wire/invitations.py
"""

import base64
import ipaddress
import json
import pathlib
import struct
import sys

from control import ed25519_public, ed25519_sign, labelled_hash

URL = "https://keys.example.net:8495"


def u24(number):
    return struct.pack(">I", number)[1:]


def u64(number):
    return struct.pack(">Q", number)


def text(characters):
    return bytes([len(characters)]) + characters.encode()


def address(octets):
    return bytes([4 if len(octets) == 4 else 6]) + octets


def terms(of):
    """What a capability says, as in a line from the waypoint on."""
    out = address(ipaddress.ip_address(of["waypoint"]).packed) + u24(of["principal"]) + bytes([of["interval"]])
    flags = (1 if of["narrow"] else 0) | (2 if "prefix" in of else 0)
    out += bytes([flags])
    if "prefix" in of:
        net = ipaddress.ip_network(of["prefix"])
        octets = net.network_address.packed
        length = net.prefixlen
        out += bytes([4 if len(octets) == 4 else 6, length]) + octets[: (length + 7) // 8] + u24(of["id"])
    return out


def sign(seed, label, message):
    return ed25519_sign(seed, labelled_hash(label, message))


def change(writer, number, previous, issued, kind, fields):
    body = bytes([1]) + u64(number) + previous + u64(issued) + bytes([kind]) + fields
    return body + sign(writer, "wayleave/capability/change/v1", body)


def digest(octets):
    return labelled_hash("wayleave/control/object/v1", b"wayleave/capability/change/v1", octets)


def make():
    writer, secret, holder = bytes([30]) * 32, bytes(range(32)), bytes([40]) * 32
    pin, ident = bytes(range(100, 132)), bytes(range(1, 9))
    expiry, issued, time = 1_800_600_000, 1_800_000_000, 1_800_000_100
    body = bytes([1]) + text(URL) + pin + ident + secret + u64(expiry)
    check = labelled_hash("wayleave/capability/invitation/line/v1", body)[:4]
    line = "wayleave-invitation-" + base64.urlsafe_b64encode(body + check).decode().rstrip("=")
    own = ed25519_public(holder)
    covered = ident + own + u64(time)
    granted = [
        {"waypoint": "198.51.100.1", "principal": 7, "interval": 12, "narrow": False},
        {"waypoint": "2001:db8::1", "principal": 7, "interval": 16, "narrow": True, "prefix": "2001:db8:8000::/33", "id": 3},
    ]
    fields = ident + ed25519_public(secret) + text("customer") + u64(2_592_000) + u64(expiry)
    fields += struct.pack(">H", len(granted)) + b"".join(terms(of) for of in granted)
    invite = change(writer, 1, bytes(32), issued, 6, fields)
    redeem = change(writer, 2, digest(invite), time, 7, ident + own)
    withdraw = change(writer, 2, digest(invite), time, 8, ident)
    return {
        "line": line,
        "url": URL,
        "pin": pin.hex(),
        "id": ident.hex(),
        "secret": secret.hex(),
        "not_after": expiry,
        "holder": holder.hex(),
        "time": time,
        "proof": sign(secret, "wayleave/capability/redemption/proof/v1", covered).hex(),
        "possession": sign(holder, "wayleave/capability/redemption/possession/v1", covered).hex(),
        "writer": writer.hex(),
        "invite": invite.hex(),
        "redeem": redeem.hex(),
        "withdraw": withdraw.hex(),
    }


def main():
    path = pathlib.Path(__file__).with_name("invitations.json")
    made = json.dumps(make(), indent=1) + "\n"
    if "--write" in sys.argv:
        path.write_text(made)
    elif path.read_text() != made:
        sys.exit(f"{path} is not what the page says")


main()
