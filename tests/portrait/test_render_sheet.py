"""The contact sheet shows every pose, and refuses what is no portrait."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from talking_avatar.assets import portrait_path
from talking_avatar.engine.portrait.sheet import POSES, main


@pytest.mark.parametrize("part", ["frame", "mouth"])
def test_sheet_shows_every_pose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    output = tmp_path / "sheet.png"
    arguments = [str(portrait_path()), "-o", str(output), "--part", part, "--width", "80"]
    assert main(arguments) == 0
    sheet = cv2.imread(str(output))
    assert sheet is not None
    height = sheet.shape[0] // 4
    assert sheet.shape == (4 * height, 4 * 80, 3)
    assert f"{len(POSES)} poses" in capsys.readouterr().out
    below_label = slice(30, None)
    photo, neutral, widest = (
        sheet[row * height : (row + 1) * height, column * 80 : (column + 1) * 80][below_label]
        for row, column in ((0, 0), (0, 1), (2, 0))
    )
    assert np.abs(photo.astype(int) - neutral).max() <= 2
    assert np.abs(photo.astype(int) - widest).max() > 40


def test_sheet_refuses_a_photo_without_a_face(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.png"
    cv2.imwrite(str(plain), np.full((400, 300, 3), 128, np.uint8))
    assert main([str(plain), "-o", str(tmp_path / "sheet.png")]) == 2
    assert "face" in capsys.readouterr().out
