"""What the README and the example promise, run as they stand."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from livekit.agents.testing import fake_job_context

from talking_avatar.assets import portrait_path

pytestmark = pytest.mark.livekit

PLUGIN = Path(__file__).parents[1]
EXAMPLES = PLUGIN.parents[1] / "examples" / "livekit_agent"


def agent_of_the_readme() -> str:
    return re.findall(r"```python\n(.*?)```", (PLUGIN / "README.md").read_text(), re.DOTALL)[0]


def test_the_readmes_agent_is_short() -> None:
    assert len(agent_of_the_readme().splitlines()) < 40


@pytest.mark.parametrize("which", ["README", pytest.param("agent.py", marks=pytest.mark.slow)])
async def test_the_agent_runs_as_it_stands(
    which: str, stage: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "face.jpg").write_bytes(portrait_path().read_bytes())
    monkeypatch.chdir(tmp_path)
    text = agent_of_the_readme() if which == "README" else (EXAMPLES / which).read_text()
    names: dict[str, Any] = {"__name__": "agent"}
    exec(compile(text, which, "exec"), names)
    user = await stage.join()
    shutdown: list[Any] = []
    with fake_job_context(room=stage.room) as job:
        monkeypatch.setattr(job, "add_shutdown_callback", shutdown.append)
        await asyncio.wait_for(names["entrypoint"](job), 60)
        assert user.loudest > 5_000
        assert "GPU-hours" in capsys.readouterr().out
        for close in shutdown:
            await close()
        await job._primary_agent_session.aclose()
        job._tempdir.cleanup()


@pytest.mark.slow
async def test_the_offline_example_speaks(capsys: Any) -> None:
    pytest.importorskip("aiortc")
    from livekit.plugins import talking_avatar
    from talking_avatar.testing import FakeEngine

    spec = importlib.util.spec_from_file_location("offline", EXAMPLES / "offline.py")
    assert spec is not None
    assert spec.loader is not None
    offline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(offline)
    avatar = talking_avatar.AvatarSession(photo="any", engine=FakeEngine(width=64, height=96))
    await asyncio.wait_for(offline.show(avatar, port=0, client=None, times=1), 60)
    printed = capsys.readouterr().out
    assert "open http://127.0.0.1:" in printed
    assert int(re.findall(r"(\d+) frames", printed)[0]) > 48
