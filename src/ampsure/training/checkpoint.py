"""The state of a training in one file, without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ampsure.errors import AmpsureError
from ampsure.io import replacing

__all__ = ["each_tensor", "read_checkpoint", "write_checkpoint"]


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

    skeleton = json.dumps(plain(state, "state"))
    with replacing(path) as temporary:
        save_file(
            tensors, temporary, metadata={"format": "ampsure-checkpoint", "schema_version": "1", "state": skeleton}
        )


def read_checkpoint(path: Path) -> Any:
    """What `write_checkpoint` has written; tensors on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("format") != "ampsure-checkpoint" or metadata.get("schema_version") != "1":
            raise AmpsureError(f"{path} is not a checkpoint of this version of ampsure: remove it to start again.")
        skeleton = json.loads(metadata["state"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, AmpsureError):
            raise
        raise AmpsureError(f"{path} is damaged and cannot be resumed: remove it to start again.") from error

    def restored(value: Any) -> Any:
        if isinstance(value, dict):
            if "tensor" in value:
                return tensors[value["tensor"]]
            if "dict" in value:
                return {key: restored(item) for key, item in value["dict"]}
            return [restored(item) for item in value["list"]]
        return value

    return restored(skeleton)
