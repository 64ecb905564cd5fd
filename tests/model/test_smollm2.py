"""SmolLM2 out of its GGUF file: plain float32 weights that know what a trained model knows."""

import pytest
import torch

from igrad.model import context_length, load_model, load_tokenizer
from igrad.model.smollm2 import SmolLM2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_is_a_trained_model_in_an_ordinary_folder():
    folder = SmolLM2().prepare()
    model, tokenizer = load_model(folder).eval(), load_tokenizer(folder)
    assert not hasattr(model.config, "quantization_config")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert context_length(folder) == 8192
    prompt = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert tokenizer.decode(model(prompt).logits[0, -1].argmax()) == " Paris"
