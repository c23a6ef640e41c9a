"""The published table against the time model: what is fitted, what is predicted, how far it is off.

Takes nothing but what is written here. Gives rows with their errors, and the fit itself.
Never: touches a GPU.

The published rows do not all say what software they ran, nor what "four GPUs" are. Each row lists
the readings that fit its words; the first one is the reading that the fit takes. For two rows it
was chosen because the others are far off (three B200: before the ring cache; eight H100: with it),
which is a choice too, and is why all readings are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.diffusion.config import named_config
from talking_avatar.engine.diffusion.gpus import GPU_KINDS
from talking_avatar.engine.diffusion.step_time import (
    BASELINE,
    CONSTANTS,
    FUSED,
    OURS,
    PRODUCTION,
    Constants,
    Parts,
    Stack,
    parts_of,
)

FITTED_WITHIN = 0.10
_ROW_TOLERANCE = 0.05
"""What a row's error is measured in, in the fit: machines and runs differ by so much."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a constant may lie, and where it is expected before any row is looked at.

    Attributes:
        low, high: Physical limits.
        expected, spread: From elsewhere, and how firmly.
        source: Where from.
    """

    low: float
    high: float
    expected: float
    spread: float
    source: str


BOUNDS = {
    "product_efficiency": Bound(
        0.40, 0.80, 0.62, 0.10, "one H200, row-wise scales, by TP: 0.59 to 0.68 of peak"
    ),
    "launch_us": Bound(10.0, 150.0, 60.0, 40.0, "norm, SwiGLU, quantization and gaps of a layer"),
    "link_efficiency": Bound(0.20, 0.90, 0.42, 0.15, "NCCL on four GPUs: 97 us, floor 41 us"),
    "hidden_share": Bound(0.0, 1.0, 0.40, 0.30, "only the down product is longer than its wires"),
    "contention": Bound(0.30, 1.0, 0.70, 0.30, "a decoder bound by tensor cores hides little"),
}
"""Of every constant: a fit cannot leave them, and is drawn towards what is expected."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a published row.

    Attributes:
        gpu: Kind of all its GPUs.
        tp: Ranks.
        decoder: ``"own"``, ``"shared"``, or ``"none"``: no wires and no decoder, one rank alone.
        stack: What software.
    """

    gpu: str
    tp: int
    decoder: str
    stack: Stack

    @property
    def name(self) -> str:
        if self.decoder == "none":
            return f"a rank of tp{self.tp}, {self.gpu}, {self.stack.name}"
        placement = f"tp{self.tp}+1" if self.decoder == "own" else f"tp{self.tp} shared"
        return f"{placement}, {self.gpu}, {self.stack.name}"

    def parts(self, constants: Constants) -> Parts:
        """Predict it."""
        gpu = GPU_KINDS[self.gpu]
        decoder_gpu = None if self.decoder == "shared" else gpu
        return parts_of(
            named_config("avatar-57b"), gpu, self.tp,
            stack=self.stack, decoder_gpu=decoder_gpu, constants=constants,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One number of the table.

    Attributes:
        what: It is.
        value: Milliseconds; a ratio where ``unit`` is ``"x"``.
        readings: The first one is what the fit takes.
        quantity: ``"denoise"``: the ranks; ``"step"``: the slower of ranks and decoder;
            ``"slowdown"``: ranks with a shared decoder over ranks alone; ``"rank"``: no wires.
        is_fitted: Whether the fit sees it.
    """

    what: str
    value: float
    readings: tuple[Reading, ...]
    quantity: str = "denoise"
    is_fitted: bool = True

    @property
    def unit(self) -> str:
        return "x" if self.quantity == "slowdown" else "ms"

    def predicted(self, constants: Constants, reading: Reading | None = None) -> float:
        """Predict the number, by one reading."""
        parts = (reading or self.readings[0]).parts(constants)
        if self.quantity == "slowdown":
            return parts.denoise_s / (parts.denoise_s - parts.contention)
        if self.quantity == "rank":
            return (parts.denoise_s - parts.wires) * 1e3
        return (parts.step_s if self.quantity == "step" else parts.denoise_s) * 1e3


def _four(stack: Stack) -> tuple[Reading, ...]:
    """Both readings of "four GPUs", and the one with a fifth, which fits best."""
    return (
        Reading("H100", 4, "own", stack),
        Reading("H100", 3, "own", stack),
        Reading("H100", 4, "shared", stack),
    )


ROWS = (
    PublishedRow("step, four H100, baseline", 240.9, _four(BASELINE)),
    PublishedRow("step, four H100, production", 159.3, _four(PRODUCTION)),
    PublishedRow("step, four H100, fused all-reduce", 147.4, _four(FUSED)),
    PublishedRow(
        "step, three B200",
        154.3,
        (
            Reading("B200", 2, "own", BASELINE),
            Reading("B200", 2, "own", PRODUCTION),
            Reading("B200", 3, "shared", BASELINE),
            Reading("B200", 3, "shared", PRODUCTION),
        ),
    ),
    PublishedRow(
        "diffusion, eight H100",
        118.2,
        (
            Reading("H100", 7, "own", PRODUCTION),
            Reading("H100", 7, "own", BASELINE),
            Reading("H100", 8, "shared", PRODUCTION),
        ),
    ),
    PublishedRow(
        "decoder-bound step, eight H100",
        128.7,
        (Reading("H100", 7, "own", PRODUCTION), Reading("H100", 7, "own", BASELINE)),
        quantity="step",
        is_fitted=False,
    ),
    PublishedRow(
        "slowdown, shared B200 (1.18 to 1.26)",
        1.22,
        (Reading("B200", 2, "shared", BASELINE), Reading("B200", 2, "shared", PRODUCTION)),
        quantity="slowdown",
    ),
    PublishedRow(
        "one rank's step, measured here",
        95.1,
        (Reading("H200", 4, "none", OURS),),
        quantity="rank",
    ),
)
"""Seven published numbers and one of our own."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One row against the model.

    Attributes:
        row, reading: What is compared.
        predicted: In the row's unit.
        error: Relative; positive: predicted too slow.
        left_out_error: Of a fit that did not see the row; None where no fit does.
        is_chosen: Whether the fit takes this reading.
    """

    row: PublishedRow
    reading: Reading
    predicted: float
    error: float
    left_out_error: float | None
    is_chosen: bool

    @property
    def verdict(self) -> str:
        if not self.is_chosen:
            return "other reading"
        if not self.row.is_fitted:
            return "predicted"
        return "fitted" if abs(self.error) <= FITTED_WITHIN else "NOT FITTED"


def residuals(constants: Constants = CONSTANTS) -> tuple[Residual, ...]:
    """Compare every reading of every row."""
    return tuple(_residual(row, reading, constants) for row in ROWS for reading in row.readings)


def _residual(row: PublishedRow, reading: Reading, constants: Constants) -> Residual:
    predicted = row.predicted(constants, reading)
    is_chosen = reading is row.readings[0]
    left_out = None
    if is_chosen and row.is_fitted:
        others = fit([other for other in ROWS if other is not row])
        left_out = row.predicted(others) / row.value - 1
    return Residual(row, reading, predicted, predicted / row.value - 1, left_out, is_chosen)


def fit(rows: Sequence[PublishedRow] = ROWS) -> Constants:
    """Fit the constants to rows: least squares within bounds, drawn towards what is expected.

    Gauss-Newton with numerical derivatives; the problem is smooth and nearly linear, and sixty
    steps are ten times what it needs.
    """
    bounds = [BOUNDS[field.name] for field in fields(Constants)]
    expected = np.array([bound.expected for bound in bounds])
    low, high = np.array([b.low for b in bounds]), np.array([b.high for b in bounds])
    values = expected.copy()
    for _ in range(60):
        now = _errors(values, rows, bounds)
        slopes = np.empty((now.size, values.size))
        for place, scale in enumerate(expected):
            moved = values.copy()
            moved[place] += 1e-5 * scale
            slopes[:, place] = (_errors(moved, rows, bounds) - now) / (1e-5 * scale)
        step = np.linalg.lstsq(slopes, now, rcond=None)[0]
        values = np.clip(values - step, low, high)
    return _constants(values)


def _errors(
    values: npt.NDArray[np.float64], rows: Sequence[PublishedRow], bounds: Sequence[Bound]
) -> npt.NDArray[np.float64]:
    constants = _constants(values)
    of_rows = [
        (row.predicted(constants) / row.value - 1) / _ROW_TOLERANCE for row in rows if row.is_fitted
    ]
    drawn = [(v - b.expected) / b.spread for v, b in zip(values, bounds, strict=True)]
    return np.array([*of_rows, *drawn])


def _constants(values: npt.NDArray[np.float64]) -> Constants:
    names = (field.name for field in fields(Constants))
    return Constants(**dict(zip(names, map(float, values), strict=True)))
