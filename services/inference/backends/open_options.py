"""Options with which a backend runs an artifact: one record, from the settings to the runtime.

The loader, the channel to a worker process, a Python step and certification pass it on as a whole,
so that a new field reaches the runtime without a change to any of them.
"""

from dataclasses import dataclass, field

from services.inference.backends.device import CPU, Device
from services.inference.backends.onnx_providers import OnnxOnGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """Device, threads and preferences of a backend."""

    device: Device = CPU
    threads: int = 1
    """CPU threads that a run may use."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Sizes that batches are padded up to; a runtime that can prepares for them."""
    onnx_on_gpu: OnnxOnGpu = field(default_factory=OnnxOnGpu)
    """Providers that run ONNX artifacts on a GPU."""

    @property
    def has_one_size(self) -> bool:
        """True if all batches are padded up to one size, unless they are larger."""
        return len(set(self.preferred_batch_sizes)) == 1

    @property
    def runs_in_the_calling_thread(self) -> bool:
        """True if the calling thread does all the work of a run: its CPU time is the run's."""
        return self.device == CPU and self.threads == 1
