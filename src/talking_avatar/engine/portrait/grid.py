"""Coarse grids of sampling positions and the one way pixels are moved.

A field (where each output pixel is taken from) is smooth, so it lives on nodes a few pixels apart
and is enlarged only for the strip of output being made. All sampling goes through `Texture` and
`warp`: bilinear from a source twice as fine, so that sub-pixel motion costs no sharpness.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.geometry import Array

Pixels = npt.NDArray[np.uint8]

STRIP_PIXELS = 1 << 16
"""OpenCV splits work between threads above this many pixels. Strips below it stay on the calling
thread, whatever the process-wide setting is, and their maps stay in the L2 cache: a 704x1088
frame takes 2.2 ms in strips and 5.2 ms whole (one core, OpenCV 5.0, RGBA)."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Nodes over a rectangle of pixels, one node beyond it on each side.

    Attributes:
        x0, y0: First pixel.
        columns, rows: Cells; the rectangle is ``columns * step`` by ``rows * step`` pixels.
        step: Pixels between nodes.
    """

    x0: int
    y0: int
    columns: int
    rows: int
    step: int

    @classmethod
    def over(
        cls, x0: float, y0: float, x1: float, y1: float, step: int, align: int | None = None
    ) -> Grid:
        """Cover a rectangle with whole cells, aligned to multiples of ``align`` (or ``step``)."""
        unit = align or step
        left, top = int(x0 // unit), int(y0 // unit)
        columns = max(int(-(-x1 // unit)) - left, 1) * unit // step
        rows = max(int(-(-y1 // unit)) - top, 1) * unit // step
        return cls(left * unit, top * unit, columns, rows, step)

    @property
    def width(self) -> int:
        return self.columns * self.step

    @property
    def height(self) -> int:
        return self.rows * self.step

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its rectangle as an index into an image."""
        return slice(self.y0, self.y0 + self.height), slice(self.x0, self.x0 + self.width)

    @property
    def first(self) -> Array:
        """Position of the first node, (2,)."""
        before = (self.step - 1) / 2 - self.step
        return np.array([self.x0 + before, self.y0 + before], np.float32)

    def nodes(self) -> Array:
        """Positions of the nodes, (2, rows + 2, columns + 2): x, then y."""
        x, y = self.first
        xs = x + self.step * np.arange(self.columns + 2, dtype=np.float32)
        ys = y + self.step * np.arange(self.rows + 2, dtype=np.float32)
        return np.stack(np.meshgrid(xs, ys)).astype(np.float32)

    def around(self, hole: Grid) -> list[Grid]:
        """Split into the parts above, beside and below ``hole``, which is made of whole cells."""
        step = self.step
        left, top = (hole.x0 - self.x0) // step, (hole.y0 - self.y0) // step
        right, bottom = left + hole.width // step, top + hole.height // step
        rows = bottom - top
        parts = [
            Grid(self.x0, self.y0, self.columns, top, step),
            Grid(self.x0, self.y0 + top * step, left, rows, step),
            Grid(self.x0 + right * step, self.y0 + top * step, self.columns - right, rows, step),
            Grid(self.x0, self.y0 + bottom * step, self.columns, self.rows - bottom, step),
        ]
        return [part for part in parts if part.columns > 0 and part.rows > 0]

    def window(self, other: Grid) -> tuple[slice, slice]:
        """Index the nodes of ``other``, a part of this grid with the same step."""
        left, top = (other.x0 - self.x0) // self.step, (other.y0 - self.y0) // self.step
        return slice(top, top + other.rows + 2), slice(left, left + other.columns + 2)

    def enlarge(
        self, field: Array, first: int = 0, last: int | None = None, out: Array | None = None
    ) -> Array:
        """Interpolate a node field to pixels, for the cell rows ``first`` to ``last``.

        ``out`` lends memory: float32, ``columns + 2`` cells wide and at least as many rows high.
        """
        last = self.rows if last is None else last
        width, height = (self.columns + 2) * self.step, (last - first + 2) * self.step
        fine = None if out is None else out[:height]
        fine = cv2.resize(field[first : last + 2], (width, height), dst=fine)
        return np.asarray(fine[self.step : -self.step, self.step : -self.step], np.float32)


def _lanczos_half_step() -> Array:
    at = np.arange(8) - 3.5
    taps = np.sinc(at) * np.sinc(at / 4)
    return np.asarray(taps / taps.sum(), np.float32)


_HALF_STEP = _lanczos_half_step()


@dataclass(frozen=True, slots=True, eq=False)
class Texture:
    """A source of pixels, twice as fine as the picture it stands for.

    Attributes:
        pixels: uint8 RGBA (2h - 1, 2w - 1, 4); even rows and columns are the picture's own.
        x0, y0: Position of its first pixel in the frame.
    """

    pixels: Pixels
    x0: int = 0
    y0: int = 0

    @classmethod
    def of(cls, rgb: Pixels, alpha: Pixels | None = None, x0: int = 0, y0: int = 0) -> Texture:
        """Make a texture of a picture and, where given, its opacity."""
        height, width = rgb.shape[:2]
        rgba = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2RGBA)
        if alpha is not None:
            rgba[..., 3] = alpha
        fine = np.empty((2 * height - 1, 2 * width - 1, 4), np.uint8)
        fine[::2, ::2] = rgba
        # Of every four pixels three are new, at half steps: eight taps along an axis, where a warp
        # takes 64 of each pixel (80 ms for 430 at 704x1088).
        whole, border = np.ones(1, np.float32), cv2.BORDER_REFLECT_101
        for row, column in ((0, 1), (1, 0), (1, 1)):
            taps_x, taps_y = (_HALF_STEP if half else whole for half in (column, row))
            anchor = (3 * column, 3 * row)
            made = cv2.sepFilter2D(rgba, -1, taps_x, taps_y, anchor=anchor, borderType=border)
            fine[row::2, column::2] = made[: height - row, : width - column]
        return cls(fine, x0, y0)

    def positions(self, source: Array) -> Array:
        """Turn positions in the frame, (2, ...), into positions in ``pixels``."""
        return 2 * (source - np.array([self.x0, self.y0], np.float32)[:, None, None])


def _strips(grid: Grid) -> list[tuple[int, int]]:
    """Split a grid's rows into runs small enough for one thread and its cache."""
    rows = max(1, STRIP_PIXELS // ((grid.columns + 2) * grid.step * grid.step) - 2)
    return [(row, min(row + rows, grid.rows)) for row in range(0, grid.rows, rows)]


def warp(texture: Texture, grid: Grid, source: Array) -> Pixels:
    """Sample a texture at ``source`` (2, nodes), giving RGBA pixels of the grid's rectangle."""
    xs, ys = (grid.enlarge(axis) for axis in texture.positions(source))
    border = cv2.BORDER_REFLECT_101
    return np.asarray(cv2.remap(texture.pixels, xs, ys, cv2.INTER_LINEAR, borderMode=border))


def warp_into(frame: Pixels, texture: Texture, grid: Grid, source: Array) -> None:
    """Sample a texture into the part of ``frame`` (H, W, 3) that the grid covers."""
    height, width = frame.shape[:2]
    right = min(grid.x0 + grid.width, width)
    columns = right - grid.x0
    positions = texture.positions(source)
    runs = _strips(grid)
    # One set of scratch for all strips: fresh memory for each takes a millisecond of page faults.
    tallest = max(last - first for first, last in runs) * grid.step
    maps = np.empty((2, tallest + 2 * grid.step, grid.width + 2 * grid.step), np.float32)
    pixels = np.empty((tallest, columns, 4), np.uint8)
    for first, last in runs:
        top, bottom = grid.y0 + first * grid.step, min(grid.y0 + last * grid.step, height)
        xs, ys = (
            grid.enlarge(axis, first, last, out=out)[: bottom - top, :columns]
            for axis, out in zip(positions, maps, strict=True)
        )
        made = cv2.remap(
            texture.pixels,
            xs,
            ys,
            cv2.INTER_LINEAR,
            dst=pixels[: bottom - top],
            borderMode=cv2.BORDER_REFLECT_101,
        )
        # 0.2 ms a frame where numpy's strided copy takes 2.5 ms
        cv2.cvtColor(made, cv2.COLOR_RGBA2RGB, dst=frame[top:bottom, grid.x0 : right])
