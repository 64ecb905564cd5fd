"""A run's files and its profile as W&B artifacts, laid out as they are in outputs/."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from igrad.profile_file import load

FETCHED = ("run", "profile")  # types of the artifacts whose files lie in them as they do in outputs/
RUN_FILES = ("config.yaml", "metrics.jsonl", "components.parquet", "messages.parquet", "summary.json")


def profile_artifact(path: Path) -> Any:
    """A profile as an artifact; equal ones are one version."""
    import wandb

    artifact = wandb.Artifact("profile-" + re.sub(r"[^\w.-]", "_", path.stem), "profile", metadata=load(path)[2])
    artifact.add_file(str(path.absolute()), name=f"profiles/{path.name}", policy="immutable")
    return artifact


def run_artifact(directory: Path, name: str) -> Any:
    """A run's own files, and the manifests of the sweeps that it is a point of, as an artifact.

    They lie in it as they do in outputs/. An offline run remembers where they are on disk and is synced from anywhere,
    later: of a manifest, which may be written again, a copy is kept in <run directory>/wandb.
    """
    import wandb

    artifact, study = wandb.Artifact(name, "run"), directory.absolute().parent
    for path in (study / directory.name / word for word in RUN_FILES):
        if path.exists():
            artifact.add_file(str(path), name=f"{study.name}/{directory.name}/{path.name}", policy="immutable")
    for path in sorted(study.glob("sweeps/*.json")):
        if directory.name in (point["name"] for point in json.loads(path.read_text())["points"]):
            copy = shutil.copy(path, study / directory.name / "wandb")
            artifact.add_file(copy, name=f"{study.name}/sweeps/{path.name}", policy="immutable")
    return artifact
