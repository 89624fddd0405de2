"""The Helm chart, generated from the kustomizations: `make helm` writes deploy/helm/flambeau.

In: k8s/base and its components, rendered by `kubectl kustomize` with each component and without.
Out: a chart whose values switch the components, and set what overlays set.

Rules: nothing of an object is written here; what a component adds, changes or removes is the
difference of two renderings, under a condition. Components that only add objects are all rendered;
those that change objects are compared one by one, and must change different places or append.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/flambeau"
NAMESPACE, STORE = "flambeau", "s3://models/prod"
LABELS = {
    "app.kubernetes.io/instance": "flambeau",
    "app.kubernetes.io/part-of": "flambeau",
    "app.kubernetes.io/version": "0.1.0",
}
"""Labels that every overlay sets."""
HOSTS = {"grpc.inference.example.org": "grpcHost", "inference.example.org": "restHost"}
ADDING = {
    "registry": "registry",
    "hpa": "hpa",
    "gatewayApi": "gateway-api",
    "registryRoutes": "registry/gateway-api",
    "podMonitor": "pod-monitor",
    "modelRollouts": "model-rollouts",
}
"""Folders of components that only add objects, by value."""
CHANGING = {
    "storeS3": "store-s3",
    "storeVolume": "store-volume",
    "redisExternal": "redis-external",
    "access": "access",
    "tls": "tls",
}
"""Folders of components that change objects, by value."""
ON = {"storeS3", "access", "hpa", "gatewayApi", "podMonitor"}
"""Components of the default values: those of the overlay `cpu`."""
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
KEPT = {"CustomResourceDefinition", "PersistentVolumeClaim"}
"""Kinds that stay when the release is uninstalled: data, and objects with finalizers."""
SCALED = ("gateway", "inference")
"""Parts whose number of pods is a value, for a cluster without the component `hpa`."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """A template in place of a value; `is_block` for one that begins on its own line."""

    text: str
    is_block: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """An entry of a mapping or a list, under a condition; empty for none."""

    condition: str
    value: Any


@dataclass(frozen=True, slots=True)
class Choice:
    """A value with a condition, and the one without it."""

    condition: str
    then: Any
    otherwise: Any


def rendered(components: list[str]) -> list[Object]:
    """Returns the objects of the base with some components.

    Args:
        components: folders below k8s/components, in their order.
    """
    with tempfile.TemporaryDirectory(dir=ROOT / "k8s") as name:
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": NAMESPACE,
            "resources": ["../base"],
            "components": [f"../components/{folder}" for folder in components],
            "labels": [{"pairs": LABELS}],
            "generatorOptions": {"disableNameSuffixHash": True},
            "configMapGenerator": [
                {
                    "name": "flambeau-settings",
                    "behavior": "merge",
                    "literals": [f"STORE={STORE}"],
                    "options": {"disableNameSuffixHash": True},
                }
            ],
        }
        (Path(name) / "kustomization.yaml").write_text(yaml.safe_dump(document))
        command = ["kubectl", "kustomize", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def in_order(names: set[str]) -> list[str]:
    """Returns the folders of components by their values, in the order in which they are applied."""
    first = [name for name in ADDING if name == "registry"]
    later = [*CHANGING, *(name for name in ADDING if name != "registry")]
    return [(ADDING | CHANGING)[name] for name in [*first, *later] if name in names]


def key_of(found: Object) -> tuple[str, str]:
    """Returns kind and name of an object."""
    return found["kind"], found["metadata"]["name"]


def by_key(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Returns objects by kind and name."""
    return {key_of(found): found for found in objects}


def chart_objects() -> list[tuple[str, Object, Any]]:
    """Returns each object's condition, the object as it is rendered, and its template."""
    all_added = by_key(rendered(in_order(set(ADDING))))
    owners: dict[tuple[str, str], list[str]] = {key: [] for key in all_added}
    for name in ADDING:
        without = by_key(rendered(in_order(set(ADDING) - {name})))
        for key in all_added.keys() - without.keys():
            owners[key].append(enabled(name))
    changed = {name: by_key(rendered(in_order({*ADDING, name}))) for name in CHANGING}
    found = []
    for key in sorted({*all_added, *(key for one in changed.values() for key in one)}):
        conditions, base = list(owners.get(key, [])), all_added.get(key)
        variants = {enabled(name): one.get(key) for name, one in changed.items()}
        if base is None:
            ((condition, base),) = ((c, one) for c, one in variants.items() if one is not None)
            found.append((condition, base, templated(base)))
            continue
        removers = [condition for condition, one in variants.items() if one is None]
        conditions += [f"not {condition}" for condition in removers]
        kept = {c: templated(one) for c, one in variants.items() if one is not None}
        found.append((both(conditions), base, merged(templated(base), kept)))
    return found


def enabled(name: str) -> str:
    """Returns the condition of a component."""
    if name == "registryRoutes":
        return both([enabled("registry"), enabled("gatewayApi")])
    return f".Values.components.{name}"


def both(conditions: list[str]) -> str:
    """Returns the conjunction of conditions; empty for none."""
    known = list(dict.fromkeys(conditions))
    return (
        known[0] if len(known) == 1 else f"and {' '.join(map(bracketed, known))}" if known else ""
    )


def bracketed(condition: str) -> str:
    """Returns a condition as an operand."""
    return condition if " " not in condition else f"({condition})"


def templated(found: Object) -> Any:
    """Returns an object with values of the chart in place of what overlays set."""
    part = found["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")

    def replaced(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {name: replaced(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [replaced(item, path) for item in value]
        last = path[-1] if path else ""
        if last == "namespace" and value == NAMESPACE:
            return Text("{{ .Release.Namespace }}")
        if last == "app.kubernetes.io/managed-by":
            return Text("{{ .Release.Service }}")
        if last == "app.kubernetes.io/instance":
            return Text("{{ .Release.Name }}")
        if last == "app.kubernetes.io/version":
            return Text("{{ .Chart.AppVersion | quote }}")
        if last == "image":
            image = str(value).partition(":")[0].removeprefix("flambeau/")
            return Text(f"{{{{ .Values.images.{image} | quote }}}}")
        if value == STORE and path == ("data", "STORE"):
            return Text("{{ .Values.store | quote }}")
        if last == "gatewayClassName":
            return Text("{{ .Values.gateway.className | quote }}")
        if value in HOSTS:
            return Text(f"{{{{ .Values.gateway.{HOSTS[value]} | quote }}}}")
        return value

    made = replaced(found, ())
    if found["kind"] in KEPT:
        made["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    if found["kind"] in {"Deployment", "StatefulSet"}:
        with_values_of_pods(made, part, is_scaled=part in SCALED)
    return made


def value_name(part: str) -> str:
    """Returns the name of a part in the values."""
    head, *rest = part.split("-")
    return head + "".join(word.capitalize() for word in rest)


def with_values_of_pods(made: Any, part: str, *, is_scaled: bool) -> None:
    """Adds the values of a part's pods to its template: resources, arguments, number."""
    name = value_name(part)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["resources"] = Text(f"{{{{- toYaml .Values.resources.{name} | nindent N }}}}", True)
    if part != "redis":
        container["args"].append(Text(f"range .Values.arguments.{name}", True))
    if is_scaled:
        made["spec"]["replicas"] = Text(f"with .Values.replicas.{name}", True)
    made["spec"]["template"]["metadata"].setdefault("annotations", {})["checksum/settings"] = Text(
        "{{ .Values.store | sha256sum }}"
    )


def merged(base: Any, variants: dict[str, Any]) -> Any:
    """Returns a value with the differences of variants under their conditions."""
    different = {c: one for c, one in variants.items() if one != base}
    if not different:
        return base
    if isinstance(base, dict) and all(isinstance(one, dict) for one in different.values()):
        names = list(dict.fromkeys([*base, *(n for one in different.values() for n in one)]))
        return {name: merged_entry(name, base, different) for name in names}
    if isinstance(base, list) and all(isinstance(one, list) for one in different.values()):
        return merged_list(base, different)
    ((condition, one),) = different.items()
    return Choice(condition, one, base)


def merged_entry(name: str, base: Object, variants: dict[str, Object]) -> Any:
    """Returns an entry of a mapping that variants add, change or remove."""
    if name not in base:
        having = {c: one[name] for c, one in variants.items() if name in one}
        ((condition, value),) = having.items()
        return Part(condition, value)
    removers = [f"not {c}" for c, one in variants.items() if name not in one]
    kept = {c: one[name] for c, one in variants.items() if name in one}
    value = merged(base[name], kept)
    return Part(both(removers), value) if removers else value


def merged_list(base: list[Any], variants: dict[str, list[Any]]) -> Any:
    """Returns a list that variants extend, or whose items they change."""
    fixed, tail = list(base), []
    if fixed and isinstance(fixed[-1], Text):  # the chart's own arguments are the last ones
        tail = [fixed.pop()]
    bare = {c: one[: len(one) - len(tail)] for c, one in variants.items()}
    if all(len(one) >= len(fixed) for one in bare.values()):
        same = {c: one[: len(fixed)] for c, one in bare.items()}
        items = [
            merged(item, {c: one[place] for c, one in same.items()})
            for place, item in enumerate(fixed)
        ]
        added = [Part(c, item) for c, one in bare.items() for item in one[len(fixed) :]]
        return [*items, *added, *tail]
    ((condition, one),) = variants.items()
    return Choice(condition, one, base)


def lines_of(value: Any, indent: int) -> list[str]:
    """Returns the lines of a mapping or a list."""
    pad, found = " " * indent, []
    if isinstance(value, dict):
        for name, item in value.items():
            found += guarded(item, lambda inner, n=name: entry_lines(n, inner, indent))
        return found
    for item in value:
        if isinstance(item, Text) and item.is_block:
            found += [f"{{{{- {item.text} }}}}", f"{pad}- {{{{ . | quote }}}}", "{{- end }}"]
        else:
            found += guarded(item, lambda inner: item_lines(inner, indent))
    return found


def guarded(item: Any, write: Any) -> list[str]:
    """Returns the lines of an entry, within its condition."""
    if isinstance(item, Part):
        inner = write(item.value)
        return (
            [f"{{{{- if {item.condition} }}}}", *inner, "{{- end }}"] if item.condition else inner
        )
    if isinstance(item, Choice):
        return [
            f"{{{{- if {item.condition} }}}}", *write(item.then), "{{- else }}",
            *write(item.otherwise), "{{- end }}",
        ]  # fmt: skip
    return list(write(item))


def entry_lines(name: str, value: Any, indent: int) -> list[str]:
    """Returns the lines of an entry of a mapping."""
    pad, key = " " * indent, scalar(name)
    if isinstance(value, Text) and value.is_block:
        if value.text.startswith("with "):
            return [f"{{{{- {value.text} }}}}", f"{pad}{key}: {{{{ . }}}}", "{{- end }}"]
        return [f"{pad}{key}:", f"{pad}  {value.text.replace('N', str(indent + 2))}"]
    if isinstance(value, dict | list) and value:
        return [f"{pad}{key}:", *lines_of(value, indent + 2)]
    return [f"{pad}{key}: {scalar(value)}"]


def item_lines(value: Any, indent: int) -> list[str]:
    """Returns the lines of an item of a list."""
    pad = " " * indent
    if isinstance(value, dict | list) and value:
        first, *rest = lines_of(value, indent + 2)
        if first.startswith("{{"):
            return [f"{pad}-", first, *rest]
        return [f"{pad}- {first.strip()}", *rest]
    return [f"{pad}- {scalar(value)}"]


def scalar(value: Any) -> str:
    """Returns a value that fits one line of YAML, within a template of Helm."""
    if isinstance(value, Text):
        return value.text
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value, ensure_ascii=False).replace("{{", '{{ "{{" }}')


def values(objects: list[tuple[str, Object, Any]]) -> Object:
    """Returns the default values."""
    resources: Object = {}
    images: Object = {}
    arguments: Object = {}
    for _, found, _ in objects:
        if found["kind"] not in {"Deployment", "StatefulSet"}:
            continue
        name = value_name(found["metadata"]["labels"]["app.kubernetes.io/component"])
        (container,) = found["spec"]["template"]["spec"]["containers"]
        resources[name] = container["resources"]
        image = container["image"]
        images[image.partition(":")[0].removeprefix("flambeau/")] = image
        if name != "redis":
            arguments[name] = []
    return {
        "components": {
            name: name in ON for name in [*CHANGING, *ADDING] if name != "registryRoutes"
        },
        "images": images,
        "store": STORE,
        "gateway": {"className": "envoy", **{field: host for host, field in HOSTS.items()}},
        "replicas": dict.fromkeys(SCALED),
        "arguments": arguments,
        "resources": resources,
    }


def schema(value: Any) -> Object:
    """Returns the schema of default values: their names, and no others."""
    if isinstance(value, dict) and value:
        inner = {name: schema(item) for name, item in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": inner}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, str):
        return {"type": "string", "minLength": 1}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": ["integer", "null"], "minimum": 0}


def schema_of(defaults: Object) -> Object:
    """Returns the schema of all values; resources are Kubernetes' own."""
    found = schema(defaults)
    for name in found["properties"]["resources"]["properties"]:
        found["properties"]["resources"]["properties"][name] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **found}


def chart() -> dict[str, str]:
    """Returns the files of the chart by their paths within it."""
    objects = chart_objects()
    version = LABELS["app.kubernetes.io/version"]
    defaults = values(objects)
    made = "# By `make helm` from k8s/; change that, not this.\n"
    files = {
        "Chart.yaml": f"{made}apiVersion: v2\nname: flambeau\n"
        "description: Model serving for PyTorch\n"
        f'type: application\nversion: {version}\nappVersion: "{version}"\n'
        'kubeVersion: ">=1.30.0-0"\n',
        "values.yaml": made + yaml.safe_dump(defaults, sort_keys=False, width=100),
        "values.schema.json": json.dumps(schema_of(defaults), indent=2) + "\n",
    }
    for condition, found, template in objects:
        labels = found["metadata"].get("labels", {})
        part = labels.get("app.kubernetes.io/component", found["kind"].lower())
        text = "\n".join(["---", *lines_of(template, 0)])
        if condition:
            text = f"{{{{- if {condition} }}}}\n{text}\n{{{{- end }}}}"
        path = f"templates/{part}.yaml"
        files[path] = files.get(path, made) + text + "\n"
    return files


def write(folder: Path) -> None:
    """Writes the chart; files of an earlier one go."""
    made = chart()
    for old in folder.rglob("*"):
        if old.is_file() and str(old.relative_to(folder)) not in made:
            old.unlink()
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    write(CHART)
    print(f"wrote {CHART.relative_to(ROOT)}", file=sys.stderr)
