"""A two-layer Llama and a few windows of learnable tokens, so that whole runs take a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig

from igrad import compose
from igrad.data import Inputs

VOCABULARY, LENGTH = 64, 16


def inputs(folder: Path, dropout: float = 0.0) -> Inputs:
    """Model folder and windows under `folder`, made on first use."""
    model, windows = folder / "model", folder / "windows"
    if not model.exists():
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=True, attention_bias=True,
            attention_dropout=dropout,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(model)
        windows.mkdir(parents=True)
        for side, count in (("train", 96), ("eval", 13)):
            start = np.random.default_rng(count).integers(0, VOCABULARY, (count, 1))
            ids = ((start + 3 * np.arange(LENGTH)) % VOCABULARY).astype(np.int32)
            np.save(windows / f"{side}.input_ids.npy", ids)
            np.save(windows / f"{side}.labels.npy", ids)
    return Inputs(str(model), str(windows))


def config(*overrides: str) -> DictConfig:
    """The default config at this size, importance and tracking off unless asked for."""
    small = [
        "batch_size=2",
        "steps=20",
        "eval_every=100",
        "log_every=4",
        "eval_windows=13",
        f"sequence_length={LENGTH}",
    ]
    quiet = ["tracking=none", "threshold=all", "cluster.device=cpu"]
    [point] = compose.points([*small, *quiet, *overrides])
    return point.cfg
