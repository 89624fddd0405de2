"""How a backend runs an artifact: one record, from the settings to the runtime.

It goes whole through the loader, the channel to a process of its own, a Python step and
certification, so that a field added here reaches the runtime without any of them being told.
"""

from dataclasses import dataclass, field

from services.inference.backends.device import CPU, Device
from services.inference.backends.onnx_providers import OnnxOnGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Where and with what a backend runs."""

    device: Device = CPU
    threads: int = 1
    """CPU threads a run may use."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Sizes batches are padded up to, worth preparing for where a runtime can."""
    onnx_on_gpu: OnnxOnGpu = field(default_factory=OnnxOnGpu)
    """What runs ONNX artifacts on a GPU."""

    @property
    def runs_in_the_calling_thread(self) -> bool:
        """Whether the thread that asks for a run does all of it: its CPU time is the run's."""
        return self.device == CPU and self.threads == 1
