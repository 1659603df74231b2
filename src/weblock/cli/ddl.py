"""``weblock ddl``."""

from __future__ import annotations

from .._engines import engine_for
from ..errors import ConfigurationError
from .app import Session, command, pass_session


@command("ddl")
@pass_session
def ddl_command(session: Session) -> None:
    """Prints the SQL that creates the table of a postgresql:// engine.

    Connects to nothing. Pipe it to psql, or put it into a migration.
    """
    urls = session.urls()
    engine = engine_for(urls[0]) if len(urls) == 1 else None
    ddl = engine.ddl() if engine else None
    if ddl is None:
        given = engine.name if engine else f"{len(urls)} URLs" if urls else "not given"
        raise ConfigurationError(
            f"only an engine in a database has a table, and --url is {given}: write"
            " weblock ddl --url postgresql://host/database"
        )
    session.say(ddl.rstrip(), {"ddl": ddl})
