"""The archives of a server with TorchServe's API under attack."""

from pathlib import Path

from tests.fixtures.exported_archives import export
from tests.fixtures.model_archives import write_archive
from tests.fixtures.onnx_models import linear, publish

_STREAM = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    def handle(data, context):
        if data is None:
            return None
        try:
            count, size = map(int, bytes(data[0].get("body", b"")).split())
        except ValueError:
            count, size = 1, 1
        for _ in range(count):
            sent = ["x" * size] * len(data)
            send_intermediate_predict_response(sent, context.request_ids, "Sent", 200, context)
        return ["end"] * len(data)
    """
_BROKEN = """
    class Broken:
        def initialize(self, context):
            raise RuntimeError("never")

        def handle(self, data, context):
            return data
    """


def write_archives(folder: Path) -> None:
    """Writes `calm`, for the healthy client, and the others.

    `echo`; `stream`, which answers as often as a request says; `broken`; one that is no zip; and
    `doubling`, an exported version: y = 2 * x, FP32 [4].
    """
    folder.mkdir(exist_ok=True)
    store = str(folder.parent / "exported")
    doubling = publish(store, "doubling", linear(2), max_batch_size=16)
    export(store, doubling, folder / "doubling.mar")
    write_archive(folder, name="calm")
    write_archive(folder, name="echo")
    write_archive(folder, _STREAM, name="stream")
    write_archive(folder, _BROKEN, name="broken")
    (folder / "junk.mar").write_bytes(b"PK\3\4junk")
