"""Writes `dist/sbom/*.cdx.json`: the components of each image, for audits.

In: `deploy/requirements/*.txt` and the version in `pyproject.toml`. Out: a CycloneDX 1.6 document
(https://cyclonedx.org/docs/1.6/json/) for each image, reproducible for the same input: it has
neither a time nor a random serial number. The operating system's packages come from the base image,
and are not included; its publisher has a list of them.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

from deploy.lock import FOLDER, IMAGES, OWN_INDEX, ROOT, TORCH

_LINE = re.compile(r"(?P<name>[^=\s]+)==(?P<version>\S+) --hash=sha256:(?P<digest>[0-9a-f]{64})")


def main() -> int:
    """Writes the documents of all images. Returns the exit code."""
    folder = ROOT / "dist/sbom"
    folder.mkdir(parents=True, exist_ok=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for image in IMAGES:
        text = json.dumps(bill_of_materials(image, version), indent=2)
        (folder / f"{image}.cdx.json").write_text(f"{text}\n")
    print(f"{len(IMAGES)} in {folder.relative_to(ROOT)}")
    return 0


def bill_of_materials(image: str, version: str) -> dict[str, object]:
    """Builds the document of one image.

    Args:
        image: name of the image in `deploy.lock.IMAGES`.
        version: version of flambeau.

    Raises:
        ValueError: a line of its requirements is not pinned by version and digest.
    """
    components = [_component(*pinned) for pinned in read_pins(FOLDER / f"{image}.txt")]
    if image in OWN_INDEX:
        name, _, torch_version = TORCH.partition("==")
        components.append(_component(name, torch_version, ""))
    product = {**_component("flambeau", version, ""), "type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
    }


def read_pins(path: Path) -> list[tuple[str, str, str]]:
    """Reads name, version and sha256 (hexadecimal) of each line of a requirements file.

    Raises:
        ValueError: a line is not pinned.
    """
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path.name}: {line!r} has no digest; run make lock-images")
        found.append((match["name"], match["version"], match["digest"]))
    return found


def _component(name: str, version: str, digest: str) -> dict[str, object]:
    url = f"pkg:pypi/{name}@{version}"
    found: dict[str, object] = {
        "type": "library", "bom-ref": url, "name": name, "version": version, "purl": url,
    }  # fmt: skip
    if digest:
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return found


if __name__ == "__main__":
    sys.exit(main())
