"""How fused attention weights store q, k and v, and strided views of each part.

Every layout met so far is one scheme: the output rows are `groups` repetitions of consecutive sections.

    GPT-2, Phi-3, MPT, Falcon multi-query   1 group of [all q; all k; all v]
    GPT-NeoX, BLOOM, Falcon                 one group per key-value head of [its q heads; its k; its v]
    CodeGen                                 4 groups of [q; v; k]: the shards it was trained on
    DeepSeek's kv_b_proj                    one group per head of [k without rotary part; v]

The order cannot be read off names or shapes (`qkv_proj` is stacked in Phi-3, sharded in CodeGen and per head in
MiniMax), so it is known per attention class, and a class that is not listed is not split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Output rows = `groups` times (section, section, ...)."""

    groups: int
    sections: tuple[tuple[str, int], ...]  # (kind, size relative to the other sections), in stored order

    def fits(self, rows: int) -> bool:
        return rows % (self.groups * sum(size for _, size in self.sections)) == 0

    def parts(self, rows: int, transposed: bool) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
        """Kind -> (number of output rows, view of a weight or bias with `rows` outputs); q, k, v in this order."""
        unit = rows // (self.groups * sum(size for _, size in self.sections))
        found, start = {}, 0
        for kind, size in self.sections:
            cut = partial(section, groups=self.groups, start=start, size=size * unit, transposed=transposed)
            found[kind] = (self.groups * size * unit, cut)
            start += size * unit
        return {kind: found[kind] for kind in "qkv" if kind in found}


def transpose(tensor: Tensor) -> Tensor:
    """(..., in, out) storage as (..., out, in)."""
    return tensor.transpose(-2, -1)


def section(tensor: Tensor, groups: int, start: int, size: int, transposed: bool) -> Tensor:
    """Rows start..start+size of every group, (groups, size[, in]); without the first axis for a single group."""
    rows = transpose(tensor) if transposed else tensor
    piece = rows.unflatten(0, (groups, -1)).narrow(1, start, size)
    return piece[0] if groups == 1 else piece


def heads(attention: nn.Module) -> tuple[int, int]:
    """Query heads and key-value heads of an attention module, from itself or its config; (1, 1) if it does not say."""

    def ask(*names: str) -> int | None:
        for source in (attention, getattr(attention, "config", None)):
            for name in names:
                if isinstance(value := getattr(source, name, None), int):
                    return value
        return None

    queries = ask("num_heads", "num_attention_heads", "n_heads", "n_head") or 1
    return queries, ask("num_key_value_heads", "num_kv_heads", "kv_heads", "kv_n_heads") or queries


def stacked(attention: nn.Module) -> Layout:
    queries, keys = heads(attention)
    return Layout(1, (("q", queries), ("k", keys), ("v", keys)))


def per_head(attention: nn.Module) -> Layout:
    queries, keys = heads(attention)
    return Layout(keys, (("q", queries // keys), ("k", 1), ("v", 1)))


def falcon(attention: nn.Module) -> Layout:
    queries, keys = heads(attention)
    if getattr(attention, "new_decoder_architecture", False):
        return Layout(keys, (("q", queries // keys), ("k", 1), ("v", 1)))
    if getattr(attention, "multi_query", False):
        return Layout(1, (("q", queries), ("k", 1), ("v", 1)))
    return Layout(queries, (("q", 1), ("k", 1), ("v", 1)))


def big_code(attention: nn.Module) -> Layout:
    return stacked(attention) if getattr(attention, "multi_query", False) else per_head(attention)


def code_gen(attention: nn.Module) -> Layout:
    return Layout(getattr(attention, "mp_num", 4), (("q", 1), ("v", 1), ("k", 1)))


def latent(attention: nn.Module) -> Layout:
    """Multi-head latent attention: kv_b_proj expands the latent to [k without rotary part; v] per head."""
    queries, _ = heads(attention)
    return Layout(queries, (("k", int(attention.qk_nope_head_dim)), ("v", int(attention.v_head_dim))))


KEY_VALUE = Layout(1, (("k", 1), ("v", 1)))  # cross-attention with its query weight apart

BY_CLASS: dict[str, Callable[[nn.Module], Layout]] = {
    **dict.fromkeys(("GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention", "PersimmonAttention",
                     "MiniMaxLightningAttention", "InternLM2Attention"), per_head),
    **dict.fromkeys(("Phi3Attention", "Phi4MultimodalAttention", "MptAttention", "ModernBertAttention",
                     "DbrxAttention", "QWenAttention", "BaichuanAttention", "MultiheadAttention"), stacked),
    "FalconAttention": falcon,
    "GPTBigCodeAttention": big_code,
    "CodeGenAttention": code_gen,
}  # fmt: skip


def layout(attention: nn.Module, leaf: str, rows: int, conv1d: bool) -> Layout | None:
    """Where q, k and v lie in the `rows` outputs of the fused weight `leaf`; None when that is not known."""
    found = None
    if hasattr(attention, "qk_nope_head_dim") and hasattr(attention, "v_head_dim"):
        found = latent(attention) if leaf == "kv_b_proj" else None
    elif leaf == "c_attn" and hasattr(attention, "q_attn"):
        found = KEY_VALUE
    elif conv1d or leaf == "qkv":  # GPT-2's family; timm's (3, heads, head_dim), which vision towers follow
        found = stacked(attention)
    else:
        known = (BY_CLASS[kind.__name__] for kind in type(attention).__mro__ if kind.__name__ in BY_CLASS)
        if build := next(known, None):
            found = build(attention)
    return found if found and found.fits(rows) else None
