"""Everything that an engine holds while it is open, built once.

Takes: a `DiffusionConfig`. Gives: `Parts`: rank threads with their models, decoder, encoder.
Never: makes a chunk. Blocks for as long as the weights take to load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from talking_avatar.config import DiffusionConfig
from talking_avatar.engine.base import Device
from talking_avatar.engine.diffusion.cache.ring import RingShape
from talking_avatar.engine.diffusion.conditioning.speech import SpeechFrontEnd, open_front_end
from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config
from talking_avatar.engine.diffusion.decoder.base import PhotoEncoder, VideoDecoder
from talking_avatar.engine.diffusion.model.dit import DiT
from talking_avatar.engine.diffusion.plan import check_memory
from talking_avatar.engine.diffusion.ranks.comm import Comm
from talking_avatar.engine.diffusion.ranks.group import RankGroup
from talking_avatar.engine.diffusion.ranks.rendezvous import RankFailed
from talking_avatar.engine.diffusion.weights.checkpoint import (
    Weights,
    open_checkpoint,
    random_weights,
)
from talking_avatar.engine.diffusion.weights.codec import load_photo_encoder, load_video_decoder
from talking_avatar.engine.diffusion.weights.rank_part import fill_rank
from talking_avatar.errors import CheckpointError, EngineError, EngineFailed, OutOfMemory

PIPELINE_DEPTH = 2
"""One chunk in the ranks, one in the decoder. A third would only be speech too late to cut."""
REWIND_CHUNKS = 2 * PIPELINE_DEPTH + 2
"""How far back every stream can go; decides the spare places of its ring."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Parts:
    """An opened model.

    Attributes:
        config: The model.
        options: What it was opened with.
        ring: Sizes of every stream's cache.
        group: The rank threads.
        models: One per rank.
        front_end: For speech.
        encoder: For photos; None where the photo's latent is zero by definition.
        decoder: For latents.
        devices: What is held.
    """

    config: AvatarDiTConfig
    options: DiffusionConfig
    ring: RingShape
    group: RankGroup
    models: tuple[DiT, ...]
    front_end: SpeechFrontEnd
    encoder: PhotoEncoder
    decoder: VideoDecoder[Any]
    devices: tuple[Device, ...]

    @property
    def decoder_device(self) -> str:
        return self.options.decoder_device or self.options.devices[0]


def open_parts(options: DiffusionConfig, *, threads_per_rank: int) -> Parts:
    """Load a model.

    Args:
        options: Which, from where, onto what.
        threads_per_rank: For torch, in each rank on a CPU.

    Raises:
        ValueError: No model, or no device, has that name.
        EngineError: This machine has no such device.
        CheckpointError: There is no checkpoint, or it does not fit.
        OutOfMemory: A device has too little memory, by prediction or in fact.
    """
    check_devices(options)
    with _weights(options) as weights:
        config = weights.config
        ring = RingShape.of(config, rewind_chunks=REWIND_CHUNKS)
        check_memory(replace(config, spare=ring.spare), options)
        decoder_device = options.decoder_device or options.devices[0]
        dtype = torch.float32 if decoder_device == "cpu" else torch.bfloat16
        _check_decoder(config)
        group = RankGroup(len(options.devices), threads_per_rank=threads_per_rank)
        try:
            models = group.run(lambda comm: load_model(weights, options, comm))
            return Parts(
                config=config,
                options=options,
                ring=ring,
                group=group,
                models=tuple(models),
                front_end=open_front_end(config),
                encoder=load_photo_encoder(weights, device=decoder_device, dtype=dtype),
                decoder=load_video_decoder(weights, device=decoder_device, dtype=dtype),
                devices=_devices(options),
            )
        except (RankFailed, torch.OutOfMemoryError) as error:
            group.close()
            raise as_engine_error(f"{config.name} could not be loaded", error) from error
        except BaseException:
            group.close()
            raise


def check_devices(options: DiffusionConfig) -> None:
    """Refuse devices that are not there, before anything is loaded.

    Raises:
        ValueError: A name is none of ``"cpu"`` and ``"cuda:N"``, or there is none.
        EngineError: This machine has no such GPU.
    """
    if not options.devices:
        raise ValueError('devices is empty: name one per rank, such as ("cuda:0", "cuda:1")')
    num_gpus = torch.cuda.device_count()
    for name in {*options.devices, options.decoder_device or options.devices[0]}:
        if name == "cpu":
            continue
        match = re.fullmatch(r"cuda:(\d+)", name)
        if match is None:
            raise ValueError(f'device {name!r}: write "cpu", or "cuda:0" for the first GPU')
        if int(match[1]) >= num_gpus:
            raise EngineError(
                f"device {name!r} is not here: torch {torch.__version__} sees {num_gpus} GPUs"
            )


def as_engine_error(what: str, error: Exception) -> EngineError:
    """Say what became of an error of a rank or a decoder, as the seam promises it."""
    origin = error.__cause__ if error.__cause__ is not None else error
    if isinstance(origin, OutOfMemory | CheckpointError):
        return origin
    if isinstance(origin, torch.OutOfMemoryError):
        return OutOfMemory(f"{what}: {error}")
    return EngineFailed(f"{what}: {error}")


def load_model(weights: Weights, options: DiffusionConfig, comm: Comm) -> DiT:
    """Build one rank's model on its device and fill it.

    On a CPU, FP8 keeps all else in FP32: there it is the reference, and rounds nothing twice.
    """
    device = options.devices[comm.rank]
    use_device(device)  # stays: rank threads serve one device each
    is_fp32 = options.precision == "fp32" or (options.precision == "fp8" and device == "cpu")
    dense = torch.float32 if is_fp32 else torch.bfloat16
    model = DiT(weights.config, comm, precision=options.precision, dense=dense, device=device)
    fill_rank(dict(model.named_parameters()), weights, rank=comm.rank, num_ranks=comm.world_size)
    return model.eval()


@contextmanager
def _weights(options: DiffusionConfig) -> Iterator[Weights]:
    if options.weights == "random":
        yield random_weights(named_config(options.model), options.seed)
        return
    if options.checkpoint is None:
        raise CheckpointError(
            f"{options.model} has no checkpoint to load: give DiffusionConfig(checkpoint=FOLDER), "
            'or weights="random" to try the engine with a model that has learned nothing'
        )
    # A name that the caller did not write is only a default, and the folder knows better.
    is_named = "model" in options.model_fields_set
    expected = named_config(options.model) if is_named else None
    with open_checkpoint(options.checkpoint, expected=expected) as weights:
        yield weights


def _check_decoder(config: AvatarDiTConfig) -> None:
    if config.decoder != "video":
        raise CheckpointError(
            f"{config.name} is decoded by a {config.decoder!r} decoder, which comes with trained "
            "weights only: there is nothing to decode its latents with here"
        )


def _devices(options: DiffusionConfig) -> tuple[Device, ...]:
    held = {name: Device(name, device_kind(name), "denoise") for name in options.devices}
    decoder = options.decoder_device or options.devices[0]
    held.setdefault(decoder, Device(decoder, device_kind(decoder), "decode"))
    return tuple(held.values())


def use_device(name: str) -> None:
    """Make a GPU this thread's own: kernels are launched on a thread's current device."""
    if torch.device(name).type == "cuda":
        torch.cuda.set_device(name)


def device_kind(name: str) -> str:
    """Name a device as a rate card does: ``"cpu"``, ``"H200"``..."""
    if torch.device(name).type != "cuda":
        return torch.device(name).type
    words = torch.cuda.get_device_name(name).removeprefix("NVIDIA ").split()
    return words[0]
