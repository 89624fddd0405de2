"""A locked server, as seen by its operator and its clients: keys issued and revoked."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from flambeau.commands.access import access_app
from services.atomic_file import write_atomically
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.servers import ROOT, ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient, TritonError

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


def access(*arguments: str) -> Result:
    """Runs a verb that needs no server, in this process."""
    found = CliRunner().invoke(access_app, arguments)
    assert found.exit_code == 0, found.output
    return found


def status(server: ServerProcess, key: str) -> int:
    """Returns the status of an inference over REST."""
    call = urllib.request.Request(
        f"http://{server.http}/v2/models/linear/infer", BODY, {"x-api-key": key}
    )
    try:
        with urllib.request.urlopen(call, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_what_a_locked_server_prints_can_be_pasted(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    key = access("add", "ci", "--grant", "infer", "--file", str(file)).stdout.strip()
    with running_server(store, "--model=linear", api_keys_file=str(file)) as server:
        lines = server.output.all()
        first = lines.index("try it, with your key in $FLAMBEAU_KEY:")
        pasted = "\n".join(lines[first + 1 : lines.index("END") + 1]) + "\n"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "FLAMBEAU_KEY": key}
        command = ["sh", "-e", "-c", pasted]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert '"model_name":"linear"' in done.stdout
    assert done.stdout.endswith("[[0. 0. 0. 0.]]\n")


def test_a_key_is_given_out_used_and_taken_back(store: Path, tmp_path: Path) -> None:
    file, key_file = tmp_path / "keys.yaml", tmp_path / "key"
    made = access("add", "ci", "--grant", "infer:lin*", "--expires", "1h", "--file", str(file))
    assert "not shown again" in made.stderr
    key = made.stdout.strip()
    key_file.write_text(made.stdout)
    assert key not in file.read_text()
    assert "infer:lin*" in access("list", "--file", str(file)).stdout
    with running_server(store, "--model=linear", api_keys_file=str(file)) as server:
        assert [status(server, key), status(server, "flb_wrong")] == [200, 401]
        asked = ("infer", "linear", "--input", "x=[[1, 2, 3, 4]]", "--server", server.grpc)
        found = run_flambeau(*asked, "--json", "--token-file", str(key_file))
        assert np.allclose(json.loads(found.stdout)["y"], [[2, 4, 6, 8]])
        with TritonClient("grpc", server.grpc) as client:
            assert client.call("is_server_ready")
            credential = {"authorization": f"Bearer {key}"}
            with pytest.raises(TritonError, match="is not served"):
                client.call("get_model_metadata", "pair", headers=credential)
        right = file.read_text()
        write_atomically(file, right.replace("expires: '", "expires: 2027-02-30 # '"))
        fault = server.wait_for_log(
            message="api_keys cannot be read: the previous ones stay in force"
        )
        assert "day is out of range for month" in fault["reason"]
        assert status(server, key) == 200
        assert server.metric("flambeau_access_source_stale", source="api_keys") == 1
        write_atomically(file, right)
        access("revoke", "ci", "--file", str(file))
        server.wait_for_log(message="API keys read", keys=0)
        assert status(server, key) == 401
        assert server.metric("flambeau_access_refusals_total", reason="unauthenticated") == 2
        assert key not in "\n".join(server.errors.all())
