"""Message classes of the client, from a descriptor pool of their own.

Generated stubs register their messages in protobuf's default pool, which accepts one definition of
a name, and are imported as `protos`. These classes do neither, so that a process may use
`tritonclient.grpc` beside the client, and a project may have a package `protos`.

`client_messages.binpb` is the FileDescriptorSet of `protos/`, which `make protos` writes.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

__all__ = ["inference", "jobs", "training"]

if TYPE_CHECKING:
    from protos import open_inference_pb2 as inference
    from protos.flambeau.v1 import jobs_pb2 as jobs
    from protos.flambeau.v1 import training_pb2 as training
else:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    _POOL = DescriptorPool()
    _DESCRIPTORS = Path(__file__).with_name("client_messages.binpb")
    for _file in FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        _POOL.AddSerializedFile(_file.SerializeToString())

    def _classes(file: str) -> SimpleNamespace:
        """Returns the classes of a file's messages, by name."""
        messages = _POOL.FindFileByName(file).message_types_by_name
        return SimpleNamespace(**{name: GetMessageClass(each) for name, each in messages.items()})

    inference = _classes("protos/open_inference.proto")
    jobs = _classes("protos/flambeau/v1/jobs.proto")
    training = _classes("protos/flambeau/v1/training.proto")
