"""How a command ends: one line for what the user can mend, a traceback for a defect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from talking_avatar.errors import EngineFailed, OutOfMemory, SeveralFaces, TalkingAvatarError


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn errors into one line on stderr and a status.

    1: it failed here, 2: what was given is refused, 130: it was interrupted.
    """
    try:
        yield
    except KeyboardInterrupt:
        fail("interrupted: nothing was written", 130)
    except SeveralFaces as error:
        fail(f"{error} (--face chooses one)", 2)
    except (EngineFailed, OutOfMemory) as error:
        fail(str(error), 1)
    except (TalkingAvatarError, ValueError, OSError) as error:
        fail(_first_reason(error), 2)


def _first_reason(error: Exception) -> str:
    """Give pydantic's first complaint instead of its report of several lines."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"].removeprefix("Value error, ")
    return str(error)


def fail(message: str, status: int) -> NoReturn:
    """Say why on stderr, in one line, and end."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    raise typer.Exit(status)
