"""`flambeau queue dead` without a queue."""

from pathlib import Path

from typer.testing import CliRunner

from flambeau.cli import app


def test_without_redis_the_setting_and_what_to_do_are_named(tmp_path: Path) -> None:
    queue = f"unix://{tmp_path}/redis.sock"
    done = CliRunner().invoke(app, ["queue", "dead", "list", "--queue", queue])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {queue}: Error 2 connecting to ")
    assert line.endswith("; start Redis there, or set --queue to where it runs")
