"""The images: linted, pinned, to our rules. `make images-check` builds and starts them."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from deploy.lock import IMAGES, OWN_INDEX, TORCH, wanted_by
from deploy.sbom import bill_of_materials, read_pins
from tests.images.base_image import BaseImageError, make_base_image
from tests.images.dockerfile import DockerfileError, Stage, read_dockerfile
from tests.images.smoke import RECIPE
from training.recipe.file import validate_recipe
from training.recipe.targets import load_target

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
SERVICES = ("gateway", "inference", "registry", "trainer")
MODULES = {"registry": "registry_server"}
"""Packages of the services that are not named as their images."""
LOCKS = sorted((ROOT / "deploy/requirements").glob("*.txt"))
OF_TORCH = re.compile(r"torch|triton|torchao|onnxruntime.*|openvino|nncf|nvidia-.*")


def service(path: Path) -> str:
    return path.name.removesuffix(".Dockerfile")


def final_stage(path: Path, **arguments: str) -> Stage:
    return read_dockerfile(path, arguments)[-1]


def test_every_service_has_its_dockerfile() -> None:
    assert [service(path) for path in DOCKERFILES] == sorted(SERVICES)


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("no hadolint here; make test installs it with the extra dev")
    done = subprocess.run([program, *DOCKERFILES], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=service)
def test_an_image_starts_its_service_as_nobody_else(path: Path) -> None:
    stage = final_stage(path)
    assert stage.entry_point == [
        "python",
        "-P",
        "-m",
        f"services.{MODULES.get(service(path), service(path))}",
    ]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage.user), "Kubernetes wants numbers to see it"
    assert stage.health_check[:2] == ["python", "-c"]
    assert re.search(r":\d+\.\d+\.\d+-", stage.base), "the base is pinned by its version"
    compile(stage.health_check[2], "health check", "exec")


@pytest.mark.parametrize("path", DOCKERFILES, ids=service)
def test_an_image_is_built_in_the_python_it_ships(path: Path) -> None:
    build, final = read_dockerfile(path, {})
    assert final.base.replace("-slim-", "-") == build.base.replace("-slim-", "-")


def test_the_recipe_of_the_smoke_test_is_one_of_today() -> None:
    recipe = validate_recipe(yaml.safe_load(RECIPE), "smoke")
    load_target(recipe.model.target, "model.target")
    assert recipe.data.target is None, "data by its name, which the recipe's schema holds"


@pytest.mark.parametrize("path", DOCKERFILES, ids=service)
def test_an_image_is_labelled_with_the_version(path: Path) -> None:
    assert final_stage(path).arguments["VERSION"] == PROJECT["version"]
    assert path.read_text().count("org.opencontainers.image.") == 5


@pytest.mark.parametrize("path", DOCKERFILES, ids=service)
def test_what_an_image_copies_is_there_and_not_ignored(path: Path) -> None:
    kept = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for stage in read_dockerfile(path, {}):
        for step in stage.steps:
            if step.kind == "COPY" and not step.text.startswith("--from="):
                for source in step.text.split()[:-1]:
                    assert (ROOT / source).exists()
                    assert any(fnmatch.fnmatch(source, name) for name in kept), source


@pytest.mark.parametrize("path", DOCKERFILES, ids=service)
def test_everything_but_torch_is_installed_by_digest(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    installs = re.findall(r"pip .*?install (.*?)(?:&&|\n|$)", text)
    assert len(installs) >= 3
    for words in installs:
        ours = "wheels/*.whl" in words or '"$TORCH"' in words
        assert ours or "--require-hashes" in words, words


def test_the_dockerfiles_install_the_same_torch_as_make_does() -> None:
    shown = subprocess.run(
        ["make", "--silent", "--eval", "told: ; @echo $(TORCH)", "told"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert shown.stdout.split() == [TORCH]
    for name in ("inference", "trainer"):
        assert f"\nARG TORCH={TORCH}\n" in (ROOT / f"deploy/{name}.Dockerfile").read_text()


def test_without_debootstrap_the_base_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(BaseImageError, match="apt-get install debootstrap"):
        make_base_image(tmp_path / "base")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_instruction_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a:1\nONBUILD RUN true\n")
    with pytest.raises(DockerfileError, match="ONBUILD"):
        read_dockerfile(tmp_path / "Dockerfile", {})


def test_steps_see_variables_as_in_a_build(tmp_path: Path) -> None:
    lines = [
        "ARG A=1", "FROM x:${A} AS one", "ARG B=2", 'ENV C="${B} 3" D=4', "RUN echo \\", '  "$C"',
        "WORKDIR /${D}", "COPY a /${B}",
    ]  # fmt: skip
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    (stage,) = read_dockerfile(tmp_path / "Dockerfile", {"A": "7", "B": "5"})
    run, copy = stage.steps
    assert (stage.name, stage.base, stage.folder) == ("one", "x:7", "/4")
    assert (run.text, run.environment) == ('echo    "$C"', {"B": "5", "C": "5 3", "D": "4"})
    assert (copy.text, copy.folder) == ("a /5", "/4")


def test_there_is_a_lock_for_every_image() -> None:
    assert [path.stem for path in LOCKS] == sorted([*IMAGES, "build"])


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_has_all_that_pyproject_asks_for(image: str) -> None:
    pins = {
        name: version for name, version, _ in read_pins(ROOT / f"deploy/requirements/{image}.txt")
    }
    if image in OWN_INDEX:
        assert "torch" not in pins
        pins["torch"] = TORCH.partition("==")[2]
    for text in wanted_by(IMAGES[image], PROJECT):
        wanted = Requirement(text)
        name = wanted.name.lower().replace("_", "-")
        assert wanted.specifier.contains(pins.get(name, "0")), f"{text}: run make lock-images"


@pytest.mark.parametrize("image", ["gateway-keys", "gateway-auth", "registry"])
def test_a_process_without_models_has_no_torch_and_no_runtime(image: str) -> None:
    names = [name for name, _, _ in read_pins(ROOT / f"deploy/requirements/{image}.txt")]
    assert [name for name in names if OF_TORCH.fullmatch(name)] == []


@pytest.mark.parametrize("image", sorted(OWN_INDEX | {"inference-onnx"}))
def test_images_for_the_cpu_lock_nothing_of_cuda(image: str) -> None:
    names = [name for name, _, _ in read_pins(ROOT / f"deploy/requirements/{image}.txt")]
    assert [name for name in names if re.match(r"nvidia-|cuda-|triton", name)] == []


def test_a_bill_of_materials_has_every_pin() -> None:
    found = bill_of_materials("inference-torch", "1.2.3")
    components = found["components"]
    assert isinstance(components, list)
    by_name = {component["name"]: component for component in components}
    for name, version, digest in read_pins(ROOT / "deploy/requirements/inference-torch.txt"):
        assert by_name[name]["purl"] == f"pkg:pypi/{name}@{version}"
        assert by_name[name]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert by_name["torch"]["version"] == TORCH.partition("==")[2]


def test_a_line_without_a_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("numpy==2.4.6\n")
    with pytest.raises(ValueError, match="has no digest"):
        read_pins(tmp_path / "x.txt")
