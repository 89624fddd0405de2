"""`flambeau infer`, run as the shell runs it, against a real server."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.infer import infer
from tests.client.scripted_server import ScriptedServer, fail, metadata

IMAGES = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


def run(server: ScriptedServer, *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(infer)
    return CliRunner().invoke(app, ["digits", "--server", server.address, *arguments])


def serve(server: ScriptedServer, datatype: str, shape: list[int]) -> None:
    """Makes the model one that takes `x` and gives it back."""
    server.digits = metadata([("x", datatype, shape)], [("x", datatype, shape)])


def outputs(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error(result: Result, code: int = 1) -> str:
    """The one line on stderr of a command that failed."""
    assert result.exit_code == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    path = tmp_path / "image.npy"
    np.save(path, IMAGES)
    return path


def test_a_npy_file_is_sent_as_it_is(server: ScriptedServer, image_file: Path) -> None:
    result = run(server, "--input", f"image={image_file}", "--json")
    assert outputs(result) == {"image": IMAGES.tolist()}


def test_a_sample_without_the_batch_is_a_batch_of_one(
    server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "one.npy"
    np.save(path, IMAGES[1])
    assert outputs(run(server, "--input", f"image={path}", "--json")) == {
        "image": [IMAGES[1].tolist()]
    }
    serve(server, "INT64", [-1])
    assert outputs(run(server, "--input", "x=7", "--json")) == {"x": [7]}


def test_a_json_file_is_read(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "image.json"
    path.write_text(json.dumps(IMAGES.tolist()))
    assert outputs(run(server, "--input", f"image={path}", "--json"))["image"] == IMAGES.tolist()


@pytest.mark.parametrize(
    ("datatype", "text"),
    [
        ("FP32", "[1, 2.5]"),
        ("FP16", "[0.5]"),
        ("INT8", "[-128, 127]"),
        ("UINT64", f"[{2**64 - 1}, 0]"),
        ("BOOL", "[true, false]"),
        ("BYTES", '["seven", "é"]'),
    ],
)
def test_json_becomes_the_datatype_of_the_signature(
    server: ScriptedServer, datatype: str, text: str
) -> None:
    serve(server, datatype, [-1])
    assert outputs(run(server, "--input", f"x={text}", "--json")) == {"x": json.loads(text)}
    assert server.received[-1].request.inputs[0].datatype == datatype


@pytest.mark.parametrize(
    ("datatype", "text", "message"),
    [
        ("INT64", "[1.5]", "input 'x': 1.5 is no INT64; give integers"),
        ("FP32", "[true]", "input 'x': True is no FP32; give numbers"),
        ("FP32", '{"a": 1}', "input 'x': {'a': 1} is no FP32"),
        ("BOOL", "[1]", "input 'x': 1 is no BOOL; give True or False"),
        ("BYTES", "[1]", "input 'x': 1 is no BYTES; give text"),
        ("UINT8", "[300]", "input 'x': 300 is no UINT8; give 0 to 255"),
        ("FP16", "[1e6]", "input 'x': 1000000.0 is no FP16; give -65504.0 to"),
        ("FP32", "[[1], [1, 2]]", "input 'x': lists of different lengths"),
        ("BF16", "[1]", "input 'x' is BF16, to which no numbers are converted"),
        ("FP32", "[[1, 2]]", "input 'x' has shape [1,2]; expected [batch]"),
    ],
)
def test_json_that_does_not_fit_is_never_sent(
    server: ScriptedServer, datatype: str, text: str, message: str
) -> None:
    serve(server, datatype, [-1])
    assert error(run(server, "--input", f"x={text}")).startswith(f"model 'digits': {message}")
    assert server.attempts() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["image"], "--input image: give NAME=FILE.npy or NAME=JSON"),
        (["image=1", "image=2"], "--input image is given twice"),
        (["image=missing.npy"], "input 'image': missing.npy: No such file or directory"),
        (["image=missing.json"], "input 'image': missing.json: No such file or directory"),
        (
            ["image=seven"],
            "input 'image': seven is not a .npy file, a .json file or JSON (Expecting",
        ),
    ],
)
def test_inputs_that_cannot_be_read_ask_nothing_of_the_server(
    server: ScriptedServer, arguments: list[str], message: str
) -> None:
    flags = [part for argument in arguments for part in ("--input", argument)]
    assert error(run(server, *flags), 2).startswith(message)
    assert server.received == []


def test_a_pickle_is_refused(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "pickled.npy"
    np.save(path, np.array([{}], np.object_), allow_pickle=True)
    assert "Object arrays cannot be loaded" in error(run(server, "--input", f"image={path}"), 2)


def test_an_unknown_input_is_named(server: ScriptedServer) -> None:
    message = error(run(server, "--input", "imgae=[[1], 2]"))
    assert message == "model 'digits': unknown input 'imgae' (did you mean 'image'?)"


def test_the_servers_words_are_shown(server: ScriptedServer, image_file: Path) -> None:
    server.behaviours["ModelInfer"] = fail("RESOURCE_EXHAUSTED", "the queue holds 512 requests")
    assert error(run(server, "--input", f"image={image_file}")) == "the queue holds 512 requests"


def test_version_outputs_and_accuracy_are_passed_on(server: ScriptedServer) -> None:
    tensors = [("a", "INT64", [-1]), ("b", "INT64", [-1])]
    server.digits = metadata(tensors, tensors)
    result = run(
        server,
        *("--input", "a=1", "--input", "b=2"),
        *("--version", "3", "--output", "b", "--timeout-s", "5", "--accuracy", "exact", "--json"),
    )
    assert outputs(result) == {"b": [2]}
    (request,) = (received.request for received in server.received[1:])
    assert request.model_version == "3"
    assert request.parameters["accuracy"].string_param == "exact"


def test_rows_of_classes_show_the_top_class(server: ScriptedServer) -> None:
    serve(server, "FP32", [-1, 3])
    result = run(server, "--input", "x=[[0.1, 0.7, 0.2], [5, 1, 2]]")
    assert result.stdout == "x  FP32 [2,3]\n  row 0: class 1 (0.7)\n  row 1: class 0 (5)\n"


def test_many_rows_are_cut(server: ScriptedServer) -> None:
    serve(server, "FP32", [-1, 2])
    result = run(server, "--input", f"x={[[0, 1]] * 13}")
    assert result.stdout.splitlines()[-1] == "  and 3 more rows"
    assert len(result.stdout.splitlines()) == 12


def test_other_outputs_show_their_values(server: ScriptedServer) -> None:
    serve(server, "BYTES", [-1])
    result = run(server, "--input", 'x=["seven", "é"]')
    assert result.stdout == "x  BYTES [2]\n  ['seven' 'é']\n"


def test_bf16_is_shown_as_numbers(server: ScriptedServer, tmp_path: Path) -> None:
    serve(server, "BF16", [-1])
    path = tmp_path / "patterns.npy"
    np.save(path, np.array([0x3F80, 0xC000, 0x7FC0], np.uint16))
    result = run(server, "--input", f"x={path}")
    assert result.stdout == "x  BF16 [3]\n  [ 1. -2. nan]\n"
    assert outputs(run(server, "--input", f"x={path}", "--json")) == {"x": [1.0, -2.0, None]}


def test_classes_are_shown_by_their_names(server: ScriptedServer) -> None:
    tensors = [("x", "FP32", [-1, 3])]
    server.digits = metadata(tensors, tensors, labels='{"x": ["cat", "dog", "owl"]}')
    result = run(server, "--input", "x=[[1, 5, 2], [7, 5, 2]]")
    assert result.stdout.splitlines()[1:] == ["  row 0: class dog (5)", "  row 1: class cat (7)"]
    server.digits = metadata(tensors, tensors, labels="{")
    assert "the metadata of model 'digits' gives no signature" in error(
        run(server, "--input", "x=[[1, 5, 2]]")
    )


def test_sizes_that_the_server_tells_are_checked_before_it_is_asked(
    server: ScriptedServer,
) -> None:
    tensors = [("x", "FP32", [-1, -1])]
    server.digits = metadata(tensors, tensors, dynamic='{"x": {"1": [2, 3]}}')
    assert "size 4 along axis 1; give 2 to 3" in error(run(server, "--input", "x=[[1, 2, 3, 4]]"))
    assert server.attempts() == 0
