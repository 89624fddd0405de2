"""Handlers of archives, each in a process of its own, as a server runs them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.errors import DeviceError
from services.inference.loading.loader import LoadError
from tests.fixtures.model_archives import ECHO
from tests.fixtures.served_archives import ServedArchive, request_of

Serve = Callable[..., ServedArchive]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    opened: list[ServedArchive] = []

    def start(source: str, **how: Any) -> ServedArchive:
        (tmp_path / str(len(opened))).mkdir()
        opened.append(ServedArchive(tmp_path / str(len(opened)), source, **how))
        return opened[-1]

    yield start
    for one in opened:
        one.backend.close()


def test_a_class_answers_a_batch_row_by_row(serve: Serve) -> None:
    served = serve(ECHO)
    found = served.ask(request_of(b"one"), request_of(b"\0two", name="data"))
    assert [bytes(answer.body) for answer in found] == [b"one", b"\0two"]
    assert [answer.status for answer in found] == [200, 200]


def test_a_module_answers_and_is_initialized_by_none(serve: Serve) -> None:
    served = serve(
        """
        began = []

        def answer(data, context):
            if data is None:
                began.append(context.system_properties["batch_size"])
                return None
            return [f"{began} {bytes(row['body']).decode()}" for row in data]
    """,
        handler="handler.py:answer",
        batch_size=4,
    )
    assert bytes(served.ask(request_of(b"x"))[0].body) == b"[4] x"


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ('"text é"', "text é".encode()),
        ("bytearray(b'raw')", b"raw"),
        ("{'a': [1, 2]}", json.dumps({"a": [1, 2]}, indent=2).encode()),
        ("[1.5, None]", json.dumps([1.5, None], indent=2).encode()),
        ("7", b"7"),
    ],
)
def test_results_become_bodies(serve: Serve, value: str, body: bytes) -> None:
    served = serve(f"""
        def handle(data, context):
            return [{value} for _ in data or ()]
    """)
    assert bytes(served.ask(request_of())[0].body) == body


def test_parts_are_decoded_by_their_content_type(serve: Serve) -> None:
    served = serve("""
        def handle(data, context):
            return [repr(row["body"]) for row in data or ()]
    """)
    found = served.ask(
        request_of(b'{"a": 1}', "application/json"),
        request_of("é".encode(), "text/plain"),
        request_of(b"{", "application/json"),
        request_of(b"\xff", "text/plain"),
        request_of(b"[1]", "application/json; charset=utf-8"),
    )
    assert [bytes(answer.body).decode() for answer in found] == [
        "{'a': 1}", "'é'", "bytearray(b'{')", "bytearray(b'\\xff')", "bytearray(b'[1]')",
    ]  # fmt: skip


def test_the_context_gives_requests_and_takes_answers(serve: Serve) -> None:
    served = serve(
        """
        class Handler:
            def initialize(self, context):
                self.config = context.model_yaml_config["handler"]["greeting"]
                self.model = context.manifest["model"]["modelName"]

            def handle(self, data, context):
                found = []
                for row in range(len(data)):
                    context.set_response_status(code=201 + row, phrase="Made", idx=row)
                    context.set_response_header(row, "X-Row", str(row))
                    context.set_response_content_type(row, "text/x-greeting")
                    context.set_response_header(row, "X-Split", "a\\r\\nb: c")
                    name = context.get_request_header(row, "X-Name")
                    kind = context.get_all_request_header(row)["body"]["content-type"]
                    found.append(f"{self.config} {name} {kind} {context.get_request_id(row)}")
                context.metrics.add_counter("greetings", len(data))
                return found
    """,
        files={"config.yaml": "handler: {greeting: hello}"},
        configFile="config.yaml",
    )
    found = served.ask(
        request_of(b"", "image/png", id="a", headers={"X-Name": "Ada"}),
        request_of(b"", id="b", headers={"X-Name": "Grace"}),
    )
    assert [bytes(one.body) for one in found] == [b"hello Ada image/png a", b"hello Grace  b"]
    assert [(one.status, one.phrase) for one in found] == [(201, "Made"), (202, "Made")]
    assert found[1].headers == {"X-Row": "1", "content-type": "text/x-greeting"}
    measured = {one.name: one for one in found[0].measurements}
    assert (measured["greetings"].kind, measured["greetings"].value) == ("counter", 2.0)
    assert measured["greetings"].dimensions == {"ModelName": "m", "Level": "Model"}
    assert measured["PredictionTime"].unit == "ms"
    assert not found[1].measurements


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise ValueError('no')", 503, "Prediction failed"),
        ("raise MemoryError", 507, "Out of resources"),
        ("raise RuntimeError('CUDA out of memory')", 507, "Out of resources"),
        ("return 'text'", 503, "Invalid model predict output"),
        ("return [1, 2, 3]", 503, "number of batch response mismatched"),
        ("return [object()] * len(data)", 503, "Unsupported model output data type."),
        ("return [OddObject(a=1)] * len(data)", 503, "Unsupported model output data type."),
        ("context.set_response_header(1, 'a', Odd())\n"
         "            return ['x'] * len(data)", 503, "Prediction failed"),
        ("raise Odd", 503, "Prediction failed"),
        ("sys.exit(4)", 503, "Prediction failed"),
        ("class PredictionException(Exception):\n"
         "                message, error_code = 'bad word', 418\n"
         "            raise PredictionException", 418, "bad word"),
    ],
)  # fmt: skip
def test_failures_have_the_words_of_torchserve(
    serve: Serve, body: str, status: int, words: str
) -> None:
    served = serve(f"""
        import sys

        class Odd(Exception):
            def __str__(self):
                raise AttributeError("odd")

        class OddObject(dict):
            items = property(Odd.__str__)

        def handle(data, context):
            if data is None:
                return None
            {body}
    """)
    for _ in range(2):
        found = served.ask(request_of(), request_of())
        assert [(one.status, one.failure) for one in found] == [(status, words)] * 2


def test_a_handler_finds_its_files_and_modules(serve: Serve) -> None:
    served = serve("""
        import os

        import word_list
        from pkg.inner import DEEP

        def handle(data, context):
            here = context.system_properties["model_dir"]
            assert os.path.samefile(here, os.getcwd())
            return [word_list.WORDS + DEEP + open("words.txt").read() for _ in data or ()]
    """, files={"word_list.py": "WORDS = 'red '", "pkg/__init__.py": "",
                "pkg/inner.py": "DEEP = 'deep '", "words.txt": "green"})  # fmt: skip
    assert bytes(served.ask(request_of())[0].body) == b"red deep green"


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("import no_such_package_here", "needs the package 'no_such_package_here'"),
        ("import sys\n\nsys.modules['ts'] = None\nfrom ts.torch_handler import base_handler",
         r"torchserve\]"),
        ("x = 1", "has no function 'handle', and these classes: none"),
        ("class A: pass\n\nclass B: pass", "these classes: A, B"),
        ("class A: pass", "the class A of the handler 'handler.py' has no method 'handle'"),
        ("async def handle(data, context):\n    yield data",
         "'handle' of the handler 'handler.py' is an asynchronous generator"),
        ("raise SystemExit(3)", "does not load: SystemExit: 3"),
        ("def handle(data, context):\n    return 1 / 0",
         r"does not initialize: ZeroDivisionError: division by zero \(handler.py, line 2\)"),
    ],
)  # fmt: skip
def test_a_handler_that_does_not_start_is_named(serve: Serve, handler: str, reason: str) -> None:
    with pytest.raises(LoadError, match=reason):
        serve(handler)


ASYNC_FUNCTION = """
    import asyncio

    async def handle(data, context):
        await asyncio.sleep(0)
        return [b"async " + bytes(row["body"]) for row in data or ()]
"""
ASYNC_CLASS = """
    import asyncio

    class Async:
        async def initialize(self, context):
            self.words, self.loop = b"async ", asyncio.get_running_loop()

        async def handle(self, data, context):
            assert asyncio.get_running_loop() is self.loop
            if data[0]["body"] == b"raise":
                raise RuntimeError
            return [self.words + bytes(row["body"]) for row in data]
"""


@pytest.mark.parametrize("source", [ASYNC_FUNCTION, ASYNC_CLASS])
def test_an_asynchronous_handler_is_run_to_its_end(serve: Serve, source: str) -> None:
    served = serve(source)
    for _ in range(2):
        found = served.ask(request_of(b"a"), request_of(b"b"))
        assert [bytes(one.body) for one in found] == [b"async a", b"async b"]


def test_a_failure_of_an_asynchronous_handler_is_as_of_others(serve: Serve) -> None:
    served = serve(ASYNC_CLASS)
    (failed,) = served.ask(request_of(b"raise"))
    assert (failed.status, failed.failure) == (503, "Prediction failed")


def test_an_archive_with_a_module_of_the_servers_name_is_refused(serve: Serve) -> None:
    with pytest.raises(LoadError, match="has a module 'services'"):
        serve(ECHO, files={"services.py": ""})


MISCHIEF = """
    import os, sys, time

    def handle(data, context):
        for row in data or ():
            what = bytes(row["body"])
            if what == b"exit":
                sys.exit(3)
            if what == b"die":
                os._exit(3)
            if what == b"print":
                for _ in range(200):
                    print("x" * 50_000)
            if what == b"fork" and os.fork() == 0:
                return ["from a child"] * len(data)
        return ["fine"] * len(data or ())
"""


@pytest.mark.parametrize("what", ["print", "fork"])
def test_what_a_handler_does_beside_its_answer_harms_nobody(serve: Serve, what: str) -> None:
    served = serve(MISCHIEF)
    assert bytes(served.ask(request_of(what.encode()))[0].body) == b"fine"
    assert bytes(served.ask(request_of())[0].body) == b"fine"


def test_a_handler_that_exits_fails_its_batch(serve: Serve) -> None:
    served = serve(MISCHIEF)
    assert served.ask(request_of(b"exit"))[0].failure == "Prediction failed"
    assert bytes(served.ask(request_of())[0].body) == b"fine"
    with pytest.raises(DeviceError, match="exit code 3"):
        served.ask(request_of(b"die"))


def test_metrics_that_do_not_fit_are_dropped_and_counted(serve: Serve) -> None:
    served = serve("""
        class Dimension:
            name, value = "text", "\u00e9" * 250

        def handle(data, context):
            for row in data or ():
                for number in range(int(row["body"])):
                    context.metrics.add_gauge(f"g{number}", 1, dimensions=[Dimension])
                context.set_response_header(0, "x-long", "a" * int(row["body"]))
            return ["fine"] * len(data or ())
    """)
    for count in (1, 900, 1100, 1):
        (answer,) = served.ask(request_of(b"%d" % count))
        assert (answer.status, bytes(answer.body)) == (200, b"fine")
        assert len(answer.measurements) + answer.dropped == count + 1  # and PredictionTime
        assert (answer.dropped > 0) == (count > 1)


def test_answers_beyond_the_limit_fail_alone(serve: Serve) -> None:
    served = serve("""
        def handle(data, context):
            return [bytes(int(row["body"])) for row in data or ()]
    """)
    small, large, last = served.ask(
        request_of(b"10"), request_of(b"%d" % 2**26), request_of(b"20000000")
    )
    assert (len(small.body), small.status) == (10, 200)
    assert (len(large.body), large.status) == (0, 503)
    assert "more than 67,108,864 bytes" in large.failure
    assert last.status == 503
