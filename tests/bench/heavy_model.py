"""Writes a model that costs what a large one costs and writes the text of a small one, bit for bit.

Layers that change nothing stand between the small model's own: their attn_output and ffn_down are zero. All layers are
as wide within their feed-forward block as the large one's: the small model's matrices go on with zeros, the others' are
random. So drafts are accepted as the small model accepts them, and steps take a large one's time. Needs only Python.

    heavy_model.py SMALL.gguf HEAVY.gguf [BILLIONS]    # of weights: 1 unless named, in Q8_0
"""

import os
import random
import struct
import sys

N_LAYERS = 24  # 2, 3, 4, 6 and 8 equal stages cost the same
ALIGNMENT = 32

U32, STRING, ARRAY = 4, 8, 9
FIXED = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, Q8_0 = 0, 8
BLOCKS = {F32: (1, 4), Q8_0: (32, 34)}  # weights and bytes of a block


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            element, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip(element)
        else:
            self.number(FIXED[kind])


def string(text):
    return struct.pack("<Q", len(text)) + text


class Gguf:
    """The file's values as they stand there, {key: (type, bytes)}, and its tensors, {name: (type, dims, bytes)}."""

    def __init__(self, path):
        with open(path, "rb") as f:
            data = f.read()
        r = Reader(data)
        if data[:4] != b"GGUF":
            sys.exit(f"{path} is no GGUF file")
        r.at = 8
        n_tensors, n_values = r.number("Q"), r.number("Q")
        self.values, infos = {}, []
        for _ in range(n_values):
            key, kind = r.string(), r.number("I")
            begin = r.at
            r.skip(kind)
            self.values[key] = (kind, data[begin:r.at])
        for _ in range(n_tensors):
            name, dims = r.string(), [r.number("Q") for _ in range(r.number("I"))]
            infos.append((name, r.number("I"), dims, r.number("Q")))
        start = -(-r.at // ALIGNMENT) * ALIGNMENT
        self.tensors = {name: (kind, dims, data[start + offset:start + offset + size(kind, dims)])
                        for name, kind, dims, offset in infos}

    def u32(self, key):
        return struct.unpack("<I", self.values[key][1])[0]


def size(kind, dims):
    weights, n_bytes = BLOCKS[kind]
    n = 1
    for dim in dims:
        n *= dim
    return n // weights * n_bytes


class Noise:
    """Weights of Q8_0 around zero, of about 0.02 as trained ones are: windows of one stretch."""

    def __init__(self, blocks=1 << 16):
        self.numbers, self.blocks = random.Random(1), blocks
        stretch = bytearray(self.numbers.randbytes(34 * blocks))
        for i, byte in enumerate(struct.pack("<e", 0.0003)):  # the blocks' scale
            stretch[i::34] = bytes([byte]) * blocks
        self.stretch = bytes(stretch)

    def take(self, n):
        pieces = []
        while n:
            begin = 34 * self.numbers.randrange(self.blocks // 2)
            pieces.append(self.stretch[begin:begin + n])
            n -= len(pieces[-1])
        return b"".join(pieces)


def widened(name, dims, n_ff):
    if name == b"ffn_down":
        return [n_ff, dims[1]]
    return [dims[0], n_ff] if name in (b"ffn_gate", b"ffn_up") else dims


def padded(data, dims, wide):
    """A matrix of Q8_0 with zeros up to the dims of a wider one."""
    row, wide_row = size(Q8_0, dims[:1]), size(Q8_0, wide[:1])
    rows = (data[at:at + row] + bytes(wide_row - row) for at in range(0, len(data), row))
    return b"".join(rows) + bytes((wide[1] - dims[1]) * wide_row)


def write(small_path, path, n_weights):
    small = Gguf(small_path)
    n_real, n_embd = small.u32(b"llama.block_count"), small.u32(b"llama.embedding_length")
    n_ff = round(n_weights / N_LAYERS / (3 * n_embd) / 32) * 32
    if n_real > N_LAYERS or n_ff < small.u32(b"llama.feed_forward_length"):
        sys.exit(f"{small_path} is larger than the model to write")
    values = dict(small.values)
    values[b"general.name"] = (STRING, string(b"Strata demo, heavy"))
    values[b"llama.block_count"] = (U32, struct.pack("<I", N_LAYERS))
    values[b"llama.feed_forward_length"] = (U32, struct.pack("<I", n_ff))

    # Each tensor with its part of a layer's name, the dims it gets, and the small model's of which it is made; none
    # of a layer that changes nothing.
    places = [int((i + 0.5) * N_LAYERS / n_real) for i in range(n_real)]  # of the real layers
    shapes = {name.split(b".")[2]: dims for name, (_, dims, _) in small.tensors.items() if name.startswith(b"blk.0.")}
    tensors = [(name, None, tensor[1], tensor) for name, tensor in small.tensors.items() if not name.startswith(b"blk.")]
    for layer in range(N_LAYERS):
        for part, dims in shapes.items():
            source = small.tensors[b"blk.%d.%s.weight" % (places.index(layer), part)] if layer in places else None
            tensors.append((b"blk.%d.%s.weight" % (layer, part), part, widened(part, dims, n_ff), source))

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, (kind, value) in values.items():
        head += string(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, _, dims, _ in tensors:
        kind = F32 if len(dims) == 1 else Q8_0
        head += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        offset += -(-size(kind, dims) // ALIGNMENT) * ALIGNMENT
    noise = Noise()
    with open(path + ".part", "wb") as out:
        out.write(head + bytes(-len(head) % ALIGNMENT))
        for _, part, dims, source in tensors:
            n = size(F32 if len(dims) == 1 else Q8_0, dims)
            if source:
                out.write(source[2] if source[1] == dims else padded(source[2], source[1], dims))
            elif len(dims) == 1:
                out.write(struct.pack("<f", 1) * dims[0])
            else:
                out.write(bytes(n) if part in (b"attn_output", b"ffn_down") else noise.take(n))
            out.write(bytes(-n % ALIGNMENT))
    os.replace(path + ".part", path)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: heavy_model.py SMALL.gguf HEAVY.gguf [BILLIONS]")
    write(sys.argv[1], sys.argv[2], float(sys.argv[3] if len(sys.argv) == 4 else 1) * 1e9)
