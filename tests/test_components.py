"""Which parameter is which component: a table of architectures, written by hand, and the laws of every map."""

import functools
import pickle

import pytest
import torch
import transformers as T
from torch import nn

from igrad.components import map_components

H, F, V = 16, 24, 40  # hidden, feed-forward and vocabulary sizes
SIZES = dict(
    vocab_size=V, hidden_size=H, intermediate_size=F, num_hidden_layers=2, num_attention_heads=4, bos_token_id=0,
    eos_token_id=0, pad_token_id=0, max_position_embeddings=8,
)  # fmt: skip
OLD = dict(vocab_size=V, n_embd=H, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
GROUPED = dict(**SIZES, num_key_value_heads=2)
ROUTER = "a router of experts"
SHARED = "a compressed projection that k and v share"
POSITIONS = "a table of position biases"


def causal(config):
    return T.AutoModelForCausalLM.from_config(config)


def opt():
    return causal(T.OPTConfig(vocab_size=V, hidden_size=H, ffn_dim=F, num_hidden_layers=2, num_attention_heads=4,
                              word_embed_proj_dim=H, max_position_embeddings=8))  # fmt: skip


def falcon(**options):
    return causal(T.FalconConfig(**SIZES, **options))


def deepseek():
    return causal(T.DeepseekV3Config(
        **SIZES, num_key_value_heads=4, moe_intermediate_size=8, n_routed_experts=4, first_k_dense_replace=1, n_group=2,
        topk_group=1, num_experts_per_tok=2, q_lora_rank=4, kv_lora_rank=4, qk_nope_head_dim=2, qk_rope_head_dim=2,
        v_head_dim=4,
    ))  # fmt: skip


def t5():
    sizes = dict(vocab_size=V, d_model=H, d_ff=F, d_kv=4, num_layers=2, num_heads=4)
    return T.AutoModelForSeq2SeqLM.from_config(T.T5Config(**sizes, feed_forward_proj="gated-gelu"))


def bart():
    return T.AutoModelForSeq2SeqLM.from_config(T.BartConfig(
        vocab_size=V, d_model=H, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=F, decoder_ffn_dim=F, max_position_embeddings=8))  # fmt: skip


def llava():
    vision = T.CLIPVisionConfig(hidden_size=H, intermediate_size=F, num_hidden_layers=2, num_attention_heads=4,
                                image_size=8, patch_size=4)  # fmt: skip
    return T.LlavaForConditionalGeneration(T.LlavaConfig(text_config=T.LlamaConfig(**SIZES), vision_config=vision))


def qwen2_vl():
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
    vision = dict(depth=2, embed_dim=H, hidden_size=H, num_heads=4, patch_size=4)
    return T.Qwen2VLForConditionalGeneration(
        T.Qwen2VLConfig(text_config=dict(**GROUPED, rope_parameters=rope), vision_config=vision)
    )


def lora_llama():
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(causal(T.LlamaConfig(**SIZES)), LoraConfig(r=2, target_modules=targets))


def lora_neox():
    from peft import LoraConfig, get_peft_model

    targets = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    return get_peft_model(causal(T.GPTNeoXConfig(**SIZES)), LoraConfig(r=2, target_modules=targets))


def lora_experts():
    from peft import LoraConfig, get_peft_model

    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]  # bare parameters, not modules
    model = causal(T.MixtralConfig(**GROUPED, num_local_experts=3))
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], target_parameters=experts))


# Leaves in a block -> kinds (qkv: three views). Every matrix of the block must be here or in the second table.
GATED = "mlp.gate_proj fc1, mlp.up_proj fc1, mlp.down_proj fc2"
LLAMA = f"self_attn.q_proj q, self_attn.k_proj k, self_attn.v_proj v, self_attn.o_proj o, {GATED}"
OUT = LLAMA.replace("o_proj", "out_proj")
BLOOM = "self_attention.query_key_value qkv, self_attention.dense o, mlp.dense_h_to_4h fc1, mlp.dense_4h_to_h fc2"
GPT2 = "attn.c_attn qkv, attn.c_proj o, mlp.c_fc fc1, mlp.c_proj fc2"
EXPERTS = "mlp.experts.gate_up_proj fc1, mlp.experts.down_proj fc2"
OPT = OUT.replace(GATED, "fc1 fc1, fc2 fc2")
CLIP = OUT.replace(GATED, "mlp.fc1 fc1, mlp.fc2 fc2")
ATTENTION = LLAMA.removesuffix(f", {GATED}")
MLA = "self_attn.q_a_proj q, self_attn.q_b_proj q, self_attn.kv_b_proj kv, self_attn.o_proj o"
T5_SELF = ", ".join(f"layer.0.SelfAttention.{kind} {kind}" for kind in "qkvo")
T5_CROSS = ", ".join(f"layer.1.EncDecAttention.{kind} cross.{kind}" for kind in "qkvo")
T5_FF = "layer.{0}.DenseReluDense.wi_0 fc1, layer.{0}.DenseReluDense.wi_1 fc1, layer.{0}.DenseReluDense.wo fc2"
BART_CROSS = ", ".join(f"encoder_attn.{leaf} cross.{leaf[0]}" for leaf in ("q_proj", "k_proj", "v_proj", "out_proj"))
NEOX = BLOOM.replace("self_attention", "attention")


def lora(leaves):
    """The adapters of each leaf in place of the leaf."""
    pairs = (entry.split() for entry in leaves.split(", "))
    return ", ".join(f"{leaf}.lora_{side}.default {kind}" for leaf, kind in pairs for side in "AB")


# name: model, {path of a stack: (prefix of its components, leaves of its blocks)}, {leaf: reason it is in no component}
TABLE = {
    "opt": (opt, {"model.decoder.layers": ("", OPT)}, {}),
    "gpt2": (lambda: causal(T.GPT2Config(**OLD)), {"transformer.h": ("", GPT2)}, {}),
    "gpt_neox": (lambda: causal(T.GPTNeoXConfig(**SIZES)), {"gpt_neox.layers": ("", NEOX)}, {}),
    "bloom": (
        lambda: causal(T.BloomConfig(vocab_size=V, hidden_size=H, n_layer=2, n_head=4)),
        {"transformer.h": ("", BLOOM)}, {}),
    "falcon_old": (
        lambda: falcon(multi_query=False, new_decoder_architecture=False, bias=True, alibi=True),
        {"transformer.h": ("", BLOOM)}, {}),
    "falcon_multi_query": (
        lambda: falcon(multi_query=True, new_decoder_architecture=False), {"transformer.h": ("", BLOOM)}, {}),
    "falcon_new": (
        lambda: falcon(num_kv_heads=2, new_decoder_architecture=True), {"transformer.h": ("", BLOOM)}, {}),
    "llama": (lambda: causal(T.LlamaConfig(**SIZES)), {"model.layers": ("", LLAMA)}, {}),
    "mistral": (lambda: causal(T.MistralConfig(**GROUPED)), {"model.layers": ("", LLAMA)}, {}),
    "mixtral": (
        lambda: causal(T.MixtralConfig(**GROUPED, num_local_experts=3)),
        {"model.layers": ("", f"{ATTENTION}, {EXPERTS}")}, {"mlp.gate": ROUTER}),
    "gpt_oss": (
        lambda: causal(T.GptOssConfig(**GROUPED, head_dim=4, num_local_experts=3)),
        {"model.layers": ("", f"{ATTENTION}, {EXPERTS}")}, {"mlp.router": ROUTER}),
    "qwen2": (lambda: causal(T.Qwen2Config(**GROUPED)), {"model.layers": ("", LLAMA)}, {}),
    "qwen3": (lambda: causal(T.Qwen3Config(**GROUPED, head_dim=4)), {"model.layers": ("", LLAMA)}, {}),
    "gemma": (lambda: causal(T.GemmaConfig(**GROUPED, head_dim=4)), {"model.layers": ("", LLAMA)}, {}),
    "phi": (
        lambda: causal(T.PhiConfig(**SIZES)),
        {"model.layers": ("", CLIP.replace("out_proj", "dense"))}, {}),
    "phi3": (
        lambda: causal(T.Phi3Config(**GROUPED)),
        {"model.layers": (
            "", "self_attn.qkv_proj qkv, self_attn.o_proj o, mlp.gate_up_proj fc1, mlp.down_proj fc2")}, {}),
    "mpt": (
        lambda: causal(T.MptConfig(vocab_size=V, d_model=H, n_layers=2, n_heads=4)),
        {"transformer.blocks": ("", "attn.Wqkv qkv, attn.out_proj o, ffn.up_proj fc1, ffn.down_proj fc2")}, {}),
    "starcoder2": (
        lambda: causal(T.Starcoder2Config(**GROUPED)),
        {"model.layers": ("", f"{ATTENTION}, mlp.c_fc fc1, mlp.c_proj fc2")}, {}),
    "olmo": (lambda: causal(T.OlmoConfig(**SIZES)), {"model.layers": ("", LLAMA)}, {}),
    "deepseek_v3": (
        deepseek,
        {"model.layers": ("", f"{MLA}, {EXPERTS}, {GATED}, {GATED.replace('mlp.', 'mlp.shared_experts.')}")},
        {"mlp.gate": ROUTER, "self_attn.kv_a_proj_with_mqa": SHARED}),
    "gptj": (
        lambda: causal(T.GPTJConfig(**OLD, rotary_dim=2)),
        {"transformer.h": (
            "", "attn.q_proj q, attn.k_proj k, attn.v_proj v, attn.out_proj o, mlp.fc_in fc1, mlp.fc_out fc2")}, {}),
    "codegen": (
        lambda: causal(T.CodeGenConfig(**OLD, rotary_dim=2)),
        {"transformer.h": ("", "attn.qkv_proj qkv, attn.out_proj o, mlp.fc_in fc1, mlp.fc_out fc2")}, {}),
    "t5": (
        t5,
        {"encoder.block": ("encoder.", f"{T5_SELF}, {T5_FF.format(1)}"),
         "decoder.block": ("decoder.", f"{T5_SELF}, {T5_CROSS}, {T5_FF.format(2)}")},
        {"layer.0.SelfAttention.relative_attention_bias": POSITIONS}),
    "bart": (
        bart,
        {"model.encoder.layers": ("encoder.", OPT), "model.decoder.layers": ("decoder.", f"{OPT}, {BART_CROSS}")}, {}),
    "bert": (
        lambda: T.BertForMaskedLM(T.BertConfig(**SIZES)),
        {"bert.encoder.layer": (
            "", "attention.self.query q, attention.self.key k, attention.self.value v, attention.output.dense o, "
            "intermediate.dense fc1, output.dense fc2")}, {}),
    "llava": (
        llava,
        {"model.vision_tower.encoder.layers": ("vision_tower.", CLIP),
         "model.language_model.layers": ("language_model.", LLAMA)}, {}),
    "qwen2_vl": (
        qwen2_vl,
        {"model.visual.blocks": ("visual.", "attn.qkv qkv, attn.proj o, mlp.fc1 fc1, mlp.fc2 fc2"),
         "model.language_model.layers": ("language_model.", LLAMA)}, {}),
    "lora_llama": (lora_llama, {"base_model.model.model.layers": ("", lora(LLAMA))}, {}),
    "lora_gpt_neox": (
        lora_neox,
        {"base_model.model.gpt_neox.layers": (
            "", lora(NEOX).replace("attention.query_key_value.lora_A.default qkv, ", ""))},
        {"attention.query_key_value.lora_A.default": "an adapter's input matrix that q, k and v share"}),
}  # fmt: skip


@functools.cache
def built(case):
    torch.manual_seed(0)
    return TABLE[case][0]()


def leaves_of(text):
    return dict(entry.split() for entry in text.split(", "))


def without_ending(name):
    for ending in (".weight", ".bias", "_proj_bias"):
        if name.endswith(ending):
            return name.removesuffix(ending) + ("_proj" if ending == "_proj_bias" else "")
    return name


def expected(case):
    """{view name: component} and {parameter: reason} of the matrices in blocks, from the table alone."""
    _, stacks, reasons = TABLE[case]
    components, other = {}, {}
    for name, parameter in built(case).named_parameters():
        path = next((path for path in stacks if name.startswith(f"{path}.")), None)
        if path is None or parameter.ndim < 2 or not parameter.requires_grad:
            continue
        prefix, leaves = stacks[path]
        layer, _, rest = name.removeprefix(f"{path}.").partition(".")
        if kind := leaves_of(leaves).get(without_ending(rest)):
            parts = kind if kind in ("qkv", "kv") else ""
            components |= {f"{name}:{part}": f"{prefix}{layer}.{part}" for part in parts}
            components |= {} if parts else {name: f"{prefix}{layer}.{kind}"}
        else:
            other[name] = reasons[without_ending(rest)]  # a matrix in neither table is a failure
    return components, other


@pytest.mark.parametrize("case", TABLE)
def test_every_matrix_of_a_block_is_a_component_or_listed_with_a_reason(case):
    mapped = map_components(built(case))
    parameters = dict(built(case).named_parameters())
    components, other = expected(case)
    found = {v.name: v.component for v in mapped.views if v.component and parameters[v.parameter].ndim > 1}
    assert found == components
    assert mapped.other == other


@pytest.mark.parametrize("case", TABLE)
def test_components_are_every_kind_of_every_layer_in_order(case):
    prefixes = {"t5": ("encoder.", "decoder."), "bart": ("encoder.", "decoder."),
                "llava": ("vision_tower.", "language_model."), "qwen2_vl": ("visual.", "language_model.")}  # fmt: skip
    cross = ["cross.q", "cross.k", "cross.v", "cross.o"]
    want = []
    for prefix in prefixes.get(case, ("",)):
        kinds = ["q", "k", "v", "o", *(cross if prefix == "decoder." else []), "fc1", "fc2"]
        want += [f"{prefix}{layer}.{kind}" for layer in (0, 1) for kind in kinds]
    assert map_components(built(case)).components == want


@pytest.mark.parametrize("case", TABLE)
def test_views_partition_every_trainable_parameter(case):
    mapped = map_components(built(case))
    trainable = {name: p for name, p in built(case).named_parameters() if p.requires_grad}
    assert list(dict.fromkeys(view.parameter for view in mapped.views)) == list(trainable)
    assert len({view.name for view in mapped.views}) == len(mapped.views)
    for name, parameter in trainable.items():
        positions = torch.arange(parameter.numel()).view(parameter.shape)
        parts = [(view, view.part(positions)) for view in mapped.views if view.parameter == name]
        for view, part in parts:
            assert part.untyped_storage().data_ptr() == positions.untyped_storage().data_ptr()
            assert part.reshape(view.shape).numel() == view.numel
        assert torch.equal(torch.cat([part.reshape(-1) for _, part in parts]).sort().values, positions.view(-1))


@pytest.mark.parametrize("case", TABLE)
def test_biases_belong_to_the_component_of_their_weight_and_norms_to_none(case):
    model = built(case)
    views = {view.name: view for view in map_components(model).views}
    for name, view in views.items():
        path, _, leaf = view.parameter.rpartition(".")
        if "norm" in path.lower() or ".ln_" in path:
            assert view.component is None
        elif leaf == "bias" and (weight := views.get(name.replace(".bias", ".weight"))):
            assert view.component == weight.component


@pytest.mark.parametrize("case", TABLE)
def test_share_and_sizes_add_up(case):
    mapped = map_components(built(case))
    paths = TABLE[case][1]
    in_blocks = {name: p.numel() for name, p in built(case).named_parameters()
                 if p.requires_grad and any(name.startswith(f"{path}.") for path in paths)}  # fmt: skip
    outside = {view.parameter: view.numel for view in mapped.views if view.component is None}
    lost = sum(size for name, size in outside.items() if name in in_blocks)
    assert mapped.share == pytest.approx(1 - lost / sum(in_blocks.values()))
    assert sum(mapped.numel.values()) == sum(view.numel for view in mapped.views if view.component)
    assert list(mapped.numel) == mapped.components
    assert f"{len(mapped.components)} components" in mapped.describe()


def test_shapes_are_out_by_in_however_a_weight_is_stored():
    for case in ("gpt2", "gpt_oss", "mixtral", "opt"):
        model = built(case)
        width = {"q": H, "k": H, "v": H, "fc1": H, "fc2": 4 * H if case == "gpt2" else F}
        parameters = dict(model.named_parameters())
        for view in map_components(model).views:
            kind = (view.component or "").rpartition(".")[2]
            if kind in width and parameters[view.parameter].ndim > 1 and not view.parameter.endswith("bias"):
                assert view.shape[-1] == width[kind] == view.part(parameters[view.parameter]).shape[-1], view
    weight = built("gpt2").transformer.h[0].mlp.c_fc.weight  # (in, out)
    view = next(v for v in map_components(built("gpt2")).views if v.name == "transformer.h.0.mlp.c_fc.weight")
    assert torch.equal(view.part(weight), weight.T)


@pytest.mark.parametrize("case", ["gpt2", "falcon_new", "gpt_oss", "llama"])
def test_views_can_be_sent_to_another_process(case):
    tensor = dict(built(case).named_parameters())
    for view in map_components(built(case)).views:
        copy = pickle.loads(pickle.dumps(view))
        assert copy == view and torch.equal(copy.part(tensor[view.parameter]), view.part(tensor[view.parameter]))


def test_embeddings_and_an_untied_head_are_components_on_request():
    for case, head in (("llama", True), ("opt", False), ("t5", False)):
        plain = map_components(built(case))
        mapped = map_components(built(case), embeddings=True)
        assert mapped.components == ["embed", *plain.components, *(["head"] if head else [])]
        assert mapped.share == plain.share
    by_name = {view.name: view.component for view in map_components(built("opt"), embeddings=True).views}
    assert by_name["model.decoder.embed_positions.weight"] == "embed"


def test_a_frozen_parameter_has_no_view():
    model = causal(T.LlamaConfig(**SIZES))
    everything = map_components(model)
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad = False
    mapped = map_components(model)
    assert mapped.components == [name for name in everything.components if name.startswith("1.")]
    assert mapped.views == [view for view in everything.views if ".layers.0." not in view.name]


def test_freezing_a_tower_does_not_rename_the_other():
    model = llava()
    names = [view.component for view in map_components(model).views if "language_model" in view.name]
    model.model.vision_tower.requires_grad_(False)
    assert [view.component for view in map_components(model).views if "language_model" in view.name] == names


def test_an_adapter_of_a_fused_weight_is_split_like_the_weight():
    base = {view.name: view for view in map_components(built("gpt_neox")).views}
    rows = torch.arange(3 * H)
    for view in map_components(built("lora_gpt_neox")).views:
        if "query_key_value.lora_B" in view.name:
            bias = f"gpt_neox.layers.{view.component[0]}.attention.query_key_value.bias:{view.component[2]}"
            assert torch.equal(view.part(rows[:, None].expand(-1, 2))[..., 0], base[bias].part(rows))


def test_adapters_on_bare_expert_parameters_follow_their_parameter():
    by_name = {view.name: view.component for view in map_components(lora_experts()).views}
    experts = "base_model.model.model.layers.0.mlp.experts"  # the wrapper of down_proj holds that of gate_up_proj
    for side in "AB":
        assert by_name[f"{experts}.base_layer.lora_{side}.default.weight"] == "0.fc1"
        assert by_name[f"{experts}.lora_{side}.default.weight"] == "0.fc2"


def test_torch_transformer_layers_map_with_their_packed_projection():
    model = nn.Transformer(d_model=8, nhead=2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=12)
    mapped = map_components(model)
    kinds = ["q", "k", "v", "o"]
    assert mapped.components == [
        *(f"encoder.0.{kind}" for kind in (*kinds, "fc1", "fc2")),
        *(f"decoder.0.{kind}" for kind in (*kinds, *(f"cross.{kind}" for kind in kinds), "fc1", "fc2")),
    ]
    packed = [view for view in mapped.views if view.parameter.endswith("multihead_attn.in_proj_bias")]
    assert [view.part(torch.arange(24)).tolist() for view in packed] == [[*range(i, i + 8)] for i in (0, 8, 16)]


def test_swin_stages_are_numbered_apart():
    config = T.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 2], window_size=2)
    mapped = map_components(T.SwinModel(config))
    assert {name.rpartition(".")[0] for name in mapped.components} == {"0.0", "1.0", "1.1"}


class Block(nn.Module):
    """An architecture nobody has heard of."""

    def __init__(self):
        super().__init__()
        self.mixing = nn.Module()
        self.mixing.triple = nn.Linear(4, 12)
        self.mixing.back = nn.Linear(4, 4)
        self.widen = nn.Linear(4, 8)
        self.narrow = nn.Linear(8, 4)


class Unheard(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Block(), Block()])


def test_an_unknown_architecture_is_an_error_that_names_parameters_and_the_way_out():
    with pytest.raises(ValueError, match=r"Unheard.*steps\.\*\.mixing\.triple\.weight.*patterns: \{"):
        map_components(Unheard())


def test_half_known_blocks_are_an_error_too():
    model = causal(T.LlamaConfig(**SIZES))
    for layer in model.model.layers:
        layer.mlp.novel = layer.mlp.down_proj
        del layer.mlp.down_proj
    with pytest.raises(ValueError, match=r"% of the block weights of LlamaForCausalLM .*mlp\.novel\.weight"):
        map_components(model)
    assert map_components(model, {"novel": "fc2"}).components == map_components(built("llama")).components


def test_patterns_teach_an_unknown_architecture():
    kinds = {"back": "o", "widen": "fc1", "narrow": "fc2"}
    mapped = map_components(Unheard(), {"triple": "qkv", **kinds})
    assert mapped.share == 1
    assert mapped.components == [f"{layer}.{kind}" for layer in (0, 1) for kind in ("q", "k", "v", "o", "fc1", "fc2")]
    biases = [view for view in mapped.views if "0.mixing.triple.bias" in view.name]
    rows = {view.component: view.part(torch.arange(12)).tolist() for view in biases}
    assert rows == {"0.q": [0, 1, 2, 3], "0.k": [4, 5, 6, 7], "0.v": [8, 9, 10, 11]}

    by_head = Unheard()
    for block in by_head.steps:
        block.mixing.num_heads = 2
    mapped = map_components(by_head, {"triple": "qkv_heads", **kinds})
    view = next(view for view in mapped.views if view.name == "steps.0.mixing.triple.bias:k")
    assert view.part(torch.arange(12)).flatten().tolist() == [2, 3, 8, 9]


def test_a_pattern_can_leave_a_weight_out_and_overrules_the_structure():
    mapped = map_components(built("llama"), {"up_proj": "none"})
    assert set(mapped.other.values()) == {"left out by a pattern"}
    mapped = map_components(built("llama"), {"o_proj": "fc1"})
    assert "0.o" not in mapped.components


def test_wrong_patterns_are_named():
    with pytest.raises(ValueError, match=r"kind of 'o_proj' must be one of .*got 'fc3'"):
        map_components(built("llama"), {"o_proj": "fc3"})
    with pytest.raises(ValueError, match="no module named 'nowhere'"):
        map_components(built("llama"), {"nowhere": "fc1"})
