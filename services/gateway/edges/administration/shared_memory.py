"""The shared memory calls, of a server that takes no tensors from a client's shared memory.

Status and unregister answer always, as there are no regions; register is refused.
"""

from collections.abc import AsyncIterator

from google.protobuf.message import Message

from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.errors import NotFoundError, UnsupportedError

SYSTEM, CUDA = "system", "cuda"
_SHOWN = 128


async def system_status(
    request: pb.SystemSharedMemoryStatusRequest, _: Principal
) -> AsyncIterator[Message]:
    """Yields the regions."""
    _check_unnamed(SYSTEM, request.name)
    yield pb.SystemSharedMemoryStatusResponse()


async def cuda_status(
    request: pb.CudaSharedMemoryStatusRequest, _: Principal
) -> AsyncIterator[Message]:
    """Yields the regions."""
    _check_unnamed(CUDA, request.name)
    yield pb.CudaSharedMemoryStatusResponse()


async def system_unregister(
    _: pb.SystemSharedMemoryUnregisterRequest, __: Principal
) -> AsyncIterator[Message]:
    """Yields the response: what does not exist need not be unregistered."""
    yield pb.SystemSharedMemoryUnregisterResponse()


async def cuda_unregister(
    _: pb.CudaSharedMemoryUnregisterRequest, __: Principal
) -> AsyncIterator[Message]:
    """Yields the response, likewise."""
    yield pb.CudaSharedMemoryUnregisterResponse()


async def system_register(
    request: pb.SystemSharedMemoryRegisterRequest, _: Principal
) -> AsyncIterator[Message]:
    """Refuses a region."""
    yield _refused(SYSTEM, request.name)


async def cuda_register(
    request: pb.CudaSharedMemoryRegisterRequest, _: Principal
) -> AsyncIterator[Message]:
    """Refuses a region."""
    yield _refused(CUDA, request.name)


def _check_unnamed(kind: str, name: str) -> None:
    if name:
        raise NotFoundError(f"Unable to find {kind} shared memory region: '{name[:_SHOWN]}'")


def _refused(kind: str, name: str) -> Message:
    raise UnsupportedError(
        f"failed to register {kind} shared memory region '{name[:_SHOWN]}': this server takes no "
        "tensors from shared memory; send them with the request"
    )
