"""A picture of a comparison: where each placement's step goes, against 24 frames a second.

Takes estimates. Gives an SVG document as text: bars need no plotting library, and the file reads
the same in a browser, in a pull request and in print. Never writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil

from talking_avatar.engine.base import FPS
from talking_avatar.estimate import Estimate

_PARTS = (
    ("products", "matrix products", "#3b6fb6"),
    ("attention", "attention", "#6fb1d8"),
    ("wires", "between GPUs", "#e39a3b"),
    ("upkeep", "cache upkeep", "#b5586b"),
    ("launch", "launch, norms", "#8a8f98"),
    ("contention", "lost to the decoder", "#5a9e6f"),
)
_LEFT, _RIGHT, _WIDTH, _ROW, _BAR, _TOP, _BOTTOM = 172, 196, 900, 34, 18, 88, 52
_STYLE = (
    "text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#24292f}"
    ".small{font-size:11.5px;fill:#57606a}.title{font-size:16px;font-weight:600}"
    ".bad{fill:#b42318}.cut{fill:#ffffff}.end{text-anchor:end}.mid{text-anchor:middle}"
)


def draw(estimates: Sequence[Estimate], names: Sequence[str]) -> str:
    """Draw a bar for each estimate, in the order given.

    Args:
        estimates: At least one; live or not.
        names: Of their hardware.
    """
    config = estimates[0].candidate.report.config
    limit_ms = config.chunk_s * 1e3
    longest = max(max(_total_ms(e), e.candidate.parts.decoder * 1e3) for e in estimates)
    # Bars that leave the picture are cut at twice the limit, or nothing else could be compared.
    end_ms = min(ceil(max(longest, limit_ms * 1.1) / 50) * 50, ceil(limit_ms * 2 / 50) * 50)
    scale = (_WIDTH - _LEFT - _RIGHT) / end_ms
    height = _TOP + _ROW * len(estimates) + _BOTTOM
    bottom = height - _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="16" y="28">{escape(config.name)}: predicted time of a chunk of '
        f"{config.frames_per_chunk} frames</text>",
        *_legend(),
        *_axis(end_ms, scale, bottom),
    ]
    for place, (estimate, name) in enumerate(zip(estimates, names, strict=True)):
        lines += _row(estimate, name, _TOP + _ROW * place, scale, end_ms)
    x = _LEFT + limit_ms * scale
    lines += [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="#b42318" '
        'stroke-width="1.5" stroke-dasharray="5 3"/>',
        f'<text class="small bad mid" x="{x:.1f}" y="{_TOP - 11}">{FPS} fps: '
        f"{limit_ms:.1f} ms</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _total_ms(estimate: Estimate) -> float:
    return estimate.candidate.parts.denoise_s * 1e3


def _legend() -> list[str]:
    lines, x = [], 16.0
    for _, label, color in _PARTS:
        lines.append(f'<rect x="{x:.0f}" y="42" width="11" height="11" fill="{color}"/>')
        lines.append(f'<text class="small" x="{x + 16:.0f}" y="52">{label}</text>')
        x += 34 + 6.4 * len(label)
    lines.append(f'<path d="M{x + 5:.0f} 41v13" stroke="#24292f" stroke-width="2.5"/>')
    lines.append(f'<text class="small" x="{x + 14:.0f}" y="52">decoder on its own GPU</text>')
    return lines


def _axis(end_ms: float, scale: float, bottom: int) -> list[str]:
    lines = []
    for ms in range(0, int(end_ms) + 1, 50):
        x = _LEFT + ms * scale
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{bottom}" stroke="#e4e7eb"/>'
        )
        lines.append(f'<text class="small mid" x="{x:.1f}" y="{bottom + 17}">{ms}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text class="small mid" x="{middle:.0f}" y="{bottom + 36}">milliseconds</text>')
    return lines


def _row(estimate: Estimate, name: str, top: int, scale: float, end_ms: float) -> list[str]:
    candidate = estimate.candidate
    parts, y = candidate.parts, top + (_ROW - _BAR) // 2
    lines = [
        f'<text class="end" x="{_LEFT - 10}" y="{y + 14}">{escape(name)} '
        f'<tspan class="small">{escape(candidate.placement.name)}</tspan></text>'
    ]
    at = 0.0
    for part, _, color in _PARTS:
        is_there = part != "contention" or parts.shares_gpu
        ms = getattr(parts, part) * 1e3 if is_there else 0.0
        shown = max(0.0, min(ms, end_ms - at))
        lines.append(
            f'<rect x="{_LEFT + at * scale:.1f}" y="{y}" width="{shown * scale:.1f}" '
            f'height="{_BAR}" fill="{color}"/>'
        )
        at += shown
    if _total_ms(estimate) > end_ms:
        lines.append(
            f'<text class="small mid cut" x="{_LEFT + 0.75 * end_ms * scale:.1f}" y="{y + 13}">'
            f"{_total_ms(estimate):.0f} ms \u25b8</text>"
        )
    if not parts.shares_gpu and parts.decoder * 1e3 <= end_ms:
        x = _LEFT + parts.decoder * 1e3 * scale
        lines.append(f'<path d="M{x:.1f} {y - 3}v{_BAR + 6}" stroke="#24292f" stroke-width="2.5"/>')
    lines.append(
        f'<text class="{"" if candidate.is_live else "bad"}" x="{_WIDTH - _RIGHT + 12}" '
        f'y="{y + 14}">{escape(_words(estimate))}</text>'
    )
    return lines


def _words(estimate: Estimate) -> str:
    candidate = estimate.candidate
    if not candidate.fits:
        return "does not fit in memory"
    words = f"{candidate.fps:.1f} fps"
    if not candidate.is_live:
        return f"{words}, not live"
    price = estimate.price_per_session_hour
    return words if price is None else f"{words}, {price:.2f} {estimate.currency}/h"
