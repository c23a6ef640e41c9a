"""``python -m livekit.plugins.talking_avatar.worker``: serve until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

from pydantic import TypeAdapter

from talking_avatar import EngineConfig

from .dispatcher import Dispatcher, WorkerOptions

TOKEN_VARIABLE = "TALKING_AVATAR_WORKER_TOKEN"


def parse() -> WorkerOptions:
    """Read the command line. The token is in the environment, which no list of processes shows."""
    parser = argparse.ArgumentParser(
        prog="python -m livekit.plugins.talking_avatar.worker",
        description="Render the avatars of LiveKit agents elsewhere.",
        epilog=f"Agents must know the token in ${TOKEN_VARIABLE}, where it is set.",
    )
    parser.add_argument("--photo", type=Path, help="for agents that send none")
    parser.add_argument(
        "--engine",
        default="portrait",
        help='name, or its configuration as JSON: \'{"kind": "portrait", "width": 512}\'',
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8089)
    parser.add_argument("--max-sessions", type=int, default=4)
    parser.add_argument("--max-session-s", type=float, default=3600.0, help="0: no limit")
    given = parser.parse_args()
    engine = given.engine
    if engine.startswith("{"):
        engine = TypeAdapter(EngineConfig).validate_json(engine)
    try:
        return WorkerOptions(
            engine=engine,
            photo=given.photo,
            host=given.host,
            port=given.port,
            token=os.environ.get(TOKEN_VARIABLE),
            max_sessions=given.max_sessions,
            max_session_s=given.max_session_s or None,
        )
    except ValueError as error:
        parser.error(str(error))


async def serve(options: WorkerOptions) -> None:
    """Serve until SIGINT or SIGTERM; then every avatar leaves its room."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Dispatcher(options) as worker:
        print(f"serving avatars on {worker.url}", flush=True)
        await stop.wait()


def main() -> None:
    """Serve."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(serve(parse()))


if __name__ == "__main__":
    main()
