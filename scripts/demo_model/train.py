"""Trains the demo model. Called by scripts/train_demo_model; see --help there."""

import argparse
import hashlib
import json
import math
import os
import random
import time
from pathlib import Path

import numpy as np
import torch

import corpus
import export
import tokenizer as bpe
from model import Llama, Shape

ROWS, ROW_TOKENS = 32, 256  # of one step; a row is a piece of text that starts at a paragraph
MICRO_TOKENS = 2048  # of one forward and backward pass: fits the caches of a small CPU
LONG_FROM = 0.85  # of the run: from here on rows are as long as the model's context
GLANCE = 64  # windows of held-out text for the estimates on the way
PEAK_MUON, PEAK_ADAM = 6e-3, 3e-3
WARMUP, DECAY_FROM = 0.02, 0.35  # of the run


def held_out(document: dict) -> bool:
    """One document in 25, by its name: the same ones on every machine."""
    name = f"{document['source']}/{document['name']}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") % 25 == 0


class Rows:
    """Rows of training tokens. Each begins with BOS at the start of a paragraph; an epoch takes every token about once."""

    def __init__(self, stream: np.ndarray, starts: np.ndarray, seed: int):
        self.stream, self.starts, self.random = stream, starts, np.random.default_rng(seed)
        self.queue: list[int] = []
        self.taken = 0

    def take(self, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:  # two of [rows, length] int64
        batch = np.empty((rows, length + 1), dtype=np.int64)
        for row in batch:
            if not self.queue:
                wanted = np.arange(self.random.integers(length), len(self.stream) - length - 1, length)
                snapped = self.starts[np.searchsorted(self.starts, wanted).clip(max=len(self.starts) - 1)]
                self.queue = list(self.random.permutation(snapped))
            start = min(self.queue.pop(), len(self.stream) - length)
            row[0], row[1:] = bpe.BOS_ID, self.stream[start : start + length]
        self.taken += rows * length
        return torch.from_numpy(batch[:, :-1]), torch.from_numpy(batch[:, 1:])


def training_stream(documents: list[dict], tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """All documents in random order as one stream [tokens] uint16, and where its paragraphs start."""
    pieces, starts, at = [], [], 0
    for encoding in tokenizer.encode_batch([d["text"] for d in documents]):
        ids = encoding.ids + [bpe.EOS_ID]
        ends = [b for _, b in encoding.offsets]
        text = documents[len(pieces)]["text"]
        starts.append(at)
        starts += [at + i for i in range(1, len(ids) - 1) if text[ends[i - 1] - 2 : ends[i - 1]] == "\n\n"]
        pieces.append(np.array(ids, dtype=np.uint16))
        at += len(ids)
    return np.concatenate(pieces), np.array(starts)


def held_out_windows(documents: list[dict], tokenizer, length: int) -> list[tuple[list[int], int]]:
    """Every document cut to windows of BOS + up to `length` tokens, with the bytes of text each one holds."""
    windows = []
    for d in documents:
        ids = tokenizer.encode(d["text"]).ids + [bpe.EOS_ID]
        for i in range(0, len(ids), length):
            part = ids[i : i + length]
            size = sum(len(tokenizer.id_to_token(t)) for t in part if t != bpe.EOS_ID)  # one letter a byte
            windows.append(([bpe.BOS_ID] + part, size))
    return windows


def loss_per_byte(model, windows, length: int, device) -> tuple[float, float]:
    """Mean loss in nats for each byte and for each token. Uses the shapes of training, so nothing is compiled again."""
    nats = tokens = size = 0
    rows = max(1, MICRO_TOKENS // length)
    for i in range(0, len(windows), rows):
        batch = torch.full((rows, length + 1), -100)
        for row, (ids, ids_bytes) in zip(batch, windows[i : i + rows]):
            row[: len(ids)] = torch.tensor(ids)
            tokens, size = tokens + len(ids) - 1, size + ids_bytes
        batch = batch.to(device)
        with torch.autocast(device, torch.bfloat16):
            nats += model(batch.clamp(min=0)[:, :-1], batch[:, 1:]).item()
    return nats / size, nats / tokens


def summary(model, windows, length: int, device) -> str:
    per_byte, per_token = loss_per_byte(model, windows, length, device)
    return f"{per_byte:.4f} nats/byte, {per_byte / math.log(2):.4f} bits/byte, {per_token:.4f} nats/token"


def schedule(progress: float) -> float:
    """The learning rate as a part of its peak: a short rise, level, then straight down to almost nothing."""
    if progress < WARMUP:
        return progress / WARMUP
    return min(1.0, max(0.01, (1 - progress) / (1 - DECAY_FROM)))


def prepare(folder: Path, seed: int, vocab: int):
    """Corpus and tokenizer, made once and kept in the folder."""
    kept = folder / "corpus.json"
    if kept.exists():
        documents, table = json.loads(kept.read_text())
    else:
        documents, table = corpus.build(folder / "debs")
        kept.write_text(json.dumps([documents, table]))
    random.Random(seed).shuffle(documents)
    train = [d for d in documents if not held_out(d)]
    held = [d for d in documents if held_out(d)]
    tokenizer = bpe.train([d["text"] for d in train], vocab)
    return train, held, table, tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--evaluate", type=Path)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args.cache.mkdir(parents=True, exist_ok=True)
    if args.evaluate:
        shape = Shape()
        _, held, _, tokenizer = prepare(args.cache, args.seed, shape.vocab)
        model = export.read(args.evaluate, shape).to(device).requires_grad_(False)
        print(f"{args.evaluate.name}: {summary(model, held_out_windows(held, tokenizer, shape.context), shape.context, device)}")
        return
    log = open(args.log, "w")

    def say(line: str) -> None:
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    shape = Shape()
    train, held, table, tokenizer = prepare(args.cache, args.seed, shape.vocab)
    stream, starts = training_stream(train, tokenizer)
    windows = held_out_windows(held, tokenizer, shape.context)
    (args.cache / "held-out.txt").write_text("\n\n".join(d["text"] for d in held))
    tokenizer.save(str(args.cache / "tokenizer.json"))
    (args.cache / "sources.json").write_text(json.dumps(table, indent=1))
    train_bytes = sum(len(d["text"].encode()) for d in train)
    held_bytes = sum(size for _, size in windows)
    model = Llama(shape).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    say(f"# {parameters / 1e6:.2f} M parameters, seed {args.seed}, {args.threads} threads, {device}, {args.steps or args.minutes} {'steps' if args.steps else 'minutes'}")
    say(f"# training text {train_bytes} bytes, {len(stream)} tokens, {len(train)} documents; held out {held_bytes} bytes, {len(held)} documents")
    say("# step  minutes  epochs  learning-rate  train-loss/byte  held-out-loss/byte  tokens/s")

    matrices = [p for p in model.blk.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    tables = [model.token_embd.weight, model.output.weight]
    muon = torch.optim.Muon(matrices, lr=PEAK_MUON, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW([{"params": tables, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}], lr=PEAK_ADAM, betas=(0.9, 0.95))
    peaks = [(g, g["lr"]) for o in (muon, adam) for g in o.param_groups]
    compiled = torch.compile(model, dynamic=False)
    rows = Rows(stream, starts, args.seed)

    begin = time.monotonic()
    bytes_per_token = train_bytes / len(stream)
    step, progress, recent, said, exported, counted = 0, 0.0, [], begin, begin, 0
    while progress < 1:
        length = ROW_TOKENS if progress < LONG_FROM else shape.context
        batch = ROWS * ROW_TOKENS // length
        micro = max(1, MICRO_TOKENS // length)
        nats = 0.0
        for _ in range(batch // micro):
            tokens, targets = (t.to(device) for t in rows.take(micro, length))
            with torch.autocast(device, torch.bfloat16):
                loss = compiled(tokens, targets)
            (loss / (batch * length)).backward()
            nats += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, peak in peaks:
            group["lr"] = peak * schedule(progress)
        muon.step()
        adam.step()
        model.zero_grad()
        recent.append(nats / (batch * length))
        step += 1
        now = time.monotonic()
        progress = step / args.steps if args.steps else (now - begin) / (60 * args.minutes)
        if now - said > 60 or progress >= 1:
            look = now - exported > 300 or progress >= 1
            if look:
                sample = random.Random(0).sample(held_out_windows(held, tokenizer, length), GLANCE * ROW_TOKENS // length)
                estimate = f"{loss_per_byte(compiled, sample, length, device)[0]:.4f}"
                export.write(model, tokenizer, args.out)
                exported = now
            speed = (rows.taken - counted) / (now - said)
            say(
                f"{step:6} {(now - begin) / 60:8.1f} {rows.taken / len(stream):7.2f} {schedule(progress) * PEAK_MUON:14.5f} "
                f"{sum(recent) / len(recent) / bytes_per_token:16.4f} {estimate if look else '-':>19} {speed:9.0f}"
            )
            recent, said, counted = [], time.monotonic(), rows.taken

    torch.save(model.state_dict(), args.cache / "model.pt")
    export.write(model, tokenizer, args.out)
    export.write(model, tokenizer, args.cache / "strata-demo-f32.gguf", quantised=False)
    say(f"# held out, all of it, as trained: {summary(compiled, windows, shape.context, device)}")
    stored = export.read(args.out, shape).to(device).requires_grad_(False)
    say(f"# held out, all of it, as Q8_0:    {summary(stored, windows, shape.context, device)}")
    say(f"# {args.out.name}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
