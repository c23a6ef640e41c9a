"""What a placement of a model costs before anything is loaded: work, memory, GPUs held.

Takes: a configuration and how it is spread over devices. Gives: `PlanReport`, by arithmetic alone,
and its rendering; `check_memory` compares the same arithmetic with this machine.
Never: loads a weight. Only `check_memory` looks at a device.

Times here are lower bounds, from the rate that a GPU's tensor cores reach on large FP8 products; a
placement whose bound is above the chunk's time can't be live, and is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from talking_avatar.config import DiffusionConfig
from talking_avatar.engine.diffusion.config import (
    BYTES_PER_VALUE,
    AvatarDiTConfig,
    Precision,
)
from talking_avatar.engine.diffusion.layout import num_parameters, padded_heads, tensor_specs
from talking_avatar.errors import OutOfMemory

if TYPE_CHECKING:
    from rich.console import RenderableType

FP8_FLOPS = 1.49e15
"""Reached on large square FP8 products on one H200 (torch 2.11): the ceiling of any step."""
WORK_BYTES = 512 * 2**20
"""Of a GPU's memory for activations, graphs and libraries, beside weights and cache."""
DECODER_STATES = 7
"""Pasts of the video decoder that a stream keeps: six chunks to go back, and the newest."""
CODEC_BYTES = 1_410_000_000
"""Weights of Wan2.2's codec in BF16, encoder included."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How one session's model is spread over GPUs.

    Attributes:
        tp: Ranks that share the DiT.
        decoder: ``"own"``: a further GPU decodes; ``"shared"``: one of the ranks' GPUs does.
    """

    tp: int
    decoder: Literal["own", "shared"] = "own"

    @property
    def name(self) -> str:
        return f"tp{self.tp}+1" if self.decoder == "own" else f"tp{self.tp} shared"

    @property
    def gpus_held(self) -> int:
        return self.tp + (self.decoder == "own")


FOUR_OR_FIVE = (Placement(3), Placement(4, "shared"), Placement(4))
"""Every placement that a published "four GPUs" may mean, and the one with five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """One model on one placement.

    Attributes:
        config: The model.
        placement: Over what.
        precision: Of the layers' matrices.
        kv_precision: Of the cache.
        parameters: Every number of the DiT.
        token_parameters: Those of the layers' matrices that tokens pass through.
        linear_flops, attention_flops: For one chunk.
        weight_bytes: Of one rank.
        kv_bytes: Of one rank and stream, scales apart.
        kv_scale_bytes: Of one rank and stream.
        floor_s: Least time of one rank's share of a chunk.
    """

    config: AvatarDiTConfig
    placement: Placement
    precision: Precision
    kv_precision: Precision
    parameters: int
    token_parameters: int
    linear_flops: int
    attention_flops: int
    weight_bytes: int
    kv_bytes: int
    kv_scale_bytes: int
    floor_s: float

    @property
    def rank_bytes(self) -> int:
        """Bytes of one rank with one stream."""
        return self.weight_bytes + self.kv_bytes + self.kv_scale_bytes + WORK_BYTES

    @property
    def can_be_live(self) -> bool:
        """Whether a chunk can be made in the time it is shown, as far as arithmetic can tell."""
        return self.floor_s <= self.config.chunk_s


@lru_cache(maxsize=256)  # comparing hosts asks for the same placements again and again
def describe(
    config: AvatarDiTConfig,
    tp: int = 1,
    *,
    decoder: Literal["own", "shared"] = "own",
    precision: Precision = "fp8",
    kv_precision: Precision = "fp8",
) -> PlanReport:
    """Work out one placement.

    Args:
        config: The model.
        tp: Ranks.
        decoder: On a GPU of its own, or sharing one of the ranks'.
        precision: Of the layers' matrices.
        kv_precision: Of the cache.

    Raises:
        ValueError: ``tp`` is not positive.
    """
    if tp < 1:
        raise ValueError(f"tp {tp}: a model needs at least one rank")
    heads = padded_heads(config, tp) // tp
    is_fp8 = kv_precision == "fp8"
    return PlanReport(
        config=config,
        placement=Placement(tp, decoder),
        precision=precision,
        kv_precision=kv_precision,
        parameters=num_parameters(config),
        token_parameters=config.token_parameters,
        linear_flops=config.linear_flops,
        attention_flops=config.attention_flops,
        weight_bytes=weight_bytes(config, tp, precision),
        kv_bytes=config.kv_bytes(kv_precision, heads),
        kv_scale_bytes=config.kv_scale_bytes(heads) if is_fp8 else 0,
        floor_s=config.chunk_flops / tp / FP8_FLOPS,
    )


def weight_bytes(config: AvatarDiTConfig, tp: int, precision: Precision) -> int:
    """Count one rank's bytes of parameters, zero heads and columns included."""
    rest = 4 if precision == "fp32" else 2
    total = 0
    for spec in tensor_specs(config, tp):
        shape = spec.part_shape(tp)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if not spec.is_matrix:
            total += count * rest
            continue
        total += count * BYTES_PER_VALUE[precision]
        total += 4 * shape[0] if precision == "fp8" else 0
    return total


def decoder_bytes(config: AvatarDiTConfig, *, dtype_bytes: int) -> int:
    """Count the decoder's weights and what one stream keeps of its past.

    At full size in BF16 that is 1.4 GB and seven times 2.7 GB. A flow decoder has no past to speak
    of, and its weights are a few megabytes.
    """
    if config.decoder != "video":
        return 0
    width = max(config.codec.decoder_width / 256, config.codec.encoder_width / 160)
    weights = int(CODEC_BYTES * width * width) * dtype_bytes // 2
    state = config.codec.state_values(*config.latent_size) * dtype_bytes
    return weights + DECODER_STATES * state


def render(*reports: PlanReport) -> RenderableType:
    """Lay reports of one model out for a terminal: what it is, then a column per placement."""
    from rich.console import Group
    from rich.table import Table

    config = reports[0].config
    model = Table("", "", show_header=False, box=None, title=config.name, title_justify="left")
    for name, value in _model_rows(reports[0]):
        model.add_row(name, value)
    placements = Table("", *(report.placement.name for report in reports), box=None)
    columns = [_placement_rows(report) for report in reports]
    for row in zip(*columns, strict=True):
        placements.add_row(row[0][0], *(value for _, value in row))
    return Group(model, "", placements)


def _model_rows(report: PlanReport) -> list[tuple[str, str]]:
    config = report.config
    flops = report.linear_flops + report.attention_flops
    rows, columns = config.grid
    tokens = f"{config.chunk_tokens:,}"
    return [
        ("parameters", f"{_count(report.token_parameters)} in the layers' matrices, "
                       f"{_count(report.parameters)} in all"),
        ("a chunk", f"{config.frames_per_chunk} frames of {config.width} x {config.height}, "
                    f"{config.chunk_s * 1e3:.1f} ms, {len(config.sigmas)} passes"),
        ("tokens", f"{tokens} = {rows} x {columns} patches + {config.num_conditioning}"),
        ("attended", f"{config.attended:,} = {config.num_sink:,} sink + "
                     f"{config.window} x {tokens}"),
        ("stored", f"{config.stored:,} slots = attended + {config.spare} spare chunks"),
        ("positions", f"{config.first_position} to {config.max_position}, a reset every "
                      f"{config.reset_interval} chunks"),
        ("work", f"{flops / 1e12:.1f} TFLOP a chunk = {report.linear_flops / 1e12:.1f} linear + "
                 f"{report.attention_flops / 1e12:.1f} attention"),
        ("live", f"{config.flops_per_s / 1e15:.3f} PFLOP/s"),
    ]  # fmt: skip


def _count(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} B"
    return f"{parameters / 1e6:.2f} M"


def _placement_rows(report: PlanReport) -> list[tuple[str, str]]:
    heads = padded_heads(report.config, report.placement.tp) // report.placement.tp
    return [
        ("GPUs held", f"{report.placement.gpus_held}"),
        ("heads a rank", f"{heads}"),
        (f"weights a rank, {report.precision}, GB", f"{report.weight_bytes / 1e9:.2f}"),
        (f"cache a rank, {report.kv_precision}, GB", f"{report.kv_bytes / 1e9:.2f}"),
        ("its scales, GB", f"{report.kv_scale_bytes / 1e9:.2f}"),
        ("memory a rank, GB", f"{report.rank_bytes / 1e9:.2f}"),
        ("least step on H200, ms", f"{report.floor_s * 1e3:.1f}"),
        ("live", "possible" if report.can_be_live else "REFUSED"),
    ]


# ---- this machine


def check_memory(config: AvatarDiTConfig, options: DiffusionConfig) -> None:
    """Refuse a model that will not fit, before loading it.

    Args:
        config: The model, with the spare places that a stream will have.
        options: Where it shall go.

    Raises:
        OutOfMemory: Naming the device, what it needs and what is free.
    """
    report = describe(
        config, len(options.devices), precision=options.precision,
        kv_precision=options.kv_precision,
    )  # fmt: skip
    decoder_device = options.decoder_device or options.devices[0]
    ranks_on = Counter(options.devices)
    for device in dict.fromkeys((*ranks_on, decoder_device)):
        ranks = ranks_on[device]
        needed = ranks * (report.rank_bytes - WORK_BYTES)
        decodes = device == decoder_device
        if decodes:
            needed += decoder_bytes(config, dtype_bytes=4 if device == "cpu" else 2)
        needed += WORK_BYTES if device.startswith("cuda") else 0
        free = free_bytes(device)
        if free is not None and needed > free:
            raise OutOfMemory(
                f"{config.name} needs {needed / 1e9:.1f} GB on {device} ({ranks} of "
                f"{len(options.devices)} ranks in {options.precision}, one stream's cache in "
                f"{options.kv_precision}{', and the decoder' if decodes else ''}), "
                f"{free / 1e9:.1f} GB are free: use more devices, a smaller precision or a smaller "
                "model",
                needed_bytes=needed,
                free_bytes=free,
            )


def free_bytes(device: str) -> int | None:
    """Ask a device for its free memory; None where it does not say."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    if device == "cpu" and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
