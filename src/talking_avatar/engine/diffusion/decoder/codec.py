"""The Wan2.2-class autoencoder behind the seam: normalized latents and bytes on the outside.

Takes: the photo's latent once, then one latent frame a chunk; or a photo to encode.
Gives: four frames of uint8 RGB and the next state; or the photo's latent.
Never: keeps a stream's state: one decoder serves every stream on its device, one at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from talking_avatar.engine.diffusion.decoder.base import PhotoView
from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig
from talking_avatar.engine.diffusion.decoder.history import CodecState
from talking_avatar.engine.diffusion.decoder.networks import DecoderNetwork, EncoderNetwork
from talking_avatar.engine.diffusion.decoder.pixels import to_bytes, to_patches


def channels_last(network: nn.Module) -> None:
    """Lay every convolution's weight out with channels innermost, as GPU kernels want it."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in network.parameters():
        if parameter.ndim in formats:
            parameter.data = parameter.data.contiguous(memory_format=formats[parameter.ndim])


class LatentScale(nn.Module):
    """Raw latents to the DiT's and back: zero mean and unit deviation per channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: WanCodecConfig) -> None:
        super().__init__()
        channels = config.latent_channels
        for name, values, neutral in (
            ("mean", config.latent_mean, 0.0),
            ("std", config.latent_std, 1.0),
        ):
            tensor = torch.tensor(values or (neutral,) * channels).view(-1, 1, 1)
            self.register_buffer(name, tensor, persistent=False)

    def normalize(self, raw_Chw: Tensor) -> Tensor:
        """Raw to normalized."""
        return (raw_Chw - self.mean) / self.std

    def denormalize(self, latent_Chw: Tensor) -> Tensor:
        """Normalized to raw."""
        return latent_Chw * self.std + self.mean


class WanVideoDecoder:
    """A `VideoDecoder`: one latent frame to four frames of picture.

    The photo's latent opens the video: it decodes to a single frame, the photo itself, which is
    dropped. Every latent of the stream is then one that follows, and gives four frames.

    Args:
        config: Shape of the network.
        network: With its weights, on its device, in evaluation mode.
    """

    def __init__(self, config: WanCodecConfig, network: DecoderNetwork) -> None:
        self._config = config
        self._network = network
        self._device = next(network.parameters()).device
        self._dtype = next(network.parameters()).dtype
        self._scale = LatentScale(config).to(self._device)

    @property
    def frames_per_latent(self) -> int:
        return self._config.frames_per_latent

    def start(self, photo: PhotoView) -> CodecState:
        return self._run(photo.latent, None)[1]

    def decode(self, latent_Chw: Tensor, state: CodecState) -> tuple[Tensor, CodecState]:
        patches, after = self._run(latent_Chw, state)
        return to_bytes(patches, self._config.patch), after

    @torch.no_grad()
    def _run(self, latent_Chw: Tensor, state: CodecState | None) -> tuple[Tensor, CodecState]:
        channels = self._config.latent_channels
        if latent_Chw.ndim != 3 or latent_Chw.shape[0] != channels:
            raise ValueError(
                f"a latent frame is ({channels}, height, width), got {tuple(latent_Chw.shape)}"
            )
        if state is not None and state.past[0].shape[3:] != latent_Chw.shape[1:]:
            raise ValueError(
                f"the video so far has latent frames of {tuple(state.past[0].shape[3:])}, this one "
                f"is {tuple(latent_Chw.shape[1:])}"
            )
        raw = self._scale.denormalize(latent_Chw.to(self._device, torch.float32))
        outcome: tuple[Tensor, CodecState] = self._network(
            raw.to(self._dtype)[None, :, None], state
        )
        return outcome


class WanPhotoEncoder:
    """A `PhotoEncoder`: the photo's latent, as the opening frame of a video would have it.

    Args:
        config: Shape of the network.
        network: With its weights, on its device, in evaluation mode.
    """

    def __init__(self, config: WanCodecConfig, network: EncoderNetwork) -> None:
        self._config = config
        self._network = network
        self._device = next(network.parameters()).device
        self._dtype = next(network.parameters()).dtype
        self._scale = LatentScale(config).to(self._device)

    @torch.no_grad()
    def encode_photo(self, image_HWc: Tensor) -> Tensor:
        stride = self._config.spatial_stride
        shape = tuple(image_HWc.shape)
        if image_HWc.dtype != torch.uint8 or len(shape) != 3 or shape[2] != 3:
            raise ValueError(f"a photo is uint8 (H, W, 3), got {image_HWc.dtype} {shape}")
        if shape[0] % stride or shape[1] % stride:
            raise ValueError(
                f"a photo of {shape[1]}x{shape[0]} does not divide into cells of {stride} pixels"
            )
        image = image_HWc.to(self._device)[None]
        patches = to_patches(image, self._config.patch, self._dtype)
        raw, _ = self._network(patches, None)
        return self._scale.normalize(raw[0, :, 0].float())
