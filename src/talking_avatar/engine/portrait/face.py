"""How a face looks in one frame: the only value that passes from motion to renderer.

All numbers are relative to the person in the photo, so that the same value moves any face.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MouthShape:
    """Lips, jaw and tongue.

    All 0: the mouth as it is in the photo when ``close`` is 0, and lips touching when it is 1.

    Attributes:
        close: 0: the photo's own mouth; 1: lips meet (what the other values then open from). Speech
            and silence hold it at 1; a photo that smiles with open lips is so closed.
        open: Gap between the lips: 0 touching, 1 as wide as speech gets (about 0.56 of half the
            mouth's width).
        jaw: How far the jaw drops: 0 to 1.
        spread: Corners drawn apart: -1 (narrow) to 1 (as in "ee").
        pucker: Lips pushed forward and rounded: 0 to 1 (as in "oo").
        teeth_on_lip: Lower lip under the upper teeth: 0 to 1 (f, v).
        tongue: Tip of the tongue raised: 0 to 1 (l, th).
        smile: Corners raised: -1 to 1.
        press: Closed lips pressed together and a little rolled in: 0 to 1 (m, b, p). Lips that
            are apart do not show it.
    """

    close: float = 1.0
    open: float = 0.0
    jaw: float = 0.0
    spread: float = 0.0
    pucker: float = 0.0
    teeth_on_lip: float = 0.0
    tongue: float = 0.0
    smile: float = 0.0
    press: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceState:
    """One frame of a face.

    Attributes:
        mouth: Lips, jaw, tongue.
        blink_left, blink_right: 0 as in the photo, 1 closed; left as seen in the picture.
        gaze_x, gaze_y: -1 to 1: iris moved right and down as seen in the picture.
        brow: Brows raised: -1 to 1.
        yaw, pitch, roll: Degrees from the photo's pose; positive: nose to the right, chin down,
            head tilted clockwise, as seen in the picture. Small: |yaw|, |pitch| <= 8.
        shift_x, shift_y: Head moved, in units of the face's height.
        breath: Shoulders raised: -1 to 1.
    """

    mouth: MouthShape = MouthShape()
    blink_left: float = 0.0
    blink_right: float = 0.0
    gaze_x: float = 0.0
    gaze_y: float = 0.0
    brow: float = 0.0
    yaw: float = 0.0
    pitch: float = 0.0
    roll: float = 0.0
    shift_x: float = 0.0
    shift_y: float = 0.0
    breath: float = 0.0
