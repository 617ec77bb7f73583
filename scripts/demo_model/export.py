"""Writes the model as GGUF: matrices as Q8_0, norms as f32."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch

from model import Llama, Shape
from tokenizer import BOS_ID, EOS_ID

# Plain continuation: the messages one after another, a blank line between them, and the model goes on.
CHAT_TEMPLATE = """{%- for message in messages -%}
{{- message['content'] }}{% if not loop.last or add_generation_prompt %}{{ '\\n\\n' }}{% endif %}
{%- endfor -%}"""

LICENCE = "GPL-3.0-or-later"
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """[heads * head_dim, embd]: the model rotates halves of a head, libllama's llama rotates neighbouring pairs."""
    rows, embd = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, embd).swapaxes(1, 2).reshape(rows, embd)


def part(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes interleave."""
    rows, embd = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, embd).swapaxes(1, 2).reshape(rows, embd)


def gguf_name(name: str) -> str:
    return name if name.endswith(".weight") else name + ".weight"


def tensors(model: Llama):
    """(GGUF name, f32 array) of every tensor."""
    for name, p in model.named_parameters():
        array = p.detach().float().cpu().numpy()
        if name.endswith("attn_q.weight"):
            array = interleave(array, model.s.heads)
        elif name.endswith("attn_k.weight"):
            array = interleave(array, model.s.kv_heads)
        yield gguf_name(name), array


def write(model: Llama, tokenizer, path: Path, quantised: bool = True) -> None:
    s = model.s
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("Strata demo")
    w.add_description("A small model of English prose, for trying Strata out")
    w.add_license(LICENCE)
    w.add_languages(["en"])
    w.add_context_length(s.context)
    w.add_embedding_length(s.embd)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.ff)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_rope_dimension_count(s.head_dim)
    w.add_rope_freq_base(s.rope_base)
    w.add_layer_norm_rms_eps(s.norm_eps)
    w.add_vocab_size(s.vocab)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantised else gguf.LlamaFileType.ALL_F32)

    bpe = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(bpe["vocab"].items(), key=lambda item: item[1])]
    types = [gguf.TokenType.CONTROL if i in (BOS_ID, EOS_ID) else gguf.TokenType.NORMAL for i in range(len(tokens))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    w.add_bos_token_id(BOS_ID)
    w.add_eos_token_id(EOS_ID)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)

    for name, array in tensors(model):
        if quantised and array.ndim == 2:
            w.add_tensor(name, gguf.quants.quantize(array, Q8_0), raw_dtype=Q8_0)
        else:
            w.add_tensor(name, array.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read(path: Path, shape: Shape) -> Llama:
    """The model that a file holds, its matrices back as f32."""
    model = Llama(shape)
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        for name, p in model.named_parameters():
            array = stored[gguf_name(name)]
            if name.endswith("attn_q.weight"):
                array = part(array, shape.heads)
            elif name.endswith("attn_k.weight"):
                array = part(array, shape.kv_heads)
            p.copy_(torch.from_numpy(array.reshape(p.shape).copy()))
    return model
