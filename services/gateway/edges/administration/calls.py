"""The calls, one function each, for both protocols.

In: a request message and its caller. Out: response messages, which together are the response: the
parts of a long one, each made in some 0.1 ms.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.errors import ModelNotReadyError
from services.gateway.edges.administration.model_config import config_message
from services.gateway.edges.administration.repository import Repository
from services.gateway.edges.administration.running_settings import RunningSettings
from services.gateway.edges.administration.shared_memory import (
    SystemMemory,
    cuda_register,
    cuda_status,
    cuda_unregister,
)
from services.gateway.edges.administration.statistics import statistics_message
from services.gateway.request_accounting import RequestAccounting
from services.gateway.shared_regions.regions import SharedRegions
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion
from services.telemetry.model_figures import Figures, VersionFigures, added

FiguresSource = Callable[[str], Awaitable[Figures]]
"""Returns the figures of the whole server: of a model, or of all for an empty name."""
SEEN_AT_ONCE = 256
"""Models whose visibility is looked up in one turn of the event loop."""
Call = Callable[[Any, Principal], AsyncIterator[Message]]


class AdministrationCalls:
    """Answers the calls.

    Args:
        directory: versions that are served.
        accounting: counts refusals.
        figures: figures of the server; None for those of this process.
        repository: the models of the store; None for those of the directory alone.
        settings: settings of logs and traces; None for those of a server without traces.
        regions: shared memory of callers; None where it is off.
    """

    def __init__(
        self,
        directory: Directory,
        accounting: RequestAccounting,
        figures: FiguresSource | None = None,
        repository: Repository | None = None,
        settings: RunningSettings | None = None,
        regions: SharedRegions | None = None,
    ) -> None:
        self._directory = directory
        self._accounting = accounting
        self._figures = figures or self._own_figures
        self.repository = repository or Repository(directory)
        self.settings = settings or RunningSettings()
        self.system_memory = SystemMemory(regions)

    def calls(self) -> dict[str, tuple[Call, type[Message]]]:
        """Returns the function and the request message of each call, by the call's name."""
        repository, memory = self.repository, self.system_memory
        return {
            "ModelConfig": (self.config, pb.ModelConfigRequest),
            "ModelStatistics": (self.statistics, pb.ModelStatisticsRequest),
            "RepositoryIndex": (repository.index, pb.RepositoryIndexRequest),
            "RepositoryModelLoad": (repository.load, pb.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (repository.unload, pb.RepositoryModelUnloadRequest),
            "LogSettings": (self.log_settings, pb.LogSettingsRequest),
            "TraceSetting": (self.trace_settings, pb.TraceSettingRequest),
            "SystemSharedMemoryStatus": (memory.status, pb.SystemSharedMemoryStatusRequest),
            "SystemSharedMemoryRegister": (memory.register, pb.SystemSharedMemoryRegisterRequest),
            "SystemSharedMemoryUnregister": (
                memory.unregister, pb.SystemSharedMemoryUnregisterRequest,
            ),
            "CudaSharedMemoryStatus": (cuda_status, pb.CudaSharedMemoryStatusRequest),
            "CudaSharedMemoryRegister": (cuda_register, pb.CudaSharedMemoryRegisterRequest),
            "CudaSharedMemoryUnregister": (cuda_unregister, pb.CudaSharedMemoryUnregisterRequest),
        }  # fmt: skip

    async def config(
        self, request: pb.ModelConfigRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Yields the configuration of a version."""
        principal.require_seen(request.name)
        with self._accounting.counting_refusals():
            served, signature = self._directory.resolve(request.name, request.version)
        versions = self._directory.versions(request.name)
        yield pb.ModelConfigResponse(config=config_message(served, signature, versions))

    async def statistics(
        self, request: pb.ModelStatisticsRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Yields the statistics of a version, of all versions of a model, or of all models."""
        if request.name:
            principal.require_seen(request.name)
            counted = self._counted(request.name, request.version)
        else:
            counted = [one for one in self._directory.all_versions() if _counts(one)]
        figures = await self._figures(request.name)
        for number, served in enumerate(counted):
            model, version = served.lane.model, str(served.lane.version)
            if principal.sees(model):
                found = figures.get((model, version)) or VersionFigures(model, version)
                yield pb.ModelStatisticsResponse(model_stats=[statistics_message(found)])
            elif number % SEEN_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def log_settings(
        self, request: pb.LogSettingsRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Changes the settings that are given, and yields all."""
        given = {}
        for name, value in request.settings.items():
            kind = value.WhichOneof("parameter_choice")
            given[name] = getattr(value, kind) if kind else ""
        if given:
            await self.settings.set_logs(given, principal)
        response = pb.LogSettingsResponse()
        for name, setting in self.settings.logs().items():
            told = response.settings[name]
            if isinstance(setting, bool):
                told.bool_param = setting
            elif isinstance(setting, int):
                told.uint32_param = setting
            else:
                told.string_param = setting
        yield response

    async def trace_settings(
        self, request: pb.TraceSettingRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Changes the settings that are given, and yields all."""
        if request.model_name:
            principal.require_seen(request.model_name)
            self._directory.versions(request.model_name)  # unknown models are NOT_FOUND
        given = {name: list(setting.value) for name, setting in request.settings.items()}
        if given:
            await self.settings.set_traces(given, request.model_name, principal)
        response = pb.TraceSettingResponse()
        for name, values in self.settings.traces().items():
            response.settings[name].value.extend(values)
        yield response

    def _counted(self, model: str, version: str) -> list[ServedVersion]:
        """Returns the versions that statistics are asked for.

        Raises:
            UnknownModelError, UnknownVersionError: there is none.
            ModelNotReadyError: none is loaded.
        """
        found = [self._directory.find(model, version)] if version else None
        if found is None:
            self._directory.versions(model)  # unknown models are NOT_FOUND
            found = sorted(self._directory.of_model(model), key=lambda served: served.lane)
        counted = [served for served in found if _counts(served)]
        if not counted:
            reasons = "; ".join(served.reason or served.state for served in found)
            raise ModelNotReadyError(f"model '{model}' is not ready: {reasons}")
        return counted

    async def _own_figures(self, model: str) -> Figures:
        return added([self._accounting.metrics.figures.all(model)])


def _counts(served: ServedVersion) -> bool:
    """Returns True if a version has, or had, requests: also one that was unloaded as idle."""
    return served.state in ("ready", "unloaded")
