"""The whole chain, judged by the eye that found the face: sound to pixels to landmarks."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from talking_avatar.engine.base import Controls
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.landmarks import FaceMesh
from talking_avatar.engine.portrait.performer import Performer
from talking_avatar.engine.portrait.renderer import PortraitRenderer
from talking_avatar.engine.portrait.room import PhotoRoom

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples" / "train_mouth_shapes"))

from articulation import LIPS_MEET  # noqa: E402
from evaluate import Utterance, best_lag, frames_of, load_aligned, wanted, windows  # noqa: E402

Floats = npt.NDArray[np.float32]
UPPER_INNER, LOWER_INNER, CORNERS = 13, 14, (61, 291)


PORTRAITS = (
    "portrait-1",
    "portrait-2",
    "portrait-3",
    "portrait-4",
    "portrait-beard",
    "portrait-open-smile",
    "hard-sunglasses",
)


def frame_photo(source: Path | bytes) -> FramedPhoto:
    cv2.setNumThreads(1)
    return PhotoRoom().prepare(source, width=352, height=544, background=(38, 40, 44))


@pytest.fixture(scope="module")
def photo() -> FramedPhoto:
    return frame_photo((resources.files("talking_avatar.assets") / "portrait.jpg").read_bytes())


def gaps(photo: FramedPhoto, samples: Floats) -> Floats:
    """Height of the gap between the inner lips in units of the mouth's width, per frame."""
    performer, renderer, mesh = Performer(0), PortraitRenderer(photo), FaceMesh()
    measured = []
    for window in windows(samples):
        (face,) = performer.perform(window, Controls())
        points = mesh.refit(renderer.render(face), photo.landmarks).points[:, :2]
        width = np.linalg.norm(points[CORNERS[0]] - points[CORNERS[1]])
        measured.append(np.linalg.norm(points[UPPER_INNER] - points[LOWER_INNER]) / width)
    return np.array(measured, np.float32)


@pytest.fixture(scope="module")
def spoken() -> list[Utterance]:
    return load_aligned(ROOT / "tests" / "data" / "spoken_by_espeak.npz")


def check_lips(photo: FramedPhoto, spoken: list[Utterance]) -> None:
    """Hold the bars: they follow the phonemes, and touch on m, b, p and in silence."""
    seen = [gaps(photo, u.samples) for u in spoken]
    asked = np.concatenate([wanted(u)[:, 0] for u in spoken])
    closures = [
        gap[frames_of(span, len(gap))].min()
        for u, gap in zip(spoken, seen, strict=True)
        for span in u.spans
        if span.ipa in LIPS_MEET
    ]
    together = np.concatenate(seen)
    assert np.corrcoef(together, asked)[0, 1] >= 0.85
    assert abs(best_lag(together, asked)) <= 1
    assert np.mean(np.array(closures) < 0.03) >= 0.90, np.round(closures, 3)
    assert gaps(photo, np.zeros(24_000, np.float32)).max() < 0.03


def test_seen_lips_follow_phonemes_and_touch(photo: FramedPhoto, spoken: list[Utterance]) -> None:
    check_lips(photo, spoken)


@pytest.mark.slow
@pytest.mark.parametrize("name", PORTRAITS)
def test_all_seen_lips_follow_phonemes_and_touch(
    portraits: Path, spoken: list[Utterance], name: str
) -> None:
    check_lips(frame_photo(portraits / f"{name}.jpg"), spoken)
