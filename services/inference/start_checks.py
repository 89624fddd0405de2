"""Compares settings with this machine before a server starts, so that no version fails for them.

In: the settings of a process that runs models. Out: nothing, or an error that names the setting.
"""

from model_store.errors import KeyFileError
from model_store.host.install_advice import install_command
from services.errors import DeviceError
from services.inference.backends.device import parse_device
from services.inference.config import InferenceSettings
from services.settings import ConfigError


def check_machine(config: InferenceSettings) -> None:
    """Checks that the device and the folder of trusted keys exist here.

    Raises:
        ConfigError: the device is a GPU that torch does not find, or the folder is missing.
    """
    try:
        config.trust().check_folder()
    except KeyFileError as error:
        raise ConfigError(str(error)) from error
    device = parse_device(config.device)
    if device.kind == "cpu":
        return
    try:
        from services.inference.backends.gpu.cuda_device import check_gpu

        check_gpu(device)
    except ImportError as error:
        raise ConfigError(
            f"device {device} needs torch, which is not installed; install a CUDA build of it "
            f"({install_command('serve')}), or serve on device cpu"
        ) from error
    except DeviceError as error:
        raise ConfigError(str(error)) from error
