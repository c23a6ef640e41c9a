"""diffusers' Wan2.2-TI2V-5B folder, read as if it were a checkpoint of ours.

Takes: a folder with ``transformer/`` and ``vae/``, each with config.json and safetensors.
Gives: `Weights` over their files, under our names; saved with `save_checkpoint`, or loaded as is.
Never: copies a tensor to rename it, or reads the text encoder, scheduler and tokenizer beside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config
from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig
from talking_avatar.engine.diffusion.weights.checkpoint import (
    Weights,
    expected_dit,
    wan_codec_tensors,
)
from talking_avatar.engine.diffusion.weights.shards import ShardFolder
from talking_avatar.engine.diffusion.weights.source import (
    ALL,
    Expected,
    TensorInfo,
    TensorSource,
    check,
)
from talking_avatar.engine.diffusion.weights.wan_keys import dit_name, vae_name
from talking_avatar.errors import CheckpointError

TRANSFORMER = "transformer"
VAE = "vae"


@contextmanager
def open_wan(folder: Path, *, base: AvatarDiTConfig | None = None) -> Iterator[Weights]:
    """Open a folder of diffusers for as long as the ``with`` block lasts.

    Args:
        folder: Has ``transformer/`` and ``vae/``.
        base: What the folder does not say: picture size, ring, passes. None: those of
            ``wan2.2-ti2v-5b``.

    Raises:
        CheckpointError: It holds another model, or is not whole.
    """
    config = read_wan_config(folder, base)
    with ShardFolder(folder / TRANSFORMER) as transformer, ShardFolder(folder / VAE) as vae:
        wanted = expected_dit(config, "bf16")
        dit = RenamedSource(transformer, dit_name, wanted, _output_rows(config))
        wanted_codec = wan_codec_tensors(config.codec)
        renamed_vae = RenamedSource(vae, vae_name, wanted_codec, {})
        check(dit, wanted)
        check(renamed_vae, wanted_codec)
        yield Weights(config, "bf16", dit, renamed_vae)


def read_wan_config(folder: Path, base: AvatarDiTConfig | None = None) -> AvatarDiTConfig:
    """Read both of a folder's config.json; for ``base`` see `open_wan`.

    Raises:
        CheckpointError: They describe another model.
    """
    codec = _codec_config(folder / VAE / "config.json")
    base = base or named_config("wan2.2-ti2v-5b")
    return _dit_config(folder / TRANSFORMER / "config.json", base, codec)


@dataclass(frozen=True, slots=True)
class _Entry:
    theirs: str
    info: TensorInfo
    is_as_stored: bool


class RenamedSource:
    """A `TensorSource` that shows another one's tensors under other names.

    A tensor that is stored in our shape is read by regions. One with the same values in another
    shape (a 1 x 1 convolution that is a matrix here) or in another order of rows is read whole,
    then cut: those are small.

    Args:
        source: Theirs.
        rename: Their name to ours.
        expected: Ours, for the shapes.
        row_orders: For each of our names whose rows are ordered otherwise: where in the stored
            tensor each of our rows is.
    """

    def __init__(
        self,
        source: TensorSource,
        rename: Callable[[str], str],
        expected: Mapping[str, Expected],
        row_orders: Mapping[str, Tensor],
    ) -> None:
        self._source = source
        self._row_orders = row_orders
        self._entries = {
            rename(theirs): _entry(theirs, info, expected.get(rename(theirs)))
            for theirs, info in source.tensors.items()
        }

    @property
    def where(self) -> str:
        return self._source.where

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return MappingProxyType({name: entry.info for name, entry in self._entries.items()})

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, *, device: str = "cpu"
    ) -> Tensor:
        entry = self._entries[name]
        if entry.is_as_stored and name not in self._row_orders:
            return self._source.read(entry.theirs, rows, columns, device=device)
        whole = self._source.read(entry.theirs, device=device).reshape(entry.info.shape)
        if name in self._row_orders:
            whole = whole[self._row_orders[name].to(device)]
        return whole[rows] if columns == ALL else whole[rows, columns]


def _entry(theirs: str, stored: TensorInfo, wanted: Expected | None) -> _Entry:
    """Show a tensor in our shape where it differs from theirs by sizes of one and merged ones."""
    info = replace(stored, where=f"{stored.where} ({theirs})")
    if wanted is None or stored.shape == wanted.shape or not _same_values(stored, wanted):
        return _Entry(theirs, info, is_as_stored=True)
    return _Entry(theirs, replace(info, shape=wanted.shape), is_as_stored=False)


def _same_values(stored: TensorInfo, wanted: Expected) -> bool:
    sizes = [size for size in stored.shape if size != 1]
    first = [size for size in wanted.shape if size != 1]
    return prod(stored.shape) == prod(wanted.shape) and sizes[:1] == first[:1]


def _output_rows(config: AvatarDiTConfig) -> dict[str, Tensor]:
    """Order the output's rows by (channel, row, column); theirs are (row, column, channel)."""
    patch = config.patch
    stored = torch.arange(config.patch_channels).view(patch, patch, config.latent_channels)
    order = stored.permute(2, 0, 1).flatten()
    return {"output.weight": order, "output.bias": order}


def _read_json(path: Path, class_name: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: no configuration of {class_name}: {error}") from error
    found = document.get("_class_name") if isinstance(document, dict) else None
    if found != class_name:
        raise CheckpointError(f"{path}: describes {found!r}, not {class_name!r}")
    return dict(document)


def _require(path: Path, document: dict[str, Any], **wanted: object) -> None:
    """Refuse a variant of the model that the engine does not have."""
    for name, value in wanted.items():
        found = document.get(name, value)
        if found != value:
            raise CheckpointError(f"{path}: {name} is {found!r}; only {value!r} can be imported")


def _dit_config(path: Path, base: AvatarDiTConfig, codec: WanCodecConfig) -> AvatarDiTConfig:
    theirs = _read_json(path, "WanTransformer3DModel")
    try:
        _, patch, _ = theirs["patch_size"]
        channels, heads, head_dim = (
            theirs[key] for key in ("in_channels", "num_attention_heads", "attention_head_dim")
        )
        _require(
            path,
            theirs,
            patch_size=[1, patch, patch],
            out_channels=channels,
            qk_norm="rms_norm_across_heads",
            cross_attn_norm=True,
            image_dim=None,
            added_kv_proj_dim=None,
        )
        # Their rule: y and x get two sixths each, rounded down to pairs; time gets the rest.
        side = 2 * (head_dim // 6)
        return replace(
            base,
            latent_channels=channels,
            patch=patch,
            hidden=heads * head_dim,
            num_heads=heads,
            head_dim=head_dim,
            num_layers=theirs["num_layers"],
            ffn=theirs["ffn_dim"],
            activation="gelu",
            qk_norm="inner",
            bias=True,
            text_channels=theirs["text_dim"],
            eps=theirs["eps"],
            time_channels=theirs["freq_dim"],
            rope_dims=(head_dim - 2 * side, side, side),
            codec=codec,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a model that can be imported: {error!r}") from error


def _codec_config(path: Path) -> WanCodecConfig:
    theirs = _read_json(path, "AutoencoderKLWan")
    patch = theirs.get("patch_size") or 1
    _require(
        path,
        theirs,
        is_residual=True,
        attn_scales=[],
        in_channels=3 * patch * patch,
        out_channels=3 * patch * patch,
    )
    try:
        config = WanCodecConfig(
            latent_channels=theirs["z_dim"],
            encoder_width=theirs["base_dim"],
            decoder_width=theirs.get("decoder_base_dim") or theirs["base_dim"],
            multipliers=tuple(theirs["dim_mult"]),
            num_residuals=theirs["num_res_blocks"],
            halves_time=tuple(theirs["temperal_downsample"]),
            patch=patch,
            latent_mean=tuple(theirs["latents_mean"]),
            latent_std=tuple(theirs["latents_std"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a codec that can be imported: {error!r}") from error
    _require(path, theirs, scale_factor_spatial=config.spatial_stride)
    return config
