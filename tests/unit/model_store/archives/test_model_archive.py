"""What an archive has: its files, its manifest, its YAML; and what it lacks."""

import json
import zipfile
from pathlib import Path

import pytest

from model_store.archives.archive_manifest import MANIFEST_PATH
from model_store.archives.model_archive import open_archive
from model_store.errors import ModelArchiveError
from tests.fixtures.model_archives import Format, manifest_of, write_archive


@pytest.mark.parametrize("form", ["default", "tgz", "no-archive"])
def test_every_form_of_the_archiver_is_read(tmp_path: Path, form: Format) -> None:
    path = write_archive(
        tmp_path, files={"pkg/words.txt": "red", "model.pt": b"\0\1"}, format=form,
        serializedFile="model.pt",
    )  # fmt: skip
    archive = open_archive(path, tmp_path / "files")
    assert (archive.folder / "pkg" / "words.txt").read_text() == "red"
    assert (archive.folder / "model.pt").read_bytes() == b"\0\1"
    assert archive.manifest.model.name == "m"
    assert archive.manifest.model.version == "1.0"
    assert archive.has_handler_file
    assert not archive.gives_parts
    assert archive.folder == (path if form == "no-archive" else tmp_path / "files")
    assert archive.size_bytes == sum(
        one.stat().st_size for one in archive.folder.rglob("*") if one.is_file()
    )


def test_settings_of_the_yaml_file_are_read_and_others_are_reported(tmp_path: Path) -> None:
    text = """
        minWorkers: 2
        batchSize: 8
        maxBatchDelay: -1
        responseTimeout: fast
        parallelType: tp
        asyncCommunication: true
        useJobTicket: true
        continuousBatching: false
        handler: {profile: true}
    """
    path = write_archive(
        tmp_path, files={"config.yaml": text}, configFile="config.yaml", color="red"
    )
    archive = open_archive(path, tmp_path / "files")
    assert (archive.config.min_workers, archive.config.batch_size) == (2, 8)
    assert archive.config.max_batch_delay_ms is None
    assert archive.ignored == (
        "MAR-INF/MANIFEST.json: 'model.color' is unknown",
        "config.yaml: 'maxBatchDelay' is '-1', and not a whole number of milliseconds",
        "config.yaml: 'responseTimeout' is 'fast', and not a whole number of seconds",
        "config.yaml: 'parallelType' has no meaning here but for handlers",
        "config.yaml: 'asyncCommunication' is not followed: a worker answers one batch after the "
        "other",
        "config.yaml: 'useJobTicket' is not followed: requests wait for a worker",
        "config.yaml: 'continuousBatching' has no meaning here but for handlers",
    )


def test_handlers_that_send_parts_are_recognised(tmp_path: Path) -> None:
    source = "from ts.handler_utils.utils import send_intermediate_predict_response as send\n"
    path = write_archive(tmp_path, files={"deep/inside.py": source})
    assert open_archive(path, tmp_path / "files").gives_parts


@pytest.mark.parametrize("sends_parts", [False, True])
def test_sequences_are_those_of_handlers_that_send_no_parts(
    tmp_path: Path, sends_parts: bool
) -> None:
    text = """
        sequenceBatching: true
        sequenceMaxIdleMSec: 2000
        sequenceTimeoutMSec: 9000
        maxNumSequence: 70000
        maxSequenceJobQueueSize: 5
    """
    files = {"c.yaml": text}
    if sends_parts:
        files["parts.py"] = "send_intermediate_predict_response()\n"
    path = write_archive(tmp_path, files=files, configFile="c.yaml")
    archive = open_archive(path, tmp_path / "files")
    config = archive.config
    assert config.sequence_idle_ms == (None if sends_parts else 2000)
    assert (config.max_sequences, config.sequence_queue_size) == (65_536, 5)
    assert config.sequence_timeout_ms == 9000
    said = [
        "c.yaml: 'maxSequenceJobQueueSize' is not followed: up to 64 requests of a sequence wait",
        "c.yaml: 'maxNumSequence' is 70000, and at most 65536 are open",
    ]
    if sends_parts:
        said.append(
            "c.yaml: 'sequenceMaxIdleMSec' is not followed: the handler sends intermediate answers"
        )
    assert list(archive.ignored) == said


def test_a_default_handler_that_cannot_work_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path, handler="vllm_handler")
    with pytest.raises(ModelArchiveError, match="the handler 'vllm_handler', which answers sev"):
        open_archive(path, tmp_path / "files")


def test_a_default_handler_needs_no_file(tmp_path: Path) -> None:
    path = write_archive(tmp_path, files={"model.pt": b"x"}, serializedFile="model.pt")
    _without_handler_file(path, manifest_of("image_classifier", serializedFile="model.pt"))
    archive = open_archive(path, tmp_path / "files")
    assert not archive.has_handler_file
    assert archive.manifest.model.handler == "image_classifier"


def _without_handler_file(path: Path, manifest: object, **files: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.pt", b"x")
        archive.writestr(MANIFEST_PATH, json.dumps(manifest))


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (manifest_of("mine.py"), "lacks the handler 'mine.py': it has no mine.py"),
        (manifest_of("vision_handler", serializedFile="net.pt"), "lacks 'net.pt'"),
        (manifest_of("vision_handler", modelName="../x"), "model name '../x' is not allowed"),
        (manifest_of("vision_handler", modelVersion="1/0"), "model version '1/0' is not allowed"),
        (manifest_of("vision_handler", modelFile="../x.py"), "without a folder"),
        (manifest_of("vision_handler") | {"runtime": "LSP"}, "only python and python3 run here"),
        ({"runtime": "python"}, "'model' is missing"),
        ([], "MANIFEST.json"),
        (manifest_of("vision_handler", configFile="c.yaml"), "lacks c.yaml"),
    ],
)
def test_what_a_manifest_lacks_is_named(tmp_path: Path, manifest: object, reason: str) -> None:
    path = tmp_path / "m.mar"
    _without_handler_file(path, manifest)
    with pytest.raises(ModelArchiveError, match=reason.replace("(", r"\(")):
        open_archive(path, tmp_path / "files")


def test_an_archive_without_a_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("handler.py", "")
    with pytest.raises(ModelArchiveError, match=r"lacks MAR-INF/MANIFEST.json"):
        open_archive(path, tmp_path / "files")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "is no YAML"),
        ("- 1", "has a list"),
        ("a: &a [*a]", "is no YAML"),
        ("continuousBatching: true", r"^m.mar: c.yaml has 'continuousBatching', and a handler"),
    ],
)
def test_yaml_that_cannot_be_followed_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = write_archive(tmp_path, files={"c.yaml": text}, configFile="c.yaml")
    with pytest.raises(ModelArchiveError, match=reason):
        open_archive(path, tmp_path / "files")
