"""The shared memory calls.

Status and unregister always answer; register is refused where shared memory is off, and for CUDA.
Source: Triton's system and CUDA shared memory extensions.
"""

from collections.abc import AsyncIterator

from google.protobuf.message import Message

from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.errors import UnsupportedError
from services.gateway.shared_regions.region_table import Region
from services.gateway.shared_regions.regions import SharedRegions, unknown_region

SYSTEM, CUDA = "system", "cuda"
_SHOWN = 128
_A_PART = 64
"""Regions in a part of a response."""


class SystemMemory:
    """The calls of system shared memory.

    Args:
        regions: regions of callers; None where shared memory is off.
    """

    def __init__(self, regions: SharedRegions | None) -> None:
        self._regions = regions

    async def status(
        self, request: pb.SystemSharedMemoryStatusRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Yields the caller's regions, or one of them."""
        found: list[Region] = []
        if self._regions is not None:
            found = self._regions.status(principal.name, request.name)
        elif request.name:
            raise unknown_region(request.name, SYSTEM)
        yield pb.SystemSharedMemoryStatusResponse()
        for start in range(0, len(found), _A_PART):
            response = pb.SystemSharedMemoryStatusResponse()
            for one in found[start : start + _A_PART]:
                told = response.regions[one.name]
                told.name, told.key = one.name, one.key
                told.offset, told.byte_size = one.offset, one.byte_size
            yield response

    def registrar(self, name: str) -> SharedRegions:
        """Returns the regions, to which one of a name may be added.

        Raises:
            UnsupportedError: shared memory is off.
        """
        if self._regions is None:
            raise UnsupportedError(
                f"failed to register system shared memory region '{name[:_SHOWN]}': this server "
                "takes no tensors from shared memory (shared_memory_objects is empty); send them "
                "with the request"
            )
        return self._regions

    async def register(
        self, request: pb.SystemSharedMemoryRegisterRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Registers a region, and yields the response."""
        regions = self.registrar(request.name)
        place = request.key, request.offset, request.byte_size
        await regions.register(principal.name, request.name, *place)
        yield pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Unregisters a region or all of the caller; one that does not exist need not be."""
        if self._regions is not None:
            await self._regions.unregister(principal.name, request.name)
        yield pb.SystemSharedMemoryUnregisterResponse()


async def cuda_status(
    request: pb.CudaSharedMemoryStatusRequest, _: Principal
) -> AsyncIterator[Message]:
    """Yields the regions: there are none."""
    if request.name:
        raise unknown_region(request.name, CUDA)
    yield pb.CudaSharedMemoryStatusResponse()


async def cuda_register(
    request: pb.CudaSharedMemoryRegisterRequest, _: Principal
) -> AsyncIterator[Message]:
    """Refuses a region."""
    yield _refused(request.name)


async def cuda_unregister(
    _: pb.CudaSharedMemoryUnregisterRequest, __: Principal
) -> AsyncIterator[Message]:
    """Yields the response, likewise."""
    yield pb.CudaSharedMemoryUnregisterResponse()


def _refused(name: str) -> Message:
    raise UnsupportedError(
        f"failed to register cuda shared memory region '{name[:_SHOWN]}': this server takes no "
        "tensors from shared memory of CUDA; use system shared memory, or send them with the "
        "request"
    )
