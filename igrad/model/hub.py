"""Any causal language model of the Hugging Face hub, or a local transformers folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # the second only where there is none of the first
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Hub:
    """A model by name ("EleutherAI/pythia-70m") or by folder; downloaded once into the hub's own cache."""

    name: str  # hub name, or a local folder
    revision: str | None = None  # commit, tag or branch; null = the newest
    # module leaf name -> component kind (q k v o fc1 fc2), for architectures that the component map does not know
    patterns: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> Path:
        """The folder; raises ValueError when it is incomplete, or neither cached nor downloadable."""
        folder = Path(self.name).expanduser()
        if folder.is_dir():
            lacking = missing(folder)
            if lacking:
                raise ValueError(f"model folder {self.name} has no {lacking}; give a folder saved by save_pretrained")
            return folder.absolute()
        if self.name.startswith((".", "/", "~")):
            raise ValueError(f"model folder {self.name} does not exist; give a folder or a hub name such as gpt2")
        return download(self.name, self.revision)


def download(name: str, revision: str | None) -> Path:
    """A snapshot of the files that training needs; the network is asked only where the cache is incomplete."""
    from huggingface_hub import errors, snapshot_download

    files = {"allow_patterns": ["*.json", "*.txt", "*.model", "*.tiktoken"], "ignore_patterns": ["*/*"]}
    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if not missing(folder):
            return folder
    except errors.LocalEntryNotFoundError:
        pass  # nothing cached yet
    except errors.HFValidationError as error:
        raise ValueError(f"model.name '{name}' is neither a folder nor a hub name") from error
    try:
        folder = Path(snapshot_download(name, revision=revision, **files))
        for weights in WEIGHTS:
            if lacking := missing(folder):
                files["allow_patterns"] = [weights]
                snapshot_download(name, revision=revision, **files)
    except (OSError, errors.HfHubHTTPError, errors.OfflineModeIsEnabled) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"model '{name}' is not cached and could not be had from the hub ({said.rstrip('.')}); "
            "check the name and the connection, or set model.name to a local folder or model to glass_0.9m"
        ) from error
    if lacking := missing(folder):
        raise ValueError(f"model '{name}' on the hub has no {lacking}; choose one in transformers' format")
    return folder


def missing(folder: Path) -> str | None:
    """What a transformers folder still lacks; None when it is complete."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if lacking := missing_weights(folder):
        return lacking
    tokenizer = ("tokenizer*", "vocab*", "*.model", "spiece*")
    return None if any(any(folder.glob(pattern)) for pattern in tokenizer) else "tokenizer"


def missing_weights(folder: Path) -> str | None:
    """The first shard that an index names and the folder lacks; one complete set of weights is enough."""
    absent = []
    for index in filter(Path.is_file, (folder / name for name in INDICES)):
        shards = set(json.loads(index.read_text())["weight_map"].values())
        absent.append(sorted(shard for shard in shards if not (folder / shard).is_file()))
    if absent:
        return None if [] in absent else absent[0][0]
    return None if any(any(folder.glob(pattern)) for pattern in WEIGHTS) else f"weights ({' or '.join(WEIGHTS)})"
