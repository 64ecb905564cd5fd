"""Models: strategies whose prepare() makes a local transformers folder, and how such a folder is read.

transformers takes seconds to import, so it is imported where it is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The number of positions has many names in configs of different age; the first that is there counts.
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


def load_model(path: str | Path, seed: int = 0) -> PreTrainedModel:
    """The language model in a transformers folder, in float32; attention is sdpa where the model has it.

    `seed` draws what the checkpoint lacks, so that all ranks start from the same weights.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # each rank would draw one
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # alone: the GPUs' generators keep each rank's own dropout
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    finally:
        torch.set_rng_state(before)
    model.config.use_cache = False  # keys and values of earlier steps serve generation only
    return model


def skeleton(path: str | Path) -> PreTrainedModel:
    """The model of a transformers folder without its weights: names and shapes, on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path, local_files_only=True))


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a transformers folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def context_length(path: str | Path) -> int | None:
    """Longest sequence of the model in tokens, read from config.json; None where there is no limit."""
    config = json.loads((Path(path) / "config.json").read_text())
    config = {**config, **config.get("text_config", {})}
    return next((config[key] for key in CONTEXT_KEYS if config.get(key)), None)
