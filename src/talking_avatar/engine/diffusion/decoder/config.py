"""The shape of a Wan2.2-class video autoencoder, as a value checked once when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite


@dataclass(frozen=True, slots=True, kw_only=True)
class WanCodecConfig:
    """A causal video autoencoder with residual shortcuts around every change of scale.

    The defaults are those of Wan2.2-TI2V-5B: 48 latent channels, 16 x 16 pixels and 4 frames a
    latent cell; its latent statistics come with its weights.

    Attributes:
        latent_channels: Channels of a latent cell.
        encoder_width: Channels of the encoder's first stage.
        decoder_width: Channels of the decoder's last stage.
        multipliers: Width of each stage, finest first, in units of the widths above.
        num_residuals: Residual blocks of an encoder stage; a decoder stage has one more.
        halves_time: Whether the encoder's n-th change of scale halves time as well as space.
        patch: Pixels folded into channels on both sides before the first convolution.
        latent_mean, latent_std: Per channel; the DiT's latents are ``(z - mean) / std``. Empty
            stands for 0 and 1.
    """

    latent_channels: int = 48
    encoder_width: int = 160
    decoder_width: int = 256
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    num_residuals: int = 2
    halves_time: tuple[bool, ...] = (False, True, True)
    patch: int = 2
    latent_mean: tuple[float, ...] = ()
    latent_std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse shapes that no network could have.

        Raises:
            ValueError: With the numbers that disagree.
        """
        if len(self.halves_time) != len(self.multipliers) - 1:
            raise ValueError(
                f"{len(self.multipliers)} stages have {len(self.multipliers) - 1} changes of "
                f"scale between them, but halves_time has {len(self.halves_time)}"
            )
        for name, values in (("latent_mean", self.latent_mean), ("latent_std", self.latent_std)):
            if values and len(values) != self.latent_channels:
                raise ValueError(
                    f"{name} has {len(values)} values for {self.latent_channels} latent channels"
                )
        if not all(0 < value < inf for value in self.latent_std):
            raise ValueError(f"latent_std must be positive, got {self.latent_std}")
        if not all(isfinite(value) for value in self.latent_mean):
            raise ValueError(f"latent_mean must be finite, got {self.latent_mean}")
        self._check_shortcuts()

    def _check_shortcuts(self) -> None:
        """Require that the shortcuts around a change of scale deal out whole channels."""
        cells = [8 if halves else 4 for halves in self.halves_time]
        down = zip(pairwise(self.encoder_widths), (*cells, 1), strict=True)
        up = zip(pairwise(self.decoder_widths[:-1]), cells[::-1], strict=True)
        for half, (start, end), few, many in (
            *(("encoder", widths, widths[1], widths[0] * cell) for widths, cell in down),
            *(("decoder", widths, widths[0], widths[1] * cell) for widths, cell in up),
        ):
            if many % few:
                raise ValueError(
                    f"no {half} stage leads from {start} to {end} channels: "
                    f"{few} does not divide {many}"
                )

    @property
    def spatial_stride(self) -> int:
        """Pixels a side of one latent cell."""
        return int(self.patch * 2 ** len(self.halves_time))

    @property
    def frames_per_latent(self) -> int:
        """Frames of one latent frame, except the opening one, which is a single frame."""
        return int(2 ** sum(self.halves_time))

    @property
    def pixel_channels(self) -> int:
        """Channels of the patched picture."""
        return 3 * self.patch * self.patch

    @property
    def encoder_widths(self) -> tuple[int, ...]:
        """Channels before each encoder stage and after the last."""
        return tuple(self.encoder_width * m for m in (1, *self.multipliers))

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        """Channels before each decoder stage and after the last."""
        coarse_first = self.multipliers[::-1]
        return tuple(self.decoder_width * m for m in (coarse_first[0], *coarse_first))

    def state_values(self, rows: int, columns: int) -> int:
        """Count the numbers that the decoder remembers of a video, for planning memory.

        Args:
            rows: Of the latent: the picture's height in cells of `spatial_stride` pixels.
            columns: Of the latent, likewise.
        """
        cells, convolutions = rows * columns, 2 * (self.num_residuals + 1)
        values = cells * (self.latent_channels + 4 * self.decoder_widths[0])
        doubles_time = (*self.halves_time[::-1], None)
        for (before, after), doubles in zip(
            pairwise(self.decoder_widths), doubles_time, strict=True
        ):
            values += cells * (before + (convolutions - 1) * after + (after if doubles else 0))
            cells *= 1 if doubles is None else 4
        two_frames = 2
        return two_frames * (values + cells * self.decoder_widths[-1])
