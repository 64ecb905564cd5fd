"""Splitting fused weights against an attention written without them.

The oracle shares nothing with the splitter: it lists, by hand and per head, the rows that a layout documents, copies
them into q, k and v matrices of its own and runs a plain attention. Equal outputs show that the list is right; equal
gradients then show that the views are. The rotary embedding is switched off (cos 1, sin 0), masks see everything.
"""

import functools
import math

import pytest
import torch
import transformers as T
from torch import nn

from igrad import fused
from igrad.components import map_components

HIDDEN, HEADS, DIM, LENGTH = 32, 8, 4, 5
SIZES = dict(vocab_size=40, hidden_size=HIDDEN, num_attention_heads=HEADS, num_hidden_layers=1)
SPECIAL = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)


# Several libraries take the softmax in single precision.
close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def span(start):
    return list(range(start, start + DIM))


def stacked(keys):
    """[all q; all k; all v]: rows of each head."""
    return {
        "q": [span(DIM * h) for h in range(HEADS)],
        "k": [span(DIM * (HEADS + h)) for h in range(keys)],
        "v": [span(DIM * (HEADS + keys + h)) for h in range(keys)],
    }


def triples():
    """Head by head: its q, its k, its v."""
    return {kind: [span(DIM * (3 * h + i)) for h in range(HEADS)] for i, kind in enumerate("qkv")}


def grouped(keys):
    """Group by group: q heads of the group, then its k, its v."""
    queries = HEADS // keys
    width = DIM * (queries + 2)
    return {
        "q": [span(width * g + DIM * h) for g in range(keys) for h in range(queries)],
        "k": [span(width * g + DIM * queries) for g in range(keys)],
        "v": [span(width * g + DIM * (queries + 1)) for g in range(keys)],
    }


def sharded():
    """CodeGen: four shards of two heads each; in a shard first its q, then its v, then its k."""
    local = 2 * DIM
    return {
        kind: [span(3 * local * shard + local * i + DIM * h) for shard in range(4) for h in range(2)]
        for kind, i in (("q", 0), ("v", 1), ("k", 2))
    }


def no_rotation(width):
    return torch.ones(1, LENGTH, width).double(), torch.zeros(1, LENGTH, width).double()


def see_all():
    return torch.zeros(1, 1, LENGTH, LENGTH).double()


def falcon(**options):
    return T.FalconConfig(**SIZES, **SPECIAL, **options)


def plain_call(attention, x):
    return attention(x, attention_mask=see_all())[0]


def rotary_call(width, attention, x):
    return attention(x, attention_mask=see_all(), position_embeddings=no_rotation(width))[0]


def falcon_call(attention, x):
    return attention(x, alibi=None, attention_mask=see_all(), position_embeddings=no_rotation(DIM))[0]


def bloom_call(attention, x):
    return attention(x, torch.zeros_like(x), torch.zeros(HEADS, 1, LENGTH).double(), see_all())[0]


def mpt_call(attention, x):
    return attention(x, position_bias=None, attention_mask=None)[0]


def code_gen_call(attention, x):
    cos, sin = no_rotation(1)  # the library doubles them
    return attention(x, position_embeddings=(sin, cos), attention_mask=see_all())[0]


# name: config, attention's path in the model, fused leaf, output leaf, how it is called, rows by kind and head
CASES = {
    "gpt2": (
        lambda: T.GPT2Config(vocab_size=40, n_embd=HIDDEN, n_layer=1, n_head=HEADS, **SPECIAL),
        "transformer.h.0.attn", "c_attn", "c_proj", plain_call, stacked(HEADS)),
    "gpt_neox": (
        lambda: T.GPTNeoXConfig(**SIZES, intermediate_size=48, **SPECIAL),
        "gpt_neox.layers.0.attention", "query_key_value", "dense", functools.partial(rotary_call, 2), triples()),
    "bloom": (
        lambda: T.BloomConfig(vocab_size=40, hidden_size=HIDDEN, n_layer=1, n_head=HEADS, **SPECIAL),
        "transformer.h.0.self_attention", "query_key_value", "dense", bloom_call, triples()),
    "falcon_old": (
        lambda: falcon(multi_query=False, new_decoder_architecture=False, bias=True),
        "transformer.h.0.self_attention", "query_key_value", "dense", falcon_call, triples()),
    "falcon_multi_query": (
        lambda: falcon(multi_query=True, new_decoder_architecture=False),
        "transformer.h.0.self_attention", "query_key_value", "dense", falcon_call, stacked(1)),
    "falcon_new": (
        lambda: falcon(num_kv_heads=2, new_decoder_architecture=True),
        "transformer.h.0.self_attention", "query_key_value", "dense", falcon_call, grouped(2)),
    "phi3": (
        lambda: T.Phi3Config(**SIZES, num_key_value_heads=2, intermediate_size=48, **SPECIAL),
        "model.layers.0.self_attn", "qkv_proj", "o_proj", functools.partial(rotary_call, DIM), stacked(2)),
    "mpt": (
        lambda: T.MptConfig(vocab_size=40, d_model=HIDDEN, n_layers=1, n_heads=HEADS, **SPECIAL),
        "transformer.blocks.0.attn", "Wqkv", "out_proj", mpt_call, stacked(HEADS)),
    "persimmon": (
        lambda: T.PersimmonConfig(**SIZES, intermediate_size=48, qk_layernorm=False, **SPECIAL),
        "model.layers.0.self_attn", "query_key_value", "dense", functools.partial(rotary_call, 2), triples()),
    "gpt_bigcode_multi_query": (
        lambda: T.GPTBigCodeConfig(vocab_size=40, n_embd=HIDDEN, n_layer=1, n_head=HEADS, **SPECIAL),
        "transformer.h.0.attn", "c_attn", "c_proj", plain_call, stacked(1)),
    "gpt_bigcode": (
        lambda: T.GPTBigCodeConfig(vocab_size=40, n_embd=HIDDEN, n_layer=1, n_head=HEADS, multi_query=False, **SPECIAL),
        "transformer.h.0.attn", "c_attn", "c_proj", plain_call, triples()),
    "codegen": (
        lambda: T.CodeGenConfig(vocab_size=40, n_embd=HIDDEN, n_layer=1, n_head=HEADS, rotary_dim=2, **SPECIAL),
        "transformer.h.0.attn", "qkv_proj", "out_proj", code_gen_call, sharded()),
}  # fmt: skip


def build(config):
    torch.manual_seed(0)
    model = T.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    for parameter in model.parameters():  # libraries initialise biases to zero, which would hide an exchange
        nn.init.normal_(parameter, std=0.3)
    return model


def unfused(x, own, weight_o, bias_o):
    """Plain attention; own[kind] = list over heads of (weight (dim, hidden), bias (dim,) or None)."""
    project = lambda kind, h: nn.functional.linear(x, *own[kind][h])  # noqa: E731
    heads, group = [], len(own["q"]) // len(own["k"])
    for h in range(len(own["q"])):
        q, k, v = project("q", h), project("k", h // group), project("v", h // group)
        heads.append(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v)
    return nn.functional.linear(torch.cat(heads, dim=-1), weight_o, bias_o)


@pytest.mark.parametrize("case", CASES)
def test_views_of_a_fused_gradient_are_the_gradients_of_unfused_matrices(case):
    config, path, leaf, output, call, rows = CASES[case]
    model = build(config())
    attention = model.get_submodule(path)
    weight, bias = getattr(attention, leaf).weight, getattr(attention, leaf).bias
    is_conv1d = type(getattr(attention, leaf)).__name__ == "Conv1D"
    x = torch.randn(1, LENGTH, HIDDEN).double()
    cotangent = torch.randn(1, LENGTH, HIDDEN).double()

    def leaf_copy(tensor):
        return tensor.detach().clone().requires_grad_()

    stored = weight.T if is_conv1d else weight  # (out, in)
    own = {
        kind: [(leaf_copy(stored[r]), None if bias is None else leaf_copy(bias[r])) for r in heads]
        for kind, heads in rows.items()
    }
    out = getattr(attention, output)
    expected = unfused(x, own, (out.weight.T if is_conv1d else out.weight).detach(),
                       None if out.bias is None else out.bias.detach())  # fmt: skip
    expected.backward(cotangent)
    actual = call(attention, x)
    close(actual, expected)
    actual.backward(cotangent)

    views = {view.name: view for view in map_components(model).views}
    for kind in "qkv":
        view = views[f"{path}.{leaf}.weight:{kind}"]
        assert view.component == f"0.{kind}"
        gradient = torch.cat([weight.grad for weight, _ in own[kind]])
        assert view.shape == tuple(gradient.shape)
        close(view.part(weight.grad).reshape(view.shape), gradient)
        if bias is not None:
            view = views[f"{path}.{leaf}.bias:{kind}"]
            assert view.component == f"0.{kind}"
            gradient = torch.cat([bias.grad for _, bias in own[kind]])
            close(view.part(bias.grad).reshape(view.shape), gradient)


def test_cross_attention_of_gpt2_keeps_its_query_apart():
    config = T.GPT2Config(vocab_size=40, n_embd=HIDDEN, n_layer=1, n_head=HEADS, add_cross_attention=True, **SPECIAL)
    model = build(config)
    attention = model.transformer.h[0].crossattention
    x, memory, cotangent = (torch.randn(1, LENGTH, HIDDEN).double() for _ in range(3))

    def projected(source, weight, bias):  # (heads, length, dim)
        return (source[0] @ weight + bias).reshape(LENGTH, HEADS, DIM).transpose(0, 1)

    fused_weight, fused_bias = attention.c_attn.weight, attention.c_attn.bias  # (in, 2 * out): k, then v
    key = fused_weight[:, :HIDDEN].detach().clone().requires_grad_()
    value = fused_weight[:, HIDDEN:].detach().clone().requires_grad_()
    q = projected(x, attention.q_attn.weight.detach(), attention.q_attn.bias.detach())
    k = projected(memory, key, fused_bias[:HIDDEN].detach())
    v = projected(memory, value, fused_bias[HIDDEN:].detach())
    mixed = torch.softmax(q @ k.mT / math.sqrt(DIM), dim=-1) @ v
    expected = mixed.transpose(0, 1).reshape(LENGTH, HIDDEN) @ attention.c_proj.weight.detach()
    expected = expected + attention.c_proj.bias.detach()
    expected.backward(cotangent[0])
    actual = attention(x, encoder_hidden_states=memory, encoder_attention_mask=see_all())[0]
    close(actual[0], expected)
    actual.backward(cotangent)

    views = {view.name: view for view in map_components(model).views}
    prefix = "transformer.h.0.crossattention"
    for kind, own in (("k", key), ("v", value)):
        view = views[f"{prefix}.c_attn.weight:{kind}"]
        assert view.component == f"0.cross.{kind}"
        close(view.part(fused_weight.grad), own.grad.T)
    assert views[f"{prefix}.q_attn.weight"].component == "0.cross.q"


def test_latent_attention_expands_keys_and_values_head_by_head():
    nope, rope, value_dim, rank = 3, 2, 5, 6
    config = T.DeepseekV3Config(
        **SIZES, **SPECIAL, num_key_value_heads=HEADS, intermediate_size=48, moe_intermediate_size=8,
        n_routed_experts=4, first_k_dense_replace=1, n_group=2, topk_group=1, num_experts_per_tok=2, q_lora_rank=4,
        kv_lora_rank=rank, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value_dim,
    )  # fmt: skip
    model = build(config)
    attention = model.model.layers[0].self_attn
    x = torch.randn(1, LENGTH, HIDDEN).double()
    cotangent = torch.randn(1, LENGTH, HIDDEN).double()

    weight = attention.kv_b_proj.weight
    per_head = [weight[h * (nope + value_dim) : (h + 1) * (nope + value_dim)].detach().clone() for h in range(HEADS)]
    keys = [rows[:nope].clone().requires_grad_() for rows in per_head]
    values = [rows[nope:].clone().requires_grad_() for rows in per_head]
    with torch.no_grad():
        q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(x)))[0]
        compressed = attention.kv_a_proj_with_mqa(x)[0]
        latent, rotary_key = attention.kv_a_layernorm(compressed[:, :rank]), compressed[:, rank:]
    mixed = []
    for h in range(HEADS):
        q_h = q[:, h * (nope + rope) : (h + 1) * (nope + rope)]
        k_h = torch.cat([latent @ keys[h].T, rotary_key], dim=-1)
        mixed.append(torch.softmax(q_h @ k_h.T * attention.scaling, dim=-1) @ (latent @ values[h].T))
    expected = torch.cat(mixed, dim=-1) @ attention.o_proj.weight.detach().T
    expected.backward(cotangent[0])
    actual = rotary_call(rope, attention, x)
    close(actual[0], expected)
    actual.backward(cotangent)

    views = {view.name: view for view in map_components(model).views}
    for kind, own in (("k", keys), ("v", values)):
        view = views[f"model.layers.0.self_attn.kv_b_proj.weight:{kind}"]
        gradient = torch.cat([head.grad for head in own])
        close(view.part(weight.grad).reshape(view.shape), gradient)


@pytest.mark.parametrize("case", CASES)
def test_parts_are_views_over_the_same_memory_of_any_parameter_shaped_tensor(case):
    model = build(CASES[case][0]())
    parameters = dict(model.named_parameters())
    split = [view for view in map_components(model).views if view.name != view.parameter]
    assert split
    for view in split:
        moment = torch.zeros_like(parameters[view.parameter], dtype=torch.bfloat16)
        view.part(moment).fill_(1)  # reaches the moment, and nothing but the part
        assert moment.sum() == view.numel


def test_an_attention_class_that_is_not_listed_is_not_split():
    class Unheard(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv_proj = nn.Linear(4, 12)

    assert fused.layout(Unheard(), "qkv_proj", 12, conv1d=False) is None
    MptAttention = type("MptAttention", (Unheard,), {})
    assert fused.layout(MptAttention(), "qkv_proj", 12, conv1d=False) is not None
    assert fused.layout(MptAttention(), "qkv_proj", 13, conv1d=False) is None  # does not fit in three
