"""The seam between denoised latents and pictures.

Takes: the avatar's photo once, then one latent frame per chunk.
Gives: the chunk's frames as uint8 RGB, and the state that the next chunk continues from.
Never: knows ranks, caches of the DiT, or time.

Legend of shapes: C latent channels; h, w latent height and width; H, W pixels; F frames a chunk.

A state is a value. `VideoDecoder.decode` never writes into the state it is given, so that going
back is nothing more than decoding again from an older one:

    state = decoder.start(photo)
    frames, after_first = decoder.decode(latent_0, state)
    frames, after_second = decoder.decode(latent_1, after_first)
    frames, _ = decoder.decode(other_latent_1, after_first)     # the second chunk, anew
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PhotoView:
    """What a decoder may know of the avatar.

    Attributes:
        image: The framed photo at the size of the video: uint8 RGB, shape (H, W, 3).
        latent: The photo as the DiT's sink sees it, normalized as the DiT wants it.
        features: Further maps that a decoder was trained with, such as landmark geometry; None
            where it needs none.
    """

    image: Tensor
    latent: Tensor
    features: Tensor | None = None


class DecoderState(Protocol):
    """All that a decoder remembers of the video so far. Its size does not grow."""

    @property
    def nbytes(self) -> int:
        """Bytes it holds on the decoder's device."""
        ...

    def snapshot(self: _State) -> _State:
        """Copy it, for a caller that reuses the original's memory (a CUDA graph's buffers)."""
        ...


_State = TypeVar("_State", bound=DecoderState)
StateT = TypeVar("StateT", bound=DecoderState)


class VideoDecoder(Protocol[StateT]):
    """Latents to frames, chunk by chunk. Not thread-safe; many streams may share one in turn."""

    @property
    def frames_per_latent(self) -> int:
        """Frames that one latent frame becomes."""
        ...

    def start(self, photo: PhotoView) -> StateT:
        """Begin a video whose past is the photo at rest.

        Raises:
            ValueError: The photo's tensors have another shape than the decoder was built for.
        """
        ...

    def decode(self, latent_Chw: Tensor, state: StateT) -> tuple[Tensor, StateT]:
        """Decode one chunk.

        Args:
            latent_Chw: One latent frame normalized as the DiT wants it.
            state: Where to continue from; left as it was.

        Returns:
            Frames, uint8 RGB of shape (F, H, W, 3) on the decoder's device, and the state after
            them.

        Raises:
            ValueError: ``latent_Chw`` has the wrong shape.
        """
        ...


class PhotoEncoder(Protocol):
    """The avatar's photo to the latent that becomes the DiT's sink."""

    def encode_photo(self, image_HWc: Tensor) -> Tensor:
        """Encode a framed photo.

        Args:
            image_HWc: uint8 RGB, shape (H, W, 3); both sides multiples of the spatial stride.

        Returns:
            Its latent (C, h, w), normalized as the DiT wants it.

        Raises:
            ValueError: The image has another shape or type.
        """
        ...
