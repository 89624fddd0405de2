"""`flambeau verify`: verifies a version again, on this machine."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.models import open_version
from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.model import ModelName, VersionOrDefault
from flambeau.commands.options.store import DEFAULT_STORE, STORE_FAILURES, StoreUrl
from flambeau.commands.serve import with_settings
from flambeau.commands.text.certificate import certificate_lines, list_lines
from flambeau.commands.text.failures import failing_with
from model_store.errors import StoreError
from model_store.host.install_advice import needing
from model_store.host.memory_limit import GIB

if TYPE_CHECKING:
    from model_store.certificates.certificate import Certificate
    from model_store.manifest import Manifest
    from model_store.store import ModelStore
    from services.inference.certifying.certification import CertifyOptions
    from training.auto.recipe_judge import RecipeJudge


def verify(
    model: ModelName,
    version: VersionOrDefault = None,
    store: StoreUrl = DEFAULT_STORE,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of one run.")] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the worker that it serves with, such as "
            "'onnx_providers=[tensorrt, cuda]'; may be repeated.",
        ),
    ] = None,
    time_limit_s: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds that one artifact may take.")
    ] = 300.0,
    memory_gib: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=65_536,
            help="Memory that one artifact may take; at most nine tenths of what is free.",
        ),
    ] = 16.0,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Judge by the test split as well. This runs the recipe's own code, which must be "
            "here, and looks where a failing artifact departs.",
        ),
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the certificates, and verify nothing.")
    ] = False,
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """Verify every artifact of a version on this machine, and record the result as a certificate.

    Each artifact replays the golden rows in its own process, in every form of requests. Exits
    with 0 if none failed and at least one passed. `flambeau models verify` only checks digests and
    signatures.
    """
    with failing_with(STORE_FAILURES):
        opened, manifest = open_version(store, model, version)
        if list_:
            _list(opened, manifest, as_json)
            return
        named = {"device": device, "threads": threads, **_trusting(keys)}
        settings = with_settings(named, set_)
        options = _options(manifest.model, settings, time_limit_s, memory_gib)
        certificate = _verified(opened, manifest, options, keys, data)
        _print(certificate, as_json)
        _record(opened, manifest, certificate)
    _exit(certificate)


def _trusting(keys: str) -> dict[str, str]:
    """Returns the setting of the trusted keys in a folder; none for the user's own."""
    from model_store.signatures.key_folder import KeyFolder

    return {"trusted_keys": str(KeyFolder(keys).trusted_folder)} if keys else {}


def _options(
    model: str, settings: dict[str, Any], time_limit_s: float, memory_gib: float
) -> "CertifyOptions":
    """Returns the options with which a worker of these settings runs a model, and the limits."""
    with needing("serve"):
        from services.inference.certifying.certification import CertifyOptions
        from services.inference.config import InferenceSettings
        from services.inference.loading.configured_policy import serving_policy
        from services.settings import ConfigError, checked

    with failing_with({ConfigError: 2}):
        policy = serving_policy(checked(InferenceSettings, settings))
    load = policy.lane_of(model).load
    return CertifyOptions(
        backend=load.backend,
        trust=load.trust,
        time_limit_s=time_limit_s,
        memory_limit_bytes=int(memory_gib * GIB),
    )


def _verified(
    store: "ModelStore", manifest: "Manifest", options: "CertifyOptions", keys: str, data: bool
) -> "Certificate":
    from services.inference.certifying.certification import certify

    if not data:
        return certify(store, manifest, options, _say)
    with tempfile.TemporaryDirectory(prefix="flambeau-verify-") as folder:
        with _training_failures():
            judge = _judge(store, manifest, Path(folder), keys)
        certificate = certify(store, manifest, options, _say, judge)
        return _with_departures(store, manifest, certificate, judge, Path(folder))


def _with_departures(
    store: "ModelStore",
    manifest: "Manifest",
    certificate: "Certificate",
    judge: "RecipeJudge",
    folder: Path,
) -> "Certificate":
    """Adds to the certificate the layer at which each failed artifact deviates."""
    results = []
    for result, artifact in zip(certificate.artifacts, manifest.artifacts, strict=True):
        if result.outcome == "failed" and result.replays:
            path = folder / artifact.file.file
            path.write_bytes(store.read_file(manifest, artifact.file))
            departs_at = judge.departs_at(artifact, path) or ""
            result = result.model_copy(update={"departs_at": departs_at})
        results.append(result)
    return certificate.model_copy(update={"artifacts": tuple(results)})


def _judge(store: "ModelStore", manifest: "Manifest", folder: Path, keys: str) -> "RecipeJudge":
    """Returns the judge with the recipe's checkpoint and data.

    Raises:
        TrainingError: they are missing, or differ from those of the version.
        StoreError: its files are broken, or the recipe is from a remote store without a trusted
            signature: it names code to call.
    """
    from model_store.golden import read_golden
    from model_store.signatures.key_folder import KeyFolder, trusted_keys
    from training.auto.recipe_judge import RecipeJudge
    from training.publish import CHECKPOINT, RECIPE
    from training.recipe.file import parse_recipe

    if not store.is_local:
        store.signer(manifest, trusted_keys(KeyFolder(keys).trusted_folder))
    recipe, checkpoint = manifest.file(RECIPE), manifest.file(CHECKPOINT)
    if recipe is None or checkpoint is None:
        raise StoreError(
            f"{manifest.model} {manifest.version} has no {RECIPE} or no {CHECKPOINT}, so there is "
            "no test split to judge by; verify it without --data"
        )
    weights = folder / CHECKPOINT
    weights.write_bytes(store.read_file(manifest, checkpoint))
    text = store.read_text(manifest, recipe)
    golden = read_golden(store, manifest)
    return RecipeJudge(parse_recipe(text, RECIPE), manifest, weights, golden)


@contextlib.contextmanager
def _training_failures() -> Iterator[None]:
    with needing("train"):
        from training.errors import TrainingError

        with failing_with({TrainingError: 1}):
            yield


def _list(store: "ModelStore", manifest: "Manifest", as_json: bool) -> None:
    from model_store.certificates.certificates import certificates

    found = certificates(store, manifest)
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
    elif found:
        typer.echo("\n".join(list_lines(found)))
    else:
        title = f"{manifest.model} {manifest.version}"
        typer.echo(f"{title} has no certificate yet; use: flambeau verify {title}")


def _print(certificate: "Certificate", as_json: bool) -> None:
    if as_json:
        typer.echo(certificate.to_json(), nl=False)
    else:
        typer.echo("\n".join(certificate_lines(certificate)))


def _record(store: "ModelStore", manifest: "Manifest", certificate: "Certificate") -> None:
    from model_store.certificates.certificates import record

    path = record(store, manifest, certificate)
    typer.echo(f"recorded as {path}", err=True)


def _exit(certificate: "Certificate") -> None:
    if certificate.holds:
        return
    failed = [one.artifact for one in certificate.artifacts if one.outcome == "failed"]
    what = f"failed here: {', '.join(failed)}" if failed else "no artifact could be run here"
    typer.echo(f"error: {what}", err=True)
    raise typer.Exit(1)


def _say(artifact: str, done: int, total: int) -> None:
    typer.echo(f"{artifact} ({done + 1} of {total})", err=True)
