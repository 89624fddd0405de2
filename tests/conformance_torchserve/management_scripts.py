"""Calls of management: one by one, and in random orders that both servers get alike.

Rule: an order starts from the models that `servers.py` has from the start, and unregisters at its
end what it has registered.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from tests.conformance_torchserve.clients import Answer, Clients
from tests.conformance_torchserve.inference_scripts import GRPC, REST, Script, grpc, rest

TRIES = 3
ORDERED = ("walk", "tell")
"""Names of models in orders: one of the orders alone, and one of both versions."""


def manage(name: str, method: str, path: str, **query: object) -> Script:
    """Returns a script of one request to the port of management."""
    asked = f"{path}?{urlencode(query)}" if query else path
    return rest(name, method, asked, port="management")


def _broken(server: Clients) -> Answer:
    """Registers an archive whose workers do not start; TorchServe keeps it registered."""
    answer = _rest(
        "POST", "/models", server, url="broken.mar", initial_workers=1, synchronous="true"
    )
    _rest("DELETE", "/models/broken", server)
    return answer


SINGLE: Sequence[Script] = [
    manage("list", "GET", "/models"),
    manage("list, one", "GET", "/models", limit=1),
    manage("list, second page", "GET", "/models", limit=2, next_page_token=2),
    manage("list, none", "GET", "/models", limit=0),
    manage("list, all", "GET", "/models", limit=9),
    manage("list, beyond the end", "GET", "/models", next_page_token=99),
    manage("list, negative", "GET", "/models", limit=-1, next_page_token=-1),
    manage("list, no numbers", "GET", "/models", limit="x", next_page_token="y"),
    manage("list, too many", "GET", "/models", limit=1000),
    manage("describe", "GET", "/models/tell"),
    manage("describe, version", "GET", "/models/tell/1.0"),
    manage("describe, all", "GET", "/models/tell/all"),
    manage("describe, unknown version", "GET", "/models/tell/9.9"),
    manage("describe, unknown model", "GET", "/models/nope"),
    manage("describe, unknown model, all", "GET", "/models/nope/all"),
    manage("describe, customized", "GET", "/models/eager", customized="true"),
    manage("describe, customized by none", "GET", "/models/tell", customized="true"),
    manage("describe, customized by text", "GET", "/models/module", customized="true"),
    manage("describe, customized, unknown", "GET", "/models/nope", customized="true"),
    manage("describe, too many segments", "GET", "/models/tell/1.0/x"),
    manage("register, no URL", "POST", "/models"),
    manage("register, empty URL", "POST", "/models", url=""),
    manage("register, missing archive", "POST", "/models", url="none.mar"),
    manage("register, text", "POST", "/models", url="text.mar"),
    manage("register, outside", "POST", "/models", url="../text.mar"),
    manage("register, absolute", "POST", "/models", url="/etc/passwd"),
    manage("register, unknown scheme", "POST", "/models", url="ftp://127.0.0.1/a.mar"),
    manage("register, refused connection", "POST", "/models", url="http://127.0.0.1:9/a.mar"),
    manage("register, runtime", "POST", "/models", url="tell.mar", runtime="cobol"),
    manage("register, twice", "POST", "/models", url="tell.mar"),
    Script("register, broken", REST, lambda server: _broken(server)),
    manage("scale, unknown model", "PUT", "/models/nope"),
    manage("scale, unknown version", "PUT", "/models/tell/9.9"),
    manage("scale, most below least", "PUT", "/models/tell", min_worker=3, max_worker=1),
    manage("scale, no number", "PUT", "/models/module", min_worker="x", synchronous="true"),
    manage("default, unknown model", "PUT", "/models/nope/1.0/set-default"),
    manage("default, unknown version", "PUT", "/models/tell/9.9/set-default"),
    manage("default, no version", "PUT", "/models/tell/set-default"),
    manage("default, the same", "PUT", "/models/tell/1.0/set-default"),
    manage("unregister, unknown model", "DELETE", "/models/nope"),
    manage("unregister, unknown version", "DELETE", "/models/tell/9.9"),
    manage("unregister, nothing", "DELETE", "/models"),
    manage("management by PATCH", "PATCH", "/models/tell"),
    manage("management by POST of a model", "POST", "/models/tell"),
    grpc("list", "management", "ListModels", limit=2),
    grpc("list, no limit", "management", "ListModels"),
    grpc("list, second page", "management", "ListModels", limit=3, next_page_token=3),
    grpc("list, negative", "management", "ListModels", limit=-1, next_page_token=-1),
    grpc("describe", "management", "DescribeModel", model_name="tell"),
    grpc("describe, version", "management", "DescribeModel", model_name="tell",
         model_version="1.0"),
    grpc("describe, all", "management", "DescribeModel", model_name="tell", model_version="all"),
    grpc("describe, unknown model", "management", "DescribeModel", model_name="nope"),
    grpc("describe, no model", "management", "DescribeModel"),
    grpc("describe, unknown version", "management", "DescribeModel", model_name="tell",
         model_version="9.9"),
    grpc("describe, customized", "management", "DescribeModel", model_name="eager",
         customized=True),
    grpc("describe, customized, unknown", "management", "DescribeModel", model_name="nope",
         customized=True),
    grpc("register, no URL", "management", "RegisterModel"),
    grpc("register, missing archive", "management", "RegisterModel", url="none.mar"),
    grpc("register, text", "management", "RegisterModel", url="text.mar"),
    grpc("register, runtime", "management", "RegisterModel", url="tell.mar", runtime="cobol"),
    grpc("register, twice", "management", "RegisterModel", url="tell.mar"),
    grpc("scale, unknown model", "management", "ScaleWorker", model_name="nope"),
    grpc("scale, no model", "management", "ScaleWorker"),
    grpc("scale, unknown version", "management", "ScaleWorker", model_name="tell",
         model_version="9.9"),
    grpc("scale, most below least", "management", "ScaleWorker", model_name="tell",
         min_worker=3, max_worker=1),
    grpc("default, unknown model", "management", "SetDefault", model_name="nope",
         model_version="1.0"),
    grpc("default, unknown version", "management", "SetDefault", model_name="tell",
         model_version="9.9"),
    grpc("default, the same", "management", "SetDefault", model_name="tell",
         model_version="1.0"),
    grpc("unregister, unknown model", "management", "UnregisterModel", model_name="nope"),
    grpc("unregister, no model", "management", "UnregisterModel"),
    grpc("unregister, unknown version", "management", "UnregisterModel", model_name="tell",
         model_version="9.9"),
]  # fmt: skip

Step = tuple[str, str, Callable[[Clients], Answer]]
"""Name, protocol and call."""


def walk(chance: random.Random, count: int) -> Iterator[Step]:
    """Yields the steps of an order, and those that undo it."""
    for _ in range(count):
        name, over, call = chance.choice(_KINDS)(chance)
        yield name, over, call
    for model in ORDERED:
        for version in ("2.0", "1.0"):
            path = f"/models/{model}/{version}"
            yield "undo", REST, partial(_rest, "DELETE", path)
            yield "undo", REST, partial(_rest, "PUT", f"/models/{model}/1.0/set-default")
            yield "undo", REST, partial(_rest, "DELETE", path)
    yield "undo", REST, _restored
    yield "undo", REST, partial(_rest, "GET", "/models/tell/all")


def _restored(server: Clients) -> Answer:
    """Registers `tell` again; TorchServe's workers do not always start on a busy machine."""
    for _ in range(TRIES):
        answer = _rest("POST", "/models?url=tell.mar&synchronous=true", server)
        if answer.code == "200":
            break
        _rest("DELETE", "/models/tell", server)
    return answer


def _rest(method: str, path: str, server: Clients, **query: object) -> Answer:
    asked = f"{path}?{urlencode(query)}" if query else path
    return server.rest(method, asked, port="management")


def _model(chance: random.Random) -> str:
    return chance.choice((*ORDERED, "nope"))


def _version(chance: random.Random) -> str:
    return chance.choice(("", "", "1.0", "2.0", "3.0"))


def _over(
    chance: random.Random,
    name: str,
    by_rest: Callable[[Clients], Answer],
    by_grpc: Callable[[Clients], Answer],
) -> Step:
    """Returns a step over a random protocol."""
    over = chance.choice((REST, GRPC))
    return name, over, by_rest if over == REST else by_grpc


def _path(model: str, version: str) -> str:
    return f"/models/{model}/{version}" if version else f"/models/{model}"


def _register(chance: random.Random) -> Step:
    url = chance.choice(("tell.mar", "second.mar", "second.mar", "none.mar"))
    workers = chance.choice((0, 0, 1))
    model = chance.choice(("walk", "tell"))
    fields: dict[str, Any] = {"url": url, "model_name": model, "initial_workers": workers}
    fields |= {"batch_size": chance.choice((1, 4)), "max_batch_delay": chance.choice((50, 100))}
    sync = {**fields, "synchronous": "true"}
    return _over(
        chance,
        f"register {fields}",
        lambda server: _rest("POST", "/models", server, **sync),
        lambda server: server.grpc("management", "RegisterModel", synchronous=True, **fields),
    )


def _scale(chance: random.Random) -> Step:
    model, version = _model(chance), _version(chance)
    least, most = chance.choice(((0, 0), (1, 1), (1, 2), (2, 1)))
    return _over(
        chance,
        f"scale {model} {version} {least} {most}",
        lambda server: _rest(
            "PUT", _path(model, version), server,
            min_worker=least, max_worker=most, synchronous="true",
        ),
        lambda server: server.grpc(
            "management", "ScaleWorker", model_name=model, model_version=version,
            min_worker=least, max_worker=most, synchronous=True,
        ),
    )  # fmt: skip


def _describe(chance: random.Random) -> Step:
    model, version = _model(chance), chance.choice((_version(chance), "all"))
    return _over(
        chance,
        f"describe {model} {version}",
        partial(_rest, "GET", _path(model, version)),
        lambda server: server.grpc(
            "management", "DescribeModel", model_name=model, model_version=version
        ),
    )


def _default(chance: random.Random) -> Step:
    model, version = _model(chance), chance.choice(("1.0", "2.0", "3.0"))
    return _over(
        chance,
        f"default {model} {version}",
        partial(_rest, "PUT", f"/models/{model}/{version}/set-default"),
        lambda server: server.grpc(
            "management", "SetDefault", model_name=model, model_version=version
        ),
    )


def _unregister(chance: random.Random) -> Step:
    model, version = _model(chance), _version(chance)
    return _over(
        chance,
        f"unregister {model} {version}",
        partial(_rest, "DELETE", _path(model, version)),
        lambda server: server.grpc(
            "management", "UnregisterModel", model_name=model, model_version=version
        ),
    )


def _predict(chance: random.Random) -> Step:
    model, version = _model(chance), _version(chance)
    path = f"/predictions/{model}" + (f"/{version}" if version else "")
    return _over(
        chance,
        f"predict {model} {version}",
        lambda server: server.rest("POST", path, b"abc"),
        lambda server: server.grpc(
            "inference", "Predictions", model_name=model, model_version=version,
            input={"data": b"abc"},
        ),
    )  # fmt: skip


def _list(chance: random.Random) -> Step:
    limit, page = chance.choice((1, 3, 50)), chance.choice((0, 2))
    return _over(
        chance,
        f"list {limit} {page}",
        lambda server: _rest("GET", "/models", server, limit=limit, next_page_token=page),
        lambda server: server.grpc("management", "ListModels", limit=limit, next_page_token=page),
    )


_KINDS = (
    _register, _register, _scale, _describe, _describe, _default, _unregister, _predict, _predict,
    _list,
)  # fmt: skip
