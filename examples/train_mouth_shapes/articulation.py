"""Phonemes with times in, mouth shapes over time out: what the lips of an English speaker do.

Takes: `Span`s (IPA as espeak-ng writes it, or ARPAbet by way of `IPA_OF_ARPABET`).
Gives: curves at any rate, in the units of `talking_avatar.engine.portrait.face.MouthShape`.
Never hears the sound: it is the teacher and the yardstick of the net that does.

Each phoneme pulls each part of the mouth towards a target with a strength of its own: a vowel rules
the jaw, an /s/ hardly cares about rounding. The curves are the targets, weighted by strength and
blurred over 50 to 90 ms, so that neighbors color each other as they do in speech (coarticulation
as by M. Cohen and D. Massaro, "Modeling coarticulation in synthetic visual speech", 1993, with
a Gaussian in place of their exponentials). Lips that must meet, meet: closures stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

SHAPES = ("open", "jaw", "spread", "pucker", "teeth_on_lip", "tongue")
CURVES = (*SHAPES, "closure", "voice")
"""Columns of `curves`: shapes, then whether lips must touch, then whether someone speaks."""
RATE_HZ = 480
"""Grid on which the curves are drawn before they are sampled."""
FRAME_POINTS = RATE_HZ // 24


@dataclass(frozen=True, slots=True)
class Span:
    """One phoneme; seconds."""

    start_s: float
    end_s: float
    ipa: str


@dataclass(frozen=True, slots=True)
class Pose:
    """Where one phoneme pulls the mouth. Strengths: how hard, 0 to 1, per part."""

    open: float
    jaw: float
    spread: float = 0.0
    pucker: float = 0.0
    teeth_on_lip: float = 0.0
    tongue: float = 0.0
    grip: float = 1.0
    """Strength on the gap between the lips and on the jaw."""
    grip_corners: float = 0.5
    """Strength on spreading and rounding."""


REST = Pose(0.0, 0.0, grip=1.0, grip_corners=0.35)
_POSES = {
    # Lips meet. The jaw stays where the neighbors want it.
    "p b m": Pose(0.0, 0.08, grip=1.0, grip_corners=0.15),
    "f v": Pose(0.09, 0.10, spread=0.1, teeth_on_lip=1.0, grip=1.0, grip_corners=0.4),
    # Rounded.
    "w": Pose(0.14, 0.15, pucker=1.0, grip=0.9, grip_corners=1.0),
    "uː u ʊ": Pose(0.20, 0.20, pucker=0.95, grip_corners=1.0),
    "oʊ o oː": Pose(0.42, 0.42, pucker=0.75, grip_corners=0.9),
    "ɔː ɔ ɒ": Pose(0.58, 0.62, pucker=0.5, grip_corners=0.9),
    "ʃ ʒ tʃ dʒ": Pose(0.20, 0.10, pucker=0.55, grip=0.8, grip_corners=0.8),
    "ɹ r": Pose(0.26, 0.22, pucker=0.4, grip=0.6, grip_corners=0.6),
    "ɚ ɝ ɜː": Pose(0.34, 0.30, pucker=0.35, grip=0.8, grip_corners=0.7),
    # Open.
    "ɑː ɑ a aː": Pose(0.88, 0.92, grip_corners=0.7),
    "æ": Pose(0.80, 0.80, spread=0.35, grip_corners=0.8),
    "ʌ ɐ": Pose(0.58, 0.58, spread=0.1, grip_corners=0.6),
    "ɛ e": Pose(0.55, 0.52, spread=0.4, grip_corners=0.8),
    "ə": Pose(0.36, 0.34, spread=0.1, grip=0.7, grip_corners=0.3),
    # Spread.
    "iː i ɪ ɨ ᵻ": Pose(0.30, 0.24, spread=0.85, grip=0.9, grip_corners=1.0),
    "j": Pose(0.24, 0.18, spread=0.7, grip=0.7, grip_corners=0.8),
    "s z": Pose(0.16, 0.06, spread=0.4, grip=0.9, grip_corners=0.4),
    # Tongue.
    "t d n ɾ": Pose(0.22, 0.16, spread=0.2, tongue=0.5, grip=0.6, grip_corners=0.25),
    "l ɫ": Pose(0.32, 0.26, spread=0.15, tongue=0.9, grip=0.7, grip_corners=0.25),
    "θ ð": Pose(0.24, 0.16, spread=0.15, tongue=1.0, grip=0.9, grip_corners=0.3),
    # Made behind: the lips follow the neighbors.
    "k ɡ g ŋ": Pose(0.30, 0.26, grip=0.4, grip_corners=0.15),
    "h x ʔ": Pose(0.40, 0.36, grip=0.2, grip_corners=0.1),
}
POSES = {ipa: pose for names, pose in _POSES.items() for ipa in names.split()}
_GLIDES = {
    "aɪ": "a ɪ", "aʊ": "a ʊ", "eɪ": "e ɪ", "ɔɪ": "ɔ ɪ", "oʊ": "o ʊ", "əʊ": "ə ʊ",
    "ɑːɹ": "ɑː ɹ", "ɔːɹ": "ɔː ɹ", "oːɹ": "oː ɹ", "ʊɹ": "ʊ ɹ", "ɛɹ": "ɛ ɹ", "ɪɹ": "ɪ ɹ",
    "aɪɚ": "a ɚ", "aɪə": "a ə", "iə": "i ə", "əl": "ə l", "n̩": "ə n", "eə": "e ə", "ɪə": "ɪ ə",
}  # fmt: skip
_GLIDE_HOLD = 0.6
"""Part of a diphthong that its first target takes."""
LIPS_MEET = frozenset("pbm")
TEETH_ON_LIP = frozenset("fv")

IPA_OF_ARPABET = {
    "aa": "ɑː", "ae": "æ", "ah": "ʌ", "ao": "ɔː", "aw": "aʊ", "ax": "ə", "ay": "aɪ", "b": "b",
    "ch": "tʃ", "d": "d", "dh": "ð", "eh": "ɛ", "er": "ɚ", "ey": "eɪ", "f": "f", "g": "ɡ",
    "hh": "h", "ih": "ɪ", "iy": "iː", "jh": "dʒ", "k": "k", "l": "l", "m": "m", "n": "n",
    "ng": "ŋ", "ow": "oʊ", "oy": "ɔɪ", "p": "p", "r": "ɹ", "s": "s", "sh": "ʃ", "t": "t",
    "th": "θ", "uh": "ʊ", "uw": "uː", "v": "v", "w": "w", "y": "j", "z": "z", "zh": "ʒ",
    "dx": "ɾ",
}  # fmt: skip


def pose_of(ipa: str) -> Pose | None:
    """Find a phoneme's pose; None for a pause or a sound the table does not know."""
    bare = ipa.strip("ˈˌ̩ʲ")
    return POSES.get(bare) or POSES.get(bare.rstrip("ː")) or POSES.get(bare[:1])


def split_glides(spans: Sequence[Span]) -> list[Span]:
    """Cut diphthongs in two, so that each half has one target."""
    halves: list[Span] = []
    for span in spans:
        first, _, second = _GLIDES.get(span.ipa, "").partition(" ")
        if not second:
            halves.append(span)
            continue
        turn_s = span.start_s + _GLIDE_HOLD * (span.end_s - span.start_s)
        halves += [Span(span.start_s, turn_s, first), Span(turn_s, span.end_s, second)]
    return halves


def _at_least_a_frame(part: slice) -> slice:
    """Widen a closure to the time of one frame, so that none falls between two frame centers."""
    missing = max(0, FRAME_POINTS - (part.stop - part.start))
    return slice(max(0, part.start - missing // 2), part.stop + missing - missing // 2)


def _draw(spans: Sequence[Span], num_points: int) -> tuple[Array, Array, Array, Array]:
    """Paint targets, strengths, closures and voice as steps on the grid."""
    targets = np.zeros((num_points, len(SHAPES)), np.float32)
    strengths = np.tile(np.float32([REST.grip] * 2 + [REST.grip_corners] * 4), (num_points, 1))
    closure = np.zeros(num_points, np.float32)
    voice = np.zeros(num_points, np.float32)
    for span in split_glides(spans):
        pose = pose_of(span.ipa)
        if pose is None:
            continue
        part = slice(round(span.start_s * RATE_HZ), round(span.end_s * RATE_HZ))
        targets[part] = [getattr(pose, name) for name in SHAPES]
        strengths[part] = [pose.grip] * 2 + [pose.grip_corners] * 2 + [1.0] * 2
        voice[part] = 1.0
        if span.ipa in LIPS_MEET:
            closure[_at_least_a_frame(part)] = 1.0
    return targets, strengths, closure, voice


_BLUR_S = (0.026, 0.040, 0.040, 0.036, 0.018, 0.022)
"""Standard deviation of the blur per shape: lips are quick, the jaw is heavy."""
_RELEASE_S = 0.012
"""Likewise of lips that meet and part."""


def _blur(steps: Array, deviation_s: float) -> Array:
    """Convolve with a Gaussian; the ends go on as they are."""
    reach = round(4.0 * deviation_s * RATE_HZ)
    bell = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / (deviation_s * RATE_HZ)))
    padded = np.pad(steps, reach, mode="edge")
    return np.convolve(padded, bell / bell.sum(), mode="valid").astype(np.float32)


def curves(spans: Sequence[Span], duration_s: float) -> Array:
    """Mouth over time.

    Returns:
        (round(duration_s * RATE_HZ), 8): `CURVES`. ``closure`` and ``voice`` are steps of 0 and 1.
    """
    targets, strengths, closure, voice = _draw(spans, round(duration_s * RATE_HZ))
    shapes = np.empty_like(targets)
    for k, deviation_s in enumerate(_BLUR_S):
        weight = _blur(strengths[:, k], deviation_s)
        pulled = _blur(targets[:, k] * strengths[:, k], deviation_s)
        shapes[:, k] = pulled / np.maximum(weight, 1e-4)
    released = 1.0 - _blur(closure, _RELEASE_S)
    shapes[:, 0] *= np.clip(1.6 * released - 0.45, 0.0, 1.0)
    return np.column_stack([shapes, closure, voice]).astype(np.float32)


def at_frames(curve: Array, starts_s: npt.NDArray[np.float64]) -> Array:
    """Sample curves at the centers of frames of 1/24 s that begin at ``starts_s``.

    Returns:
        (len(starts_s), 8).
    """
    centers = np.round(starts_s * RATE_HZ).astype(int) + FRAME_POINTS // 2
    return curve[np.clip(centers, 0, len(curve) - 1)]
