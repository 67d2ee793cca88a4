"""A plain model of kc-hbs, written from FIPS 205 and the suite's description; prints the vectors in kc-hbs.txt.

It takes some minutes: a key of the model makes each of its three trees hash by hash.
"""
import hashlib
import hmac

N = 16
# Height and bits of a digit, from the level that signs messages up.
LEVELS = ((12, 4), (15, 5), (13, 7))


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def hkdf(label, secret, context, length):
    prk, out, block, counter = hmac.new(label, secret, "sha256").digest(), b"", b"", 1
    while len(out) < length:
        block = hmac.new(prk, block + context + bytes([counter]), "sha256").digest()
        out, counter = out + block, counter + 1
    return out[:length]


def address(layer, tree, kind, a=0, b=0, c=0):
    words = b"".join(word.to_bytes(4, "big") for word in (a, b, c))
    return bytes([layer]) + tree.to_bytes(8, "big") + bytes([kind]) + words


class Layer:
    def __init__(self, key, layer, tree):
        self.key, self.layer, self.tree = key, layer, tree
        self.height, bits = LEVELS[layer]
        self.bits = bits
        self.digits = -(-8 * N // bits)
        self.checks, most = 0, self.digits * (2**bits - 1)
        while most:
            self.checks, most = self.checks + 1, most >> bits
        self.chains = self.digits + self.checks

    def hash(self, kind, words, data):
        return sha(self.key.public_seed, bytes(48), address(self.layer, self.tree, kind, *words), data)[:N]

    def walk(self, pair, chain, value, start, end):
        for step in range(start, end):
            value = self.hash(0, (pair, chain, step), value)
        return value

    def secret(self, pair, chain):
        return self.hash(5, (pair, chain, 0), self.key.secret_seed)

    def lengths(self, message):
        padding = self.digits * self.bits - 8 * N
        number, out = int.from_bytes(message, "big") << padding, []
        for place in reversed(range(self.digits)):
            out.append(number >> place * self.bits & 2**self.bits - 1)
        check = sum(2**self.bits - 1 - digit for digit in out)
        for place in reversed(range(self.checks)):
            out.append(check >> place * self.bits & 2**self.bits - 1)
        return out

    def build(self):
        last = 2**self.bits - 1
        leaf = lambda pair: self.hash(1, (pair, 0, 0), b"".join(
            self.walk(pair, chain, self.secret(pair, chain), 0, last) for chain in range(self.chains)))
        levels = [[leaf(pair) for pair in range(2**self.height)]]
        for height in range(1, self.height + 1):
            below = levels[-1]
            levels.append([self.hash(2, (0, height, i), below[2 * i] + below[2 * i + 1])
                           for i in range(len(below) // 2)])
        self.levels = levels
        return levels[-1][0]

    def sign(self, pair, message):
        values = [self.walk(pair, chain, self.secret(pair, chain), 0, length)
                  for chain, length in enumerate(self.lengths(message))]
        path = [self.levels[height][pair >> height ^ 1] for height in range(self.height)]
        return b"".join(values + path)


class Key:
    def __init__(self, seed, birth, parts):
        division = birth.to_bytes(8, "big") + parts.to_bytes(2, "big")
        secrets = hkdf(b"wayleave/attestation/hbs/key/v2", seed, division, 3 * N)
        self.secret_seed, self.randomiser, self.public_seed = secrets[:16], secrets[16:32], secrets[32:]
        self.upper = Layer(self, 2, 0)
        self.public = self.public_seed + self.upper.build()

    def sign(self, index, message):
        octets = index.to_bytes(5, "big")
        randomiser = hkdf(b"wayleave/attestation/hbs/randomiser/v2", self.randomiser, octets, N)
        signed = sha(b"wayleave/attestation/hbs/message/v2", self.public, octets, randomiser, message)[:N]
        signature, rest = octets + randomiser, index
        for layer, (height, _) in enumerate(LEVELS):
            rest, pair = rest >> height, rest & 2**height - 1
            tree = self.upper if layer == 2 else Layer(self, layer, rest)
            root = self.upper.levels[-1][0] if layer == 2 else tree.build()
            signature, signed = signature + tree.sign(pair, signed), root
        assert signed == self.public[N:]
        return signature


def index(birth, time, parts, part, number):
    """The index of the number-th signature that the holder of a part makes in the slot of a time."""
    return (time - birth) // 8 * 2**14 + part * 2**14 // parts + number


if __name__ == "__main__":
    BIRTH = 1_700_000_000
    for seed, time, parts, part, number, message in (
            (bytes(32), BIRTH, 1, 0, 0, b""),
            (bytes(range(32)), BIRTH + 3 * 365 * 86_400 + 5, 3, 1, 77, b"an UPDATE")):
        key = Key(seed, BIRTH, parts)
        print("seed", seed.hex())
        print("birth", BIRTH)
        print("part", part, "of", parts)
        print("time", time)
        print("number", number)
        print("public", key.public.hex())
        print("message", message.hex())
        print("signature", key.sign(index(BIRTH, time, parts, part, number), message).hex())
