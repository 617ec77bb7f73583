"""The llama architecture as libllama runs it: RMSNorm, grouped-query attention with RoPE, SwiGLU."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    vocab: int = 4096
    layers: int = 6
    embd: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 704
    context: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-5


def rms_norm(x, weight, eps):  # [..., embd] -> [..., embd]
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x, cos, sin):  # [batch, heads, tokens, head_dim], [tokens, head_dim / 2]
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.attn_norm = nn.Parameter(torch.ones(s.embd))
        self.attn_q = nn.Linear(s.embd, s.heads * s.head_dim, bias=False)
        self.attn_k = nn.Linear(s.embd, s.kv_heads * s.head_dim, bias=False)
        self.attn_v = nn.Linear(s.embd, s.kv_heads * s.head_dim, bias=False)
        self.attn_output = nn.Linear(s.heads * s.head_dim, s.embd, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(s.embd))
        self.ffn_gate = nn.Linear(s.embd, s.ff, bias=False)
        self.ffn_up = nn.Linear(s.embd, s.ff, bias=False)
        self.ffn_down = nn.Linear(s.ff, s.embd, bias=False)

    def forward(self, x, cos, sin, mask):  # [batch, tokens, embd] -> the same
        s, (batch, tokens, _) = self.s, x.shape

        def heads(y, n):  # [batch, tokens, n * head_dim] -> [batch, n, tokens, head_dim]
            return y.view(batch, tokens, n, s.head_dim).transpose(1, 2)

        h = rms_norm(x, self.attn_norm, s.norm_eps)
        q = rotate(heads(self.attn_q(h), s.heads), cos, sin)
        k = rotate(heads(self.attn_k(h), s.kv_heads), cos, sin)
        v = heads(self.attn_v(h), s.kv_heads)
        group = s.heads // s.kv_heads  # query head i reads key/value head i / group
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        # Written out: PyTorch's own CPU attention runs its backward pass through a plain BLAS, 20 times slower.
        scores = q @ k.transpose(2, 3) * s.head_dim**-0.5  # [batch, heads, tokens, tokens]
        scores = scores.float() + mask
        a = scores.softmax(-1).to(v.dtype) @ v  # [batch, heads, tokens, head_dim]
        x = x + self.attn_output(a.transpose(1, 2).reshape(batch, tokens, -1))
        h = rms_norm(x, self.ffn_norm, s.norm_eps)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.token_embd = nn.Embedding(s.vocab, s.embd)
        self.blk = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.output_norm = nn.Parameter(torch.ones(s.embd))
        self.output = nn.Linear(s.embd, s.vocab, bias=False)
        frequency = s.rope_base ** (-torch.arange(0, s.head_dim, 2) / s.head_dim)
        angle = torch.outer(torch.arange(s.context), frequency)  # [context, head_dim / 2]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.register_buffer("mask", torch.full((s.context, s.context), -torch.inf).triu(1), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                nn.init.normal_(p, std=0.02 / (2 * s.layers) ** 0.5)

    def forward(self, tokens, targets):  # [batch, tokens] int64, -100 in targets is not counted -> summed loss, nats
        length = tokens.shape[1]
        x = self.token_embd(tokens).to(torch.bfloat16)
        for block in self.blk:
            x = block(x, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        logits = self.output(rms_norm(x, self.output_norm, self.s.norm_eps))  # [batch, tokens, vocab]
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
