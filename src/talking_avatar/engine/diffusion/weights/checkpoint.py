"""A checkpoint: a configuration and where its tensors come from.

Takes: a folder, or a configuration and a seed.
Gives: `Weights`, checked name by name and shape by shape against the configuration.
Never: moves a tensor; `rank_part` and `codec` do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig
from talking_avatar.engine.diffusion.decoder.networks import DecoderNetwork, EncoderNetwork
from talking_avatar.engine.diffusion.layout import tensor_specs
from talking_avatar.engine.diffusion.weights.random_source import RandomSource
from talking_avatar.engine.diffusion.weights.shards import ShardFolder
from talking_avatar.engine.diffusion.weights.source import (
    FP8,
    Expected,
    TensorSource,
    check,
)
from talking_avatar.errors import CheckpointError

FORMAT = "talking-avatar"
VERSION = 1
CONFIG_FILE = "config.json"
DIT_FOLDER = "dit"
CODEC_FOLDER = "codec"
SCALE_SUFFIX = "_scale"
"""Added to the name of an FP8 matrix: its FP32 scales, one a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Where a model's tensors come from.

    Attributes:
        config: The model.
        precision: As stored: ``"fp8"`` if the layers' matrices are FP8 with scales. Else they
            are floats, and any precision can be made of them.
        dit: The DiT's tensors, named as in `layout`.
        codec: The video codec's: ``encoder.…`` and ``decoder.…``.
    """

    config: AvatarDiTConfig
    precision: Precision
    dit: TensorSource
    codec: TensorSource


@contextmanager
def open_checkpoint(folder: Path, *, expected: AvatarDiTConfig | None = None) -> Iterator[Weights]:
    """Open a checkpoint folder for as long as the ``with`` block lasts.

    Args:
        folder: Has config.json, dit/ and codec/.
        expected: The model that the caller wants; None takes what the folder has.

    Raises:
        CheckpointError: The folder is not a checkpoint, not whole, or not of that model.
    """
    config, precision = read_config(folder)
    if expected is not None:
        _compare(config, expected, folder / CONFIG_FILE)
    with ShardFolder(folder / DIT_FOLDER) as dit, ShardFolder(folder / CODEC_FOLDER) as codec:
        check(dit, expected_dit(config, precision))
        check(codec, expected_codec(config))
        yield Weights(config, precision, dit, codec)


def random_weights(config: AvatarDiTConfig, seed: int = 0) -> Weights:
    """Draw a model out of a seed: for benchmarks and tests; it has learned nothing."""
    return Weights(
        config,
        "fp32",
        RandomSource({spec.name: spec.shape for spec in tensor_specs(config)}, seed),
        RandomSource({name: e.shape for name, e in expected_codec(config).items()}, seed),
    )


def expected_dit(config: AvatarDiTConfig, precision: Precision) -> dict[str, Expected]:
    """List the DiT's tensors as a checkpoint of that precision has them."""
    expected: dict[str, Expected] = {}
    for spec in tensor_specs(config):
        if spec.is_matrix and precision == "fp8":
            expected[spec.name] = Expected(spec.shape, frozenset({FP8}))
            expected[spec.name + SCALE_SUFFIX] = Expected(
                spec.shape[:1], frozenset({torch.float32})
            )
        else:
            expected[spec.name] = Expected(spec.shape)
    return expected


def expected_codec(config: AvatarDiTConfig) -> dict[str, Expected]:
    """List the codec's tensors; none for a kind of decoder that has no codec of this kind."""
    return wan_codec_tensors(config.codec) if config.decoder == "video" else {}


def wan_codec_tensors(config: WanCodecConfig) -> dict[str, Expected]:
    """List the tensors of a Wan2.2-class codec."""
    with torch.device("meta"):
        halves = {"encoder": EncoderNetwork(config), "decoder": DecoderNetwork(config)}
    return {
        f"{half}.{name}": Expected(tuple(tensor.shape))
        for half, network in halves.items()
        for name, tensor in network.state_dict().items()
    }


def read_config(folder: Path) -> tuple[AvatarDiTConfig, Precision]:
    """Read config.json.

    Raises:
        CheckpointError: It is missing, of another format or a later version, or contradicts
            itself.
    """
    path = folder / CONFIG_FILE
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: not there, so {folder} is not a checkpoint; a folder of diffusers is "
            "converted with `talking-avatar weights import`"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f'{path}: "format" is not "{FORMAT}"')
    if document.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: version {document.get('version')!r}, this release reads {VERSION}"
        )
    precision = document.get("precision")
    if precision not in ("fp32", "bf16", "fp8"):
        raise CheckpointError(f'{path}: "precision" is {precision!r}, not fp32, bf16 or fp8')
    try:
        config = AvatarDiTConfig.from_dict(document["model"])
        _check_types(config, AvatarDiTConfig())
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f'{path}: "model" does not describe one: {error}') from error
    return config, precision


def write_config(folder: Path, config: AvatarDiTConfig, precision: Precision) -> None:
    """Write config.json: last, so that only a whole folder is a checkpoint."""
    document: Mapping[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "precision": precision,
        "model": config.to_dict(),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")


def _check_types(value: Any, like: Any) -> None:
    """Compare a configuration's fields with another one's types, and with the words allowed."""
    hints = get_type_hints(type(like))
    for field in fields(like):
        mine, theirs = getattr(value, field.name), getattr(like, field.name)
        words = get_args(hints[field.name])
        if get_origin(hints[field.name]) is Literal and mine not in words:
            raise ValueError(f"{field.name} is {mine!r}, not one of {', '.join(words)}")
        if is_dataclass(theirs):
            _check_types(mine, theirs)
        elif type(mine) is not type(theirs) and (type(mine), type(theirs)) != (int, float):
            raise TypeError(f"{field.name} is {mine!r}, not of type {type(theirs).__name__}")


def _compare(found: AvatarDiTConfig, wanted: AvatarDiTConfig, path: Path) -> None:
    """Refuse another model; statistics of latents come with the weights and may differ."""
    different = [
        f"{field.name} {getattr(found, field.name)!r} (wanted {getattr(wanted, field.name)!r})"
        for field in fields(AvatarDiTConfig)
        if _essence(getattr(found, field.name)) != _essence(getattr(wanted, field.name))
    ]
    if different:
        raise CheckpointError(f"{path}: another model: {', '.join(different)}")


def _essence(value: object) -> object:
    if isinstance(value, WanCodecConfig):
        plain = {field.name: getattr(value, field.name) for field in fields(value)}
        return plain | {"latent_mean": (), "latent_std": ()}
    return value
