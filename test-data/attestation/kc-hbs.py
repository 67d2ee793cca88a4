"""A plain model of kc-hbs, written from FIPS 205 and the suite's description; prints the vectors in kc-hbs.txt."""
import hashlib
import hmac

N, HEIGHT = 16, 10


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
    def __init__(self, key, layer, tree, bits):
        self.key, self.layer, self.tree, self.bits = key, layer, tree, bits
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
        levels = [[leaf(pair) for pair in range(2**HEIGHT)]]
        for height in range(1, HEIGHT + 1):
            below = levels[-1]
            levels.append([self.hash(2, (0, height, i), below[2 * i] + below[2 * i + 1])
                           for i in range(len(below) // 2)])
        self.levels = levels
        return levels[-1][0]

    def sign(self, pair, message):
        values = [self.walk(pair, chain, self.secret(pair, chain), 0, length)
                  for chain, length in enumerate(self.lengths(message))]
        path = [self.levels[height][pair >> height ^ 1] for height in range(HEIGHT)]
        return b"".join(values + path)


class Key:
    def __init__(self, seed):
        secrets = hkdf(b"wayleave/attestation/hbs/key/v1", seed, b"", 3 * N)
        self.secret_seed, self.randomiser, self.public_seed = secrets[:16], secrets[16:32], secrets[32:]
        self.upper = Layer(self, 1, 0, 7)
        self.public = self.public_seed + self.upper.build()

    def sign(self, index, message):
        lower = Layer(self, 0, index >> HEIGHT, 4)
        root = lower.build()
        counter = index.to_bytes(4, "big")
        randomiser = hkdf(b"wayleave/attestation/hbs/randomiser/v1", self.randomiser, counter, N)
        digest = sha(b"wayleave/attestation/hbs/message/v1", self.public, counter, randomiser, message)[:N]
        return (counter + randomiser + lower.sign(index & 2**HEIGHT - 1, digest)
                + self.upper.sign(index >> HEIGHT, root))


if __name__ == "__main__":
    for seed, index, message in ((bytes(32), 0, b""), (bytes(range(32)), 700_003, b"an UPDATE")):
        key = Key(seed)
        print("seed", seed.hex())
        print("public", key.public.hex())
        print("index", index)
        print("message", message.hex())
        print("signature", key.sign(index, message).hex())
