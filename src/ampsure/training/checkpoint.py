"""The state of a training in one file, without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ampsure.errors import AmpsureError
from ampsure.io import replacing

__all__ = ["each_tensor", "read_checkpoint", "resuming", "write_checkpoint"]

SCHEMA_VERSION = 1


def each_tensor(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same nested dictionaries, lists and numbers, with the function applied to every tensor."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: each_tensor(item, function) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return [each_tensor(item, function) for item in state]
    return state


def write_checkpoint(path: Path, state: Any) -> None:
    """Write nested dictionaries, lists, numbers and tensors, whole or not at all."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value.detach().cpu().contiguous()
            return {"tensor": name}
        if isinstance(value, dict):
            return {"dict": [[key, plain(item, f"{name}.{key}")] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [plain(item, f"{name}.{k}") for k, item in enumerate(value)]}
        return value

    metadata = {"format": "ampsure-checkpoint", "schema_version": str(SCHEMA_VERSION)}
    metadata["state"] = json.dumps(plain(state, "state"))
    metadata["checksum"] = _checksum(metadata["state"], tensors)
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))  # `save_file` raises errors of its own where a disk is full


def read_checkpoint(path: Path) -> Any:
    """What `write_checkpoint` has written; tensors on the CPU."""

    def restored(value: Any) -> Any:
        if isinstance(value, dict):
            if "tensor" in value:
                return tensors[value["tensor"]]
            if "dict" in value:
                return {key: restored(item) for key, item in value["dict"]}
            return [restored(item) for item in value["list"]]
        return value

    with resuming(path):
        if not path.is_file():  # a pipe would be waited for
            raise AmpsureError(f"{path} is not a file: remove it to start again.")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("format") != "ampsure-checkpoint":
            raise AmpsureError(f"{path} is not a checkpoint of a training: remove it to start again.")
        if int(metadata["schema_version"]) > SCHEMA_VERSION:
            raise AmpsureError(f"{path} was written by a newer ampsure: update ampsure, or remove it to start again.")
        if metadata.get("checksum", "") not in ("", _checksum(metadata["state"], tensors)):  # once there was none
            raise AmpsureError(f"{path} does not match its checksum: remove it to start again.")
        return restored(json.loads(metadata["state"]))


def _checksum(state: str, tensors: dict[str, Tensor]) -> str:
    digest = sha256(state.encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def resuming(path: Path) -> Iterator[None]:
    """Turn whatever a damaged checkpoint leads to into one sentence."""
    try:
        yield
    except (AmpsureError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise AmpsureError(f"{path} is damaged and cannot be resumed: remove it to start again.") from error
