"""Options of `flambeau serve` for a server with TorchServe's API: TorchServe's own words."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

_PANEL = "TorchServe's API"

Torchserve = Annotated[
    bool,
    typer.Option(
        "--torchserve",
        help="Serve archives by TorchServe's API, on its ports, by its configuration.",
        rich_help_panel=_PANEL,
    ),
]
TsConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Its configuration.",
        show_default="$TS_CONFIG_FILE, or config.properties if there is one",
        rich_help_panel=_PANEL,
    ),
]
ModelStore = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the archives.",
        show_default="model_store of the configuration",
        rich_help_panel=_PANEL,
    ),
]
FirstModels = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        metavar="NAME=FILE",
        help="Archive to register at the start, or 'all'; several may follow, as for torchserve.",
        show_default="load_models of the configuration",
        rich_help_panel=_PANEL,
    ),
]
DisableTokenAuth = Annotated[
    bool,
    typer.Option("--disable-token-auth", help="Ask callers for no tokens.", rich_help_panel=_PANEL),
]
EnableModelApi = Annotated[
    bool,
    typer.Option(
        "--enable-model-api",
        help="Let callers register and unregister archives.",
        rich_help_panel=_PANEL,
    ),
]

IgnoredOptions = Annotated[
    bool,
    typer.Option(
        "--start",
        "--foreground",
        "--ncs",
        "--no-config-snapshots",
        help="Words of `torchserve --start`, without a meaning here.",
        hidden=True,  # four names of one option do not fit into the table of 80 columns
    ),
]


class TorchserveOptions(NamedTuple):
    """The values of these options."""

    config: Path | None
    model_store: Path | None
    models: list[str] | None
    disable_token_auth: bool
    enable_model_api: bool
    start: bool = False

    def given(self) -> list[str]:
        """Returns the options that were given, as users write them."""
        named = {
            "--ts-config": self.config,
            "--model-store": self.model_store,
            "--models": self.models,
            "--disable-token-auth": self.disable_token_auth,
            "--enable-model-api": self.enable_model_api,
            "--start": self.start,
        }
        return [option for option, value in named.items() if value]
